"""Writing files: the old content or the new one, never a part of either.

What is written goes to a temporary file next to its place, reaches the disk, and then takes the place in one step.
So a full disk, a kill or a power cut leaves what was there before.

- A link is followed: the file that it leads to is replaced, and the link stays.
- A device or a pipe stays what it is. Its reader gets the content once all of it is there.
- A file that is replaced keeps its permissions and, where the process may set it, its owner.
- A file that the process may not write to is not replaced either, although its folder would allow that.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from edgelm_runtime.errors import OutputError

TEMPORARY = ".edgelm-"
"""What the name of each temporary file and folder begins with: only a kill leaves one behind."""


@contextmanager
def new_file(path: str | Path) -> Iterator[BinaryIO]:
    """A file to write, which becomes `path` when the block ends without an error.

    Raises OutputError where it cannot be written; an error about another file passes through.
    """
    path = Path(path)
    with _one_line(path):
        target = _regular_target(path)
        if target is None:
            with tempfile.TemporaryFile() as file:
                yield file
                file.seek(0)
                _write_through(file, path)
            return
        temporary = _unused(target)
        try:
            with temporary.open("xb") as file:
                yield file
            place(temporary, target)
        finally:
            temporary.unlink(missing_ok=True)


def write_file(path: str | Path, content: str | bytes) -> None:
    """Make `content` (text as UTF-8) the whole of the file `path`. Raises OutputError."""
    with new_file(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)


@contextmanager
def new_files(path: str | Path) -> Iterator[Path]:
    """A path to write to in an empty folder; what lies there takes its place when the block ends without an error.

    For what is written by name, or is more than one file: all that the block leaves in the folder moves next to
    `path`, `path` itself last. A link is followed first, so names that derive from `path` are to be taken from the
    path given here. Folders that `path` needs are made. Raises OutputError as `new_file` does.
    """
    path = Path(path)
    with scratch_folder(path) as folder, _one_line(path):
        target = _regular_target(path)
        new = folder / (path if target is None else target).name
        yield new
        if target is None:
            _through(folder, new, path)
            return
        for file in sorted(folder.iterdir(), key=lambda file: file == new):
            place(file, target.with_name(file.name))


@contextmanager
def scratch_folder(path: Path) -> Iterator[Path]:
    """An empty folder on the disk of the file `path`, gone when the block ends; open to its owner alone.

    Raises OutputError where `path` is a folder or nothing can be written next to it.
    """
    with _one_line(path):
        with contextlib.suppress(FileExistsError):  # a file in the place of a folder is named below
            path.parent.mkdir(parents=True, exist_ok=True)
        target = _regular_target(path)
        # What goes to a device is put together where the system wants temporary files.
        folder = Path(tempfile.mkdtemp(prefix=TEMPORARY, dir=target and target.parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def place(new: Path, target: Path) -> None:
    """Move the file or folder `new` to `target`, on the same disk, once its content has reached that disk.

    A file takes over the permissions of the file that it replaces; a folder replaces an empty folder only.
    Raises OSError; then `target` is as before.
    """
    with contextlib.suppress(FileNotFoundError):
        _keep_permissions(target.stat(), new)
    sync(new)
    new.replace(target)
    _sync_one(target.parent)


def sync(path: Path) -> None:
    """Have the disk hold a file, or a folder with all that is in it. Raises OSError."""
    for folder, _, files in os.walk(path):
        for name in files:
            _sync_one(Path(folder, name))
        _sync_one(Path(folder))
    if not path.is_dir():
        _sync_one(path)


def _sync_one(path: Path) -> None:
    if path.is_dir():
        # Windows opens no folders, some file systems sync none; that costs durability and not consistency.
        with contextlib.suppress(OSError):
            _fsync(path, os.O_RDONLY)
    else:
        _fsync(path, os.O_RDWR if sys.platform == "win32" else os.O_RDONLY)


def _fsync(path: Path, flags: int) -> None:
    handle = os.open(path, flags)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _keep_permissions(old: os.stat_result, new: Path) -> None:
    if not stat.S_ISREG(old.st_mode) or not new.is_file():
        return
    made = new.stat()
    if hasattr(os, "chown") and (made.st_uid, made.st_gid) != (old.st_uid, old.st_gid):
        with contextlib.suppress(OSError):  # only the superuser may give a file away
            os.chown(new, old.st_uid, old.st_gid)
    new.chmod(stat.S_IMODE(old.st_mode))


def _regular_target(path: Path) -> Path | None:
    """Where the file that `path` names lies, or would; None for a device, a pipe or an open file descriptor.

    Raises OSError where no file can take that place.
    """
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return _resolved(path)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(None, "it is a folder")
    if not stat.S_ISREG(mode) or _is_descriptor(path):
        return None
    if not os.access(path, os.W_OK):
        raise PermissionError(None, "it is write-protected")
    return _resolved(path)


def _resolved(path: Path) -> Path:
    """The file that `path` leads to, in a folder that exists."""
    target = Path(os.path.realpath(path))
    if not target.parent.is_dir():
        raise NotADirectoryError(None, f"there is no folder {target.parent}")
    return target


def _is_descriptor(path: Path) -> bool:
    """Whether `path` is a file that a process already has open, such as /dev/stdout.

    Where standard output is a regular file, others may be writing to it too, so it is appended to.
    """
    while path.is_symlink():
        folder = os.path.realpath(path.parent)
        if folder.startswith(("/proc/", "/dev/fd")):
            return True
        path = Path(folder, path.readlink())
    return False


def _through(folder: Path, new: Path, path: Path) -> None:
    if list(folder.iterdir()) != [new]:
        raise OSError(None, "it is not a regular file, and the model needs a second file next to it")
    with new.open("rb") as file:
        _write_through(file, path)


def _write_through(file: BinaryIO, path: Path) -> None:
    try:
        with path.open("ab") as device:
            shutil.copyfileobj(file, device)
    except BrokenPipeError:
        raise OSError(None, "its reader has gone") from None


def _unused(target: Path) -> Path:
    return target.with_name(TEMPORARY + secrets.token_hex(8))


@contextmanager
def _one_line(path: Path) -> Iterator[None]:
    """Turn an error of writing `path` into one that says so."""
    try:
        yield
    except OSError as error:
        # What is written here is a regular file without a name in the error: the rest is about something else.
        if isinstance(error, BrokenPipeError) or _elsewhere(error, path):
            raise
        raise OutputError(
            f"cannot write {path}: {error.strerror or error}", "choose another place"
        ) from error
    except ValueError as error:  # a NUL in the name
        if "null" not in str(error):
            raise
        raise OutputError(f"cannot write {str(path)!r}: {error}", "choose another name") from error


def _elsewhere(error: OSError, path: Path) -> bool:
    """Whether the error names a file that is not part of writing `path`."""
    if not isinstance(error.filename, str | os.PathLike):
        return False
    named, target = Path(error.filename), Path(os.path.realpath(path))
    ours = named in (path, target, *path.parents, *target.parents)
    return not ours and not any(part.startswith(TEMPORARY) for part in named.parts)
