"""Settings of a run: presets, flags, what is refused, and the command line around it."""

from __future__ import annotations

import io
import math
import subprocess
import sys
import sysconfig
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any

import click
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import edgelm
from edgelm.checkpoint import SETTINGS as SAVED
from edgelm.checkpoint import load_checkpoint
from edgelm.cli import group
from edgelm.cli.train_command import command
from edgelm.cli.training_display import Display
from edgelm.config import ModelConfig
from edgelm.model import Transformer
from edgelm.training.config import TrainingConfig, resolve
from edgelm.training.report import Figures
from edgelm_runtime.assets import assets_folder
from edgelm_runtime.errors import (
    CheckpointError,
    ConfigError,
    DataError,
    OutputError,
    TokenizerError,
)

PRESETS = sorted({path.stem for path in assets_folder().glob("*.toml")} - {"teach"})
TINY = [
    "--width", "8", "--num-layers", "1", "--num-heads", "1", "--num-kv-heads", "1", "--context-length", "8",
    "--vocab-size", "270", "--steps", "2", "--batch-size", "2", "--device", "cpu", "--val-tokens", "32",
]  # fmt: skip


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_complete_and_say_themselves_again(name: str, tmp_path: Path) -> None:
    run = resolve(name)
    with torch.device("meta"):
        model = Transformer(run.model_config(run.training.vocab_size))
    (tmp_path / "again.toml").write_text(run.to_toml())
    assert resolve(tmp_path / "again.toml") == run
    if name == "python":
        assert sum(weight.numel() for weight in model.parameters()) < 8e6, (
            "the bundled file stays below 10 MB"
        )


def test_the_seed_preset_is_that_architecture() -> None:
    config = resolve("seed").model_config(100)
    assert (config.position, config.norm, config.activation) == ("learned", "layernorm", "relu")
    assert not config.qkv_bias and config.attention_bias and config.mlp_bias
    assert config.head_bias and not config.tied_head
    assert config.attention_scale == pytest.approx(config.head_dim**-0.5)
    assert (config.mlp_width, config.norm_eps) == (4 * config.width, 1e-5)


def test_settings_survive_toml(tmp_path: Path) -> None:
    odd = {"data": ('a "b"', "c\\d", "ü\n\x7f"), "tokens": 10**12, "compile": True, "clip": 0.0}
    scaling = {"kind": "linear", "factor": 2.0}
    run = resolve("tiny", odd, {"rope_scaling": scaling, "local_layers": [True, False], "sliding_window": 3})
    (tmp_path / SAVED).write_text(run.to_toml())
    again = resolve(tmp_path / SAVED)
    assert again == run
    assert again.training.data == odd["data"]
    assert (again.training.minutes, again.training.tokens) == (0.0, 10**12)


def test_every_setting_has_a_flag() -> None:
    flags = {parameter.name for parameter in command.params}
    settings = {item.name for item in fields(TrainingConfig)}
    architecture = {item.name for item in fields(ModelConfig)} - {
        # Patterns over the layers, and experts, whose load no training here balances: for a preset, or an import.
        "rope_scaling", "local_layers", "rotary_layers",
        "convolution_layers", "convolution_length", "convolution_bias",
        "num_experts", "experts_per_token", "normalize_experts", "shared_mlp_width",
    }  # fmt: skip
    # The command line gives --debug to every command that is called through it.
    assert flags - {"debug"} == settings | architecture | {"out", "preset", "resume", "overwrite"}


@pytest.mark.parametrize(
    ("settings", "model", "words"),
    [
        ({"steps": 5, "minutes": 1.0}, {}, "steps and minutes"),
        ({"learning_rate": math.nan}, {}, "learning_rate is nan"),
        ({"learning_rate": 0.0}, {}, "learning_rate is 0.0"),
        ({"minutes": math.inf}, {}, "minutes is inf"),
        ({"steps": -1}, {}, "steps is -1"),
        ({"batch_size": 0}, {}, "batch_size is 0"),
        ({"batch_size": 2.5}, {}, "batch_size is 2.5"),
        ({"beta2": 1.0}, {}, "beta2 is 1.0"),
        ({"holdout": 0.0}, {}, "holdout is 0.0"),
        ({"holdout": 0.9}, {}, "holdout is 0.9"),
        ({"final_fraction": 2.0}, {}, "final_fraction is 2.0"),
        ({"device": "tpu"}, {}, "device is 'tpu'"),
        ({"precision": "fp8"}, {}, "precision is 'fp8'"),
        ({"data": "text"}, {}, "data is 'text'"),
        ({"colour": 1}, {}, "unknown setting colour"),
        ({}, {"colour": 1}, "unknown model field colour"),
        ({}, {"vocab_size": 5}, "vocab_size is set under"),
        ({}, {"num_heads": 7}, "not a multiple of num_heads 7"),
        ({"init_from": "x"}, {"width": 8}, "width cannot be set"),
        ({"vocab_size": 1_000_000_000}, {}, "vocab_size is 1000000000"),
        ({"seed": 1 << 80}, {}, "seed is 12"),
        ({"seed": -1}, {}, "seed is -1"),
        ({"steps": 10**400}, {}, "steps is 1000"),
        ({"minutes": 10**400}, {}, "minutes is too large"),
        ({"epochs": math.nan}, {}, "epochs is nan"),
        ({"holdout": math.nan}, {}, "holdout is nan"),
        ({"data": [1]}, {}, "data is"),
        ({"weight": ["a.jsonl"]}, {}, "weight is 'a.jsonl'"),
        ({"weight": ["a.jsonl=0"]}, {}, "weight is 'a.jsonl=0'"),
        ({}, {"rope_theta": 0.0}, "rope_theta is 0.0"),
        ({}, {"attention_scale": math.nan}, "attention_scale is nan"),
        ({}, {"dropout": math.nan}, "dropout is nan"),
        ({}, {"norm_eps": math.inf}, "norm_eps is inf"),
        ({}, {"logit_softcap": -1.0}, "logit_softcap is -1.0"),
        ({}, {"embedding_scale": "x"}, "embedding_scale is 'x'"),
        ({}, {"gated_mlp": 3}, "gated_mlp is 3"),
        ({}, {"num_layers": 10**9}, "num_layers is 1000000000"),
        ({}, {"width": 10**9}, "width is 1000000000"),
    ],
)
def test_settings_that_cannot_be_are_refused(
    settings: dict[str, Any], model: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        resolve("small", settings, model)


@pytest.mark.parametrize(("content", "words"), [("steps = ", "not a preset"), (None, "no preset")])
def test_a_preset_that_is_none_is_refused(tmp_path: Path, content: str | None, words: str) -> None:
    path = tmp_path / "some.toml"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigError, match=words):
        resolve(path)


VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.binary(max_size=3),
    st.lists(st.one_of(st.integers(), st.text(max_size=3)), max_size=3),
    st.dictionaries(st.text(max_size=3), st.integers()),
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(st.sampled_from([item.name for item in fields(TrainingConfig)]), VALUES)
def test_a_setting_of_any_kind_is_taken_or_refused(name: str, value: object) -> None:
    with suppress(ConfigError):
        assert getattr(resolve("tiny", {name: value}).training, name) is not None


@settings(max_examples=300, deadline=None)
@given(st.sampled_from([item.name for item in fields(ModelConfig)]), VALUES)
def test_a_field_of_the_architecture_of_any_kind_is_taken_or_refused(name: str, value: object) -> None:
    with suppress(ConfigError):
        resolve("tiny", {}, {name: value})


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(PRESETS), st.floats(0, 1), st.binary(max_size=4))
def test_a_damaged_preset_is_a_preset_or_an_error(
    tmp_path_factory: pytest.TempPathFactory, name: str, where: float, damage: bytes
) -> None:
    content = (assets_folder() / f"{name}.toml").read_bytes()
    at = int(where * len(content))
    path = tmp_path_factory.mktemp("preset") / "a.toml"
    path.write_bytes(content[:at] + damage + content[at + 1 :])
    with suppress(ConfigError):
        resolve(path)


@pytest.mark.parametrize(
    "content",
    [
        b"a = " + b"[" * 50_000,
        b"\xff",
        b"model = 3",
        b"minutes = inf",
        b"steps = 1e999",
        b"[model]\nwidth = nan",
    ],
)
def test_a_preset_without_sense_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.toml").write_bytes(content)
    for preset in (tmp_path / "a.toml", tmp_path):
        with pytest.raises(ConfigError):
            resolve(preset)


def call(*arguments: str) -> None:
    group.main(list(arguments), prog_name="edgelm", standalone_mode=False)


@pytest.fixture
def text(tmp_path: Path) -> str:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text("one two three\n" * 30)
    return str(tmp_path / "in")


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ([], DataError, "no data"),
        (["MISSING"], DataError, "there is no data"),
        (["TEXT", "--context-length", "4000"], DataError, r"has \d+ tokens.* = 4001"),
        (["TEXT", "--include", "*.py"], DataError, "no file"),
        (["TEXT", "--vocab-size", "100"], ConfigError, "vocab_size is 100"),
        (["TEXT", "--batch-size", "3", "--accumulation", "2"], ConfigError, "multiple of 2"),
        (["TEXT", "--tokenizer", "klingon"], TokenizerError, "klingon"),
        (["TEXT", "--init-from", "IN", "--preset", "tiny"], ConfigError, "cannot be set with init_from"),
        (["TEXT", "--preset", "none"], ConfigError, "no preset none"),
        (["TEXT", "--resume"], CheckpointError, "no run to resume"),
        (["TEXT", "--width", "wide"], click.BadParameter, "not a valid integer"),
        (["TEXT/a.txt", "--out", "TEXT/a.txt/out"], OutputError, "cannot make the folder"),
    ],
)
def test_bad_input_is_named_and_leaves_no_run(
    text: str, tmp_path: Path, arguments: list[str], error: type[Exception], words: str
) -> None:
    out = tmp_path / "out"
    given = [argument.replace("TEXT", text) for argument in arguments]
    with pytest.raises(error, match=words):
        call("train", *TINY, "--out", str(out), *given)
    assert not (out / "last").exists() and not (out / SAVED).exists()
    assert not out.exists() or any(out.iterdir())


def test_a_run_is_replaced_only_when_asked_and_by_a_run_that_starts(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    arguments = ["train", *TINY, "--out", str(out)]
    call(*arguments, text)
    assert "edgelm export" in capsys.readouterr().out
    first = load_checkpoint(out).config
    with pytest.raises(OutputError, match="already holds a run"):
        call(*arguments, text)
    with pytest.raises(DataError):
        call(*arguments, "--overwrite", "missing")
    assert load_checkpoint(out).config == first
    call(*arguments, text, "--overwrite", "--width", "16")
    assert "are used again" in capsys.readouterr().err
    assert load_checkpoint(out).config.width == 16
    call("train", "--init-from", str(out), "--out", str(out), "--overwrite", "--steps", "1", text)
    assert load_checkpoint(out).origin["started_from"]["training"]["steps"] == 2


def test_errors_reach_the_user_as_one_line(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "edgelm", "train", "missing", "--out", str(tmp_path / "out")]
    path = {"PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run(command, capture_output=True, text=True, env=path, timeout=60)
    assert done.returncode == 1
    assert done.stderr.startswith("edgelm: there is no data missing; ") and done.stderr.count("\n") == 1


def test_the_demo_goes_from_text_to_completions(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = "def one(two):\n    return [two for three in two]\n" * 60
    (Path(text) / "a.py").write_text(lines)
    monkeypatch.setattr(sysconfig, "get_paths", lambda: {"stdlib": text})
    call("demo", "--out", str(tmp_path / "demo"), "--minutes", "0.02")
    shown = capsys.readouterr()
    assert "def read_json(path):" in shown.out and "edgelm run" in shown.out
    assert "Exporting" in shown.err and "largest error" in shown.err
    with edgelm.load(tmp_path / "demo" / "model.onnx") as lm:
        assert lm.tokenizer.vocab_size == lm.info.vocab_size
        trained = load_checkpoint(tmp_path / "demo")
        assert lm.logits(lm.tokenizer.encode("def one(")).shape[-1] == trained.config.vocab_size


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("stream", [io.StringIO(), Terminal()], ids=["log", "terminal"])
def test_the_display_shows_progress(stream: io.StringIO) -> None:
    row = {"tokens": 100, "seconds": 1.0, "learning_rate": 0.1, "loss": 2.5}
    with Display(stream) as display:
        display.note("begin")
        display.step(Figures(step=1, val_loss=2.25, val_bits_per_byte=1.5, **row), 0.5, 123.0, 61.0)
        for step in range(2, 100):
            display.step(Figures(step=step, **row), 0.6, 123.0, 61.0)
        display.step(Figures(step=100, **row), 1.0, 123.0, 0.0)
    lines = stream.getvalue().rstrip("\n").split("\n")
    assert lines[0] == "begin"
    for part in ("step 1 ", "50%", "1:01 left", "123 tokens/s", "loss 2.500", "held out 2.250"):
        assert part in lines[1]
    assert len(lines) <= 4, "a display that shows every step floods a log"
    assert "step 100" in lines[-1] and "held out 2.250" in stream.getvalue()
    assert ("\r" in stream.getvalue()) == stream.isatty()
