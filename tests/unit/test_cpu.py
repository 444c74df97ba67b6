"""What a task says to its caller."""

from __future__ import annotations

from contextvars import copy_context

import pytest

from mega import cpu


def test_progress_outside_of_a_pool_does_nothing() -> None:
    cpu.progress(0.4, "alone")


@pytest.mark.parametrize(
    ("said", "told"), [(0.4, 0.4), (1, 1.0), (-1, 0.0), (1.0001, 1.0), (float("nan"), 0.0)]
)
def test_a_fraction_is_kept_between_0_and_1(said: float, told: float) -> None:
    reports = []

    def say() -> None:
        cpu.current_report.set(lambda *report: reports.append(report))
        cpu.progress(said)

    copy_context().run(say)
    assert [(told, "")] == reports
