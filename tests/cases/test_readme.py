"""README.md lists each case with the tests that run it, and those tests name it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROW = re.compile(r"\| (?P<case>[a-z0-9]+-\d+) \| [^|]+ \| (?P<tests>[^|]+) \|")
#: `"""size-01, size-02: …"""`
NAMED = re.compile(r"(?P<cases>[a-z0-9]+-\d+(, [a-z0-9]+-\d+)*): ")


def rows() -> list[tuple[str, str]]:
    """Return each case of the table with each of its tests, `file::name`."""
    text = (HERE / "README.md").read_text(encoding="utf-8")
    found = []
    for line in text.splitlines():
        row = ROW.fullmatch(line)
        if row:
            found += [(row["case"], test) for test in row["tests"].split(", ")]
    return found


@cache
def cases_by_test(file: str) -> dict[str, list[str]]:
    """Return the cases that the docstring of each test of a file names."""
    tree = ast.parse((HERE / file).read_text(encoding="utf-8"))
    named = {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name[:5] == "test_":
            match = NAMED.match(ast.get_docstring(node) or "")
            named[node.name] = match["cases"].split(", ") if match else []
    return named


def all_named() -> Iterator[tuple[str, str]]:
    for file in sorted(HERE.glob("test_*.py")):
        for test, cases in cases_by_test(file.name).items():
            yield from ((case, f"{file.name}::{test}") for case in cases)


@pytest.mark.parametrize(("case", "test"), rows())
def test_a_listed_case_is_named_by_its_test(case: str, test: str) -> None:
    file, _, name = test.partition("::")
    assert case in cases_by_test(file)[name]


def test_every_case_that_a_test_names_is_listed() -> None:
    assert [] == sorted(set(all_named()) - set(rows()))


def test_no_case_is_listed_twice() -> None:
    listed = [line for line in (HERE / "README.md").read_text().splitlines() if ROW.match(line)]
    cases = [line.split(" | ")[0] for line in listed]
    assert sorted(set(cases)) == sorted(cases)
