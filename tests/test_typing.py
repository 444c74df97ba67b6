"""The types of the public API: mypy and pyright find planted mistakes, and raise no false alarm.

`typing/good.py` and `typing/mistakes.py` are only checked, never run. Every checker must find
an error in each line of `mistakes.py` that says so, and nowhere else.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import mega

FOLDER = Path(__file__).parent / "typing"
GOOD, MISTAKES = FOLDER / "good.py", FOLDER / "mistakes.py"
MARK = "# expect-error"
PUBLIC = (
    "mega",
    "mega.app",
    "mega.context",
    "mega.cpu",
    "mega.cpu_handle",
    "mega.cron",
    "mega.errors",
    "mega.events",
    "mega.group",
    "mega.handles",
    "mega.options",
    "mega.testing",
)
MYPY = (
    "mypy",
    "--strict",
    "--config-file=",
    "--cache-dir=.mypy_cache/typing",
    "--follow-imports=silent",
    "--enable-error-code=unused-coroutine",
    "--enable-error-code=unused-awaitable",
    "--hide-error-context",
    "--no-pretty",
    "--show-absolute-path",
)
PYRIGHT = ("pyright", "--pythonpath", sys.executable, "--outputjson")

#: The errors of one checker as (file, line, message).
Errors = frozenset[tuple[Path, int, str]]


def run(*command: str) -> str:
    known = f"{Path(mega.__file__).parents[1]}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    done = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=FOLDER.parents[1],
        env={**os.environ, "PYTHONPATH": known},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, 1), f"{command[0]} broke down:\n{done.stdout}{done.stderr}"
    return done.stdout


@cache
def mypy_errors() -> Errors:
    found = re.findall(r"^(.+?):(\d+): error: (.*)$", run(*MYPY, str(GOOD), str(MISTAKES)), re.M)
    return frozenset((Path(file), int(line), message) for file, line, message in found)


@cache
def pyright_errors() -> Errors:
    report = json.loads(run(*PYRIGHT, "--project", str(FOLDER)))
    assert 2 == report["summary"]["filesAnalyzed"]
    return frozenset(
        (Path(found["file"]), found["range"]["start"]["line"] + 1, found["message"])
        for found in report["generalDiagnostics"]
        if found["severity"] == "error"
    )


def listed(lines: set[int]) -> str:
    text = MISTAKES.read_text().splitlines()
    return "\n".join(f"  {MISTAKES.name}:{line} {text[line - 1].strip()}" for line in sorted(lines))


both_checkers = pytest.mark.parametrize(
    "errors_of", [mypy_errors, pyright_errors], ids=["mypy", "pyright"]
)


@both_checkers
def test_good_code_has_no_error(errors_of: Callable[[], Errors]) -> None:
    found = sorted(error for error in errors_of() if error[0] != MISTAKES)
    alarms = "\n".join(f"  {file.name}:{line} {message}" for file, line, message in found)
    if alarms:
        pytest.fail(f"false alarms: mend the signatures, not the calls\n{alarms}")


@both_checkers
def test_each_planted_mistake_is_found(errors_of: Callable[[], Errors]) -> None:
    lines = MISTAKES.read_text().splitlines()
    marked = {number for number, line in enumerate(lines, 1) if line.endswith(MARK)}
    found = {line for file, line, _ in errors_of() if file == MISTAKES}
    missed, alarms = listed(marked - found), listed(found - marked)
    if missed:
        pytest.fail(f"not found: make the signatures stricter\n{missed}")
    if alarms:
        pytest.fail(f"false alarms: mend the signatures, or mark the line\n{alarms}")


def test_all_public_names_have_types() -> None:
    report = json.loads(run("pyright", "--verifytypes", "mega", "--ignoreexternal", "--outputjson"))
    symbols: list[dict[str, Any]] = report["typeCompleteness"]["symbols"]
    unknown = {symbol["name"]: symbol for symbol in symbols if not symbol["isTypeKnown"]}
    public = {f"{module}.{name}" for module in PUBLIC for name in names_of(module)}
    if unknown.keys() & public:
        causes = "\n".join(f"  {line}" for line in sorted(missing_annotations(unknown)))
        names = ", ".join(sorted(unknown.keys() & public))
        pytest.fail(
            f"partly without types: {names}\nannotate what they are made of, among these:\n{causes}"
        )


def names_of(module: str) -> list[str]:
    return list(importlib.import_module(module).__all__)


def missing_annotations(symbols: dict[str, dict[str, Any]]) -> set[str]:
    return {
        f"{Path(found['file']).name}:{found['range']['start']['line'] + 1} {name}"
        for name, symbol in symbols.items()
        for found in symbol["diagnostics"]
        if "missing type annotation" in found["message"] and ".adapters." not in name
    }
