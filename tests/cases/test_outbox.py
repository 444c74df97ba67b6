"""A row and its job: the recipe of docs/how-to/enqueue.md, killed between its steps."""

from __future__ import annotations

import re
import signal
import sqlite3
from pathlib import Path

from tests.apps.program import Program, run_to_end, write_app
from tests.waiting import until_sync

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "enqueue.md"
ORDERS = 48

#: Each order is placed by a process that is killed: between the commit and the enqueue, at
#: any time in the enqueue, or before what was sent is crossed out.
SHOP = """
    import os, random, signal, threading
    import outbox

    def die(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def place_and_die(way: int) -> None:
        db = outbox.connect()
        outbox.place_order(db)
        if way == 0:
            die()
        if way == 1:
            threading.Timer(0.2 * random.random(), die).start()
        if way == 2:
            db.set_trace_callback(lambda sql: sql.startswith("DELETE") and die())
        outbox.send_outbox(db)
        die()

    for number in range({orders}):
        pid = os.fork()
        if pid == 0:
            place_and_die(number % 3)
        os.waitpid(pid, 0)
    outbox.send_outbox(outbox.connect())
"""


def recipe(title: str) -> str:
    """Return that file of the page."""
    text = PAGE.read_text(encoding="utf-8")
    found = re.search(rf'(?ms)^```python title="{re.escape(title)}"\n(.*?)^```$', text)
    assert found, f"{PAGE} shows no {title}"
    return found[1]


def rows(folder: Path, query: str) -> list[int]:
    with sqlite3.connect(folder / "shop.db", timeout=30) as db:
        return [int(value) for (value,) in db.execute(query)]


def test_processes_that_die_between_commit_and_enqueue(
    tmp_path: Path, home: Path, broker: str
) -> None:
    """enq-13: with the documented outbox every row ends up with exactly one run of its job."""
    app = write_app(tmp_path, recipe("app.py"))
    write_app(tmp_path, recipe("outbox.py"), "outbox.py")
    shop = write_app(tmp_path, SHOP.format(orders=ORDERS), "shop.py")
    program = run_to_end(shop, home=home, MEGA_BROKER=broker)
    assert ("", 0) == (program.errors, program.code)
    assert [] == rows(tmp_path, "SELECT order_id FROM outbox")

    with Program(app, "--role", "worker", home=home, MEGA_BROKER=broker) as worker:
        confirmed = "SELECT confirmed FROM orders"
        until_sync(lambda: all(rows(tmp_path, confirmed)), within=60, what="all orders")
        worker.signal(signal.SIGTERM)
        assert 0 == worker.wait()

    assert [1] * ORDERS == rows(tmp_path, confirmed)
