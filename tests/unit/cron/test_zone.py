"""Zones by name, the host's own zone, and wall times on the UTC axis."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from mega.cron.zone import Zone, find_zone, host_zone_name
from mega.errors import BadTimezone

ONE_HOUR = timedelta(hours=1)


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def test_a_zone_is_found_by_its_iana_name() -> None:
    assert "Asia/Seoul" == find_zone("Asia/Seoul").key


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("Asia/Seol", "Asia/Seoul"),
        ("europe/berlin", "Europe/Berlin"),
        ("Seoul", "Asia/Seoul"),
        ("US/Pacfic", "US/Pacific"),
    ],
)
def test_an_unknown_name_is_met_with_the_nearest(name: str, meant: str) -> None:
    with pytest.raises(BadTimezone, match=f'named {name!r}.\n  Did you mean "{meant}"'):
        find_zone(name)


@pytest.mark.parametrize(
    "name", ["", "../../etc/passwd", "/etc/passwd", "\0", "\udc80", "x" * 5000, "Europe", None, 9]
)
def test_anything_else_is_refused_with_an_example(name: object) -> None:
    with pytest.raises(BadTimezone) as caught:
        find_zone(name)  # type: ignore[arg-type]

    assert "Europe/" in caught.value.hint
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    ("value", "name"),
    [
        ("Europe/Berlin", "Europe/Berlin"),
        (":Europe/Berlin", "Europe/Berlin"),
        ("/nowhere/zoneinfo/Europe/Berlin", "Europe/Berlin"),
        ("", "UTC"),
    ],
)
def test_the_host_zone_is_what_tz_says(
    value: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", value)

    assert name == host_zone_name()


@pytest.mark.parametrize("value", ["CET-1CEST,M3.5.0,M10.5.0/3", "<+03>-3", "/etc/passwd"])
def test_a_tz_that_is_not_a_name_is_refused(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", value)

    with pytest.raises(BadTimezone, match="Pass timezone=, or set TZ"):
        host_zone_name()


@pytest.fixture
def no_tz(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TZ", raising=False)


@pytest.mark.usefixtures("no_tz")
@pytest.mark.parametrize("folder", ["zoneinfo", "zoneinfo.default"])
def test_without_tz_the_link_of_localtime_names_the_zone(tmp_path: Path, folder: str) -> None:
    localtime = tmp_path / "localtime"
    localtime.symlink_to(tmp_path / folder / "America/New_York")

    assert "America/New_York" == host_zone_name(localtime, tmp_path / "none")


@pytest.mark.usefixtures("no_tz")
def test_a_copied_localtime_is_named_by_the_timezone_file(tmp_path: Path) -> None:
    localtime, timezone = tmp_path / "localtime", tmp_path / "timezone"
    localtime.write_bytes(b"TZif")
    timezone.write_text("Asia/Tokyo\n")

    assert "Asia/Tokyo" == host_zone_name(localtime, timezone)


@pytest.mark.usefixtures("no_tz")
def test_a_host_without_any_zone_is_in_utc(tmp_path: Path) -> None:
    assert "UTC" == host_zone_name(tmp_path / "none", tmp_path / "nothing")


@pytest.mark.usefixtures("no_tz")
def test_a_host_zone_without_a_name_is_refused(tmp_path: Path) -> None:
    localtime = tmp_path / "localtime"
    localtime.write_bytes(b"TZif")

    with pytest.raises(BadTimezone, match="does not tell the name"):
        host_zone_name(localtime, tmp_path / "nothing")


def test_a_wall_time_has_one_instant_on_most_days() -> None:
    berlin = Zone("Europe/Berlin")

    assert [utc("2026-07-01T10:00")] == berlin.instants(datetime(2026, 7, 1, 12))
    assert datetime(2026, 7, 1, 12) == berlin.wall(utc("2026-07-01T10:00"))


def test_a_repeated_wall_time_has_two_instants() -> None:
    expected = [utc("2026-10-25T00:30"), utc("2026-10-25T01:30")]

    assert expected == Zone("Europe/Berlin").instants(datetime(2026, 10, 25, 2, 30))


def test_a_skipped_wall_time_has_no_instant_but_a_gap() -> None:
    berlin, wall = Zone("Europe/Berlin"), datetime(2026, 3, 29, 2, 30)

    assert [] == berlin.instants(wall)
    gap = berlin.gap(wall)
    assert utc("2026-03-29T01:00") == gap.instant
    assert ONE_HOUR == gap.size
    assert datetime(2026, 3, 29, 2) == gap.wall_before
    assert datetime(2026, 3, 29, 3) == gap.wall_after


def test_the_day_that_apia_skipped_is_one_gap() -> None:
    gap = Zone("Pacific/Apia").gap(datetime(2011, 12, 30, 12))

    assert timedelta(days=1) == gap.size
    assert utc("2011-12-30T10:00") == gap.instant


def test_a_jump_back_is_found_within_its_window_only() -> None:
    berlin, jump = Zone("Europe/Berlin"), utc("2026-10-25T01:00")

    found = berlin.jump_back(jump - ONE_HOUR, jump)
    assert found is not None
    assert jump == found.instant
    assert -ONE_HOUR == found.size
    assert berlin.jump_back(jump, jump + ONE_HOUR) is None
    assert berlin.jump_back(utc("2026-03-29T00:00"), utc("2026-03-29T02:00")) is None


def test_the_second_pass_knows_the_jump_that_began_it() -> None:
    lord_howe = Zone("Australia/Lord_Howe")
    jump = utc("2026-04-04T15:00")

    found = lord_howe.repeated_since(jump + timedelta(minutes=29))
    assert found is not None
    assert jump == found.instant
    assert timedelta(minutes=-30) == found.size
    assert lord_howe.repeated_since(jump + timedelta(minutes=30)) is None
    assert lord_howe.repeated_since(jump - timedelta(seconds=1)) is None
