"""Teaching a model chats: what is read, what is rendered, what counts, and what it learns."""

from __future__ import annotations

import json
import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from edgelm.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from edgelm.config import ModelConfig
from edgelm.data.batches import IGNORED
from edgelm.data.documents import Reading, cut
from edgelm.exporters.tokenizer_json import tokenizer_json
from edgelm.finetuning.chats import Chat, chats_in, holds_chats
from edgelm.finetuning.dpo import Pairs, PreferenceObjective, answer_logprobs, reference_margins
from edgelm.finetuning.lora import adapters, add_adapters, load_adapters, merged_weights
from edgelm.finetuning.rendering import Renderer, Row
from edgelm.finetuning.rows import ChatRows, HeldOutRows, ShuffledRows, save_rows
from edgelm.finetuning.templates import CHATML_TEMPLATE, widened, with_template
from edgelm.model import Transformer, causal_attention
from edgelm.training.config import RunConfig, resolve, resumed
from edgelm.training.report import Figures, Silent, read_figures
from edgelm.training.run import train
from edgelm_export.quantization.texts import chat_ids
from edgelm_runtime.errors import ConfigError, DataError, OptionError
from edgelm_runtime.text.chat_template import encode_chat
from edgelm_runtime.text.tokenizer_loading import byte_tokenizer

ASK, ANSWER = {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello."}
TOOLS = [{"type": "function", "function": {"name": "now", "parameters": {}}}]


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def lines(path: Path, *records: Any) -> Path:
    path.write_text("".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in records))
    return path


def read(path: Path, most_bad: int = 0) -> list[Chat]:
    reading = Reading(most_bad=most_bad)
    return [chat for piece in cut([path]) for _, chat in chats_in(piece, reading)]


RECORDS: dict[str, dict[str, Any]] = {
    "messages": {"messages": [ASK, ANSWER]},
    "messages with tools": {"messages": [ASK, ANSWER], "tools": TOOLS},
    "tools as text": {"messages": [ASK, ANSWER], "tools": json.dumps(TOOLS)},
    "ShareGPT": {"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello."}]},
    "ShareGPT in roles": {"conversations": [ASK, ANSWER]},
    "completion": {"prompt": "Hi", "completion": "Hello."},
    "completion as messages": {"prompt": [ASK], "completion": [ANSWER]},
    "alpaca": {"instruction": "Hi", "input": "", "output": "Hello."},
    "pair": {"prompt": "Hi", "chosen": "Hello.", "rejected": "No."},
    "pair of chats": {"chosen": [ASK, ANSWER], "rejected": [ASK, {"role": "assistant", "content": "No."}]},
}


@pytest.mark.parametrize("kind", RECORDS)
def test_chats_are_known_by_their_fields(tmp_path: Path, kind: str) -> None:
    for name, content in (
        ("a.jsonl", json.dumps(RECORDS[kind]) + "\n"),
        ("a.json", json.dumps([RECORDS[kind]], indent=1)),
    ):
        path = tmp_path / name
        path.write_text(content)
        (chat,) = read(path)
        assert chat.messages == [ASK, ANSWER]
        assert chat.tools == (TOOLS if "tools" in kind else None)
        assert (chat.rejected is not None) == kind.startswith("pair")
        assert holds_chats(path, Reading())


def test_a_system_message_and_an_input_are_kept(tmp_path: Path) -> None:
    path = lines(tmp_path / "a.jsonl", {"system": "S", "instruction": "Add.", "input": "1 2", "output": "3"})
    assert [message["content"] for message in read(path)[0].messages] == ["S", "Add.\n\n1 2", "3"]


BAD = {
    "line 2, has messages \\[\\]": {"messages": []},
    "role 'robot'": {"messages": [{"role": "robot", "content": "x"}, ANSWER]},
    "no assistant turn": {"messages": [ASK]},
    "only empty messages": {
        "messages": [{"role": "user", "content": ""}, {"role": "assistant", "content": ""}]
    },
    "message without content": {"messages": [ASK, {"role": "assistant", "content": 3}]},
    "a turn": {"conversations": [{"from": "cat", "value": "miau"}]},
    "is no chat: text": {"text": "plain"},
    "is no chat: null": None,
    "different questions": {"chosen": [ASK, ANSWER], "rejected": [ANSWER]},
    "is no JSON": '{"messages": [{"role": "us',
}


@pytest.mark.parametrize("words", BAD)
def test_a_bad_chat_is_named_by_its_line_or_left_out(tmp_path: Path, words: str) -> None:
    good = RECORDS["messages"]
    path = lines(tmp_path / "a.jsonl", good, BAD[words], good)
    with pytest.raises(DataError, match=f"line 2.*{words}" if "line" not in words else words):
        read(path)
    assert len(read(path, most_bad=1)) == 2


def test_plain_text_is_not_taken_for_chats(tmp_path: Path) -> None:
    for name, content in (
        ("a.txt", '{"messages": []}'), ("b.jsonl", '{"text": "x", "messages": []}'), ("c.json", '{"messages": 1}'),
        ("d.json", "[1, 2]"), ("e.jsonl", ""),
    ):  # fmt: skip
        (tmp_path / name).write_text(content)
        assert not holds_chats(tmp_path / name, Reading()), name


QWEN = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' and not loop.last and '</think>' in m.content %}{{ m.content.split('</think>')[-1] }}"
    "{% else %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
MARKED = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}{% generation %}{{ m.content }}"
    "<|im_end|>{% endgeneration %}\n{% else %}{{ m.content }}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TALK = [
    {"role": "system", "content": "Be kind."}, ASK, ANSWER, {"role": "user", "content": "<|im_end|>?"},
    {"role": "assistant", "content": "<think>hm</think>Bye, é."},
]  # fmt: skip


def renderer(template: str | None, **options: Any) -> Renderer:
    tokenizer, generation = with_template(byte_tokenizer(), {"end_ids": [256]}, "chatml")
    return Renderer.of(tokenizer, {**generation, "chat_template": template}, **options)


def counted_text(made: Renderer, row: Row) -> str:
    return made.tokenizer.decode([i for i, counted in zip(row.ids, row.counted, strict=True) if counted])


@pytest.mark.parametrize("template", [CHATML_TEMPLATE, MARKED], ids=["prefixes", "generation tags"])
def test_answers_count_with_their_end_token(template: str) -> None:
    made = renderer(template)
    (row,) = made.rows(TALK)
    assert counted_text(made, row) == "Hello.<|im_end|><think>hm</think>Bye, é.<|im_end|>"
    assert row.ids == encode_chat(TALK, template, made.tokenizer, made.special, False)
    assert counted_text(made, renderer(template, everything=True).rows(TALK)[0]) == made.tokenizer.decode(
        row.ids
    )


@pytest.mark.parametrize("template", [CHATML_TEMPLATE, QWEN, None])
def test_each_answer_follows_the_prompt_that_the_runtime_makes(template: str | None) -> None:
    made = renderer(template)
    talk = [*TALK[:2], {"role": "assistant", "content": "<think>a</think>Hello."}, *TALK[3:]]
    rows = made.rows(talk)
    answers = [index for index, message in enumerate(talk) if message["role"] == "assistant"]
    assert len(rows) == (1 if template == CHATML_TEMPLATE else 2)
    for row, index in zip(rows if len(rows) > 1 else rows * 2, answers, strict=True):
        prompt = encode_chat(talk[:index], template, made.tokenizer, made.special)
        assert row.ids[: len(prompt)] == prompt
        assert row.counted[len(prompt)] and not row.counted[len(prompt) - 1]
        assert row.ids[-1] in made.ends or row.counted.index(True) < len(row.ids)
    if template == QWEN:
        assert [counted_text(made, row) for row in rows] == [
            "<think>a</think>Hello.<|im_end|>",
            "<think>hm</think>Bye, é.<|im_end|>",
        ]
    if template is None:
        assert [counted_text(made, row) for row in rows] == [
            " <think>a</think>Hello.<|im_end|>", " <think>hm</think>Bye, é.<|im_end|>",
        ]  # fmt: skip


def test_transformers_counts_the_same_tokens(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    made = renderer(MARKED)
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer_json(made.tokenizer, None)))
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "tokenizer.json"))
    talk = [message for message in TALK if "<|" not in message["content"]]
    found = theirs.apply_chat_template(
        talk, chat_template=MARKED, tokenize=True, return_dict=True, return_assistant_tokens_mask=True
    )
    (row,) = made.rows(talk)
    assert row.ids == found["input_ids"]
    assert row.counted == [bool(counted) for counted in found["assistant_masks"]]


def test_what_follows_the_last_answer_is_left_out() -> None:
    made = renderer(CHATML_TEMPLATE)
    assert made.rows([*TALK, ASK]) == made.rows(TALK)


def rows_in(folder: Path, lengths: list[int]) -> ChatRows:
    save_rows(folder, (Row(list(range(size)), [False, *[True] * (size - 1)]) for size in lengths))
    return ChatRows.load(folder)


def test_rows_are_padded_and_pads_do_not_count(tmp_path: Path) -> None:
    rows = rows_in(tmp_path, [3, 5, 2])
    batch = rows.batch([0, 1])
    assert batch.inputs[0].tolist() == [[0, 1, 0, 0], [0, 1, 2, 3]]
    assert batch.targets.tolist() == [[1, 2, IGNORED, IGNORED], [1, 2, 3, 4]]
    assert batch.count == 6 and rows.count(1) == 4


@pytest.mark.parametrize(("size", "batch_size"), [(1, 4), (7, 4), (100, 8), (333, 8)])
def test_an_epoch_sees_every_row_once_like_lengths_together(
    tmp_path: Path, size: int, batch_size: int
) -> None:
    lengths = [2 + (number * 37) % 50 for number in range(size)]
    rows = rows_in(tmp_path, lengths)
    made = ShuffledRows(rows, range(size), batch_size, seed=3)
    orders = [
        [made._number(place) for place in range(epoch * size, (epoch + 1) * size)] for epoch in range(3)
    ]
    assert all(sorted(order) == list(range(size)) for order in orders)
    again = ShuffledRows(rows, range(size), batch_size, seed=3)
    assert [again._number(size + place) for place in range(size)] == orders[1]
    if size > 50:
        assert orders[0] != orders[1]
        spread = [
            max(lengths[n] for n in batch) - min(lengths[n] for n in batch)
            for at in range(0, 2 * size - batch_size, batch_size)
            for batch in [[made._number(place) for place in range(at, at + batch_size)]]
        ]
        assert sorted(spread)[len(spread) // 2] < 10


def test_held_out_rows_are_spread_over_all(tmp_path: Path) -> None:
    held_out = HeldOutRows(rows_in(tmp_path, [5] * 20), range(10, 20))
    assert held_out.numbers(10**9) == list(range(10, 20))
    assert held_out.numbers(1) == [10]
    assert held_out.numbers(12) == [10, 14, 19] or len(held_out.numbers(12)) == 3


def tiny(vocab_size: int = 259, **changes: Any) -> Transformer:
    torch.manual_seed(0)
    sizes = {
        "vocab_size": vocab_size, "context_length": 96, "width": 48, "num_layers": 2, "num_heads": 2,
        "position": "rotary",
    }  # fmt: skip
    return Transformer(ModelConfig(**{**sizes, **changes}))


def test_new_ids_begin_as_the_mean_and_change_nothing_else() -> None:
    for changes in ({}, {"tied_head": False, "head_bias": True}):
        model = tiny(**changes)
        larger = widened(model, 262)
        ids = torch.arange(20)[None]
        torch.testing.assert_close(larger(ids)[0][..., :259], model(ids)[0])
        torch.testing.assert_close(larger.token_embedding.weight[261], model.token_embedding.weight.mean(0))


def test_adapters_change_nothing_at_first_and_merge_exactly() -> None:
    model, ids = tiny(), torch.arange(40)[None]
    before = model(ids)[0].detach()
    add_adapters(model, 4, seed=1)
    torch.testing.assert_close(model(ids)[0], before)
    free = {name for name, weight in model.named_parameters() if weight.requires_grad}
    assert free and all(name.endswith((".down", ".up")) for name in free)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name in free:
                weight += 0.1 * torch.randn_like(weight)
    plain = tiny()
    plain.load_state_dict(merged_weights(model))
    assert (model(ids)[0] - before).abs().max() > 0.01
    torch.testing.assert_close(plain(ids)[0], model(ids)[0], rtol=1e-4, atol=1e-5)
    other = tiny()
    add_adapters(other, 4, seed=2)
    load_adapters(other, adapters(model))
    assert torch.equal(other(ids)[0], model(ids)[0])


def test_the_loss_of_a_pair_is_the_papers(tmp_path: Path) -> None:
    rows, model = rows_in(tmp_path, [4, 6, 5, 3]), tiny()
    reference = reference_margins(model, causal_attention, rows)
    objective = PreferenceObjective(model, causal_attention, beta=0.5)
    batch = Pairs(rows, reference).batch([0, 1])
    assert objective(*batch.inputs, 2.0).item() == pytest.approx(
        torch.log(torch.tensor(2.0)).item(), rel=1e-5
    )
    ids, targets = batch.inputs[:2]
    logprobs = model(ids)[0].log_softmax(-1)
    expected = [
        sum(
            logprobs[row, at, token].item()
            for at, token in enumerate(targets[row].tolist())
            if token != IGNORED
        )
        for row in range(4)
    ]
    assert answer_logprobs(model, causal_attention, ids, targets).tolist() == pytest.approx(
        expected, rel=1e-4
    )


def lessons(path: Path, count: int = 20) -> Path:
    things = [
        *("tea", "bread", "milk", "salt", "rice", "soap", "ink", "wool", "corn", "figs"),
        *("oats", "jam", "nuts", "peas", "eggs", "beer", "wine", "lard", "kale", "plum"),
    ]
    return lines(
        path, *({"prompt": f"{thing}?", "completion": f"{9 - number % 9} {thing[::-1]}"}
                for number, thing in enumerate(things[:count]))
    )  # fmt: skip


def start(folder: Path, **generation: Any) -> str:
    save_checkpoint(Checkpoint(tiny(257), byte_tokenizer(), {"end_ids": [256], **generation}), folder)
    return str(folder)


def teach(data: Path, init_from: str, **settings: Any) -> RunConfig:
    usual = {
        "chat_template": "chatml",
        "device": "cpu",
        "precision": "fp32",
        "batch_size": 4,
        "validations": 2,
    }
    return resolve("teach", {**usual, "data": (str(data),), "init_from": init_from, **settings})


class Notes(Silent):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def note(self, text: str) -> None:
        self.lines.append(text)


def test_what_was_taught_is_answered_from_the_exported_int4_file(tmp_path: Path) -> None:
    import edgelm
    from edgelm_export import export_checkpoint

    data, notes = lessons(tmp_path / "a.jsonl"), Notes()
    run = teach(data, start(tmp_path / "start"), epochs=60.0, learning_rate=4e-3)
    outcome = train(run, tmp_path / "run", reporter=notes)
    assert any(line.startswith("before training: held out") for line in notes.lines)
    taught = load_checkpoint(tmp_path / "run" / "last")
    assert taught.config.vocab_size == 259 and taught.generation["chat_template"] == CHATML_TEMPLATE
    assert taught.held_out and outcome.sample.startswith(taught.held_out[0]["messages"][0]["content"])
    export_checkpoint(taught, tmp_path / "a.onnx", kv_cache=True, dtype="int4")
    known = [json.loads(line) for line in data.read_text().splitlines()]
    held_out = [chat["messages"][0]["content"] for chat in taught.held_out]
    with edgelm.load(tmp_path / "a.onnx") as lm:
        right = [
            lm.chat([{"role": "user", "content": each["prompt"]}]).text.strip() == each["completion"]
            for each in known
            if each["prompt"] not in held_out
        ]
    assert sum(right) >= 0.9 * len(right)


def test_a_taught_model_is_quantised_by_its_own_held_out_chats(tmp_path: Path) -> None:
    import edgelm
    from edgelm_export import export_checkpoint

    tokenizer, generation = with_template(byte_tokenizer(), {"end_ids": [256]}, "chatml")
    chats = [
        {"messages": [ASK, {"role": "assistant", "content": f"Hello {number}."}]} for number in range(40)
    ]
    taught = Checkpoint(tiny(), tokenizer, generation, held_out=chats)
    notes: list[str] = []
    export_checkpoint(taught, tmp_path / "a.onnx", dtype="int8", report=notes.append)
    assert any("tokens of held-out chats.jsonl" in note for note in notes)
    with edgelm.load(tmp_path / "a.onnx") as lm:
        file = lm.info
    found = chat_ids(file, lines(tmp_path / "held-out.jsonl", *chats))
    assert [ids.tolist() for ids in found] == [
        renderer(CHATML_TEMPLATE).rows(c["messages"])[0].ids for c in chats
    ]
    with pytest.raises(OptionError, match="line 2"):
        chat_ids(file, lines(tmp_path / "bad.jsonl", chats[0], {"text": "x"}))


class Killing(Silent):
    """Ends the process, with no chance to save, after `step`."""

    def __init__(self, step: int) -> None:
        self.at = step

    def step(self, figures: Figures, progress: float, tokens_per_second: float, seconds_left: float) -> None:
        if figures.step == self.at:
            os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks a process to kill")
@pytest.mark.parametrize(
    "settings", [{}, {"lora": 4}, {"objective": "dpo"}, {"matrix_rate": 1e-3, "decay": "linear"}], ids=str
)
def test_a_run_that_is_killed_in_an_epoch_goes_on_alike(
    tmp_path: Path, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgelm.training.run.plot", lambda folder: None)
    records = [{"prompt": f"{n}?", "chosen": f"{n}!" * (n % 4 + 1), "rejected": "no"} for n in range(30)]
    if "objective" not in settings:
        records = [{"prompt": each["prompt"], "completion": each["chosen"]} for each in records]
    data, base = lines(tmp_path / "a.jsonl", *records), start(tmp_path / "start")
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    run = teach(data, base, epochs=2.0, validations=4, **settings)
    train(run, whole)
    child = os.fork()
    if not child:
        with suppress(BaseException):
            train(run, killed, reporter=Killing(6))
        os._exit(1)  # it should not have come to this
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    saved = len(read_figures(killed / "last"))
    rows = read_figures(whole)
    assert 0 < saved < 6 and saved * run.training.batch_size % 28, "not in the middle of an epoch"
    train(resumed(killed, {}, {}), killed, resume=True)
    assert [row.loss for row in read_figures(killed)] == [row.loss for row in rows] and len(rows) > 10
    assert rows[-1].loss < rows[0].loss
    assert set(load_checkpoint(killed).model.state_dict()) == set(tiny().state_dict())


@pytest.mark.parametrize(("settings", "rank"), [({}, 16), ({"lora": 0}, 0), ({"lora": 3}, 3)], ids=str)
def test_a_large_model_is_taught_by_adapters(
    tmp_path: Path, settings: dict[str, Any], rank: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgelm.training.run.plot", lambda folder: None)
    monkeypatch.setattr("edgelm.training.run._LARGE_MODEL", 1000)
    data = lines(tmp_path / "a.jsonl", *[{"prompt": f"{n}?", "completion": f"{n}!"} for n in range(9)])
    train(teach(data, start(tmp_path / "start"), steps=1, **settings), tmp_path / "run")
    assert resumed(tmp_path / "run", {}, {}).training.lora == rank


def test_a_long_chat_keeps_its_end(tmp_path: Path) -> None:
    data, notes = lines(tmp_path / "a.jsonl", *[{"prompt": "long " * 60, "completion": "yes"}] * 3), Notes()
    train(teach(data, start(tmp_path / "start"), steps=1), tmp_path / "run", reporter=notes)
    assert "3 chats are longer than the context, and keep their end" in notes.lines
    (tokens,) = (tmp_path / "run" / "tokens").iterdir()
    rows = ChatRows.load(tokens)
    assert rows.lengths().tolist() == [97] * 3 and rows.count(0) == 4


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"chat_template": "chatml"}, "holds no chats"),
        ({"objective": "dpo"}, "holds no chats"),
        ({"loss": "all"}, "loss"),
    ],
)
def test_settings_for_chats_are_refused_with_text(
    tmp_path: Path, settings: dict[str, Any], words: str
) -> None:
    (tmp_path / "a.txt").write_text("plain text\n" * 50)
    with pytest.raises(ConfigError, match=words):
        train(
            resolve(
                "teach", {"data": (str(tmp_path / "a.txt"),), "init_from": start(tmp_path / "s"), **settings}
            ),
            tmp_path / "run",
        )
