"""A single-file app as a process of its own, as a user runs it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from textwrap import dedent
from types import TracebackType

from tests.waiting import until_sync

START = 30.0


class Program:
    """`python FILE ARGUMENTS` in a session of its own, with its output as it comes.

    Leaving the block kills what is left of it.
    """

    def __init__(self, file: Path, *arguments: str, home: Path, **environment: str) -> None:
        self.home = home
        self.output = ""
        self.errors = ""
        self.code: int | None = None
        self._process = subprocess.Popen(
            [sys.executable, file.name, *arguments],
            cwd=file.parent,
            env=clean_environment(home) | environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._readers = [
            threading.Thread(target=self._read, args=(name,), daemon=True)
            for name in ("stdout", "stderr")
        ]
        for reader in self._readers:
            reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        """Whether the process is gone and all its output is read."""
        return self._has_ended()

    def wait_for(self, pattern: str, *, within: float = START) -> re.Match[str]:
        """Return the first match of `pattern` in what it has printed, or will print."""
        with suppress(AssertionError):
            until_sync(
                lambda: self._find(pattern) is not None or self._has_ended(),
                within=within,
                what=pattern,
            )
        match = self._find(pattern)
        assert match is not None, f"no {pattern!r} in the output:\n{self.output}\n{self.errors}"
        return match

    def count(self, pattern: str) -> int:
        """Return how often `pattern` stands in what it has printed."""
        return len(re.findall(pattern, self.output))

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to this process alone."""
        self._process.send_signal(number)

    def interrupt_group(self) -> None:
        """Press Ctrl-C: the terminal signals the whole foreground group."""
        os.killpg(self.pid, signal.SIGINT)

    def wait(self, *, within: float = START) -> int:
        """Return its exit code once it has ended and all its output is read."""
        self.code = self._process.wait(timeout=within)
        for reader in self._readers:
            reader.join(timeout=within)
        return self.code

    def __enter__(self) -> Program:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._process.poll() is None:
            os.killpg(self.pid, signal.SIGKILL)
        self.wait()

    def _has_ended(self) -> bool:
        return self._process.poll() is not None and not any(r.is_alive() for r in self._readers)

    def _find(self, pattern: str) -> re.Match[str] | None:
        return re.search(pattern, self.output) or re.search(pattern, self.errors)

    def _read(self, name: str) -> None:
        stream = getattr(self._process, name)
        attribute = "output" if name == "stdout" else "errors"
        with stream:
            for line in stream:
                setattr(self, attribute, getattr(self, attribute) + line)


def write_app(folder: Path, source: str, name: str = "app.py") -> Path:
    """Write a single-file app and return its path."""
    file = folder / name
    file.write_text(dedent(source).lstrip(), encoding="utf-8")
    return file


def run_to_end(file: Path, *arguments: str, home: Path, **environment: str) -> Program:
    """Run an app to its end and return it, with its exit code in `code`."""
    with Program(file, *arguments, home=home, **environment) as program:
        program.wait()
    return program


def clean_environment(home: Path) -> dict[str, str]:
    """Return this environment without mega's variables, with its folder in `home`."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MEGA_")}
    return kept | {"MEGA_HOME": str(home), "PYTHONUNBUFFERED": "1", "NO_COLOR": "1"}


def processes_of(home: Path) -> list[str]:
    """Return the command lines of all live processes that belong to `home`.

    A program hands MEGA_HOME down to whatever it starts, so nothing escapes this.
    """
    mark, found = f"MEGA_HOME={home}".encode(), []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (folder / "environ").read_bytes().split(b"\0"):
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                if command:
                    found.append(f"{folder.name} {command.strip()}")
        except OSError:
            continue
    return found


def wait_until_gone(home: Path) -> None:
    """Wait until no process of `home` is left."""
    until_sync(lambda: not processes_of(home), what=f"an end of {processes_of(home)}")
