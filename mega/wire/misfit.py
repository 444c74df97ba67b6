"""A decoder's error in mega's words: `payload.items[2].tag: expected str, got int`."""

from __future__ import annotations

import re
from typing import Any

import msgspec

__all__ = ["explain", "private_field", "short_path"]

PLACE = re.compile(r" - at (?P<key>`key` in )?`\$(?P<path>[^`]*)`\Z")
EXPECTED = re.compile(r"\AExpected `[^`]*`")
PRIVATE_FIELD = re.compile(r"missing required field `(_\w*)`")
MAX_PATH = 120


def explain(error: Exception, *, noun: str, declared: str) -> str:
    """Return where and why a body doesn't fit the declared type, on one line."""
    if isinstance(error, RecursionError):
        return f"{noun} is nested too deeply"
    place = PLACE.search(str(error))
    path, reason = _model_reason(error) or ("", _reason(error, declared if not place else ""))
    if place:
        path = place["path"] + path
    where = f"a key of {noun}{path}" if place and place["key"] else noun + path
    return f"{short_path(where)}: {reason}"


def private_field(error: Exception, *, noun: str) -> str:
    """Return the path of a field that is missing because its name starts with an underscore."""
    found = PRIVATE_FIELD.search(str(error))
    if not found:
        return ""
    place = PLACE.search(str(error))
    return short_path(f"{noun}{place['path'] if place else ''}.{found[1]}")


def short_path(path: str) -> str:
    """Return the path with the middle of a very long one left out."""
    if len(path) <= MAX_PATH:
        return path
    half = MAX_PATH // 2
    return f"{path[:half]}...{path[-half:]}"


def _reason(error: Exception, declared: str) -> str:
    words = PLACE.sub("", str(error)).strip() or type(error).__name__
    first = words.splitlines()[0]
    if not isinstance(error, msgspec.DecodeError):
        return f"{type(error).__name__}: {first}"
    if EXPECTED.match(first):
        # At the top msgspec says `object` or `array`; the name that was declared says more.
        named = EXPECTED.sub(f"expected {declared}", first) if declared else first
        return (named[0].lower() + named[1:]).replace("`", "")
    return (first if first.startswith("JSON") else first[0].lower() + first[1:]).replace("`", '"')


def _model_reason(error: Exception) -> tuple[str, str] | None:
    """Return the first complaint of a pydantic model, which msgspec keeps as the cause."""
    complaints: Any = getattr(error.__cause__, "errors", None)
    if complaints is None:
        return None
    first = complaints()[0]
    steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in first["loc"])
    return "".join(steps), str(first["msg"])
