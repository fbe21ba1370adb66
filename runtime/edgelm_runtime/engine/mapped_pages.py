"""Memory of mapped weights, given back once a session is made.

onnxruntime copies the weights of most products into an order of its own. What it has read of the file for that stays
with the process, a second time the same numbers, although nothing needs it again (or a row now and then, as of an
embedding that is also the head). The system reads it again from the file when it is wanted after all. Linux tells
where a file is mapped; elsewhere nothing happens.
"""

from __future__ import annotations

import ctypes
import mmap
import re
from collections.abc import Collection, Iterator
from pathlib import Path

SMALLEST = 1 << 25  # bytes of a mapping that are worth the time that finding them takes
# One mapping in /proc/self/smaps: the line that names it, and lines of figures.
MAPPING = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) r\S* \S+ \S+ \S+ +(/.*)\n((?:[A-Z]\w+:.*\n)*)", re.MULTILINE)
UNTOUCHED = re.compile(r"^Anonymous: +0 kB$", re.MULTILINE)


def give_back(files: Collection[Path]) -> None:
    """Give the memory back that mappings of `files` take in this process."""
    if not hasattr(mmap, "MADV_DONTNEED") or not Path("/proc/self/smaps").exists():
        return
    libc = ctypes.CDLL(None)
    for start, end in _mappings({str(file) for file in files}):
        libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), mmap.MADV_DONTNEED)


def _mappings(names: Collection[str]) -> Iterator[tuple[int, int]]:
    """Where files of these names are mapped, as far as nothing was written there, which would be lost."""
    for match in MAPPING.finditer(Path("/proc/self/smaps").read_text(encoding="utf-8", errors="replace")):
        if match[3] in names and UNTOUCHED.search(match[4]):
            yield int(match[1], 16), int(match[2], 16)
