"""What holds for every expression, zone and instant, and for every text."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mega.cron import CronTimetable, is_valid, validate
from mega.errors import BadCron

ZONES = (
    "UTC",
    "Europe/Berlin",
    "Europe/Dublin",
    "Africa/Casablanca",
    "America/New_York",
    "America/Sao_Paulo",
    "America/St_Johns",
    "Antarctica/Troll",
    "Asia/Pyongyang",
    "Australia/Lord_Howe",
    "Pacific/Apia",
)
ONE_MICROSECOND = timedelta(microseconds=1)


def field(low: int, high: int) -> st.SearchStrategy[str]:
    number = st.integers(low, high)
    span = st.tuples(number, number).map(lambda pair: f"{min(pair)}-{max(pair)}")
    step = st.integers(1, high - low + 1)
    term = st.one_of(number.map(str), span, st.builds("{}/{}".format, span, step))
    listed = st.lists(term, min_size=1, max_size=3).map(",".join)
    return st.one_of(st.just("*"), step.map("*/{}".format), listed)


day_fields = st.sampled_from(
    ["* * *", "1 * *", "* * MON-FRI", "L * *", "15W * *", "1 * MON", "* 3,10 +SUN", "*/2 * *"]
)
expressions = st.one_of(
    st.builds("{} {} {}".format, field(0, 59), field(0, 23), day_fields),
    st.builds("{} {} {} {}".format, field(0, 59), field(0, 59), field(0, 23), day_fields),
)
instants = st.datetimes(datetime(1971, 1, 1), datetime(2098, 1, 1), timezones=st.just(UTC))
near_jumps = st.builds(
    lambda jump, offset: datetime.fromisoformat(jump) + offset,
    st.sampled_from(["2026-03-29T01:00Z", "2026-10-25T01:00Z", "2011-12-30T10:00Z"]),
    st.timedeltas(timedelta(hours=-30), timedelta(hours=30)),
)


@settings(max_examples=150, deadline=None)
@given(expressions, st.sampled_from(ZONES), st.one_of(instants, near_jumps))
def test_ticks_increase_and_going_back_is_the_exact_inverse(
    expr: str, zone: str, start: datetime
) -> None:
    timetable = CronTimetable(expr, zone)
    first = timetable.next(start)
    assert first is not None
    assert first > start
    second = timetable.next(first)
    assert second is not None
    assert second > first
    assert first == timetable.previous(second)
    before = timetable.previous(start + ONE_MICROSECOND)
    assert before is not None
    assert before <= start
    assert first == timetable.next(before)


@settings(max_examples=250, deadline=None)
@given(st.one_of(st.text(max_size=40), st.text("0123456789*/,-#LW?+@ JANSU", max_size=24)))
def test_any_text_is_either_valid_or_refused_with_bad_cron(text: str) -> None:
    if not is_valid(text):
        with pytest.raises(BadCron) as caught:
            validate(text)
        assert caught.value.hint
