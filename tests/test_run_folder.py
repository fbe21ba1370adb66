"""A run's folder: what a person keeps in it is safe, and a kill or a full disk leaves a run that goes on."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from edgelm.checkpoint import checkpoint_folder, load_checkpoint, read_origin, save_checkpoint, surviving
from edgelm.training.config import RunConfig, resolve, resumed
from edgelm.training.report import read_figures
from edgelm.training.run import train
from edgelm.training.run_folder import LOCK, MARKER, NAMES, PLOT, claimed
from edgelm_runtime.atomic_files import write_file
from edgelm_runtime.errors import CheckpointError, EdgelmError, OutputError
from tests.small_models import small_checkpoint

resource = pytest.importorskip("resource")
KILLED = 77
SIZES: dict[str, Any] = {"context_length": 8, "width": 8, "num_layers": 1, "num_heads": 1}


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A curve costs more than a run of this size."""
    monkeypatch.setattr("edgelm.training.run.plot", lambda folder: write_file(folder / PLOT, "curve"))


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("data") / "a.txt"
    path.write_text("one two three\n" * 30)
    return str(path)


def make_run(text: str, **settings: Any) -> RunConfig:
    usual = {
        "tokenizer": "bytes", "steps": 2, "batch_size": 2, "validations": 2, "val_tokens": 32, "device": "cpu",
        "precision": "fp32",
    }  # fmt: skip
    return resolve(None, {**usual, "data": (text,), **settings}, SIZES)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_what_a_person_keeps_is_never_touched(text: str, tmp_path: Path, name: str, overwrite: bool) -> None:
    (tmp_path / name).write_text("mine")
    (tmp_path / "notes.txt").write_text("mine too")
    before = contents(tmp_path)
    with pytest.raises(OutputError, match=f"holds {name}, which no run of edgelm wrote"):
        train(make_run(text), tmp_path, overwrite=overwrite)
    assert contents(tmp_path) == before


def test_a_run_fits_in_a_folder_with_other_things(text: str, tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.md").write_text("mine")
    for overwrite in (False, True):
        assert train(make_run(text), tmp_path, overwrite=overwrite).finished
    assert (tmp_path / "notes" / "a.md").read_text() == "mine"


def test_a_claim_ends_where_nothing_was_written(text: str, tmp_path: Path) -> None:
    with pytest.raises(EdgelmError), claimed(tmp_path / "new"):
        raise CheckpointError("stop")
    assert not (tmp_path / "new").exists()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "a").write_text("a")
    with claimed(tmp_path / "mine"):
        pass
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["a"]


def test_two_runs_into_one_folder_are_refused(text: str, tmp_path: Path) -> None:
    with claimed(tmp_path / "run"):
        for overwrite in (False, True):
            with pytest.raises(OutputError, match="another run is writing to"):
                train(make_run(text), tmp_path / "run", overwrite=overwrite)
    assert train(make_run(text), tmp_path / "run").finished


def test_an_output_that_is_data_is_refused_before_anything_is_written(text: str, tmp_path: Path) -> None:
    shutil.copy(text, tmp_path / "a.txt")
    before = contents(tmp_path)
    for data, out in ((tmp_path, tmp_path / "run"), (tmp_path / "a.txt", tmp_path)):
        with pytest.raises(OutputError, match="choose another folder for --out"):
            train(make_run(str(data)), out, overwrite=True)
    assert contents(tmp_path) == before


def test_another_run_is_kept_until_the_new_one_has_saved(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(make_run(text, steps=3), tmp_path)
    before = contents(tmp_path)

    def broken(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("edgelm.training.trainer.Trainer.advance", broken)
    with pytest.raises(ZeroDivisionError):
        train(make_run(text, learning_rate=0.5), tmp_path, overwrite=True)
    monkeypatch.undo()
    assert contents(tmp_path) == before
    assert train(resumed(tmp_path, {"steps": 4}, {}), tmp_path, resume=True).step == 4


def test_best_is_never_another_runs(text: str, tmp_path: Path) -> None:
    train(make_run(text, steps=4, learning_rate=0.1), tmp_path)
    old = read_origin(tmp_path / "best")
    (tmp_path / "kept").mkdir()
    shutil.copytree(tmp_path / "best", tmp_path / "kept" / "best")
    train(make_run(text), tmp_path, overwrite=True)
    shutil.rmtree(tmp_path / "best")
    shutil.copytree(tmp_path / "kept" / "best", tmp_path / "best")
    assert train(resumed(tmp_path, {"steps": 3}, {}), tmp_path, resume=True).finished
    assert read_origin(tmp_path / "best") != old
    assert read_origin(tmp_path / "best")["training"]["config"]["learning_rate"] != 0.1


def test_a_run_that_was_not_measured_has_no_best(text: str, tmp_path: Path) -> None:
    save_checkpoint(small_checkpoint(), tmp_path / "last")
    with pytest.raises(CheckpointError, match=r"no best checkpoint.*give .*last"):
        checkpoint_folder(tmp_path)
    assert checkpoint_folder(tmp_path / "last") == tmp_path / "last"


def test_a_checkpoint_replaces_nothing_but_a_checkpoint(tmp_path: Path) -> None:
    others = ({"a.txt": "mine"}, {"config.json": "{}"}, {"config.json": '{"model": 1}', "x": ""})
    for number, content in enumerate(others):
        folder = tmp_path / str(number)
        folder.mkdir()
        for name, value in content.items():
            (folder / name).write_text(value)
        before = contents(folder)
        with pytest.raises(OutputError, match="something else than a checkpoint"):
            save_checkpoint(small_checkpoint(), folder)
        assert contents(folder) == before
    (tmp_path / "file").write_text("mine")
    with pytest.raises(OutputError, match="is a file"):
        save_checkpoint(small_checkpoint(), tmp_path / "file")
    (tmp_path / "empty").mkdir()
    for _ in range(2):
        save_checkpoint(small_checkpoint(), tmp_path / "empty")


def test_a_replacement_that_was_cut_off_is_read_and_undone(tmp_path: Path) -> None:
    save_checkpoint(small_checkpoint(), tmp_path / "best")
    (tmp_path / "best").rename(tmp_path / ".best.old")
    assert checkpoint_folder(tmp_path) == tmp_path / ".best.old"
    assert load_checkpoint(tmp_path).config == small_checkpoint().config
    save_checkpoint(small_checkpoint("seed"), tmp_path / "best")
    assert {path.name for path in tmp_path.iterdir()} == {"best"}
    assert load_checkpoint(tmp_path).config.head_bias


def in_child(before: Callable[[], object], *arguments: Any, **options: Any) -> int:
    """The exit status of a process that calls `before` and trains: 0, or 3 for an EdgelmError."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    status = 4
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        before()
        train(*arguments, **options)
        status = 0
    except EdgelmError:
        status = 3
    finally:
        os._exit(status)
    return 0


def killed_at(number: int, folder: Path) -> None:
    """End this process, as a kill does, before it changes anything below `folder` for the nth time."""
    seen = 0

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal seen
        changes = event in ("os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.truncate")
        if event == "open" and isinstance(arguments[2], int):
            changes = bool(arguments[2] & (os.O_WRONLY | os.O_RDWR))
        if changes and str(arguments[0]).startswith(str(folder)):
            seen += 1
            if seen == number:
                os._exit(KILLED)

    sys.addaudithook(hook)


def losses(out: Path) -> list[tuple[int, float]]:
    return [(row.step, row.loss) for row in read_figures(out)]


def test_a_kill_at_any_point_leaves_a_run_that_goes_on(text: str, tmp_path: Path) -> None:
    run, whole = make_run(text), tmp_path / "whole"
    train(run, whole)
    for number in range(1, 1000, 2):
        out = tmp_path / str(number)
        if not in_child(partial(killed_at, number, out), run, out):
            break
        again = (
            train(resumed(out, {}, {}), out, resume=True)
            if surviving(out / "last").exists()
            else train(run, out)
        )
        assert again.finished, number
        expect_whole(out, whole)
    assert number > 30, "the kills were not where the files are"


def expect_whole(out: Path, whole: Path) -> None:
    assert losses(out) == losses(whole)
    for name in ("best", "last"):
        ours, theirs = (load_checkpoint(folder / name).model.state_dict() for folder in (out, whole))
        assert all(torch.equal(ours[weight], theirs[weight]) for weight in theirs)
    assert read_origin(out / "best")["training"]["steps"] == read_origin(whole / "best")["training"]["steps"]
    left = {path.name for path in [*out.iterdir(), *(out / "tokens").iterdir()]}
    (tokens,) = (path.name for path in (out / "tokens").iterdir())
    assert left == {*NAMES, MARKER, LOCK, tokens}


def test_a_kill_while_replacing_leaves_the_old_run_or_the_new_one(text: str, tmp_path: Path) -> None:
    old, new = make_run(text, seed=1), make_run(text, steps=3)
    for name, run in (("old", old), ("new", new)):
        train(run, tmp_path / name)
    for number in range(1, 1000, 5):
        out = tmp_path / str(number)
        shutil.copytree(tmp_path / "old", out)
        if not in_child(partial(killed_at, number, out), new, out, overwrite=True):
            break
        run = resumed(out, {}, {})
        assert train(run, out, resume=True).finished, number
        expect_whole(out, tmp_path / ("old" if run.training.seed else "new"))


@pytest.mark.parametrize("room", [0, 200, 1000, 3000, 6000, 9000, 12_000])
def test_a_full_disk_leaves_a_run_that_goes_on(text: str, tmp_path: Path, room: int) -> None:
    run, out = make_run(text), tmp_path / "out"
    train(run, out)
    before = losses(out)

    def fill() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))

    more = resumed(out, {"steps": 4}, {})
    status = in_child(fill, more, out, resume=True)
    assert status == 3, "a full disk is an error with one line"
    assert read_origin(out / "best") and losses(out)[: len(before)] == before
    assert train(more, out, resume=True).step == 4


def test_a_killed_process_holds_no_lock(text: str, tmp_path: Path) -> None:
    code = (
        "import os, pathlib; from edgelm.training.run_folder import claimed\n"
        f"claim = claimed(pathlib.Path({str(tmp_path / 'run')!r})); claim.__enter__(); os._exit(9)"
    )
    path = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    assert subprocess.run([sys.executable, "-c", code], env=path, timeout=60).returncode == 9
    assert train(make_run(text), tmp_path / "run").finished
