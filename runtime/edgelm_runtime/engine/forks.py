"""What a forked child must make anew: locks that a thread of its parent may hold, and sessions with their threads.

A child has only the thread that forked. A lock that another thread held at that moment stays locked there for ever.
"""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class Renewable(Protocol):
    """Something that holds locks or threads."""

    def renew_in_child(self) -> None:
        """Make them anew; called in a forked child, before anything else runs there."""


_held: weakref.WeakSet[Renewable] = weakref.WeakSet()


def renewed_in_children(thing: Renewable) -> None:
    """Have `thing` renewed in each child that this process forks from now on."""
    _held.add(thing)


def _renew() -> None:
    for thing in list(_held):
        thing.renew_in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)
