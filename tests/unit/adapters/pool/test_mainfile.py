"""The main file in workers: no guard is needed, and its classes keep their identity."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from mega.adapters.pool.mainfile import end_import_in_child

BODY = """
from __future__ import annotations  # an app has its own

import asyncio, json, sys
from asyncio import run as kept_run

import anyio
from mega.adapters.pool.child import end_import_in_child
from mega.adapters.pool.parent import WorkerPool
from mega.pool_options import PoolOptions
{imports}

class Point:
    def __init__(self, x):
        self.x = x

def double(point):
    return Point(point.x * 2)

async def nothing():
    return 5

def run_a_loop():
    return kept_run(nothing())

async def main():
    end_import_in_child()
    pool = WorkerPool(
        "apps", PoolOptions(size=1), {tasks}, emit=lambda kind, facts: None
    )
    async with pool:
        await pool.start()
        back = await pool.call("__main__:double", (Point(2),), {{}}, timeout=None)
        five = await pool.call("__main__:run_a_loop", (), {{}}, timeout=None)
        print(json.dumps([back.x, type(back) is Point, five, sys.argv[1:]]))

class App:
    def run(self):
        end_import_in_child()
        anyio.run(main)

{ending}

def below():
    pass
"""
TASKS = '["__main__:double", "__main__:run_a_loop"]'
EXPECTED = '[4, true, 5, ["an argument"]]\n'

ENDINGS = {
    "anyio": "anyio.run(main)",
    "anyio on trio": 'anyio.run(main, backend="trio")',
    "asyncio": "asyncio.run(main())",
    "trio": "trio.run(main)",
    "run_until_complete": "asyncio.new_event_loop().run_until_complete(main())",
    "app": "App().run()",
    "a thread with a loop": (
        "import threading\n"
        "thread = threading.Thread(target=lambda: asyncio.run(nothing()))\n"
        "thread.start()\nthread.join()\nApp().run()"
    ),
    "guarded": 'if __name__ == "__main__":\n    anyio.run(main)',
}


def app_text(ending: str, *, tasks: str = TASKS) -> str:
    imports = "import trio" if "trio" in ending else ""
    return BODY.format(ending=ending, imports=imports, tasks=tasks)


def run(*command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, *command, "an argument"]
    return subprocess.run(line, cwd=folder, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("ending", ENDINGS.values(), ids=ENDINGS.keys())
def test_a_main_file(tmp_path: Path, ending: str) -> None:
    (tmp_path / "app.py").write_text(app_text(ending))
    done = run("app.py", folder=tmp_path)
    assert (done.stdout, done.stderr) == (EXPECTED, "")


def test_a_module_of_a_package(tmp_path: Path) -> None:
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop/__init__.py").touch()
    (tmp_path / "shop/words.py").write_text("word = 'hi'\n")
    (tmp_path / "shop/app.py").write_text(
        app_text("from .words import word\nassert word\nApp().run()")
    )
    done = run("-m", "shop.app", folder=tmp_path)
    assert (done.stdout, done.stderr) == (EXPECTED, "")


def test_a_folder(tmp_path: Path) -> None:
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop/__main__.py").write_text(app_text("App().run()"))
    assert run("shop", folder=tmp_path).stdout == EXPECTED
    assert run("-m", "shop", folder=tmp_path).stdout == EXPECTED


def test_the_names_of_the_main_module_are_the_same_in_a_worker(tmp_path: Path) -> None:
    (tmp_path / "tasks.py").write_text(
        "from app import Point\ndef triple(point):\n    return Point(point.x * 3)\n"
    )
    ending = 'sys.modules["app"] = sys.modules[__name__]\nimport tasks\nApp().run()'
    text = app_text(ending).replace('"__main__:double", (', '"tasks:triple", (')
    (tmp_path / "app.py").write_text(text)
    done = run("app.py", folder=tmp_path)
    assert (done.stdout, done.stderr) == (EXPECTED.replace("4", "6"), "")


def test_a_task_below_the_end_of_the_import(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(app_text("App().run()", tasks='["__main__:below"]'))
    done = run("app.py", folder=tmp_path)
    line = (tmp_path / "app.py").read_text().splitlines().index("App().run()") + 1
    assert f"the main file has no 'below' above app.py:{line}, where its import ends" in done.stderr


def test_a_main_program_from_the_command_line(tmp_path: Path) -> None:
    done = run("-c", app_text("App().run()"), folder=tmp_path)
    assert 'no task "__main__:double" (LookupError: the main program is not a file' in done.stderr


def test_it_does_nothing_outside_a_worker() -> None:
    end_import_in_child()
