"""A model file held open, with the sidecars that its graph refers to.

A file may be replaced at any moment: by a new export, by a download, in the middle of loading it. So it is opened
once, and all that is read later, by `load`, a forked child, `verify` or `info`, is read from what was opened. Only
onnxruntime opens files by name, to map weights; `replaced` tells whether it may have met others, and `in_memory`
is the way without names.

Links are followed here and nowhere else. A sidecar is looked for next to the file as it was named, then next to the
file that a link leads to: in a hub cache both lie in one folder under names of their own.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import BinaryIO

from edgelm_runtime.errors import ModelFileError
from edgelm_runtime.git_lfs import refuse_pointer
from edgelm_runtime.model_file.external_weights import Reference, references, rewritten

COPY_AGAIN = "copy or export it again"


class OpenFile:
    """The bytes of a regular file as it was when it was opened, without reading them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with path.open("rb") as file:
            self._stat = os.fstat(file.fileno())
            self.data = _mapped(file)

    @property
    def size(self) -> int:
        """In bytes."""
        return self._stat.st_size

    def replaced(self, name: str) -> bool:
        """Whether another file is at this path by now, or none.

        Raises ModelFileError, about the model `name`, where it is the same file with another content.
        """
        try:
            now = self.path.stat()
        except OSError:
            return True
        if (now.st_dev, now.st_ino) != (self._stat.st_dev, self._stat.st_ino):
            return True
        if (now.st_size, now.st_mtime_ns) != (self._stat.st_size, self._stat.st_mtime_ns):
            raise ModelFileError(f"{name} was written to while it was in use", "load it again")
        return False

    def let_go(self) -> None:
        """Give the memory back that parts of the file take which were looked at; they are read again when wanted."""
        if hasattr(mmap, "MADV_DONTNEED"):  # not on Windows
            self.data.madvise(mmap.MADV_DONTNEED)

    def close(self) -> None:
        """Close the file."""
        self.data.close()


class OpenModel:
    """The model file `path` and its sidecars.

    Raises ModelFileError where one of them is missing, cut off or somewhere else than next to the model.
    """

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        # A process may change its folder before a forked child, say, needs the path again.
        self._named = Path(os.path.abspath(path))  # noqa: PTH100  (resolve() would follow links)
        real = _real(self._named)
        self.file = _opened(real, self.name)
        self.sidecars: dict[str, OpenFile] = {}
        """By the names that the graph calls them."""
        try:
            self._references = self._read_references()
            for location in sorted({r.location for r in self._references if r.location is not None}):
                self.sidecars[location] = self._sidecar(location)
            self._check_sizes()
        except BaseException:
            self.close()
            raise

    @property
    def files(self) -> list[OpenFile]:
        """The model file and its sidecars."""
        return [self.file, *self.sidecars.values()]

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)

    def graph_for_mapping(self) -> tuple[bytes, Path] | None:
        """The graph with large weights referred to by name, and the folder where onnxruntime finds those names.

        None where that cannot be: most of the file is not weights that can be mapped, or sidecars lie in several
        folders.
        """
        if self.sidecars:
            folders = {file.path.parent for file in self.sidecars.values()}
            return (self._rewritten(None), folders.pop()) if len(folders) == 1 else None
        if 2 * sum(reference.length for reference in self._references) < self.file.size:
            return None
        return self._rewritten(self.file.path.name), self.file.path.parent

    def in_memory(self) -> tuple[bytes, dict[str, mmap.mmap]]:
        """The graph, and the content of the files that it refers to by name, without opening anything."""
        if not self.sidecars:
            return bytes(self.file.data), {}
        return self._rewritten(None), {file.path.name: file.data for file in self.sidecars.values()}

    def replaced(self) -> bool:
        """Whether one of the files is another one by now. Raises ModelFileError where it was written over in place."""
        return any(file.replaced(self.name) for file in self.files)

    def __enter__(self) -> OpenModel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of all files."""
        for file in self.files:
            file.close()

    def _rewritten(self, own: str | None) -> bytes:
        names = {location: file.path.name for location, file in self.sidecars.items()}
        graph = rewritten(self.file.data, self._references, own, names)
        self.file.let_go()
        return graph

    def _read_references(self) -> list[Reference]:
        start = bytes(self.file.data[:64])
        refuse_pointer(self.file.path, start)
        if start.startswith(b"GGUF"):
            raise ModelFileError(f"{self.name} is a GGUF file", f"export it first: edgelm export {self.name}")
        try:
            return references(self.file.data)
        except ValueError as error:
            raise ModelFileError(f"{self.name} {error}", COPY_AGAIN) from error

    def _sidecar(self, location: str) -> OpenFile:
        """The file that the graph calls `location`, in the folder of the model or of the file it is a link to."""
        parts = Path(location).parts
        if not parts or Path(location).is_absolute() or ".." in parts or "\0" in location:
            raise ModelFileError(
                f"{self.name} wants weights from {location!r}, outside its own folder", "do not use this file"
            )
        homes = [Path(os.path.realpath(self._named.parent)), self.file.path.parent]
        for home in homes:
            if (home / location).is_file():
                real = Path(os.path.realpath(home / location))
                if any(real.is_relative_to(allowed) for allowed in homes):
                    return _opened(real, f"{location}, the weights of {self.name},")
                raise ModelFileError(
                    f"{location}, the weights of {self.name}, is a link to another folder: {real}",
                    "put the file itself there",
                )
        raise ModelFileError(
            f"{self.name} keeps its weights in a second file, {location}, and that is missing",
            f"put it next to {self._named.name} under that name",
        )

    def _check_sizes(self) -> None:
        for location, file in self.sidecars.items():
            needed = max(r.offset + r.length for r in self._references if r.location == location)
            if needed > file.size:
                raise ModelFileError(
                    f"{location}, the weights of {self.name}, has {file.size} bytes and needs {needed}",
                    "copy it again, or put there the one that was exported with this model",
                )


def _real(path: Path) -> Path:
    """The file that `path` is or leads to. Raises ModelFileError where there is none."""
    try:
        if path.is_dir():
            raise ModelFileError(f"{path} is a folder", "give the .onnx file in it")
        if not path.exists():
            raise ModelFileError(f"there is no model file {path}", "check the path")
        if not path.is_file():
            raise ModelFileError(f"{path} is not a regular file", "save the model to a file")
        return Path(os.path.realpath(path))
    except (OSError, ValueError) as error:  # too long a name, a circle of links, a NUL
        raise ModelFileError(
            f"cannot open the model file {str(path)!r}: {_reason(error)}", "check the path"
        ) from error


def _opened(path: Path, name: str) -> OpenFile:
    try:
        return OpenFile(path)
    except OSError as error:
        raise ModelFileError(f"cannot read {name}: {_reason(error)}", "check the path") from error
    except ValueError as error:
        raise ModelFileError(f"{name} {error}", COPY_AGAIN) from error


def _reason(error: Exception) -> str:
    return (isinstance(error, OSError) and error.strerror) or str(error)


def _mapped(file: BinaryIO) -> mmap.mmap:
    """Raises ValueError for an empty file, and OSError."""
    if not os.fstat(file.fileno()).st_size:
        raise ValueError("is empty")
    return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
