"""Every app gets a folder of its own, and leaves no process behind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.apps.program import wait_until_gone


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """The `.mega` folder of the app under test."""
    folder = tmp_path / ".mega"
    yield folder
    wait_until_gone(folder)
