"""A minute of chaos: workers and the server are killed and frozen, connections are cut."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from tests.chaos.driver import Chaos
from tests.chaos.report import digest

SECONDS = float(os.environ.get("CHAOS_SECONDS", "60"))
SEED = os.environ.get("CHAOS_SEED") or secrets.token_hex(3)


def test_no_job_is_lost_and_no_live_one_runs_twice(tmp_path: Path) -> None:
    chaos = Chaos(SEED, tmp_path)
    chaos.run(SECONDS)
    assert [] == chaos.reports, f"seed {SEED}\n{digest(chaos.reports)}"
    assert chaos.jobs > SECONDS
