"""What a job has been through, as it travels in headers."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from mega.wire.history import (
    KEPT,
    MAX_NAME,
    Crash,
    Death,
    decode_crashes,
    decode_deaths,
    encode_history,
    with_latest,
)

NOW = datetime(2030, 1, 1, 0, 0, 0, 250, tzinfo=UTC)
CRASH = Crash(number=2, worker="host:1", started_at=NOW)
DEATH = Death(
    reason="retries",
    error_type="shop.Fehler",
    attempts=4,
    crashes=1,
    failed_at=NOW,
    worker="host:1",
)


def test_it_comes_out_as_it_went_in() -> None:
    assert (CRASH, Crash(number=3)) == decode_crashes(encode_history([CRASH, Crash(number=3)]))
    assert (DEATH,) == decode_deaths(encode_history([DEATH]))


def test_it_is_one_line_of_ascii() -> None:
    text = encode_history([Death(**{**_fields(DEATH), "error_type": "shop.Größe\n"})])
    assert text.isascii()
    assert text.isprintable()
    assert "Größe" in decode_deaths(text)[0].error_type


def test_the_latest_twenty_are_kept() -> None:
    history: tuple[int, ...] = ()
    for number in range(50):
        history = with_latest(history, number)
    assert tuple(range(50 - KEPT, 50)) == history


def test_a_header_of_more_is_cut_to_the_latest_twenty() -> None:
    crashes = [Crash(number=number) for number in range(1, 100)]
    assert crashes[-KEPT:] == list(decode_crashes(encode_history(crashes)))


def test_names_are_short_so_that_the_headers_stay_small() -> None:
    long = Death(**{**_fields(DEATH), "error_type": "x" * 5000 + ".Error", "worker": "h" * 5000})
    assert (MAX_NAME, MAX_NAME) == (len(long.error_type), len(long.worker))
    assert long.error_type.endswith(".Error")
    assert len(encode_history([long] * KEPT)) < 10_000


@pytest.mark.parametrize(
    "text", ["", "{", "[1]", "{}", '[{"number":0}]', '[{"number":1e30}]', '[{"number":"1"}]']
)
def test_what_is_no_history_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        decode_crashes(text)


def _fields(death: Death) -> dict[str, object]:
    return {name: getattr(death, name) for name in Death.__struct_fields__}
