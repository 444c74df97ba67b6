"""The error tree, and how an error looks as text."""

from __future__ import annotations

import inspect
import json
import pickle
import re

import pytest

import mega
import mega.errors
from mega.errors import (
    BadOption,
    DeclarationError,
    MegaError,
    capped_traceback,
    did_you_mean,
    one_line,
    only_mega_error,
    report,
    text_of,
)

ERRORS = [
    value
    for value in vars(mega.errors).values()
    if inspect.isclass(value) and issubclass(value, MegaError)
]
FAMILIES = [
    ("BadSubject", ValueError),
    ("BadCron", ValueError),
    ("BadTimezone", ValueError),
    ("BadOption", ValueError),
    ("BadHandler", TypeError),
    ("UnknownEvent", ValueError),
    ("UnknownLock", ValueError),
    ("UnknownRole", ValueError),
    ("NotConnected", RuntimeError),
    ("PayloadError", TypeError),
    ("BrokerError", ConnectionError),
    ("CpuTimeout", TimeoutError),
    ("CpuArgumentError", TypeError),
    ("CpuResultError", TypeError),
]


@pytest.mark.parametrize("error", ERRORS)
def test_each_error_is_public_and_explains_itself(error: type[MegaError]) -> None:
    assert error.__name__ in mega.errors.__all__
    assert error.__doc__
    assert re.fullmatch(r"[a-z]+(\.[a-z_]+)?", error.code)


def test_codes_are_unique() -> None:
    codes = [error.code for error in ERRORS]
    assert sorted(set(codes)) == sorted(codes)


@pytest.mark.parametrize(("name", "builtin"), FAMILIES)
def test_an_error_is_also_what_python_would_raise(name: str, builtin: type[Exception]) -> None:
    assert issubclass(getattr(mega.errors, name), builtin)


def test_the_text_holds_message_places_and_hint() -> None:
    error = BadOption("what happened.", where="app.py:12 send", hint="What to do.")
    assert "what happened.\n  app.py:12 send\n  What to do." == str(error)
    assert "what happened." == str(BadOption("what happened."))


def test_an_error_can_be_pickled_with_all_it_says() -> None:
    error = pickle.loads(pickle.dumps(BadOption("no.", where="app.py:1", hint="Do.")))
    assert ("no.", "app.py:1", "Do.") == (error.args[0], error.where, error.hint)


def test_a_report_names_the_error_in_at_most_six_lines() -> None:
    short = BadOption("what happened.", hint="What to do.")
    assert "mega: BadOption: what happened.\n  What to do." == report(short)
    long = BadOption("\n".join(map(str, range(50))), hint="What to do.")
    assert 6 == len(report(long).splitlines())


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("workr", 'Did you mean "worker"?'),
        ("schedular", 'Did you mean "scheduler"?'),
        ("zzz", "Known: all, scheduler, worker."),
        ("", "Known: all, scheduler, worker."),
    ],
)
def test_what_was_meant_is_the_nearest_name_or_all(word: str, hint: str) -> None:
    assert hint == did_you_mean(word, ["worker", "all", "scheduler"])


@pytest.mark.parametrize(("word", "name"), [("retry", "retries"), ("timeouts", "timeout")])
def test_a_plural_is_meant_rather_than_another_word(word: str, name: str) -> None:
    known = ["retries", "retry_on", "timeout", "timeout_of"]
    assert f'Did you mean "{name}"?' == did_you_mean(word, known)


def test_without_names_there_is_no_hint() -> None:
    assert "" == did_you_mean("worker", [])


def test_the_one_error_of_ours_is_found_in_groups() -> None:
    error = BadOption("no.")
    assert error is only_mega_error(error)
    assert error is only_mega_error(ExceptionGroup("", [BaseExceptionGroup("", [error])]))


@pytest.mark.parametrize(
    "error",
    [
        ValueError("no"),
        KeyboardInterrupt(),
        ExceptionGroup("", [ValueError("no")]),
        ExceptionGroup("", [BadOption("one."), BadOption("two.")]),
    ],
)
def test_another_error_or_several_are_none_of_ours(error: BaseException) -> None:
    assert only_mega_error(error) is None


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("no"), "ValueError: no"),
        (ValueError(), "ValueError:"),
        (ValueError("two\n  lines"), "ValueError: two lines"),
        (KeyError("name"), "KeyError: 'name'"),
        (DeclarationError("no.", hint="Do."), "DeclarationError: no. Do."),
        (OSError("caf\udce9"), r"OSError: caf\udce9"),
        (ValueError("two\r\nlines"), "ValueError: two lines"),
        (ValueError("\x00\x1b[31m"), "ValueError: ␀␛[31m"),
    ],
)
def test_an_error_is_told_in_one_line(error: Exception, line: str) -> None:
    assert line == one_line(error)


def test_the_line_is_at_most_500_characters() -> None:
    line = one_line(ValueError("x" * 10_000))
    assert 500 == len(line)
    assert line.endswith("…")


def test_an_error_that_can_not_tell_its_text_has_one_all_the_same() -> None:
    class Unprintable(Exception):
        def __str__(self) -> str:
            raise AttributeError("no response")

    assert "its text can't be had, because its __str__ raises." == text_of(Unprintable())
    assert one_line(Unprintable()).startswith("Unprintable: ")


def test_a_traceback_is_kept_whole_up_to_a_limit() -> None:
    assert "ValueError: no\n" == capped_traceback(ValueError("no"))
    text = capped_traceback(ValueError("x" * 100_000))
    assert text.startswith("ValueError: xxx")
    assert text.endswith("xxx\n")
    assert len(text) < 9 * 1024


@pytest.mark.parametrize("letter", ["x", "\x00", "\ud800", '"', "\n", "😀"])
@pytest.mark.parametrize("length", [5_000, 100_000])
def test_no_text_takes_more_room_as_json_than_a_letter_has(letter: str, length: int) -> None:
    text = text_of(ValueError(letter * length))
    assert len(json.dumps(text, ensure_ascii=False).encode()) < 33 * 1024


def test_a_traceback_that_can_not_be_made_is_none() -> None:
    class Untraceable(Exception):
        @property
        def __notes__(self) -> list[str]:
            raise ValueError("no notes")

    assert "its traceback can't be had: ValueError: no notes" == capped_traceback(Untraceable())


def test_the_package_shows_the_errors_that_users_catch() -> None:
    shown = {name for name in mega.__all__ if name in mega.errors.__all__}
    assert {"MegaError", "JobFailedError", "NotConnected", "BrokerUnavailable"} <= shown
    assert all(getattr(mega, name) is getattr(mega.errors, name) for name in shown)
