"""Programs with CPU tasks: how they are started, signalled, killed, and what stays behind."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
from pathlib import Path

import anyio
import pytest

from mega import App
from tests.apps.program import Program, clean_environment, processes_of, write_app
from tests.unit.adapters.pool.processes import is_alive, pid_in_sync
from tests.waiting import until, until_sync

WITHIN = 60.0

BACKENDS = pytest.mark.parametrize("backend", ["asyncio", "trio"])

HEAD = """
    import os, sys, time
    from pathlib import Path
    from mega import App, JobContext
    app = App("shop", broker="memory:")

    @app.cpu_task()
    def wait_for(name: str) -> int:
        Path(f"{name}.new").write_text(str(os.getpid()))
        os.replace(f"{name}.new", name)
        while not Path("go").exists():
            time.sleep(0.01)
        return os.getpid()
"""

WAITING = """
    app.pool("default", size=4)
    @app.job("work", concurrency=4)
    async def work(number: int) -> None:
        print("waited", await wait_for.run(f"pid{number}"), flush=True)
    @app.on_startup
    async def begin() -> None:
        for number in range(4):
            await work.enqueue(number)
"""


def write(folder: Path, *parts: str) -> Path:
    return write_app(folder, "".join(parts))


@BACKENDS
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_the_whole_group(
    tmp_path: Path, home: Path, number: signal.Signals, backend: str
) -> None:
    """signal-01: a worker process doesn't hear it, and its call ends within the drain."""
    end = f'    app.run(backend="{backend}")\n'
    with Program(write(tmp_path, HEAD, WAITING, end), home=home) as program:
        pids = [pid_in_sync(tmp_path / f"pid{each}", within=WITHIN) for each in range(4)]
        os.killpg(program.pid, number)
        for pid in pids:
            os.kill(pid, number)
        program.wait_for("stopping")
        (tmp_path / "go").touch()
        assert 0 == program.wait()
    assert sorted(map(str, pids)) == sorted(re.findall(r"waited (\d+)", program.output))


IN_A_TERMINAL = """
import fcntl, os, sys, termios
os.setsid()
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""


@BACKENDS
def test_ctrl_c_in_a_terminal(tmp_path: Path, home: Path, backend: str) -> None:
    """kbi-01: no traceback of any process, an orderly end."""
    file = write(tmp_path, HEAD, WAITING, f'    app.run(backend="{backend}")\n')
    ours, theirs = pty.openpty()
    program = subprocess.Popen(
        [sys.executable, "-c", IN_A_TERMINAL, file.name],
        cwd=tmp_path,
        env=clean_environment(home),
        stdin=theirs,
        stdout=theirs,
        stderr=subprocess.PIPE,
        text=True,
    )
    os.close(theirs)
    with program, open(ours, "wb", buffering=0) as terminal:
        for each in range(4):
            pid_in_sync(tmp_path / f"pid{each}", within=WITHIN)
        terminal.write(b"\x03")
        assert program.stderr is not None
        said = []
        for line in program.stderr:
            said.append(line)
            if "stopping" in line:
                (tmp_path / "go").touch()
    assert "Traceback" not in "".join(said)
    assert 0 == program.returncode


@BACKENDS
def test_a_handler_that_forks(tmp_path: Path, home: Path, backend: str) -> None:
    """fork-04: what a handler forks is no worker, and its end by SIGTERM is not ours."""
    source = f"""
    import multiprocessing, warnings
    import anyio
    warnings.simplefilter("ignore", DeprecationWarning)  # 3.12 says that this may deadlock
    @app.job("work")
    async def work(number: int) -> None:
        fork = multiprocessing.get_context("fork")
        with fork.Pool(2) as pool:
            print("forked", pool.map(abs, range(-3, 1)), flush=True)
        process = fork.Process(target=wait_for.fn, args=[f"pid{{number}}"])
        process.start()
        while not Path(f"pid{{number}}").exists():
            await anyio.sleep(0.01)
        process.terminate()
        await anyio.to_thread.run_sync(process.join)
        print("end of", number, process.exitcode, flush=True)
        if number == 1:
            await work.enqueue(2, delay=1)
    @app.on_startup
    async def begin() -> None:
        await work.enqueue(1)
    app.run(backend="{backend}")
    """
    with Program(write(tmp_path, HEAD, source), home=home) as program:
        program.wait_for("end of 1 -15", within=WITHIN)
        program.wait_for("end of 2 -15", within=WITHIN)
        assert 2 == program.count(r"forked \[3, 2, 1, 0\]")
        assert "stopping" not in program.errors
        program.signal(signal.SIGTERM)
        assert 0 == program.wait()
    assert 1 == program.errors.count("stopping")


@BACKENDS
def test_a_file_without_a_guard(tmp_path: Path, home: Path, backend: str) -> None:
    """spawn-01: a process of the pool runs the file up to `app.run()`, once, and no app."""
    source = f"""
    print("loaded", os.getpid(), flush=True)
    app.pool("default", size=2)
    @app.job("work", concurrency=2)
    async def work(number: int) -> None:
        print("done", await wait_for.run(f"pid{{number}}"), flush=True)
    @app.on_startup
    async def begin() -> None:
        for number in range(6):
            await work.enqueue(number)
    app.run(backend="{backend}")
    print("below", os.getpid(), flush=True)
    """
    with Program(write(tmp_path, HEAD, source), "--role", "worker", home=home) as program:
        for each in range(2):
            pid_in_sync(tmp_path / f"pid{each}", within=WITHIN)
        assert 3 == len(processes_of(home))
        (tmp_path / "go").touch()
        until_sync(lambda: program.count("done") == 6, what="six calls", within=WITHIN)
        program.signal(signal.SIGTERM)
        assert 0 == program.wait()
    assert (3, 3) == (
        program.count(r"loaded \d+"),
        len(set(re.findall(r"loaded.*", program.output))),
    )
    assert [str(program.pid)] == re.findall(r"below (\d+)", program.output)
    assert "RuntimeError" not in program.errors


@BACKENDS
def test_work_at_module_level(tmp_path: Path, home: Path, backend: str) -> None:
    """spawn-02: it is done once more in each process of the pool; `on_startup` only here."""
    source = f"""
    with open("loads", "a") as loads:
        loads.write("x")
    app.pool("default", size=3)
    @app.job("work", concurrency=3)
    async def work(number: int) -> None:
        print("done", await wait_for.run(f"pid{{number}}"), flush=True)
    @app.on_startup
    async def begin() -> None:
        with open("startups", "a") as startups:
            startups.write("x")
        for number in range(3):
            await work.enqueue(number)
    app.run(backend="{backend}")
    """
    with Program(write(tmp_path, HEAD, source), home=home) as program:
        for each in range(3):
            pid_in_sync(tmp_path / f"pid{each}", within=WITHIN)
        (tmp_path / "go").touch()
        until_sync(lambda: program.count("done") == 3, what="three calls", within=WITHIN)
        program.signal(signal.SIGTERM)
        assert 0 == program.wait()
    assert "x" * (1 + 3) == (tmp_path / "loads").read_text()
    assert "x" == (tmp_path / "startups").read_text()


@BACKENDS
def test_a_program_that_is_killed(tmp_path: Path, home: Path, backend: str) -> None:
    """orphan-01: its processes go with it: an idle one, a sleeping, a busy, one in C code."""
    source = f"""
    import itertools
    app.pool("default", size=4)
    @app.cpu_task()
    def spin() -> None:
        Path("spinning").write_text(str(os.getpid()))
        while True:
            pass
    @app.cpu_task()
    def spin_in_c() -> None:
        Path("in_c").write_text(str(os.getpid()))
        sum(itertools.repeat(0))
    @app.cpu_task()
    def pid() -> int:
        return os.getpid()
    @app.job("work", concurrency=4)
    async def work(name: str) -> None:
        if name == "sleep":
            await wait_for.run("sleeping")
        elif name == "idle":
            Path("idle").write_text(str(await pid.run()))
        else:
            await {{"spin": spin, "spin_in_c": spin_in_c}}[name].run()
    @app.on_startup
    async def begin() -> None:
        for name in ("sleep", "idle", "spin", "spin_in_c"):
            await work.enqueue(name)
    app.run(backend="{backend}")
    """
    with Program(write(tmp_path, HEAD, source), home=home) as program:
        files = [tmp_path / name for name in ("sleeping", "idle", "spinning", "in_c")]
        until_sync(
            lambda: all(file.exists() and file.read_text() for file in files),
            within=WITHIN,
            what="all tasks run",
        )
        pids = [pid_in_sync(file) for file in files]
        program.signal(signal.SIGKILL)
        until_sync(lambda: not any(map(is_alive, pids)), what="no process is left")


STARTS = {
    "python app.py": ("-u", "app.py"),
    "python ./app.py": ("-u", "./app.py"),
    "python $PWD/app.py": ("-u", "{folder}/app.py"),
    "python -m app": ("-m", "app"),
    "from app import app": ("-c", "from app import app; app.run()"),
}


@pytest.mark.parametrize("how", STARTS)
async def test_a_worker_however_it_is_started(
    broker: str, subject: str, tmp_path: Path, home: Path, how: str
) -> None:
    """main-01: a job is found by its subject, and a CPU task by its worker, in every form."""
    source = f"""
    import sys
    from mega import App
    app = App("shop")
    @app.cpu_task()
    def double(number: int) -> int:
        return 2 * number
    @app.job("{subject}")
    async def work(number: int) -> None:
        print("doubled", await double.run(number), flush=True)
    if __name__ == "__main__":
        app.run()
    """
    write_app(tmp_path, source)
    producer = App("other", broker=broker)

    @producer.job(subject)
    async def work(number: int) -> None: ...

    async with producer:
        await work.enqueue(21)
    first, *rest = (part.format(folder=tmp_path) for part in STARTS[how])
    with Program(tmp_path / first, *rest, home=home, MEGA_BROKER=broker) as program:
        await until(lambda: program.count("doubled 42"), within=WITHIN, what="a first job")
        for start in STARTS.values():
            await enqueue_by(start, subject, folder=tmp_path, home=home, broker=broker)
        await until(lambda: program.count("doubled 8") == 5, within=WITHIN, what="all five")


async def enqueue_by(
    start: tuple[str, ...], subject: str, *, folder: Path, home: Path, broker: str
) -> None:
    flag, what = (part.format(folder=folder) for part in start)
    arguments = ["enqueue", subject, "4"]
    command = [sys.executable, flag, what, *arguments]
    if flag == "-c":
        command = [sys.executable, flag, what.replace("run()", f"run(argv={arguments})")]
    environment = clean_environment(home) | {"MEGA_BROKER": broker}
    await anyio.run_process(command, cwd=folder, env=environment)


def test_a_package_that_is_started_inside_and_outside(tmp_path: Path, home: Path) -> None:
    """main-02: subjects are the same wherever it stands; an import that fails is no other name."""
    folder = tmp_path / "shop"
    folder.mkdir()
    write_app(
        folder,
        """
    from app import app
    @app.job("order.place")
    async def place(number: int) -> None: ...
    @app.cpu_task()
    def double(number: int) -> int:
        return 2 * number
    """,
        "jobs.py",
    )
    write_app(folder, 'from mega import App\napp = App("shop")\nimport jobs\napp.run()\n')
    outputs = []
    for where, command in ((tmp_path, ["shop/app.py"]), (folder, ["app.py"])):
        done = subprocess.run(
            [sys.executable, *command, "--check"],
            cwd=where,
            env=clean_environment(home),
            capture_output=True,
            text=True,
            check=True,
        )
        outputs.append(
            [line for line in done.stdout.splitlines() if line[:6] in ("  job ", "  cpu ")]
        )
    assert outputs[0] == outputs[1]
    assert ["order.place", "double"] == [line.split()[1] for line in outputs[0]]
    failed = subprocess.run(
        [sys.executable, "-m", "shop.app", "--check"],
        cwd=tmp_path,
        env=clean_environment(home),
        capture_output=True,
        text=True,
    )
    assert (1, True) == (failed.returncode, "No module named 'jobs'" in failed.stderr)
