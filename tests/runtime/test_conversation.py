"""Conversations that remember, and forget the oldest exchange when the context is full."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from fakes import TINY, ScriptedDecoder, pieces_text

from edgelm_runtime import Conversation, LanguageModel, OptionError, Tokenizer, load

REPLY = " fine\nUser: never shown"


@pytest.fixture(scope="module")
def lm() -> Iterator[LanguageModel]:
    """Answers every question with " fine"; 120 tokens of context."""
    with load(TINY) as model:
        info = replace(model.info, config={"context_length": 120, "vocab_size": 260})
        yield LanguageModel(model._session, info, Polite(model))


class Polite(ScriptedDecoder):
    """Says REPLY after the last "Assistant:"."""

    def __init__(self, lm: LanguageModel) -> None:
        super().__init__([0], 260, 120)
        self.lm = lm
        self.reply = lm.tokenizer.encode(REPLY)

    def __call__(self, rows, counts):  # type: ignore[no-untyped-def]
        results = []
        for row, count in zip(rows, counts, strict=True):
            logits = self._logits(len(row), count)
            for index in range(count):
                text = self.lm.tokenizer.decode(row[: len(row) - count + 1 + index].tolist())
                made = self.lm.tokenizer.encode(text.rpartition("Assistant:")[2])
                logits[index, self.reply[len(made) % len(self.reply)]] = 20
            results.append(logits)
        return results


def test_questions_and_answers_are_remembered(lm: LanguageModel) -> None:
    talk = Conversation(lm, system="Be kind.")
    assert pieces_text(list(talk.ask("How?", max_new_tokens=20))) == " fine"
    assert pieces_text(list(talk.ask("And?", max_new_tokens=20))) == " fine"
    said = [message["content"] for message in talk.messages]
    assert said == ["Be kind.", "How?", "fine", "And?", "fine"]
    talk.reset()
    assert talk.messages == [{"role": "system", "content": "Be kind."}]


def test_an_answer_that_is_broken_off_is_kept_as_far_as_it_came(lm: LanguageModel) -> None:
    talk = Conversation(lm)
    answer = talk.ask("How?")
    assert pieces_text([next(answer) for _ in range(3)]) == " fin"
    answer.close()
    assert talk.messages[-1] == {"role": "assistant", "content": "fin"}


def test_the_oldest_exchanges_make_room_and_the_system_message_stays(lm: LanguageModel) -> None:
    talk = Conversation(lm, system="Be kind.")
    for number in range(9):
        assert pieces_text(list(talk.ask(f"Question {number}?", max_new_tokens=20))) == " fine"
        assert len(lm.chat_prompt(talk.messages)) < 120
    said = [message["content"] for message in talk.messages]
    assert said[0] == "Be kind." and said[-2:] == ["Question 8?", "fine"]
    assert talk.forgotten > 0 and len(said) == 1 + 2 * (9 - talk.forgotten)
    assert said[1] == f"Question {talk.forgotten}?"


def test_a_wrong_option_leaves_the_conversation_as_it_was(lm: LanguageModel) -> None:
    talk = Conversation(lm)
    for wrong in ({"temprature": 1}, {"max_new_tokens": "many"}):
        with pytest.raises(OptionError):
            talk.ask("How?", **wrong)
    assert talk.messages == []


def with_template(lm: LanguageModel, template: str, answer: str) -> LanguageModel:
    """A model that answers `answer`, special tokens included, and whose end token is the first."""
    tokenizer = Tokenizer(
        [bytes([byte]) for byte in range(256)], special={"<end>": 256, "[THINK]": 257, "[/THINK]": 258}
    )
    script = [*tokenizer.encode(answer, "all"), 256]
    generation = {"end_ids": [256], "chat_template": template}
    info = replace(
        lm.info,
        config={"context_length": 4096, "vocab_size": 259},
        tokenizer=tokenizer,
        generation=generation,
    )

    class Answering(ScriptedDecoder):
        """Begins its script anew after each prompt, which ends with a question mark."""

        def __call__(self, rows, counts):  # type: ignore[no-untyped-def]
            results = []
            for row, count in zip(rows, counts, strict=True):
                logits = np.zeros((count, 259), np.float32)
                for index in range(count):
                    seen = row[: len(row) - count + 1 + index].tolist()
                    logits[index, script[seen[::-1].index(ord("?"))]] = 10
                results.append(logits)
            return results

    return LanguageModel(lm._session, info, Answering([0], 259, 4096))


THINKING = (
    "{% for m in messages %}{% if m.role == 'user' %}{{ '(' + m.content }}"
    "{% else %}{{ ')' + m.content.split('[/THINK]')[-1] + eos_token }}{% endif %}{% endfor %}"
)


def test_special_tokens_are_hidden_from_a_reader_and_not_from_the_template(lm: LanguageModel) -> None:
    pytest.importorskip("jinja2")
    model = with_template(lm, THINKING, "[THINK]why[/THINK]fine")
    talk = Conversation(model)
    assert pieces_text(list(talk.ask("How?"))) == "whyfine"
    assert talk.messages[-1]["content"] == "[THINK]why[/THINK]fine"
    shown = pieces_text(list(talk.ask("And?", keep_special=True)))
    assert shown == talk.messages[-1]["content"] == "[THINK]why[/THINK]fine"
    assert model.tokenizer.decode(model.chat_prompt(talk.messages)) == "(How?)fine<end>(And?)fine<end>"
    question = [{"role": "user", "content": "How?"}]
    assert model.chat(question, keep_special=True).text == "[THINK]why[/THINK]fine"
    assert model.chat(question, keep_special=True, stop=["[/THINK]"]).text == "[THINK]why"
    assert model.chat(question).text == "whyfine"


def test_a_template_that_takes_no_system_message_is_found_at_the_start(lm: LanguageModel) -> None:
    pytest.importorskip("jinja2")
    strict = "{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}?"
    model = with_template(lm, strict, "fine")
    assert Conversation(model).messages == []
    with pytest.raises(OptionError, match=r"takes no system message.*no system role"):
        Conversation(model, system="Be kind.")
    for broken in ("{% for %}", "{{ raise_exception('never') }}", "{{ 'a' * 10**9 }}"):
        with pytest.raises(OptionError, match="chat template"):
            Conversation(with_template(lm, broken, "fine"), system="Be kind.")


def test_what_the_template_is_given_reaches_it(lm: LanguageModel) -> None:
    pytest.importorskip("jinja2")
    template = "{{ tools | tojson if tools else 'none' }}{{ mood }}{{ messages[-1].content }}?"
    model = with_template(lm, template, "fine")
    prompt = model.chat_prompt(
        [{"role": "user", "content": "x"}], tools=[{"name": "f"}], template_options={"mood": "!"}
    )
    assert model.tokenizer.decode(prompt) == '[{"name": "f"}]!x?'
    talk = Conversation(model)
    assert pieces_text(list(talk.ask("x", template_options={"mood": "calm"}))) == "fine"
    with pytest.raises(OptionError, match="takes no 'moood'"):
        talk.ask("x", template_options={"moood": "calm"})


def test_an_answer_that_was_begun_goes_on(lm: LanguageModel) -> None:
    begun = [{"role": "user", "content": "How?"}, {"role": "assistant", "content": "fin"}]
    assert lm.chat(begun, continue_final_message=True, max_new_tokens=9).text == "e"
    assert (
        lm.tokenizer.decode(lm.chat_prompt(begun, continue_final_message=True))
        == "User: How?\nAssistant: fin"
    )
