"""A job that is handed out again: what died before, and whether it may begin once more."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from mega import JobContext
from mega.control import Snooze
from mega.errors import BrokerFull
from mega.events import JobDone, JobRetried, JobSnoozed
from mega.ports import Kept
from mega.runtime.execution import Execution
from mega.testing import EPOCH
from mega.wire.history import Crash, Death, encode_history
from mega.wire.record import LIVE_TTL, JobRecord, JobState
from tests.unit.runtime.stage import Handed, Stage, declare

CRASH = Crash(number=1, worker="host:7", started_at=EPOCH)
DEATH = Death(
    reason="retries", error_type="E", attempts=1, crashes=0, failed_at=EPOCH, worker="host:7"
)


class Poison:
    """A job that notes its runs."""

    def __init__(self, stage: Stage, **options: Any) -> None:
        self.runs: list[int] = []
        self._stage = stage

        async def run(ctx: JobContext) -> None:
            self.runs.append(ctx.attempt)

        self.execution = Execution(declare(run, **options).spec, stage.around)

    async def is_handed_out(self, **fields: Any) -> Handed:
        delivery = Handed(**fields)
        await self.execution.run(delivery)
        await self._stage.clock.advance(0)
        return delivery


async def note(stage: Stage, state: JobState, attempt: int = 1, **fields: Any) -> None:
    """Write the record that an earlier start, or an earlier job, left."""
    facts = {"enqueued_at": EPOCH, "worker": "host:7", "started_at": EPOCH} | fields
    record = JobRecord(id="1", subject="email.send", state=state, attempt=attempt, **facts)
    await stage.broker.state.write(record, ttl=LIVE_TTL)


async def test_each_hand_over_is_an_attempt(stage: Stage) -> None:
    job = Poison(stage, retries=3)
    assert ["ack"] == (await job.is_handed_out(starts=3)).answers
    assert [3] == job.runs


async def test_a_running_record_is_a_crash_that_the_next_record_tells(stage: Stage) -> None:
    await note(stage, "running")
    await Poison(stage).is_handed_out(starts=2)
    assert (CRASH,) == (await stage.record("1")).crashes


async def test_a_hand_over_that_never_began_is_no_crash(stage: Stage) -> None:
    await note(stage, "waiting")
    await Poison(stage).is_handed_out(starts=2)
    assert () == (await stage.record("1")).crashes


async def test_one_crash_is_told_once_however_often_the_job_is_handed_out(stage: Stage) -> None:
    later = Crash(number=2, worker="host:7", started_at=EPOCH)
    await note(stage, "running", 2, crashes=(CRASH,))
    await Poison(stage).is_handed_out(starts=4)
    assert (CRASH, later) == (await stage.record("1")).crashes


async def test_the_crashes_go_along_with_a_retry(stage: Stage) -> None:
    async def send() -> None:
        raise ValueError("no")

    await note(stage, "running")
    delivery = Handed(starts=2)
    await Execution(declare(send).spec, stage.around).run(delivery)
    (copy,) = delivery.copies
    assert (3, (CRASH,)) == (copy.attempt, copy.crashes)
    assert (CRASH,) == (await stage.record("1")).crashes


async def test_above_its_runs_a_job_is_buried_before_it_runs(stage: Stage) -> None:
    job = Poison(stage, retries=2)
    await note(stage, "running", 3)
    delivery = await job.is_handed_out(starts=4)
    (letter,) = delivery.letters
    assert [] == job.runs
    assert ("crashed", 3) == (letter["reason"], letter["attempts"])
    assert "it was handed out 3 times and never ended: " in letter["error"]
    assert "its worker died in a run, the last was host:7." in letter["error"]
    expected = [{"number": 3, "worker": "host:7", "started_at": "2030-01-01T00:00:00Z"}]
    assert expected == letter["crashes"]
    assert ["job.fail", "job.dlq"] == stage.kinds
    record = await stage.record("1")
    assert ("failed", 3) == (record.state, record.attempt)


@pytest.mark.parametrize("retries", [0, 2])
async def test_a_last_run_that_never_began_is_made_up_for_once(stage: Stage, retries: int) -> None:
    job = Poison(stage, retries=retries)
    await note(stage, "waiting")
    assert ["ack"] == (await job.is_handed_out(starts=retries + 2)).answers
    assert [retries + 1] == job.runs


async def test_a_made_up_run_that_kills_its_worker_was_the_last(stage: Stage) -> None:
    job = Poison(stage, retries=0)
    await note(stage, "running", 1)
    for starts in (2, 3, 50):
        assert ["crashed"] == [
            letter["reason"] for letter in (await job.is_handed_out(starts=starts)).letters
        ]
        await note(stage, "running", 1)
    assert [] == job.runs


async def test_a_record_that_can_not_be_kept_makes_up_for_nothing(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or poison would run for ever where the bucket of records refuses all writes."""

    async def refuse(*args: Any, **options: Any) -> bool:
        raise BrokerFull("there is no room for records.")

    monkeypatch.setattr(stage.broker.state, "replace", refuse)
    job = Poison(stage, retries=0)
    delivery = await job.is_handed_out(starts=2)
    assert [] == job.runs
    assert ["crashed"] == [letter["reason"] for letter in delivery.letters]


async def test_an_untracked_job_is_buried_by_the_count_alone(stage: Stage) -> None:
    job = Poison(stage, retries=1, track=False)
    delivery = await job.is_handed_out(starts=3)
    (letter,) = delivery.letters
    assert [] == job.runs
    assert (
        "it was handed out 2 times and never ended: its worker died, or the connection did."
        == letter["error"]
    )
    assert "crashes" not in letter


async def test_a_copy_with_too_high_a_number_is_judged_as_well(stage: Stage) -> None:
    """A worker that drains gives a hand-over back as a fresh copy, with what it has counted."""
    await note(stage, "running", 1, worker=None)
    job = Poison(stage, retries=0)
    delivery = await job.is_handed_out(headers={"Mega-Id": "1", "Mega-Attempt": "2"})
    assert [] == job.runs
    assert ["crashed"] == [letter["reason"] for letter in delivery.letters]


@pytest.mark.parametrize("state", ["done", "failed"])
async def test_a_job_that_has_ended_is_acknowledged_without_a_run(
    stage: Stage, state: JobState
) -> None:
    await note(stage, state)
    job = Poison(stage)
    assert ["ack"] == (await job.is_handed_out(starts=2)).answers
    assert [] == job.runs


async def test_the_end_of_an_earlier_job_of_the_same_id_is_not_its_end(stage: Stage) -> None:
    await note(stage, "done")
    job = Poison(stage)
    headers = {"Mega-Id": "1", "Mega-Enqueued-At": "2030-01-01T00:00:01+00:00"}
    await job.is_handed_out(starts=2, headers=headers)
    assert [2] == job.runs


async def test_the_end_of_an_earlier_life_is_not_its_end(stage: Stage) -> None:
    """It came back from the dead letters, and its record could not be written."""
    await note(stage, "failed")
    job = Poison(stage)
    headers = {"Mega-Id": "1", "Mega-Deaths": encode_history([DEATH])}
    await job.is_handed_out(starts=2, headers=headers)
    assert [2] == job.runs


@pytest.mark.parametrize(("attempt", "reason"), [(1, "rejected"), (4, "retries"), (2, "crashed")])
async def test_a_failure_whose_letter_was_not_stored_is_told_by_the_next_worker(
    stage: Stage, attempt: int, reason: str
) -> None:
    await note(stage, "running", attempt, error="ValueError: no", reason=reason)
    job = Poison(stage, retries=3)
    delivery = await job.is_handed_out(starts=attempt + 1)
    (letter,) = delivery.letters
    assert [] == job.runs
    assert (reason, "ValueError: no", attempt) == (
        letter["reason"],
        letter["error"],
        letter["attempts"],
    )
    assert "crashes" not in letter


@pytest.mark.parametrize("state", ["running", "retrying", "waiting"])
async def test_a_copy_whose_job_goes_on_in_a_later_one_is_only_acknowledged(
    stage: Stage, state: JobState
) -> None:
    """Its ack was lost, after it had stored the next copy."""
    await note(stage, state, 2, copies=1)
    job = Poison(stage, retries=3)
    delivery = await job.is_handed_out(starts=2)
    assert (["ack"], []) == (delivery.answers, job.runs)


@pytest.mark.parametrize(
    ("state", "following"),
    [pytest.param("retrying", 2, id="a retry"), pytest.param("waiting", 1, id="a snooze")],
)
async def test_a_copy_that_asked_for_the_next_run_asks_again_and_runs_no_more(
    stage: Stage, state: JobState, following: int
) -> None:
    """Its worker died before the next copy, or the ack behind that, was with the server."""
    await note(stage, state, due_at=EPOCH + timedelta(seconds=7))
    job = Poison(stage, retries=3)
    delivery = await job.is_handed_out(starts=2)
    (copy,) = delivery.copies
    assert (["retry after 7 s"], []) == (delivery.answers, job.runs)
    assert (following, 1) == (copy.attempt, copy.copies)


async def test_a_later_copy_waits_for_the_run_of_an_earlier_one(stage: Stage) -> None:
    """Its worker was cut off when it stored the copy, so that another one had begun its own."""
    job = Poison(stage, retries=3)
    await note(stage, "running", 2)
    waits = []
    for copies in ("1", "2", "3", "40"):
        headers = {"Mega-Id": "1", "Mega-Attempt": "2", "Mega-Copies": copies}
        delivery = await job.is_handed_out(headers=headers)
        (copy,) = delivery.copies
        assert (2, int(copies) + 1) == (copy.attempt, copy.copies)
        waits += delivery.answers
    assert [f"retry after {seconds} s" for seconds in (1, 2, 4, 60)] == waits
    await note(stage, "retrying", 2, due_at=EPOCH)
    headers = {"Mega-Id": "1", "Mega-Attempt": "2", "Mega-Copies": "41"}
    await job.is_handed_out(headers=headers)
    assert [3] == job.runs


async def test_a_later_copy_runs_when_the_worker_of_the_earlier_run_is_dead(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def is_alive(worker: str) -> bool:
        return worker != "host:7"

    monkeypatch.setattr(stage.broker.state, "is_alive", is_alive)
    await note(stage, "running")
    job = Poison(stage, retries=3)
    headers = {"Mega-Id": "1", "Mega-Attempt": "2", "Mega-Copies": "1"}
    assert ["ack"] == (await job.is_handed_out(headers=headers)).answers
    assert ([2], (CRASH,)) == (job.runs, (await stage.record("1")).crashes)


async def test_a_copy_that_was_stored_twice_runs_once(stage: Stage) -> None:
    """The server forgets an id after the duplicate window, and a publish may be older."""
    job = Poison(stage, retries=3)
    await note(stage, "retrying", due_at=EPOCH)
    headers = {"Mega-Id": "1", "Mega-Attempt": "2", "Mega-Copies": "1"}
    for _ in range(2):
        assert ["ack"] == (await job.is_handed_out(headers=headers)).answers
    assert [2] == job.runs


async def test_who_begins_last_looks_again(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two copies of a job came at the same time, and another worker was faster."""
    store = stage.broker.state
    look = store.look

    async def be_overtaken(job_id: str, *, after_writes: bool = False) -> Kept:
        found = await look(job_id, after_writes=after_writes)
        monkeypatch.setattr(store, "look", look)
        await note(stage, "running", 2, copies=1)
        return found

    monkeypatch.setattr(store, "look", be_overtaken)
    await note(stage, "running")
    job = Poison(stage, retries=3)
    assert ["ack"] == (await job.is_handed_out(starts=2)).answers
    assert [] == job.runs


async def test_a_delayed_job_that_nobody_began_runs(stage: Stage) -> None:
    await note(stage, "waiting", due_at=EPOCH, started_at=None)
    job = Poison(stage, retries=3)
    await job.is_handed_out(starts=2)
    assert [2] == job.runs


async def test_the_text_of_such_a_failure_does_not_grow(stage: Stage) -> None:
    await note(stage, "running", 1, error="JobFailedError: it never ended.", reason="crashed")
    job = Poison(stage, retries=0)
    (letter,) = (await job.is_handed_out(starts=3)).letters
    assert ("crashed", "it never ended.") == (letter["reason"], letter["error"])
    assert "JobFailedError: it never ended." == (await stage.record("1")).error


async def test_a_run_whose_lease_lapsed_says_so(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    job = Poison(stage)
    await job.is_handed_out(lapsed=True)
    assert "email.send 1: its lease lapsed while it ran" in caplog.text
    (done,) = [event for event in stage.events if isinstance(event, JobDone)]
    assert done.lapsed


async def test_a_failure_after_another_worker_took_over_is_not_retried(stage: Stage) -> None:
    async def send() -> None:
        await note(stage, "running", 2, started_at=stage.clock.now().replace(year=2031))
        raise ValueError("no")

    delivery = Handed(lapsed=True)
    await Execution(declare(send).spec, stage.around).run(delivery)
    assert [] == delivery.answers


async def test_a_failure_of_a_job_that_has_ended_meanwhile_ends_its_copy(stage: Stage) -> None:
    """Or that copy would be handed out once more, for nothing."""

    async def send() -> None:
        await note(stage, "done", 2, started_at=stage.clock.now().replace(year=2031))
        raise ValueError("no")

    delivery = Handed(lapsed=True)
    await Execution(declare(send).spec, stage.around).run(delivery)
    assert ["ack"] == delivery.answers


async def test_a_lapse_that_nobody_noticed_changes_nothing(stage: Stage) -> None:
    async def send() -> None:
        raise ValueError("no")

    delivery = Handed(lapsed=True)
    await Execution(declare(send).spec, stage.around).run(delivery)
    assert ["retry after 10 s"] == delivery.answers


@pytest.mark.parametrize("error", [ValueError("no"), Snooze(5)])
async def test_a_job_whose_next_copy_does_not_fit_is_buried(stage: Stage, error: Exception) -> None:
    """Its headers have grown, or the server's limit was lowered: it would come back for ever."""

    async def send() -> None:
        raise error

    delivery = Handed(takes_copies=False)
    await Execution(declare(send).spec, stage.around).run(delivery)
    (letter,) = delivery.letters
    assert ("too_large", 1) == (letter["reason"], letter["attempts"])
    assert "failed" == (await stage.record("1")).state
    assert [] == [event for event in stage.events if isinstance(event, JobRetried | JobSnoozed)]


async def test_a_copy_that_does_not_fit_when_it_is_asked_for_again_is_buried(
    stage: Stage,
) -> None:
    await note(stage, "retrying", due_at=EPOCH, error="ValueError: no")
    delivery = await Poison(stage).is_handed_out(starts=2, takes_copies=False)
    (letter,) = delivery.letters
    assert ("too_large", "ValueError: no", 1) == tuple(
        letter[name] for name in ("reason", "error", "attempts")
    )


async def test_giving_back_what_does_not_fit_leaves_it_where_it_is(stage: Stage) -> None:
    delivery = Handed(takes_copies=False)
    await Poison(stage).execution.give_back(delivery)
    assert [] == delivery.answers
