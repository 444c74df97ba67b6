"""Log records of a task are written by the parent's loggers, with the call's context."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Callable

import pytest

from mega.adapters.pool.logs import LogForwarder
from mega.adapters.pool.parent import WorkerPool
from mega.errors import CpuCrashed
from tests.unit.adapters.pool.processes import call

NewPool = Callable[..., WorkerPool]


async def test_a_record_arrives_with_context_and_extras(
    new_pool: NewPool, caplog: pytest.LogCaptureFixture
) -> None:
    async with new_pool() as pool:
        await call(pool, "warn", "hello", order=5, context={"job_id": "j1", "attempt": "2"})
        pid = await call(pool, "process")
    (record,) = caplog.records
    assert "said hello" == record.getMessage()
    assert ("pool_tasks", "WARNING", "warn") == (record.name, record.levelname, record.funcName)
    assert (record.process, record.module) == (pid, "pool_tasks")
    assert ("j1", "2") == (vars(record)["job_id"], vars(record)["attempt"])
    assert 5 == vars(record)["order"]


async def test_the_context_ends_with_the_call(
    new_pool: NewPool, caplog: pytest.LogCaptureFixture
) -> None:
    async with new_pool(size=1) as pool:
        await call(pool, "warn", "one", context={"job_id": "j1"})
        await call(pool, "warn", "two")
    assert [True, False] == ["job_id" in vars(record) for record in caplog.records]


async def test_a_traceback_arrives_as_text(
    new_pool: NewPool, caplog: pytest.LogCaptureFixture
) -> None:
    async with new_pool() as pool:
        await call(pool, "warn_about_error")
    assert "in warn_about_error" in caplog.text
    assert "ValueError: three" in caplog.text


async def test_the_parents_levels_hold(new_pool: NewPool, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR, logger="pool_tasks"):
        async with new_pool() as pool:
            await call(pool, "warn", "hello")
            await call(pool, "warn_about_error")
    assert ["ERROR"] == [record.levelname for record in caplog.records]


async def test_records_sent_before_a_segfault_are_kept(
    new_pool: NewPool, caplog: pytest.LogCaptureFixture
) -> None:
    async with new_pool() as pool:
        with pytest.raises(CpuCrashed):
            await call(pool, "warn_then_segfault")
    assert ["last words"] == [record.getMessage() for record in caplog.records]


def test_only_the_forwarder_writes_in_a_worker() -> None:
    code = """
import logging
from mega.adapters.pool.logs import LogForwarder
logging.basicConfig()
own = logging.getLogger("own")
own.addHandler(logging.StreamHandler())
own.propagate = False
sent = []
LogForwarder(sent.append).install({"root": logging.INFO, "quiet": logging.ERROR})
own.info("once")
logging.getLogger("quiet").info("never")
print([plain["msg"] for plain in sent])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ("['once']\n", "") == (done.stdout, done.stderr)


def test_a_record_that_cannot_be_sent_is_no_error_of_the_task(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def refuse(plain: dict[str, object]) -> None:
        raise OSError("closed")

    LogForwarder(refuse).handle(logging.makeLogRecord({"msg": "lost"}))
    assert "OSError: closed" in capsys.readouterr().err
