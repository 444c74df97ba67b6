from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import os, signal
from mega.runtime.forks import handled_here_alone

def handlers_of_a_fork():
    pid = os.fork()
    if pid == 0:
        is_default = signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        os._exit(0 if is_default and signal.set_wakeup_fd(-1) == -1 else 1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

read, write = os.pipe()
os.set_blocking(write, False)
with handled_here_alone([signal.SIGTERM]):
    signal.signal(signal.SIGTERM, lambda *_: None)
    signal.set_wakeup_fd(write)
    inside = handlers_of_a_fork()
print(inside, handlers_of_a_fork())
"""


def test_a_fork_has_what_was_before_while_the_block_lasts() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert ("0 1\n", "") == (done.stdout, done.stderr)


TERMINATED_AT_ONCE = """
import os, signal
# Registered first, so it runs before a fork has handlers of its own.
os.register_at_fork(after_in_child=lambda: os.kill(os.getpid(), signal.SIGTERM))
from mega.runtime.forks import handled_here_alone

with handled_here_alone([signal.SIGTERM]):
    signal.signal(signal.SIGTERM, lambda *_: None)
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    end = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
print(end, signal.pthread_sigmask(signal.SIG_BLOCK, []))
"""


def test_a_fork_that_is_terminated_at_once_ends() -> None:
    done = subprocess.run(
        [sys.executable, "-c", TERMINATED_AT_ONCE], capture_output=True, text=True
    )
    assert ("-15 set()\n", "") == (done.stdout, done.stderr)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_fork_ends_by_ctrl_c_though_the_loop_has_a_handler_of_its_own(backend: str) -> None:
    program = f"""
import os, signal
import anyio
from mega.runtime.forks import handled_here_alone

async def main():
    with handled_here_alone([signal.SIGINT]), anyio.open_signal_receiver(signal.SIGINT):
        pid = os.fork()
        if pid == 0:
            os._exit(0 if signal.getsignal(signal.SIGINT) is signal.default_int_handler else 1)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))

anyio.run(main, backend={backend!r})
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ("0\n", "") == (done.stdout, done.stderr)


def test_a_handler_of_the_program_stays_in_a_fork() -> None:
    program = """
import os, signal
from mega.runtime.forks import handled_here_alone

def ours(*_): ...
signal.signal(signal.SIGINT, ours)
with handled_here_alone([signal.SIGINT]):
    signal.signal(signal.SIGINT, lambda *_: None)
    pid = os.fork()
    if pid == 0:
        os._exit(0 if signal.getsignal(signal.SIGINT) is ours else 1)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ("0\n", "") == (done.stdout, done.stderr)
