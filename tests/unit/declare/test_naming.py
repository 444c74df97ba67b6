"""Names: of jobs, of places in code, and of the file that is being run."""

from __future__ import annotations

import functools
import gc
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from mega import App
from mega.declare.naming import alias_main, check_subject, place_of
from mega.errors import AppLoadedTwice, BadSubject

GOOD = [
    "email",
    "email.send",
    "a.b.c.d",
    "Email_2.send-now",
    "0",
    "-",
    "_",
    "a" * 200,
    "dlq",
    "x.megalodon",
]
BAD = [
    "",
    " ",
    "email send",
    "email.*",
    "email.>",
    "*",
    ">",
    "$JS.API",
    ".email",
    "email.",
    "email..send",
    "email/send",
    "email\n",
    "email\x00",
    "é.send",
    "email.٣",
    "a" * 201,
    "email.dlq",
    "email.DLQ",
    "email_dlq",
    "email_DLQ",
    "mega.sched",
    "mega",
    None,
    5,
    b"email",
    ["email"],
]


@pytest.mark.parametrize("subject", GOOD)
def test_a_subject_is_letters_digits_dots_underscores_and_dashes(subject: str) -> None:
    assert subject == check_subject(subject)


@pytest.mark.parametrize("subject", BAD, ids=repr)
def test_any_other_subject_is_a_value_error(subject: Any) -> None:
    with pytest.raises(BadSubject):
        check_subject(subject)
    assert issubclass(BadSubject, ValueError)


@pytest.mark.parametrize("subject", BAD, ids=repr)
def test_it_is_refused_where_the_job_is_declared(subject: Any) -> None:
    with pytest.raises(BadSubject):
        App("shop").job(subject)


def test_a_refused_subject_says_what_a_subject_is() -> None:
    with pytest.raises(BadSubject) as refused:
        check_subject("email send")
    assert "'email send' is not a subject." == refused.value.args[0]
    assert '"email.send"' in refused.value.hint


def handler() -> None: ...


class Callable:
    def __call__(self) -> None: ...


def test_a_place_is_file_line_and_name() -> None:
    line = handler.__code__.co_firstlineno
    assert f"test_naming.py:{line} handler" == place_of(handler)


def test_an_object_is_at_its_call_method() -> None:
    line = Callable.__call__.__code__.co_firstlineno
    assert f"test_naming.py:{line} Callable" == place_of(Callable())


def test_what_has_no_code_is_its_name() -> None:
    assert "print" == place_of(print)
    assert "partial" == place_of(functools.partial(handler))


SOURCE = """
from mega import App
app = App("shop", broker="memory:")
"""


def load(path: Path, name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_one_file_under_two_names_is_refused_before_it_runs(tmp_path: Path) -> None:
    file = tmp_path / "shop.py"
    file.write_text(SOURCE)
    first, second = load(file, "shop"), load(file, "project.shop")
    with pytest.raises(AppLoadedTwice, match=r"shop\.py was loaded twice") as refused:
        second.app.check()
    assert "'shop'" in str(refused.value)
    assert "'project.shop'" in str(refused.value)
    assert "python -m shop" in refused.value.hint
    del first


def test_an_app_that_is_gone_is_no_second_one(tmp_path: Path) -> None:
    file = tmp_path / "shop.py"
    file.write_text(SOURCE)
    load(file, "shop")
    gc.collect()
    load(file, "project.shop").app.check()


def test_two_apps_of_one_file_with_names_of_their_own_are_fine(tmp_path: Path) -> None:
    file = tmp_path / "shop.py"
    file.write_text(SOURCE + 'other = App("mail", broker="memory:")\n')
    module = load(file, "shop")
    module.app.check()
    module.other.check()


def test_the_main_file_can_be_imported_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    main = ModuleType("__main__")
    main.__file__ = str(tmp_path / "my_shop.py")
    sys.modules["__main__"] = main
    exec(FRAME_SOURCE, main.__dict__)
    alias_main(main.frame)
    assert main is sys.modules["my_shop"]


def test_a_module_that_is_imported_gets_no_second_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    before = set(sys.modules)
    alias_main(sys._getframe())
    assert before == set(sys.modules)


FRAME_SOURCE = "import sys; frame = sys._getframe()"
