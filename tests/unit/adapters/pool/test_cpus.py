from __future__ import annotations

from pathlib import Path

import pytest

from mega.adapters.pool import cpus


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Cgroup folders `/` and `/app/web`, and a process in the latter that may use 8 CPUs."""
    root, own = tmp_path / "cgroup", tmp_path / "own"
    (root / "app/web").mkdir(parents=True)
    own.write_text("9:cpu:/elsewhere\n0::/app/web\n")
    monkeypatch.setattr(cpus, "CGROUPS", root)
    monkeypatch.setattr(cpus, "OWN_CGROUP", own)
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(8)))
    return root


def test_without_a_quota_the_affinity_counts(groups: Path) -> None:
    (groups / "app/cpu.max").write_text("max 100000\n")
    assert 7 == cpus.default_size()


@pytest.mark.parametrize(
    ("quota", "size"), [("400000 100000", 3), ("250000 100000", 2), ("50000 100000", 1)]
)
def test_the_quota_counts(groups: Path, quota: str, size: int) -> None:
    (groups / "app/web/cpu.max").write_text(quota)
    assert cpus.default_size() == size


def test_the_smallest_quota_on_the_way_up_counts(groups: Path) -> None:
    (groups / "app/web/cpu.max").write_text("600000 100000")
    (groups / "app/cpu.max").write_text("300000 100000")
    assert 2 == cpus.default_size()


def test_no_cgroups_at_all(groups: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpus, "OWN_CGROUP", groups / "absent")
    assert 7 == cpus.default_size()
