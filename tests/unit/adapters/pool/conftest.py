"""Pools whose workers find `pool_tasks`, and a check that nothing stays behind."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mega.adapters.pool.parent import WorkerPool
from mega.pool_options import PoolOptions
from tests.unit.adapters.pool.processes import children
from tests.waiting import until_sync

Facts = dict[str, Any]


@pytest.fixture(autouse=True)
def _importable_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parent)


@pytest.fixture(autouse=True)
def _no_main_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else every worker would import pytest, which is the main file here."""
    main = types.ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", main)
    monkeypatch.setitem(sys.modules, "__mp_main__", main)


@pytest.fixture(autouse=True)
def _no_process_left() -> Iterator[None]:
    before = children()
    yield
    until_sync(lambda: children() <= before, what="no child process, not even a zombie")


@pytest.fixture
def hanging(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a module `hanging` whose import doesn't end; return where it writes its process."""
    mark = tmp_path / "importing"
    code = (
        f"import threading, pool_tasks\npool_tasks.mark({str(mark)!r})\nthreading.Event().wait()\n"
    )
    (tmp_path / "hanging.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    return mark


@pytest.fixture
def events() -> list[tuple[str, Facts]]:
    return []


@pytest.fixture
def new_pool(events: list[tuple[str, Facts]]) -> Callable[..., WorkerPool]:
    def make(*tasks: str, **options: Any) -> WorkerPool:
        options = {"size": 2, **options}
        return WorkerPool(
            "test",
            PoolOptions(**options),
            [task if ":" in task else f"pool_tasks:{task}" for task in tasks],
            emit=lambda kind, facts: events.append((kind, facts)),
        )

    return make
