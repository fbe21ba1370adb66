"""Training runs at tiny sizes: they learn, resume exactly, divide exactly, and fail without harm."""

from __future__ import annotations

import math
import os
import shutil
import signal
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from edgelm.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from edgelm.config import ModelConfig
from edgelm.data import shards
from edgelm.model import Transformer
from edgelm.training.config import RunConfig, resolve, resumed
from edgelm.training.report import Figures, Silent, read_figures
from edgelm.training.run import Outcome, train
from edgelm_runtime.errors import CheckpointError, ConfigError, TrainingError
from edgelm_runtime.text.tokenizer_loading import byte_tokenizer

SIZES: dict[str, Any] = {"context_length": 16, "width": 16, "num_layers": 2, "num_heads": 2}
SETTINGS: dict[str, Any] = {
    "vocab_size": 280, "steps": 8, "batch_size": 4, "validations": 2, "val_tokens": 256, "device": "cpu",
    "precision": "fp32",
}  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("text")
    for number in range(40):
        lines = "".join(f"line {number * row} of {number}\n" for row in range(20))
        (folder / f"{number}.txt").write_text(lines)
    return str(folder)


def make_run(text: str, model: dict[str, Any] | None = None, **settings: Any) -> RunConfig:
    return resolve(None, {**SETTINGS, "data": (text,), **settings}, {**SIZES, **(model or {})})


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}


def losses(out: Path) -> list[tuple[float, ...]]:
    rows = read_figures(out)
    return [(row.step, row.tokens, row.learning_rate, row.loss, row.val_loss or 0) for row in rows]


def weights(out: Path, which: str = "last") -> dict[str, torch.Tensor]:
    return load_checkpoint(out / which).model.state_dict()


class Interrupting(Silent):
    """Sends Ctrl-C to this process when a step is reported."""

    def __init__(self, step: int) -> None:
        self.at = step

    def step(self, figures: Figures, progress: float, tokens_per_second: float, seconds_left: float) -> None:
        if figures.step == self.at:
            os.kill(os.getpid(), signal.SIGINT)


def test_a_run_learns_and_leaves_everything_behind(text: str, tmp_path: Path) -> None:
    run = make_run(text, steps=80, learning_rate=1e-2, batch_size=8, sample_prompt="line ")
    outcome = train(run, tmp_path)
    rows = read_figures(tmp_path)
    assert outcome.finished and outcome.measure is not None
    assert [row.step for row in rows] == list(range(1, 81))
    assert [row.step for row in rows if row.val_loss is not None] == [40, 80]
    assert rows[0].loss == pytest.approx(math.log(280), rel=0.05)
    assert outcome.measure.loss < 0.4 * rows[0].loss
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {
        "best", "last", "config.toml", "loss.csv", "loss.png", "sample.txt", "tokens", ".run.json", ".run.lock",
    }  # fmt: skip
    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "sample.txt").read_text().startswith("line ")

    checkpoint = load_checkpoint(tmp_path)
    assert checkpoint.tokenizer is not None
    assert checkpoint.generation == {"end_ids": [checkpoint.tokenizer.end_of_text]}
    about = checkpoint.origin["training"]
    assert about["val_loss"] == pytest.approx(outcome.measure.loss, abs=1e-4)
    assert about["val_bits_per_byte"] == pytest.approx(outcome.measure.bits_per_byte, abs=1e-4)
    assert (about["steps"], about["tokens"], about["config"]["data"]) == (80, 80 * 8 * 16, [Path(text).name])


def test_bits_per_byte_counts_the_bytes_behind_the_tokens(text: str, tmp_path: Path) -> None:
    outcome = train(make_run(text, tokenizer="bytes", steps=2), tmp_path)
    assert outcome.measure is not None
    bits = outcome.measure.loss / math.log(2)
    # A byte per token, but for the end-of-text tokens, which have none.
    assert 1.0 < outcome.measure.bits_per_byte / bits < 1.02


@pytest.mark.parametrize("settings", [{}, {"matrix_rate": 0.01, "decay": "linear", "cooldown": 0.5}], ids=str)
def test_ctrl_c_saves_and_resuming_gives_the_same_run(
    text: str, tmp_path: Path, settings: dict[str, Any]
) -> None:
    handler = signal.getsignal(signal.SIGINT)  # ignored where the tests run in the background
    run = make_run(text, {"dropout": 0.2}, accumulation=2, steps=12, validations=3, **settings)
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    train(run, whole)
    assert train(run, parts, reporter=Interrupting(5)) == Outcome(finished=False, step=6, writes=True)
    assert len(losses(parts)) == 6
    assert train(resumed(parts, {}, {}), parts, resume=True, reporter=Interrupting(8)).step == 9
    assert train(resumed(parts, {}, {}), parts, resume=True).finished
    assert losses(parts) == losses(whole)
    assert all(torch.equal(weights(parts)[name], weight) for name, weight in weights(whole).items())
    assert signal.getsignal(signal.SIGINT) is handler


def test_a_saved_run_can_be_given_a_larger_budget_but_not_another_model(text: str, tmp_path: Path) -> None:
    train(make_run(text, steps=2), tmp_path)
    assert train(resumed(tmp_path, {"tokens": 4 * 4 * 16}, {}), tmp_path, resume=True).step == 4
    for settings, model in (({"vocab_size": 300}, {}), ({}, {"width": 32})):
        with pytest.raises(ConfigError, match="cannot change"):
            resumed(tmp_path, settings, model)
    with pytest.raises(CheckpointError, match="has changed"):
        train(resumed(tmp_path, {"holdout": 0.3}, {}), tmp_path, resume=True)


@pytest.mark.parametrize(
    ("changes", "tolerance"),
    [
        ({"accumulation": 2}, 1e-5),
        ({"accumulation": 4}, 1e-5),
        ({"gradient_checkpointing": True}, 1e-5),
        ({"precision": "bf16"}, 2e-2),
    ],
    ids=str,
)
def test_other_ways_to_the_same_losses(
    text: str, tmp_path: Path, changes: dict[str, Any], tolerance: float
) -> None:
    run = make_run(text)
    train(run, tmp_path / "plain")
    train(replace(run, training=replace(run.training, **changes)), tmp_path / "other")
    plain, other = losses(tmp_path / "plain"), losses(tmp_path / "other")
    assert torch.tensor(other) == pytest.approx(torch.tensor(plain), rel=tolerance)
    assert plain != losses(tmp_path / "other") or "gradient_checkpointing" in changes


def test_two_processes_train_like_one(text: str, tmp_path: Path) -> None:
    run = make_run(text, steps=5, accumulation=2)
    train(run, tmp_path / "one")
    (tmp_path / "run.toml").write_text(run.to_toml())
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", str(port),
        "-m", "edgelm", "train", "--preset", str(tmp_path / "run.toml"), "--out", str(tmp_path / "two"),
    ]  # fmt: skip
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("best checkpoint") == 1
    one, two = losses(tmp_path / "one"), losses(tmp_path / "two")
    assert torch.tensor(two) == pytest.approx(torch.tensor(one), rel=1e-5)
    assert load_checkpoint(tmp_path / "two").origin["training"]["processes"] == 2


def test_a_loss_that_is_not_finite_stops_and_leaves_the_best_checkpoint(text: str, tmp_path: Path) -> None:
    train(make_run(text, steps=2), tmp_path)
    before = {path.name: path.read_bytes() for path in (tmp_path / "best").iterdir()}
    with pytest.raises(TrainingError, match=r"(nan|inf).*lower --learning-rate"):
        train(resumed(tmp_path, {"steps": 9, "learning_rate": 1e30}, {}), tmp_path, resume=True)
    assert before == {path.name: path.read_bytes() for path in (tmp_path / "best").iterdir()}


def test_fine_tuning_takes_model_and_tokenizer(text: str, tmp_path: Path) -> None:
    train(make_run(text, steps=60, learning_rate=1e-2), tmp_path / "base")
    settings = {name: value for name, value in SETTINGS.items() if name != "vocab_size"}
    run = resolve("tiny", {**settings, "data": (text,), "init_from": str(tmp_path / "base")})
    base = read_figures(tmp_path / "base")
    train(run, tmp_path / "tuned")
    assert read_figures(tmp_path / "tuned")[0].loss < 0.7 * base[0].loss
    tuned = load_checkpoint(tmp_path / "tuned")
    assert tuned.config == load_checkpoint(tmp_path / "base").config
    assert tuned.origin["started_from"]["training"]["steps"] == 60


def test_documents_begin_as_the_given_model_begins_a_text(text: str, tmp_path: Path) -> None:
    generation = {"bos_id": 7, "add_bos": True, "end_ids": [256]}
    base = Checkpoint(Transformer(ModelConfig(vocab_size=257, **SIZES)), byte_tokenizer(), generation)
    save_checkpoint(base, tmp_path / "base")
    settings = {name: value for name, value in SETTINGS.items() if name != "vocab_size"}
    run = resolve(None, {**settings, "steps": 1, "data": (text,), "init_from": str(tmp_path / "base")})
    train(run, tmp_path / "run")
    (tokens,) = (tmp_path / "run" / "tokens").iterdir()
    ids = shards.load(tokens, 16, 0.05).train
    found = ids.read(0, len(ids))
    assert found[0] == 7 and (found[1:][found[:-1] == 256] == 7).all()
    assert (found == 7).sum() == (found == 256).sum() > 30


def test_a_touched_or_copied_file_is_the_same_data(text: str, tmp_path: Path) -> None:
    shutil.copytree(text, tmp_path / "a")
    train(make_run(str(tmp_path / "a"), steps=2), tmp_path / "run")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    shutil.rmtree(tmp_path / "a")
    for path in (tmp_path / "b").iterdir():
        os.utime(path, (1, 1))
    again = resumed(tmp_path / "run", {"steps": 3, "data": (str(tmp_path / "b"),)}, {})
    assert train(again, tmp_path / "run", resume=True).step == 3
    (tmp_path / "b" / "1.txt").write_text("other text\n" * 20)
    with pytest.raises(CheckpointError, match="has changed"):
        train(again, tmp_path / "run", resume=True)
    assert len(list((tmp_path / "run" / "tokens").iterdir())) == 1
