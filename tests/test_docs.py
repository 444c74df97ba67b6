"""README and docs do what they say: each page is read from its top to its end, and done.

A page is done in a folder of its own. What stands in a block, and what is done with it:

- `python title="app.py"` is written to that file, in place of what was there before.
- `python` with `>>>` is run as a doctest; the blocks of one page share their names.
- `python` without either is a script that must end well.
- `console` is a terminal. A line that starts with `$ ` is typed, and runs `python FILE`, `mega`,
  `pytest`, `nats-server -js` or `echo $?`. The lines below it must appear in its output, whole and
  in that order. `^C` presses Ctrl-C, after which the program must end with exit code 0.
  With `title="terminal 2"` the block goes on in the terminal of that name, where the last program
  may still run. `...` stands for anything; ids, pids, ports, times and durations stand for any
  other one. What is shown of `--help` must be all of it.
- `json` must be JSON. `sh` and `text` are not run here; the two `sh` lines of README are checked
  below, and `.ci/run` runs the second of them.

`nats-server -js` gets a free port, for which 4222 stands in the rest of the page.
"""

from __future__ import annotations

import doctest
import json
import os
import re
import shlex
import shutil
import stat
import subprocess
import unicodedata
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import mega.errors
from mega.cron import is_valid, next_runs
from mega.events import EVENTS
from mega.runtime.hub import LOGGED
from mega.wire import message
from mega.wire.dead_letter import Envelope
from mega.wire.record import JobRecord
from tests.apps.program import Program, wait_until_gone
from tests.nats_server import NatsServer
from tests.waiting import until_sync

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
CRON = DOCS / "reference" / "cron.md"
TICKS = DOCS / "explanation" / "ticks.md"
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted(DOCS.rglob("*.md"))]

APPEARS_WITHIN = 30.0
ENDS_WITHIN = 60.0

FENCE = re.compile(r"(?ms)^```(\w+)(?: title=\"([^\"]*)\")?\n(.*?)^```$")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"(?m)^#+ (.+)$")
ENVIRONMENT = re.compile(r"[A-Z_]+=")

#: What differs from run to run, and what may stand in its place.
VARYING = {
    r"\.\.\.": r".*",
    r"next [^(]*\(in [^)]*\)": r"next [^(]*\(in [^)]*\)",
    r"\d\d:\d\d:\d\d": r"\d\d:\d\d:\d\d",
    r"\b[0-9a-f]{24}\b": r"[0-9a-f]{24}",
    r"pid \d+": r"pid \d+",
    r"127\.0\.0\.1:\d+": r"127\.0\.0\.1:\d+",
    r"data in \S+": r"data in \S+",
    r"\d+\.\d+ ?s\b": r"\d+\.\d+ ?s",
}
VARIES = re.compile("|".join(f"({kind})" for kind in VARYING))


@dataclass(frozen=True)
class Block:
    """One fenced block, and where it begins."""

    place: str
    language: str
    title: str
    text: str


def blocks_of(page: Path) -> list[Block]:
    text, blocks = page.read_text(encoding="utf-8"), []
    for match in FENCE.finditer(text):
        line = text.count("\n", 0, match.start()) + 1
        language, title, body = match.groups()
        blocks.append(Block(f"{page.relative_to(ROOT)}:{line}", language, title or "", body))
    assert 2 * len(blocks) == len(re.findall("(?m)^```", text)), f"{page}: a block is malformed"
    return blocks


def pattern_of(shown: str) -> re.Pattern[str]:
    """Return what matches a line like the one shown."""
    parts, end = [], 0
    for match in VARIES.finditer(shown):
        parts += [re.escape(shown[end : match.start()])]
        parts += [list(VARYING.values())[(match.lastindex or 1) - 1]]
        end = match.end()
    return re.compile(rf"(?m)^{''.join(parts)}{re.escape(shown[end:])}[ \t]*$")


@dataclass
class Terminal:
    """What was typed last in one terminal, and how far its output was read."""

    program: Program | NatsServer | None = None
    read: dict[str, int] = field(default_factory=dict)

    def start(self, program: Program | NatsServer) -> None:
        self.program, self.read = program, {"output": 0, "errors": 0}

    def expect(self, shown: str, place: str) -> None:
        """Wait for a line like the one shown, below those that were seen before."""
        program, pattern = self.program, pattern_of(shown)
        assert isinstance(program, Program), f"{place}: nothing runs that could print {shown!r}"
        has_found = False

        def has_news() -> bool:
            nonlocal has_found
            has_ended = program._has_ended()
            has_found = has_found or self._read_past(pattern)
            return has_found or has_ended

        with suppress(AssertionError):
            until_sync(has_news, within=APPEARS_WITHIN, what=shown)
        assert has_found, f"{place}: no line {shown!r} in\n{program.output}\n{program.errors}"

    def _read_past(self, pattern: re.Pattern[str]) -> bool:
        for stream, position in self.read.items():
            match = pattern.search(getattr(self.program, stream), position)
            if match:
                self.read[stream] = match.end()
                return True
        return False

    def press_ctrl_c(self, place: str) -> None:
        if isinstance(self.program, NatsServer):
            self.program.stop()
        elif self.program is not None:
            self.program.interrupt_group()
            code = self.end()
            assert 0 == code, f"{place}: ended with {code}\n{self.program.errors}"

    def end(self) -> int:
        """Wait for the end of what runs, and return its exit code."""
        return self.program.wait(within=ENDS_WITHIN) if isinstance(self.program, Program) else 0


class Reader:
    """Someone who does what a page says, in one folder and as many terminals as it asks for."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        self._stack = stack
        self._terminals: dict[str, Terminal] = {}
        self._names: dict[str, Any] = {}
        self._port = "4222"

    def do(self, block: Block) -> None:
        match block.language:
            case "python" if block.title:
                (self.folder / block.title).write_text(block.text, encoding="utf-8")
                compile(block.text, block.place, "exec")
            case "python" if ">>>" in block.text:
                self._run_doctest(block)
            case "python":
                self._run_script(block)
            case "console":
                self._use_terminal(block)
            case "json":
                json.loads(block.text)
            case _:
                assert block.language in ("sh", "text"), f"{block.place}: {block.language}?"

    def leave(self) -> None:
        """Wait for the end of everything; a page stops what it starts."""
        for terminal in self._terminals.values():
            terminal.end()

    def _run_doctest(self, block: Block) -> None:
        test = doctest.DocTestParser().get_doctest(
            block.text, self._names, block.place, block.place, 0
        )
        complaints: list[str] = []
        runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
        runner.run(test, out=complaints.append, clear_globs=False)
        assert not runner.failures, "".join(complaints)
        self._names = test.globs

    def _run_script(self, block: Block) -> None:
        (self.folder / "block.py").write_text(block.text, encoding="utf-8")
        program = self._program("python block.py")
        assert isinstance(program, Program)
        assert 0 == program.wait(within=ENDS_WITHIN), f"{block.place}\n{program.errors}"

    def _use_terminal(self, block: Block) -> None:
        terminal = self._terminals.setdefault(block.title, Terminal())
        command, shown = "", []
        for line in block.text.splitlines():
            if line.startswith("$ "):
                terminal.end()
                command, shown = line[2:], []
                if command != "echo $?":
                    terminal.start(self._program(command))
            elif command == "echo $?":
                assert str(terminal.end()) == line, block.place
            elif line == "^C":
                terminal.press_ctrl_c(block.place)
            elif line not in ("", "..."):
                shown.append(line)
                terminal.expect(line, block.place)
        if command.endswith("--help") and isinstance(terminal.program, Program):
            terminal.end()
            # Python releases break the lines at other places.
            assert terminal.program.output.split() == " ".join(shown).split(), block.place

    def _program(self, command: str) -> Program | NatsServer:
        words = shlex.split(command.replace(":4222", f":{self._port}"))
        environment = {"COLUMNS": "80"}
        while ENVIRONMENT.match(words[0]):
            name, _, value = words.pop(0).partition("=")
            environment[name] = value
        if words == ["nats-server", "-js"]:
            server = self._stack.enter_context(NatsServer())
            self._port = str(server.port)
            return server
        # Program runs `python WORD ARGUMENTS` in the folder of its first argument.
        first, *arguments = {"python": [], "mega": ["-m", "mega"], "pytest": ["-m", "pytest"]}[
            words[0]
        ] + words[1:]
        home = self.folder / ".mega"
        program = Program(self.folder / first, *arguments, home=home, **environment)
        return self._stack.enter_context(program)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """An empty folder, whose programs have all ended in the end."""
    yield tmp_path
    wait_until_gone(tmp_path / ".mega")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_does_what_it_says(page: Path, folder: Path) -> None:
    shutil.copytree(ROOT / "examples", folder / "examples", ignore=shutil.ignore_patterns(".mega"))
    with ExitStack() as stack:
        reader = Reader(folder, stack)
        for block in blocks_of(page):
            reader.do(block)
        reader.leave()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    for link in LINK.findall(FENCE.sub("", page.read_text(encoding="utf-8"))):
        if link.startswith(("http:", "https:")):
            continue
        address, _, anchor = link.partition("#")
        target = (page.parent / address).resolve() if address else page
        assert target.exists(), f"{page.name}: {link}"
        assert not anchor or anchor in anchors_of(target), f"{page.name}: {link}"


def anchors_of(page: Path) -> set[str]:
    """Return the anchors that GitHub makes of a page's headings."""
    headings = HEADING.findall(FENCE.sub("", page.read_text(encoding="utf-8")))
    kept = ("L", "N")
    return {
        "".join(
            c for c in title.lower() if c in " -_" or unicodedata.category(c)[0] in kept
        ).replace(" ", "-")
        for title in headings
    }


def test_the_index_links_every_page() -> None:
    links = LINK.findall((DOCS / "index.md").read_text(encoding="utf-8"))
    linked = {(DOCS / link.partition("#")[0]).resolve() for link in links if "://" not in link}
    assert set(DOCS.rglob("*.md")) - {DOCS / "index.md"} <= linked


def test_readme_needs_two_commands_on_a_fresh_machine() -> None:
    commands = [block.text for block in blocks_of(ROOT / "README.md") if block.language == "sh"]
    assert [
        "python3 -m venv .venv && .venv/bin/pip install -q . "
        "&& .venv/bin/python examples/quickstart.py\n",
        "python3 -m venv .venv && .venv/bin/pip install -q nox && .venv/bin/nox\n",
    ] == commands
    assert (ROOT / "examples" / "quickstart.py").exists()


def test_ci_runs_the_test_command_of_readme(tmp_path: Path) -> None:
    for name in (".ci", "README.md"):
        source, target = ROOT / name, tmp_path / name
        (shutil.copytree if source.is_dir() else shutil.copy2)(source, target)
    # Stand-ins on PATH: the command is seen, and nothing is installed.
    stand_in = tmp_path / "bin" / "python3"
    stand_in.parent.mkdir()
    stand_in.write_text("#!/bin/sh\nexit 7\n")
    stand_in.chmod(stand_in.stat().st_mode | stat.S_IXUSR)
    ran = subprocess.run(
        ["bash", str(tmp_path / ".ci" / "run")],
        env=os.environ | {"PATH": f"{stand_in.parent}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    command = "python3 -m venv .venv && .venv/bin/pip install -q nox && .venv/bin/nox"
    assert (f"+ {command}\n", 7) == (ran.stdout, ran.returncode)


def test_every_error_is_listed_with_its_code() -> None:
    names = [getattr(mega.errors, name) for name in mega.errors.__all__]
    errors = {cls.__name__: cls.code for cls in names if isinstance(cls, type)}
    assert errors == table_of(DOCS / "reference" / "errors.md")


def test_the_wire_page_lists_every_field_and_header() -> None:
    page = (DOCS / "reference" / "wire.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"(?m)^\| `([^`]+)`", page))
    assert set(JobRecord.__struct_fields__) <= listed
    assert set(Envelope.__struct_fields__) <= listed
    headers = {value for name, value in vars(message).items() if str(value).startswith("Mega-")}
    assert headers == {name for name in listed if name.startswith("Mega-")}


def test_the_handlers_page_lists_every_event_with_its_fields() -> None:
    page = (DOCS / "reference" / "handlers.md").read_text(encoding="utf-8")
    table = page.partition("\n## Events\n")[2].partition("\n## ")[0]
    rows = re.findall(r"(?m)^\| `(\w+)` \| (\*\*)?`([\w.]+)`(?:\*\*)? \| (.*?) \|", table)
    events = {event.__name__: event for event in EVENTS.values()}
    assert set(events) == {row[0] for row in rows}
    for name, bold, kind, listed in rows:
        event = events[name]
        assert (event.kind, event in LOGGED) == (kind, bool(bold)), name
        assert [field.name for field in fields(event)] == re.findall(r"`(\w+)`", listed), name


def test_the_instants_of_the_cron_tables_are_right() -> None:
    rows = [[cell.strip(" `") for cell in row.split(" | ")] for row in rows_of(CRON)]
    terms = [("UTC", "2026-01-01 00:00", row[3], row[4]) for row in rows if len(row) == 5]
    jumps = [(row[1], row[2], row[0], row[3]) for row in rows if len(row) == 4 and "/" in row[1]]
    assert (17, 10) == (len(terms), len(jumps))
    check_instants(terms + jumps)


def test_the_instants_of_the_ticks_table_are_right() -> None:
    rows = [[cell.strip(" `") for cell in row.split(" | ")] for row in rows_of(TICKS)]
    jumps = [(row[1], row[2], row[0], row[3]) for row in rows if len(row) == 5]
    assert 8 == len(jumps)
    check_instants(jumps)


def check_instants(cases: list[tuple[str, str, str, str]]) -> None:
    """Check `(zone, after, expression, runs)`, where the times are UTC."""
    for zone, after, expression, runs in cases:
        expected = [instant(text) for text in runs.split(", ")]
        found = next_runs(expression, len(expected), instant(after), timezone=zone)
        assert expected == [run.astimezone(UTC) for run in found], expression


def test_what_the_cron_page_refuses_is_refused_and_its_remedies_are_taken() -> None:
    refused = CRON.read_text(encoding="utf-8").partition("## Refused")[2].partition("\n## ")[0]
    rows = [re.findall(r"`([^`]+)`", row) for row in re.findall(r"(?m)^(\| `.*)$", refused)]
    assert 18 == len(rows)
    for refusal, *others in rows:
        assert not is_valid(refusal)
        assert all(is_valid(other) for other in others if is_expression(other))


def is_expression(text: str) -> bool:
    return text.startswith("@") or len(text.split()) >= 5


def rows_of(page: Path) -> list[str]:
    """Return the rows of a page's tables that begin with code, without their outer bars."""
    return re.findall(r"(?m)^\| (`.*) \|$", page.read_text(encoding="utf-8"))


def instant(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def table_of(page: Path) -> dict[str, str]:
    """Return the first two columns of a page's tables, where both are code."""
    rows = re.findall(r"(?m)^\| `(\w+)` \| `([\w.]+)` \|", page.read_text(encoding="utf-8"))
    return dict(rows)


def test_a_page_that_is_wrong_is_noticed(folder: Path) -> None:
    with ExitStack() as stack:
        reader = Reader(folder, stack)
        reader.do(Block("here", "python", "app.py", "print('yes')\n"))
        with pytest.raises(AssertionError, match="no line 'no'"):
            reader.do(Block("here", "console", "", "$ python app.py\nno\n"))
