"""Files are written whole or not at all, and what is not a regular file stays what it is."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from edgelm_runtime.atomic_files import new_file, new_files, scratch_folder, write_file
from edgelm_runtime.errors import EdgelmError, OutputError

posix_only = pytest.mark.skipif(os.name != "posix", reason="POSIX files")


def test_a_file_appears_whole_and_nothing_else_does(tmp_path: Path) -> None:
    target = tmp_path / "file"
    with new_file(target) as file:
        file.write(b"one")
        file.flush()
        assert not target.exists()
    write_file(target, "zwölf")
    assert target.read_bytes() == "zwölf".encode()
    with pytest.raises(ZeroDivisionError), new_file(target) as file:
        file.write(b"half of it")
        raise ZeroDivisionError
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("file", "zwölf".encode())]


def test_several_files_appear_with_the_named_one_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    replace = Path.replace
    monkeypatch.setattr(Path, "replace", lambda new, to: (order.append(Path(to).name), replace(new, to))[1])
    with new_files(tmp_path / "made" / "a") as new:
        new.write_text("graph")
        new.with_name(new.name + ".data").write_text("weights")
        (new.parent / "0").write_text("further")
    assert order[-1] == "a"
    assert sorted(path.name for path in (tmp_path / "made").iterdir()) == ["0", "a", "a.data"]


@posix_only
def test_a_link_stays_and_its_target_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    real, link, dangling = tmp_path / "elsewhere" / "real", tmp_path / "link", tmp_path / "dangling"
    real.write_text("old")
    link.symlink_to("elsewhere/real")
    dangling.symlink_to("elsewhere/new")
    write_file(link, "new")
    write_file(dangling, "made")
    with new_files(link) as path:
        path.write_text("newer")
        path.with_name(path.name + ".data").write_text("weights")
    assert link.is_symlink() and dangling.is_symlink()
    assert {path.name: path.read_text() for path in real.parent.iterdir()} == {
        "real": "newer", "real.data": "weights", "new": "made",
    }  # fmt: skip


@posix_only
def test_permissions_are_kept_and_made_as_for_any_file(tmp_path: Path) -> None:
    plain, private = tmp_path / "plain", tmp_path / "private"
    private.write_text("old")
    private.chmod(0o640)
    umask = os.umask(0o027)
    try:
        write_file(plain, "new")
        write_file(private, "new")
        with new_files(tmp_path / "model") as path:
            path.write_text("new")
    finally:
        os.umask(umask)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert modes == {"plain": 0o640, "private": 0o640, "model": 0o640}


@posix_only
def test_devices_and_pipes_stay_and_are_written_to(tmp_path: Path) -> None:
    device, pipe = tmp_path / "null", tmp_path / "pipe"
    device.symlink_to("/dev/null")
    os.mkfifo(pipe)
    write_file(device, "gone")
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode) and device.is_symlink()
    for write in (lambda: write_file(pipe, "through"), lambda: _write_by_name(pipe)):
        writer = threading.Thread(target=write)
        writer.start()
        assert pipe.read_text() == "through"
        writer.join()
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    with pytest.raises(OutputError, match="second file"), new_files(device) as new:
        new.write_text("graph")
        new.with_name("more").write_text("weights")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["null", "pipe"]


def _write_by_name(pipe: Path) -> None:
    with new_files(pipe) as new:
        new.write_text("through")


@posix_only
def test_standard_output_is_added_to(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("before\n")
    code = "from edgelm_runtime.atomic_files import write_file; write_file('/dev/stdout', 'after')"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with log.open("a") as file:
        subprocess.run([sys.executable, "-c", code], stdout=file, env=environment, check=True)
    assert log.read_text() == "before\nafter"
    piped = subprocess.run([sys.executable, "-c", code], capture_output=True, env=environment, check=True)
    assert piped.stdout == b"after"


@pytest.mark.parametrize(
    "name", ["folder", "file/below", "missing/file", "a\0b", "x" * 300, "folder/../folder"]
)
def test_a_place_that_cannot_be_written_is_one_error(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("mine")
    with pytest.raises(OutputError, match="cannot write"):
        write_file(tmp_path / name, "new")
    if name != "missing/file":
        with pytest.raises(OutputError, match="cannot write"), new_files(tmp_path / name):
            pass
        with pytest.raises(OutputError, match="cannot write"), scratch_folder(tmp_path / name):
            pass
    assert sorted(path.name for path in tmp_path.rglob("*") if path.name != "missing") == ["file", "folder"]


@posix_only
def test_a_circle_of_links_is_one_error(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(OutputError, match="cannot write"):
        write_file(tmp_path / "a", "new")


@pytest.mark.parametrize("call", ["fsync", "replace", "write"])
def test_a_full_disk_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    target = tmp_path / "file"
    target.write_text("old")
    if call == "fsync":
        monkeypatch.setattr(os, "fsync", fail)
    elif call == "replace":
        monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(OutputError, match="No space left"), new_file(target) as file:
        file.write(b"new")
        if call == "write":
            fail()
    with pytest.raises(OutputError, match="No space left"), new_files(target) as new:
        new.write_text("new")
        if call == "write":
            fail()
    monkeypatch.undo()
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("file", "old")]


def test_errors_about_other_files_pass_through(tmp_path: Path) -> None:
    for write in (new_file, new_files):
        with pytest.raises(FileNotFoundError), write(tmp_path / "file"):
            (tmp_path / "input").read_text()
        with pytest.raises(BrokenPipeError), write(tmp_path / "file"):
            raise BrokenPipeError(errno.EPIPE, "Broken pipe")
        with pytest.raises(ValueError, match="of its own"), write(tmp_path / "file"):
            raise ValueError("of its own")
        with pytest.raises(EdgelmError, match="mine"), write(tmp_path / "file"):
            raise EdgelmError("mine")
    assert not list(tmp_path.iterdir())


def test_a_protected_file_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    protected = tmp_path / "file"
    protected.write_text("old")
    protected.chmod(0o444)
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK)  # the superuser may write anywhere
    with pytest.raises(OutputError, match="write-protected"):
        write_file(protected, "new")
    assert protected.read_text() == "old"
