"""The configs that are asked of the server, and how they are compared with what it has."""

from __future__ import annotations

from mega.adapters.nats import layout
from mega.options import DeadLetter, JobOptions
from mega.ports import Queue
from tests.nats_server import nats_url


def test_equal_configs_do_not_drift_whatever_else_the_server_adds() -> None:
    wanted = layout.job_stream(Queue("a.b", JobOptions()), nats_url(1))

    assert [] == layout.drift(wanted, wanted | {"compression": "none"})


def test_drift_names_the_field_and_both_values() -> None:
    assert [("max_age", 5, 7)] == layout.drift({"max_age": 5}, {"max_age": 7})


def test_a_field_that_an_old_server_leaves_out_is_drift() -> None:
    assert [("allow_atomic", True, None)] == layout.drift({"allow_atomic": True}, {})


def test_an_unset_value_may_be_left_out() -> None:
    assert [] == layout.drift({"max_age": 0}, {})


def test_more_subjects_than_wanted_are_no_drift() -> None:
    assert [] == layout.drift({"subjects": ["a"]}, {"subjects": ["b", "a"]})


def test_any_text_becomes_one_token() -> None:
    assert "a%2Eb%20c%2A%3E%25" == layout.key_token("a.b c*>%")


def test_the_duplicate_window_is_at_least_twice_ack_wait() -> None:
    stream = layout.job_stream(Queue("a", JobOptions()), nats_url(1, ack_wait=100.0))

    assert 200_000_000_000 == stream["duplicate_window"]


def test_dead_letters_that_are_kept_shortly_have_a_window_no_longer() -> None:
    options = JobOptions(dead_letter=DeadLetter(max_age=60))

    stream = layout.dead_letter_stream(Queue("a", options), nats_url(1))

    assert (60_000_000_000, 60_000_000_000) == (stream["max_age"], stream["duplicate_window"])
