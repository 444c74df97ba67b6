"""The command line: `python -m benchmarks` measures, prints tables and a verdict for each goal."""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from statistics import median
from typing import Any, TextIO

from benchmarks.contenders import CALLERS, CONTENDERS, EXECUTOR, OURS
from benchmarks.goals import Rows
from benchmarks.measure import MEASUREMENTS, Settings
from benchmarks.processes import Elsewhere
from benchmarks.report import report

__all__ = ["main"]

USUAL = "drain,enqueue,latency,kill,cpu"
ALL = (*CONTENDERS, EXECUTOR)
#: Who takes part in what; in all else those that have jobs do.
SIDES = {"memory": OURS, "cpu": CALLERS, "schedules": ("mega",)}


def main(argv: Sequence[str] | None = None) -> int:
    """Measure what was asked for. Returns 1 when a measurement failed."""
    options = parse(argv)
    settings = Settings(**{one.name: getattr(options, one.name) for one in fields(Settings)})
    rows: Rows = defaultdict(dict)
    elsewhere, failures = [], 0
    for what, repetition, contender in plan(options):
        row: dict[str, Any] = {"what": what, "contender": contender, "repetition": repetition}
        others = Elsewhere()
        try:
            values = MEASUREMENTS[what](contender, settings)
        except (RuntimeError, OSError, ValueError) as error:
            failures += 1
            row["error"] = str(error)
        else:
            rows[what, contender][repetition] = values
            elsewhere.append(others.cpus())
            row |= values | {"elsewhere": elsewhere[-1]}
        keep(row, options.out)
    if elsewhere:
        print(report(rows))
        print(f"\nmeanwhile the rest of the machine used {median(elsewhere):.1f} CPUs")
    return 1 if failures else 0


def plan(options: argparse.Namespace) -> Iterator[tuple[str, int, str]]:
    """Yield the trials: the repetitions are interleaved, every other one backwards."""
    for what in options.what:
        names = [one for one in options.contenders if one in SIDES.get(what, CONTENDERS)]
        for repetition in range(1 if what == "memory" else options.reps):
            for contender in names[:: -1 if repetition % 2 else 1]:
                yield what, repetition, contender


def keep(row: dict[str, Any], out: TextIO | None) -> None:
    """Say on stderr how far the run is, and write the row to the file of `--out`."""
    shown = ", ".join(
        f"{name} {value:,.2f}" if isinstance(value, float) else f"{name} {value}"
        for name, value in row.items()
    )
    print(shown, file=sys.stderr, flush=True)
    if out is not None:
        print(json.dumps(row), file=out, flush=True)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    usual = Settings()
    parser = argparse.ArgumentParser(prog="benchmarks", description=__doc__)
    parser.add_argument("--what", type=some_of(MEASUREMENTS), default=USUAL)
    parser.add_argument("--contenders", type=some_of(ALL), default=",".join(ALL))
    parser.add_argument("--reps", type=int, default=3, help="repetitions of all but memory")
    parser.add_argument("--jobs", type=int, default=usual.jobs)
    parser.add_argument("--memory-jobs", type=int, default=usual.memory_jobs)
    parser.add_argument("--calls", type=int, default=usual.calls, help="calls of CPU tasks")
    parser.add_argument("--ack-wait", type=float, default=usual.ack_wait, help="seconds")
    parser.add_argument("--loop", choices=("asyncio", "uvloop"), default=usual.loop)
    parser.add_argument("--out", type=writable, help="a file for the rows, as JSON lines")
    return parser.parse_args(argv)


def some_of(known: Sequence[str] | dict[str, Any]) -> Any:
    """Return a parser of a list of these names, separated by commas."""

    def parse_names(text: str) -> list[str]:
        names = text.split(",")
        for name in names:
            if name not in known:
                raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(known)}")
        return names

    return parse_names


def writable(path: str) -> TextIO:
    return Path(path).open("a", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
