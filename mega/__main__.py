"""The command `mega`, also as `python -m mega`: what needs no app's file."""

from __future__ import annotations

import sys
from pathlib import Path

from mega import cli
from mega.app import App

__all__ = ["main"]


def main() -> None:
    """Run one command against the broker of `--broker`, MEGA_BROKER, or `.mega/` here."""
    here = f"embedded:{Path('.mega').resolve()}" if Path(".mega").is_dir() else None
    defaults = cli.Defaults(
        has_file=False, role=None, broker=here, backend="asyncio", drain_timeout=0
    )
    cli.run_tool(App("mega"), sys.argv[1:], defaults)


if __name__ == "__main__":
    main()
