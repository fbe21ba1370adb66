"""How many threads a process may use."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

CONTROL_GROUPS = Path("/sys/fs/cgroup")
OWN_GROUPS = Path("/proc/self/cgroup")


def default_threads() -> int:
    """The smaller of CPU affinity and container quota, at least 1."""
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    return max(1, min(affinity, quota_cpus() or affinity))


def quota_cpus() -> int | None:
    """CPUs that the process' own control groups grant (version 1 or 2), rounded up; None where there is no limit.

    A group is bound by the limits of those above it as well, so the smallest counts.
    https://docs.kernel.org/admin-guide/cgroup-v2.html, "cpu.max"; https://docs.kernel.org/scheduler/sched-bwc.html
    """
    limits = [limit for folder in _groups() if (limit := _limit(folder)) is not None]
    return min(limits, default=None)


def _groups() -> Iterator[Path]:
    """Folders of the control groups that this process is in, and of those above them.

    In a container a path may be the host's, and the group then lies at the root of what is mounted.
    """
    try:
        lines = OWN_GROUPS.read_text().splitlines()
    except OSError:
        lines = []
    for line in ["0::/", *lines]:
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if not controllers:
            roots = [CONTROL_GROUPS, CONTROL_GROUPS / "unified"]
        elif "cpu" in controllers.split(","):
            roots = [CONTROL_GROUPS / "cpu", CONTROL_GROUPS / controllers]
        else:
            continue
        inside = PurePosixPath(path.lstrip("/"))
        for root in roots:
            yield from (root / part for part in (inside, *inside.parents))
    yield CONTROL_GROUPS / "cpu"


def _limit(group: Path) -> int | None:
    try:
        quota, period = (group / "cpu.max").read_text().split()[:2]
    except (OSError, ValueError):
        try:
            quota = (group / "cpu.cfs_quota_us").read_text().strip()
            period = (group / "cpu.cfs_period_us").read_text().strip()
        except OSError:
            return None
    if not quota.isdigit() or not period.isdigit() or int(period) == 0:
        return None
    return max(1, -(-int(quota) // int(period)))
