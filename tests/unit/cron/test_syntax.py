"""Cron text to sets: the dialect, what is refused, and how the refusal reads."""

from __future__ import annotations

import pytest

from mega.cron.syntax import LAST, Expression, parse
from mega.errors import BadCron


def same_sets(first: str, second: str) -> bool:
    one, other = parse(first), parse(second)
    return all(
        getattr(one, name) == getattr(other, name)
        for name in Expression.__slots__
        if name not in ("text", "is_fixed")
    )


def refusal(text: object) -> str:
    with pytest.raises(BadCron) as caught:
        parse(text)  # type: ignore[arg-type]
    return str(caught.value)


def test_five_fields_are_minute_hour_day_month_weekday() -> None:
    expression = parse("1 2 3 4 5")

    assert {0} == expression.seconds
    assert {1} == expression.minutes
    assert {2} == expression.hours
    assert {3} == expression.month_days.numbers
    assert {4} == expression.months
    assert {5} == expression.weekdays.numbers
    assert set(range(1970, 2100)) == expression.years


def test_six_fields_put_the_second_first() -> None:
    expression = parse("*/30 * * * * *")

    assert {0, 30} == expression.seconds
    assert set(range(60)) == expression.minutes


def test_seven_fields_put_the_year_last() -> None:
    assert {2030, 2031} == parse("0 0 0 1 1 * 2030,2031").years


@pytest.mark.parametrize(
    ("text", "minutes"),
    [
        ("5", {5}),
        ("5,7,5", {5, 7}),
        ("5-5", {5}),
        ("1-1/1", {1}),
        ("5-5/2", {5}),
        ("10-20/5", {10, 15, 20}),
        ("*/20", {0, 20, 40}),
        ("*/60", {0}),
        ("005", {5}),
    ],
)
def test_lists_ranges_and_steps_stay_within_their_bounds(text: str, minutes: set[int]) -> None:
    assert minutes == parse(f"{text} * * * *").minutes


@pytest.mark.parametrize(
    ("weekday", "numbers"),
    [
        ("7", {0}),
        ("0-7", set(range(7))),
        ("5-7", {0, 5, 6}),
        ("FRI-SUN", {0, 5, 6}),
        ("sun-tue", {0, 1, 2}),
        ("SUN-SUN", {0}),
        ("mon,Wed", {1, 3}),
        ("*/2", {0, 2, 4, 6}),
    ],
)
def test_sunday_is_both_ends_of_the_week(weekday: str, numbers: set[int]) -> None:
    assert numbers == parse(f"0 0 * * {weekday}").weekdays.numbers


@pytest.mark.parametrize(
    ("weekday", "nth"),
    [
        ("5L", {(5, LAST)}),
        ("L5", {(5, LAST)}),
        ("FRIL", {(5, LAST)}),
        ("FRI#L", {(5, LAST)}),
        ("7L", {(0, LAST)}),
        ("1L,5L", {(1, LAST), (5, LAST)}),
        ("MON#1,MON#3", {(1, 1), (1, 3)}),
        ("1-3#2", {(1, 2), (2, 2), (3, 2)}),
    ],
)
def test_weekdays_take_a_position_in_the_month(weekday: str, nth: set[tuple[int, int]]) -> None:
    weekdays = parse(f"0 0 * * {weekday}").weekdays

    assert nth == weekdays.nth
    assert set() == weekdays.numbers


def test_month_days_take_last_and_nearest_weekday() -> None:
    days = parse("0 0 1,15W,L,LW * *").month_days

    assert {1} == days.numbers
    assert {15} == days.nearest_weekdays
    assert days.has_last_day
    assert days.has_last_weekday


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        (" @daily ", "0 0 * * *"),
        ("@MIDNIGHT", "0 0 * * *"),
        ("@hourly", "0 * * * *"),
        ("@weekly", "0 0 * * 0"),
        ("@monthly", "0 0 1 * *"),
        ("@yearly", "0 0 1 1 *"),
        ("@annually", "0 0 1 1 *"),
        ("0 0 ? * MON", "0 0 * * MON"),
        ("0 0 1 * ?", "0 0 1 * *"),
        ("\t0  0\t* * *\n", "0 0 * * *"),
        ("0 0 1 jan *", "0 0 1 1 *"),
    ],
)
def test_other_spellings_mean_the_same(text: str, meaning: str) -> None:
    assert same_sets(meaning, text)


@pytest.mark.parametrize(
    ("text", "needs_both"),
    [
        ("0 0 13 * 5", False),
        ("0 0 13 * *", True),
        ("0 0 * * 5", True),
        ("0 0 13 * +5", True),
        ("0 0 *,1 * 1", True),
        ("0 0 5,*/2 * 1", False),
        ("0 0 */2 * *", True),
    ],
)
def test_two_restricted_day_fields_mean_either_unless_plus_says_both(
    text: str, needs_both: bool
) -> None:
    assert needs_both == parse(text).needs_both_days


@pytest.mark.parametrize(
    ("text", "is_fixed"),
    [
        ("30 2 * * *", True),
        ("0,30 1-4 * * *", True),
        ("0 0-23 * * *", True),
        ("* 30 2 * * *", True),
        ("@daily", True),
        ("*/10 2 * * *", False),
        ("0 */2 * * *", False),
        ("@hourly", False),
    ],
)
def test_a_star_in_minute_or_hour_makes_a_schedule_follow_real_time(
    text: str, is_fixed: bool
) -> None:
    assert is_fixed == parse(text).is_fixed


@pytest.mark.parametrize(
    ("text", "either", "both"),
    [
        ("0 0 */2 * MON", "0 0 1-31/2 * MON", "0 0 */2 * +MON"),
        ("0 0 13 * */2", "0 0 13 * 0-6/2", "0 0 13 * +*/2"),
        ("0 0 */3 * */2", "0 0 1-31/3 * 0-6/2", "0 0 */3 * +*/2"),
        ("5 0 0 */2,4 * 1", "5 0 0 1-31/2,4 * 1", "5 0 0 */2,4 * +1"),
        ("5 0 0 L 1 */2 2030", "5 0 0 L 1 0-6/2 2030", "5 0 0 L 1 +*/2 2030"),
    ],
)
def test_a_stepped_star_in_one_day_field_only_is_refused_with_both_spellings(
    text: str, either: str, both: str
) -> None:
    hint = refusal(text).splitlines()[-1].strip()

    assert f'Write "{either}" for either, or "{both}" for both.' == hint
    assert not parse(either).needs_both_days
    assert parse(both).needs_both_days


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("60 * * * *", "minute '60' is outside 0-59"),
        ("* 24 * * *", "hour '24' is outside 0-23"),
        ("* * 0 * *", "day of month '0' is outside 1-31"),
        ("* * 32W * *", "day of month '32W' is outside 1-31"),
        ("* * * 13 *", "month '13' is outside 1-12"),
        ("* * * * 8", "day of week '8' is outside 0-7"),
        ("60 * * * * *", "second '60' is outside 0-59"),
        ("0 0 0 1 1 * 2100", "year '2100' is outside 1970-2099"),
        ("0 0 0 1 1 * 1969", "year '1969' is outside 1970-2099"),
        ("10-5 * * * *", "minute '10-5' is a range that runs backwards"),
        ("0 0 * * FRI-MON", "day of week 'FRI-MON' is a range that runs backwards"),
        ("*/0 * * * *", "minute '*/0' has a step outside 1-60"),
        ("*/61 * * * *", "minute '*/61' has a step outside 1-60"),
        ("0 0 29 2 */9", "day of week '*/9' has a step outside 1-8"),
        ("5/15 * * * *", 'minute \'5/15\' needs "*" or a range before its step: "5-59/15"'),
        ("*-5 * * * *", "minute '*-5' has a range that begins with \"*\""),
        ("R * * * *", "minute 'R' is not a number in 0-59"),
        ("R(0-29) * * * *", "minute 'R(0-29)' is not"),
        ("* H * * *", "hour 'H' is not"),
        ("1,,2 * * * *", "minute '' is not"),
        ("-1 * * * *", "minute '-1' is not"),
        ("JAN * * * *", "minute 'JAN' holds 'JAN', which is not a number in 0-59"),
        ("* * * FOO *", "month 'FOO' holds 'FOO', which is not a number in 1-12 or a name"),
        ("* * W15 * *", "day of month 'W15' is not"),
        ("* * 28-L * *", "day of month '28-L' is not"),
        ("0 0 * * MON#6", "day of week 'MON#6' is not"),
        ("0 0 * * *#2", "day of week '*#2' needs days before its position"),
        ("0 0 * * MON,+FRI", "day of week '+FRI' is not"),
        ("? * * * *", "minute '?' is not"),
        ("nope", "'nope' has 1 fields; it needs 5"),
        ("", "'' has 0 fields; it needs 5"),
        ("* * * * * * * *", "has 8 fields"),
        ("TZ=UTC 0 0 * * * * *", "has 8 fields"),
        ("0 0 * *\u00a0* *", "holds characters outside ASCII"),
        ("\ufeff0 0 * * *", "holds characters outside ASCII"),
        ("\u0661 * * * *", "holds characters outside ASCII"),
        ("0," * 200 + "0 * * * *", "has 409 characters; at most 256 are allowed"),
        (None, "a cron expression is a str, not NoneType"),
        (b"* * * * *", "a cron expression is a str, not bytes"),
    ],
)
def test_a_refusal_says_field_term_and_reason_and_gives_an_example(
    text: object, problem: str
) -> None:
    message = refusal(text)

    assert problem in message
    assert "\n  Example: " in message
    assert len(message.splitlines()) <= 6


def test_an_unknown_nickname_is_met_with_the_nearest() -> None:
    assert 'Did you mean "@daily"?' in refusal("@dialy")
    assert "@hourly" in refusal("@reboot")


def test_a_long_text_is_cut_in_the_message() -> None:
    assert len(refusal("9" * 5000 + " * * * *")) < 250
