"""A model stays the one that was opened, whatever happens to its files, and is found through every kind of link."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import edgelm_runtime
from edgelm_export import export_checkpoint
from edgelm_export.files import writer
from edgelm_runtime import ModelFileError
from edgelm_runtime.engine.session import Session
from edgelm_runtime.engine.session_options import session_options
from edgelm_runtime.model_file.opened import OpenModel
from edgelm_runtime.reports.describe import describe
from edgelm_runtime.reports.verify import verify
from tests.small_models import small_checkpoint

Floats = np.ndarray[Any, Any]


def export(path: Path, scale: float, sidecar: bool = False) -> Path:
    """A model whose weights are mapped, of which another `scale` makes another model."""
    checkpoint = small_checkpoint(width=48)
    for weight in checkpoint.model.parameters():
        weight.data *= scale
    limit = writer.LARGEST_FILE
    writer.LARGEST_FILE = 10_000 if sidecar else limit
    try:
        export_checkpoint(checkpoint, path)
    finally:
        writer.LARGEST_FILE = limit
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """old.onnx and new.onnx, each whole; side/old and side/new with m.onnx and its sidecar."""
    folder = tmp_path_factory.mktemp("models")
    for name, scale in (("old", 1.0), ("new", 1.2)):
        export(folder / f"{name}.onnx", scale)
        export(folder / "side" / name / "m.onnx", scale, sidecar=True)
    return folder


def logits(path: Path) -> Floats:
    with edgelm_runtime.load(path, "cpu", 1) as lm:
        return lm.logits([1, 2, 3, 4, 5])


@pytest.fixture
def replacing(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], None]:
    """Has something done when onnxruntime is about to be given the first graph."""

    def install(action: Callable[[], object]) -> None:
        create = onnxruntime.InferenceSession
        done: list[object] = []

        def session(*args: Any, **options: Any) -> Any:
            if not done:
                done.append(action())
            return create(*args, **options)

        session_options(1, True)  # its own session, of another model, is out of the way
        monkeypatch.setattr(onnxruntime, "InferenceSession", session)

    return install


@pytest.mark.parametrize("sidecar", [False, True])
def test_a_file_replaced_while_it_is_loaded_is_not_mixed(
    folder: Path, tmp_path: Path, replacing: Callable[[Callable[[], object]], None], sidecar: bool
) -> None:
    old, new = (folder / "side" / n / "m.onnx" if sidecar else folder / f"{n}.onnx" for n in ("old", "new"))
    path = tmp_path / "m.onnx"
    expected = logits(old)
    assert not np.array_equal(expected, logits(new))

    def put(source: Path) -> None:
        for file in (source.with_name("m.onnx.data"), source):
            if file.exists():
                target = tmp_path / (file.name if sidecar else "m.onnx")
                shutil.copy(file, tmp_path / "copy")
                (tmp_path / "copy").replace(target)

    put(old)
    replacing(lambda: put(new))
    np.testing.assert_array_equal(logits(path), expected)
    np.testing.assert_array_equal(logits(path), logits(new))


def test_many_loads_beside_many_replacements(folder: Path, tmp_path: Path) -> None:
    path, end = tmp_path / "m.onnx", threading.Event()
    shutil.copy(folder / "old.onnx", path)

    def replace() -> None:
        turn = 0
        while not end.is_set():
            turn += 1
            shutil.copy(folder / ("old.onnx", "new.onnx")[turn % 2], tmp_path / "copy")
            (tmp_path / "copy").replace(path)

    known = [logits(folder / "old.onnx"), logits(folder / "new.onnx")]
    thread = threading.Thread(target=replace)
    thread.start()
    try:
        for _ in range(25):
            found = logits(path)
            assert any(np.array_equal(found, one) for one in known)
    finally:
        end.set()
        thread.join()


def test_a_file_written_over_while_it_is_loaded_is_an_error(
    folder: Path, tmp_path: Path, replacing: Callable[[Callable[[], object]], None]
) -> None:
    path = Path(shutil.copy(folder / "old.onnx", tmp_path / "m.onnx"))
    replacing(lambda: path.write_bytes((folder / "new.onnx").read_bytes()))
    with pytest.raises(ModelFileError, match=r"m\.onnx was written to while it was in use"):
        logits(path)


def in_child(answer: Callable[[], bool]) -> bool:
    """What `answer` gives in a forked child."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            status = 0 if answer() else 2
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("sidecar", [False, True])
@pytest.mark.parametrize("how", ["replaced", "deleted", "another folder", "as it was"])
def test_a_forked_child_has_the_model_of_its_parent(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, sidecar: bool
) -> None:
    source = folder / "side" / "old" if sidecar else folder
    for name in ("m.onnx", "m.onnx.data") if sidecar else ("old.onnx",):
        shutil.copy(source / name, tmp_path / ("m.onnx" if name == "old.onnx" else name))
    monkeypatch.chdir(tmp_path)
    with edgelm_runtime.load("m.onnx", "cpu", 1) as lm:
        expected = lm.logits([1, 2, 3])
        if how == "replaced":
            for name in ("m.onnx.data", "m.onnx") if sidecar else ("m.onnx",):
                shutil.copy(folder / "side" / "new" / name if sidecar else folder / "new.onnx", "copy")
                Path("copy").replace(name)
        elif how == "deleted":
            for file in tmp_path.iterdir():
                file.unlink()
        elif how == "another folder":
            monkeypatch.chdir("/")
        assert in_child(lambda: np.array_equal(lm.logits([1, 2, 3]), expected))


@pytest.fixture
def hub_cache(folder: Path, tmp_path: Path) -> Path:
    """The layout of a hub's cache: files by their digests, and links to them by their names."""
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "1a2b"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    for blob, name in (("c6ed", "m.onnx"), ("b879", "m.onnx.data")):
        shutil.copy(folder / "side" / "old" / name, blobs / blob)
        (snapshot / name).symlink_to(Path("../../blobs") / blob)
    shutil.copy(folder / "old.onnx", blobs / "0f0f")
    (snapshot / "whole.onnx").symlink_to(Path("../../blobs") / "0f0f")
    return snapshot


@pytest.mark.parametrize("name", ["m.onnx", "whole.onnx", "twice.onnx"])
def test_every_reader_follows_links(hub_cache: Path, folder: Path, name: str) -> None:
    (hub_cache / "twice.onnx").symlink_to("whole.onnx")
    path = hub_cache / name
    np.testing.assert_array_equal(logits(path), logits(folder / "old.onnx"))
    assert verify(path, "cpu", 1).prompts > 1
    about = describe(path)
    sizes = [file.stat().st_size for file in (path, path.with_name(f"{name}.data")) if file.exists()]
    assert about["bytes"] + about["sidecar_bytes"] == sum(sizes)
    assert about["sidecar"] == ("m.onnx.data" if name == "m.onnx" else None)


def test_a_link_to_a_model_finds_the_sidecar_next_to_it(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "here.onnx").symlink_to(folder / "side" / "old" / "m.onnx")
    np.testing.assert_array_equal(logits(tmp_path / "here.onnx"), logits(folder / "old.onnx"))
    assert verify(tmp_path / "here.onnx", "cpu", 1).prompts > 1


def test_hard_links_are_files_like_others(folder: Path, tmp_path: Path) -> None:
    for name in ("m.onnx", "m.onnx.data"):
        shutil.copy(folder / "side" / "old" / name, tmp_path / f"first-{name}")
        os.link(tmp_path / f"first-{name}", tmp_path / name)
    np.testing.assert_array_equal(logits(tmp_path / "m.onnx"), logits(folder / "old.onnx"))
    assert verify(tmp_path / "m.onnx", "cpu", 1).prompts > 1


@pytest.fixture
def pair(folder: Path, tmp_path: Path) -> Iterator[Path]:
    """m.onnx with its sidecar."""
    for name in ("m.onnx", "m.onnx.data"):
        shutil.copy(folder / "side" / "old" / name, tmp_path / name)
    yield tmp_path / "m.onnx"


def test_sidecars_that_are_missing_cut_or_another_models_are_named(pair: Path, folder: Path) -> None:
    sidecar = pair.with_name("m.onnx.data")
    content = sidecar.read_bytes()
    for put, message in (
        (lambda: sidecar.rename(pair.with_name("other.data")), r"m\.onnx\.data, and that is missing; put it next"),
        (lambda: sidecar.write_bytes(content[:-5000]), r"has \d+ bytes and needs \d+"),
        (lambda: sidecar.write_bytes(b""), "is empty"),
        (
            lambda: shutil.copy(folder / "side" / "new" / "m.onnx.data", sidecar),
            r"m\.onnx\.data does not hold the weights of .*m\.onnx",
        ),
    ):  # fmt: skip
        put()
        with pytest.raises(ModelFileError, match=message):
            edgelm_runtime.load(pair, "cpu", 1)
        with pytest.raises(edgelm_runtime.EdgelmError):
            verify(pair, "cpu", 1)
    sidecar.write_bytes(content)
    assert verify(pair, "cpu", 1).prompts > 1
    renamed = pair.rename(pair.with_name("renamed.onnx"))
    assert verify(renamed, "cpu", 1).prompts > 1, "the graph names its sidecar, and not the other way round"


@pytest.mark.parametrize("location", ["../secret", "/etc/passwd", "sub/../../secret", ".."])
def test_weights_outside_the_models_folder_are_refused(pair: Path, location: str) -> None:
    (pair.parent.parent / "secret").write_bytes(pair.with_name("m.onnx.data").read_bytes())
    model = onnx.load(pair, load_external_data=False)
    for tensor in model.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = location
    pair.write_bytes(model.SerializeToString())
    with pytest.raises(ModelFileError, match="outside its own folder"):
        Session(pair)


def test_a_sidecar_that_is_a_link_to_elsewhere_is_refused(pair: Path, tmp_path_factory: Any) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "weights"
    pair.with_name("m.onnx.data").rename(elsewhere)
    pair.with_name("m.onnx.data").symlink_to(elsewhere)
    with pytest.raises(ModelFileError, match="is a link to another folder"):
        Session(pair)


@pytest.mark.parametrize("name", ["nowhere", "a\0b", "x" * 300, "circle", "pipe", "folder"])
def test_what_is_no_model_file_is_one_error(tmp_path: Path, name: str) -> None:
    (tmp_path / "circle").symlink_to("circle")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for use in (edgelm_runtime.load, verify, describe):
        with pytest.raises(ModelFileError) as caught:
            use(tmp_path / name)
        assert "\n" not in str(caught.value)


def test_newer_versions_are_named(folder: Path, tmp_path: Path) -> None:
    def change(attribute: Callable[[onnx.ModelProto], None]) -> Path:
        model = onnx.load(folder / "old.onnx")
        attribute(model)
        path = tmp_path / "m.onnx"
        path.write_bytes(model.SerializeToString())
        return path

    def newer_opset(model: onnx.ModelProto) -> None:
        model.opset_import[0].version = 99

    def newer_ir(model: onnx.ModelProto) -> None:
        model.ir_version = 77

    for attribute, message in (
        (
            newer_opset,
            r"has ONNX opset 99, and onnxruntime [\d.]+ reads opset \d+ at most; update onnxruntime",
        ),
        (newer_ir, r"has ONNX IR version 77, and onnxruntime [\d.]+ reads IR version \d+ at most; update"),
    ):
        with pytest.raises(ModelFileError, match=message):
            edgelm_runtime.load(change(attribute), "cpu", 1)


def test_closing_lets_go_of_the_files(pair: Path) -> None:
    with OpenModel(pair) as model:
        files = model.files
    assert len(files) == 2 and all(file.data.closed for file in files)
    lm = edgelm_runtime.load(pair, "cpu", 1)
    opened = lm._session.model
    lm.close()
    assert opened is not None and all(file.data.closed for file in opened.files)
