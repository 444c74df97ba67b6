"""How many processes a pool has when nobody says."""

from __future__ import annotations

import math
import os
from pathlib import Path

__all__ = ["default_size"]

CGROUPS = Path("/sys/fs/cgroup")
OWN_CGROUP = Path("/proc/self/cgroup")


def default_size() -> int:
    """Return one less than the CPUs this process may use, at least 1."""
    return max(1, min(_affinity(), _quota(CGROUPS, OWN_CGROUP)) - 1)


def _affinity() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _quota(root: Path, own: Path) -> int:
    """Return the CPUs that the smallest `cpu.max` on the way up (cgroup v2) allows."""
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return _affinity()
    path = next((line[3:] for line in lines if line.startswith("0::")), "/")
    folder = root / path.lstrip("/")
    quotas = [_quota_of(parent) for parent in (folder, *folder.parents)]
    return min(math.ceil(quota) for quota in [*quotas, float(_affinity())] if quota < math.inf)


def _quota_of(folder: Path) -> float:
    """Return what `cpu.max`, `max 100000` or `150000 100000`, stands for."""
    try:
        quota, period = (folder / "cpu.max").read_text().split()
        return math.inf if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        return math.inf
