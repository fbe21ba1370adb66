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


def check_size(stream: BinaryIO) -> None:
    """Raise pickle.UnpicklingError where the pickles in `stream` build tuples that hold one another over and over.

    A few bytes can make a tuple that takes for ever to hash or to show: `(x, x)` of such a tuple, thirty times.
    Values are followed by their size alone; whatever else is wrong is left to the unpickler.
    """
    try:
        while True:
            _Sizes().follow(stream)
    except (ValueError, IndexError, KeyError, TypeError, UnicodeDecodeError, OverflowError, MemoryError):
        return


LARGEST_TUPLE = 1 << 20
_TUPLES = {"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


class _Sizes:
    """The unpickler's stack and memo, with the number of leaves in the place of each value."""

    def __init__(self) -> None:
        self._stack: list[int | None] = []  # None is a mark
        self._memo: dict[int, int | None] = {}

    def follow(self, stream: BinaryIO) -> None:
        for opcode, argument, _ in pickletools.genops(stream):
            self._step(opcode, argument)

    def _step(self, opcode: pickletools.OpcodeInfo, argument: Any) -> None:
        name, stack = opcode.name, self._stack
        if name in ("TUPLE", "FROZENSET") or name in _TUPLES:
            parts = self._to_mark() if name not in _TUPLES else [stack.pop() for _ in range(_TUPLES[name])]
            size = 1 + sum(part or 0 for part in parts)
            if size > LARGEST_TUPLE:
                raise pickle.UnpicklingError("its tuples hold one another too often")
            stack.append(size)
        elif name in ("PUT", "BINPUT", "LONG_BINPUT"):
            self._memo[int(argument)] = stack[-1]
        elif name == "MEMOIZE":
            self._memo[len(self._memo)] = stack[-1]
        elif name in ("GET", "BINGET", "LONG_BINGET"):
            stack.append(self._memo[int(argument)])
        elif name == "MARK":
            stack.append(None)
        elif name == "DUP":
            stack.append(stack[-1])
        elif name in ("PROTO", "FRAME", "STOP"):
            pass
        else:
            self._by_table(opcode)

    def _by_table(self, opcode: pickletools.OpcodeInfo) -> None:
        """Any other opcode: what it takes off the stack and puts there, as its table says."""
        before = opcode.stack_before
        if pickletools.markobject in before:
            self._to_mark()
            before = before[: before.index(pickletools.markobject)]
        for _ in before:
            self._stack.pop()
        self._stack += [1] * len(opcode.stack_after)

    def _to_mark(self) -> list[int | None]:
        parts: list[int | None] = []
        while (part := self._stack.pop()) is not None:
            parts.append(part)
        return parts


def plain_pickle(data: bytes) -> Any:
    """The value of a pickle of plain containers, strings and numbers.

    Raises ValueError that names what else the pickle asks for, or says that it is damaged.
    """
    try:
        check_size(BytesIO(data))
    except pickle.UnpicklingError as error:
        raise ValueError(str(error)) from error
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
