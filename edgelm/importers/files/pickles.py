"""What a pickle would import, found by reading its opcodes and running none of them."""

from __future__ import annotations

import pickle
import pickletools
from io import BytesIO
from typing import Any, BinaryIO

# Opcodes that call or build something; plain containers, strings and numbers need none of them.
_ACTIVE = frozenset(
    "REDUCE BUILD INST OBJ NEWOBJ NEWOBJ_EX EXT1 EXT2 EXT4 PERSID BINPERSID GLOBAL STACK_GLOBAL".split()  # noqa: SIM905
)


def wanted_names(stream: BinaryIO) -> list[str]:
    """The dotted names that the pickles in `stream`, one after the other, would import.

    Damage ends the list without an error.
    """
    names: dict[str, None] = {}
    try:
        while True:
            strings: list[str] = []
            for opcode, argument, _ in pickletools.genops(stream):
                if opcode.name in ("GLOBAL", "INST"):
                    names[str(argument).replace(" ", ".")] = None
                elif opcode.name == "STACK_GLOBAL":
                    names[".".join(strings[-2:])] = None
                elif isinstance(argument, str):
                    strings.append(argument)
    except (ValueError, IndexError, UnicodeDecodeError, OverflowError, MemoryError):
        return list(names)


def plain_pickle(data: bytes) -> Any:
    """The value of a pickle of plain containers, strings and numbers.

    Raises ValueError that names what else the pickle asks for, or says that it is damaged.
    """
    if names := wanted_names(BytesIO(data)):
        raise ValueError(f"it wants to load {', '.join(names)}, which could run code")
    places = [int(place or 0) for opcode, place, _ in pickletools.genops(data) if _is_place(opcode.name)]
    if places and max(places) > len(data):
        raise ValueError("it numbers its values beyond its own length")
    try:
        return pickle.loads(data)
    except Exception as error:  # unpickling damaged data may raise anything
        raise ValueError(str(error)) from error


def _is_place(opcode: str) -> bool:
    """Whether an opcode names a memo place, for which the unpickler would make room. Refuses active ones."""
    if opcode in _ACTIVE:
        raise ValueError(f"it holds {opcode}, which could run code")
    return opcode in ("PUT", "BINPUT", "LONG_BINPUT")
