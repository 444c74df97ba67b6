"""Options: frozen records that refuse a wrong value when they are made."""

from __future__ import annotations

import math
import warnings
from datetime import timedelta
from typing import Any

import pytest

from mega.errors import BadOption, UnknownLock, UnknownRole
from mega.options import (
    Backoff,
    DeadLetter,
    JobOptions,
    Lock,
    check_count,
    check_role,
    to_backoff,
    to_lock,
    to_seconds,
)
from mega.pool_options import PoolOptions

NOT_DURATIONS = [-1, -0.1, math.inf, math.nan, True, "5", None, timedelta(seconds=-1)]
NOT_COUNTS = [-1, 1.0, True, "1", None]


@pytest.mark.parametrize(
    ("value", "seconds"),
    [(0, 0), (1.5, 1.5), (timedelta(minutes=2), 120), (timedelta(milliseconds=1), 0.001)],
)
def test_a_duration_is_seconds_or_a_timedelta(value: Any, seconds: float) -> None:
    actual = to_seconds(value, option="delay")
    assert (seconds, float) == (actual, type(actual))


@pytest.mark.parametrize("value", NOT_DURATIONS)
def test_what_is_no_duration_is_refused_by_its_name(value: Any) -> None:
    with pytest.raises(BadOption, match=r"^delay=.* is not a duration of at least 0 s"):
        to_seconds(value, option="delay")


def test_a_duration_can_have_a_minimum() -> None:
    assert 1 == to_seconds(1, option="ttl", minimum=1)
    with pytest.raises(BadOption, match=r"ttl=0\.5 is not a duration of at least 1 s"):
        to_seconds(0.5, option="ttl", minimum=1)


@pytest.mark.parametrize("value", NOT_COUNTS)
def test_what_is_no_whole_number_is_refused(value: Any) -> None:
    with pytest.raises(BadOption, match=r"^retries=.* is not a whole number of at least 0"):
        check_count(value, option="retries")


@pytest.mark.parametrize("role", ["all", "worker", "scheduler", "web"])
def test_the_roles_are_these(role: str) -> None:
    assert role == check_role(role)


def test_another_role_is_refused_with_what_was_meant() -> None:
    with pytest.raises(UnknownRole, match="there is no role 'workr'") as refused:
        check_role("workr")
    assert 'Did you mean "worker"?' == refused.value.hint


class TestBackoff:
    """How long a retry waits."""

    def test_it_doubles_from_one_second_to_half_a_minute(self) -> None:
        waits = [Backoff(jitter=False).delay(attempt) for attempt in range(1, 8)]
        assert [1, 2, 4, 8, 16, 30, 30] == waits

    def test_its_factor_can_be_another(self) -> None:
        backoff = Backoff(initial=1, max=1000, factor=10, jitter=False)
        assert [1, 10, 100, 1000, 1000] == [backoff.delay(attempt) for attempt in range(1, 6)]

    @pytest.mark.parametrize(("draw", "wait"), [(0.0, 5), (0.5, 7.5), (1.0, 10)])
    def test_jitter_draws_between_half_and_the_whole(self, draw: float, wait: float) -> None:
        assert wait == Backoff(initial=10).delay(1, lambda: draw)

    def test_without_jitter_nothing_is_drawn(self) -> None:
        def draw() -> float:
            raise AssertionError("not reached")

        assert 10 == Backoff(initial=10, jitter=False).delay(1, draw)

    @pytest.mark.parametrize("attempt", [1024, 10_000, 10**12])
    @pytest.mark.parametrize("factor", [2, 2.0, 1.0000001])
    def test_a_late_attempt_does_not_overflow(self, attempt: int, factor: float) -> None:
        assert 0 < Backoff(factor=factor, jitter=False).delay(attempt) <= 30

    def test_no_wait_at_all_stays_none(self) -> None:
        assert 0 == Backoff(initial=0, jitter=False).delay(10_000)

    def test_durations_are_kept_as_seconds(self) -> None:
        backoff = Backoff(initial=timedelta(minutes=1), max=timedelta(hours=1))
        assert (60, 3600) == (backoff.initial, backoff.max)

    @pytest.mark.parametrize("value", [-1, "1", None, math.nan])
    @pytest.mark.parametrize("name", ["initial", "max"])
    def test_a_wrong_duration_is_refused(self, name: str, value: Any) -> None:
        with pytest.raises(BadOption, match=rf"Backoff\.{name}="):
            Backoff(**{name: value})

    @pytest.mark.parametrize("factor", [0, 0.5, -2, math.inf, math.nan, "2", None])
    def test_a_factor_below_one_is_refused(self, factor: Any) -> None:
        with pytest.raises(BadOption, match=r"Backoff\.factor="):
            Backoff(factor=factor)

    @pytest.mark.parametrize("name", ["min", "type", "delay"])
    def test_a_field_of_another_library_is_refused(self, name: str) -> None:
        with pytest.raises(TypeError, match=name):
            Backoff(**{name: 1})

    def test_a_bare_duration_is_a_constant_wait(self) -> None:
        backoff = to_backoff(timedelta(seconds=5))
        assert [5, 5, 5] == [backoff.delay(attempt) for attempt in (1, 2, 300)]

    def test_a_backoff_is_taken_as_it_is(self) -> None:
        backoff = Backoff(initial=7)
        assert to_backoff(backoff) is backoff


class TestLock:
    """The overlap guard of a schedule."""

    @pytest.mark.parametrize(
        ("value", "lock"),
        [
            (None, None),
            (False, None),
            (True, Lock()),
            ("default", Lock(store="default")),
            (Lock(ttl=5), Lock(ttl=5)),
        ],
    )
    def test_it_is_written_in_several_ways(self, value: Any, lock: Lock | None) -> None:
        assert lock == to_lock(value, stores=("default",))

    def test_its_ttl_is_kept_as_seconds(self) -> None:
        assert 120 == Lock(ttl=timedelta(minutes=2)).ttl

    @pytest.mark.parametrize("ttl", [0, 0.5, -1, "30", None, True])
    def test_a_wrong_ttl_is_refused(self, ttl: Any) -> None:
        with pytest.raises(BadOption, match=r"Lock\.ttl="):
            Lock(ttl=ttl)

    @pytest.mark.parametrize("key", [5, "", "k" * 257, "a\nb", "half \ud800", b"key"])
    def test_a_key_that_no_store_could_keep_is_refused(self, key: Any) -> None:
        with pytest.raises(BadOption, match=r"Lock\.key=.* can't be a key") as refused:
            Lock(key=key)
        assert "1 to 256 printable characters" in refused.value.hint
        assert len(str(refused.value)) < 200

    @pytest.mark.parametrize("key", ["k", "k" * 256, "every archive / of *.log 😀"])
    def test_any_other_text_is_a_key(self, key: str) -> None:
        assert key == Lock(key=key).key

    def test_a_large_bare_number_is_asked_about(self) -> None:
        with pytest.warns(UserWarning, match="were milliseconds meant"):
            Lock(ttl=30_000)

    @pytest.mark.parametrize("ttl", [999, timedelta(hours=1)])
    def test_a_timedelta_or_a_smaller_number_is_not(self, ttl: Any) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            Lock(ttl=ttl)

    @pytest.mark.parametrize("lock", ["defalt", Lock(store="defalt")])
    def test_an_unknown_store_is_refused_with_what_was_meant(self, lock: Any) -> None:
        with pytest.raises(UnknownLock, match="there is no lock store 'defalt'") as refused:
            to_lock(lock, stores=("default",))
        assert refused.value.hint.startswith('Did you mean "default"?')
        assert 'App(locks={"main": "redis://host:6379"})' in refused.value.hint

    def test_a_store_that_can_not_be_known_yet_is_taken(self) -> None:
        assert Lock(store="main") == to_lock("main", stores=None)

    @pytest.mark.parametrize("store", [5, None, ["main"]])
    def test_a_store_that_is_no_name_is_refused(self, store: Any) -> None:
        with pytest.raises(BadOption, match=r"Lock\.store="):
            Lock(store=store)

    @pytest.mark.parametrize("lock", [30, 1.5, object()])
    def test_something_else_is_refused(self, lock: Any) -> None:
        with pytest.raises(BadOption, match=r"is not True, the name of a lock store, or a Lock"):
            to_lock(lock, stores=("default",))

    @pytest.mark.parametrize("lock", [60, 1.5, timedelta(minutes=1)])
    def test_a_duration_in_its_place_is_told_how_to_write_it(self, lock: Any) -> None:
        with pytest.raises(BadOption) as refused:
            to_lock(lock, stores=("default",))
        assert f"Write Lock(ttl={lock!r})." == refused.value.hint


class TestDeadLetter:
    """How long dead letters are kept."""

    def test_it_is_a_week_unless_told_otherwise(self) -> None:
        assert (7 * 24 * 3600, None) == (DeadLetter().max_age, DeadLetter().max_bytes)

    def test_no_age_is_for_ever(self) -> None:
        assert 0 == DeadLetter(max_age=0).max_age

    @pytest.mark.parametrize("options", [{"max_age": -1}, {"max_bytes": 0}, {"max_bytes": 1.5}])
    def test_a_wrong_limit_is_refused(self, options: dict[str, Any]) -> None:
        with pytest.raises(BadOption, match=rf"DeadLetter\.{next(iter(options))}="):
            DeadLetter(**options)


class TestJobOptions:
    """What a job declares beside its subject and handler."""

    @pytest.mark.parametrize("value", NOT_COUNTS)
    def test_retries_are_counted(self, value: Any) -> None:
        with pytest.raises(BadOption, match="retries="):
            JobOptions(retries=value)

    @pytest.mark.parametrize("value", [0, *NOT_COUNTS])
    def test_no_concurrency_is_refused_because_nats_reads_it_as_unlimited(self, value: Any) -> None:
        with pytest.raises(BadOption, match=r"concurrency=.* at least 1"):
            JobOptions(concurrency=value)

    @pytest.mark.parametrize("value", [0, -1, 1.5, True])
    def test_a_worker_has_at_least_one_slot(self, value: Any) -> None:
        with pytest.raises(BadOption, match="per_worker="):
            JobOptions(per_worker=value)

    @pytest.mark.parametrize(
        ("concurrency", "per_worker", "slots"), [(1, None, 1), (8, None, 8), (8, 2, 2), (2, 8, 2)]
    )
    def test_the_slots_are_the_smaller_of_both_caps(
        self, concurrency: int, per_worker: int | None, slots: int
    ) -> None:
        assert slots == JobOptions(concurrency=concurrency, per_worker=per_worker).slots

    @pytest.mark.parametrize("value", [None, 5, timedelta(days=1), {"max_age": 5}])
    def test_a_dead_letter_option_of_another_type_is_refused(self, value: Any) -> None:
        with pytest.raises(BadOption, match="dead_letter="):
            JobOptions(dead_letter=value)


class TestPoolOptions:
    """How a CPU pool is run."""

    def test_an_unknown_option_is_refused_with_what_was_meant(self) -> None:
        with pytest.raises(BadOption, match="a pool has no option 'sise'") as refused:
            PoolOptions.of({"sise": 2})
        assert 'Did you mean "size"?' == refused.value.hint

    @pytest.mark.parametrize("name", ["size", "recycle_after", "recycle_rss", "memory_limit"])
    def test_a_size_is_at_least_one(self, name: str) -> None:
        with pytest.raises(BadOption, match=rf"{name}=0 .* at least 1"):
            PoolOptions.of({name: 0})

    @pytest.mark.parametrize("name", ["max_restarts", "max_queue"])
    def test_none_of_them_is_a_choice(self, name: str) -> None:
        assert 0 == getattr(PoolOptions.of({name: 0}), name)
        with pytest.raises(BadOption, match=rf"{name}=-1 .* at least 0"):
            PoolOptions.of({name: -1})
