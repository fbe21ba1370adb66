"""Conversations that remember, and forget the oldest exchange when the context is full."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from fakes import TINY, ScriptedDecoder, pieces_text

from edgelm_runtime import Conversation, LanguageModel, OptionError, load

REPLY = " fine\nUser: never shown"


@pytest.fixture(scope="module")
def lm() -> Iterator[LanguageModel]:
    """Answers every question with " fine"; 120 tokens of context."""
    with load(TINY) as model:
        info = replace(model.info, config={"context_length": 120, "vocab_size": 260})
        yield LanguageModel(model._session, info, Polite(model))


class Polite(ScriptedDecoder):
    """Says REPLY behind the last "Assistant:"."""

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
