"""How many threads a process may use."""

from __future__ import annotations

import os
from pathlib import Path


def default_threads() -> int:
    """The smaller of CPU affinity and container quota, at least 1."""
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    return max(1, min(affinity, _container_cpus() or affinity))


def _container_cpus() -> int | None:
    """CPUs that the control group grants (version 2, then 1), rounded up; None where there is no limit."""
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()[:2]
    except (OSError, ValueError):
        try:
            folder = Path("/sys/fs/cgroup/cpu")
            quota = (folder / "cpu.cfs_quota_us").read_text().strip()
            period = (folder / "cpu.cfs_period_us").read_text().strip()
        except OSError:
            return None
    if not quota.isdigit() or not period.isdigit() or int(period) == 0:
        return None
    return max(1, -(-int(quota) // int(period)))
