"""Where a cache's keys and values lie: in the memory of this process, or of the device that computes.

Both kinds hold an array (slots, kv_heads, capacity, head_dim) that a graph reads and updates in place, bound by
address. What happens seldom, growing and copying a slot, goes through this process' memory for both: onnxruntime's
Python copies whole tensors only, and nothing else is needed for a GPU.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from numpy.typing import NDArray

from edgelm_runtime.engine.graph_inputs import needs_room
from edgelm_runtime.engine.providers import on_device

if TYPE_CHECKING:
    from edgelm_runtime.engine.session import Session

States = NDArray[Any]
Place = tuple[str, int, Any, tuple[int, ...], int]
"""Device, its number, element type, shape and address, as an I/O binding wants to be told them."""


class Buffer(Protocol):
    """One layer's keys or values."""

    def states(self) -> States:
        """What the buffer holds, to be read."""

    def copy_slot(self, source: int, target: int, length: int) -> None:
        """Make slot `target` begin with the first `length` positions of slot `source`."""

    def swap_slots(self, one: int, one_length: int, other: int, other_length: int) -> None:
        """Let two slots trade what they hold in their first positions, of which so many count."""

    def place(self, first: int, last: int) -> Place:
        """Where the slots from `first` to before `last` lie, for as long as the buffer exists."""


class HostBuffer:
    """In the memory of this process."""

    def __init__(self, states: States) -> None:
        self._states = states

    def states(self) -> States:
        return self._states

    def copy_slot(self, source: int, target: int, length: int) -> None:
        self._states[target, :, :length] = self._states[source, :, :length]

    def swap_slots(self, one: int, one_length: int, other: int, other_length: int) -> None:
        _swap(self._states, one, one_length, other, other_length)

    def place(self, first: int, last: int) -> Place:
        return place(self._states[first:last])


class DeviceBuffer:
    """In the memory of `device`, such as `cuda`."""

    def __init__(self, states: States, device: str) -> None:
        self._value = on_device(states, device)
        self._device, self._type, self._shape = device, states.dtype.type, states.shape
        self._slot_bytes = states.nbytes // len(states)

    def states(self) -> States:
        states: States = self._value.numpy()
        return states

    def copy_slot(self, source: int, target: int, length: int) -> None:
        states = self.states()
        states[target, :, :length] = states[source, :, :length]
        self._value.update_inplace(states)

    def swap_slots(self, one: int, one_length: int, other: int, other_length: int) -> None:
        states = self.states()
        _swap(states, one, one_length, other, other_length)
        self._value.update_inplace(states)

    def place(self, first: int, last: int) -> Place:
        address = self._value.data_ptr() + first * self._slot_bytes
        return self._device, 0, self._type, (last - first, *self._shape[1:]), address


def _swap(states: States, one: int, one_length: int, other: int, other_length: int) -> None:
    kept = states[one, :, :one_length].copy()
    states[one, :, :other_length] = states[other, :, :other_length]
    states[other, :, :one_length] = kept


def make_buffer(states: States, device: str | None) -> Buffer:
    """A buffer that begins as `states`, in the memory of `device` or, for None, of this process."""
    return HostBuffer(states) if device is None else DeviceBuffer(states, device)


def cache_device(session: Session) -> str | None:
    """The device whose memory a cache belongs in; None for this process' own.

    On a device it helps only where the device attends to it: `GroupQueryAttention` in float32 and int8 runs on the
    CPU, and would have the whole cache brought there at each step.
    """
    return session.device if needs_room(session.inputs) else None


def place(array: NDArray[Any]) -> Place:
    """Where an array of this process lies. (The binding's shorter call refuses inputs with a default.)"""
    return "cpu", 0, array.dtype.type, array.shape, array.ctypes.data
