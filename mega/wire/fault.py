"""Where a value would be altered by the wire, as a path and a reason.

Only ever runs for a payload that failed the quick check, so it takes its time.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, time
from typing import Any

from mega.wire.annotation import short_name
from mega.wire.roundtrip import MISSING, PRIMITIVES, field_names, same

__all__ = ["Fault", "difference", "first_fault", "without_surrogates"]

CONTAINERS = (dict, list, tuple, set, frozenset)
SMALLEST_INTEGER, LARGEST_INTEGER = -(2**63), 2**64 - 1
# orjson stops at 254 levels.
MAX_DEPTH = 250
MAX_TEXT = 60


@dataclass(frozen=True, slots=True)
class Fault:
    """One place in a value that the wire would alter.

    `found` is what stands there; `expected` is set where a value of another type belongs.
    """

    path: str
    found: str
    outcome: str = ""
    expected: type | None = None

    @property
    def reason(self) -> str:
        """Both halves, as the end of a sentence that starts with the path."""
        return self.found + self.outcome


def difference(sent: Any, arrived: Any, path: str) -> Fault | None:
    """Return the first place where `arrived` isn't what was sent, or None."""
    if type(sent) is not type(arrived):
        return None if same(sent, arrived) else _other_type(sent, arrived, path)
    before, after = dict(_steps(sent)), dict(_steps(arrived))
    if not before and not after:
        return _other_value(sent, arrived, path)
    for step, part in before.items():
        if step not in after:
            return Fault(path + step, "would be lost", _lost_key(sent, step))
        fault = difference(part, after[step], path + step)
        if fault:
            return fault
    return None if before.keys() == after.keys() else Fault(path, "would arrive with more in it")


def first_fault(
    value: Any, path: str, encode: Callable[[Any], object], above: tuple[int, ...] = ()
) -> Fault | None:
    """Return the first part that has no JSON form, or None; `encode` judges unknown types."""
    if id(value) in above:
        return Fault(path, "contains itself")
    if len(above) > MAX_DEPTH:
        return Fault(path, f"is nested deeper than {MAX_DEPTH} levels")
    for step, part in _steps(value, into_sets=True):
        fault = first_fault(part, path + step, encode, (*above, id(value)))
        if fault:
            return fault
    return _own_fault(value, path, encode)


def without_surrogates(plain: Any) -> Any:
    """Return a copy of plain JSON values in which lone surrogates are question marks."""
    if isinstance(plain, str):
        return plain.encode("utf-8", "replace").decode()
    if isinstance(plain, (list, tuple)):
        return [without_surrogates(part) for part in plain]
    if isinstance(plain, dict):
        return {without_surrogates(key): without_surrogates(plain[key]) for key in plain}
    return plain


def _steps(value: Any, *, into_sets: bool = False) -> Iterator[tuple[str, Any]]:
    """Yield each part of a container or of an object with fields, with its piece of the path."""
    if isinstance(value, dict):
        yield from ((_key_step(key), part) for key, part in value.items())
    elif isinstance(value, (list, tuple)):
        yield from ((f"[{index}]", part) for index, part in enumerate(value))
    elif isinstance(value, (set, frozenset)):
        yield from (("[...]", part) for part in value if into_sets)
    else:
        for name in field_names(type(value)) or ():
            yield f".{name}", getattr(value, name, MISSING)


def _key_step(key: Any) -> str:
    if type(key) is not str:
        return f"[{_text(key)}]"
    return f".{key}" if key.isidentifier() else f"[{json.dumps(key)}]"


def _lost_key(sent: Any, step: str) -> str:
    if not isinstance(sent, dict):
        return ""
    key = next(key for key in sent if _key_step(key) == step)
    return "" if type(key) is str else f": its key is {_kind(key)}, and would arrive as a str"


def _other_type(sent: Any, arrived: Any, path: str) -> Fault:
    if type(sent) is int and type(arrived) is float:
        return Fault(path, f"is {_text(sent)}", f", and would arrive as {_text(arrived)}")
    # A subclass is of the declared type; it is the wire that can't keep it.
    expected = None if isinstance(sent, type(arrived)) else type(arrived)
    return Fault(path, f"is {_kind(sent)}", f", and would arrive as {_kind(arrived)}", expected)


def _other_value(sent: Any, arrived: Any, path: str) -> Fault | None:
    if _alike(sent, arrived):
        return None
    return Fault(path, f"is {_text(sent)}", f", and would arrive as {_text(arrived)}")


def _own_fault(value: Any, path: str, encode: Callable[[Any], object]) -> Fault | None:
    if isinstance(value, str) and _has_surrogate(value):
        return Fault(path, "holds a lone surrogate, which UTF-8 has no form for")
    if isinstance(value, float) and not math.isfinite(value):
        return Fault(path, f"is {_text(value)}, which JSON has no form for")
    if isinstance(value, int) and not SMALLEST_INTEGER <= value <= LARGEST_INTEGER:
        return Fault(path, "is an integer of over 64 bits")
    if isinstance(value, dict) and any(map(_has_surrogate, value)):
        return Fault(path, "has a key with a lone surrogate, which UTF-8 has no form for")
    if type(value) in PRIMITIVES or type(value) in CONTAINERS:
        return None
    return _encoding_fault(value, path, encode)


def _encoding_fault(value: Any, path: str, encode: Callable[[Any], object]) -> Fault | None:
    if value is MISSING:
        return Fault(path, "isn't set")
    try:
        encode(value)
    except Exception:
        return Fault(path, f"is {_kind(value)}, which has no JSON form")
    return None


def _has_surrogate(text: Any) -> bool:
    return isinstance(text, str) and any("\ud800" <= letter <= "\udfff" for letter in text)


def _alike(sent: Any, arrived: Any) -> bool:
    # In the hour that a clock change repeats, `==` between two zones is always false (PEP 495).
    if isinstance(sent, (datetime, time)):
        return bool(sent == arrived or sent.isoformat() == arrived.isoformat())
    return same(sent, arrived)


def _kind(value: Any) -> str:
    """Return the type with its article, and the builtin that it is a kind of."""
    name = short_name(type(value))
    article = "an" if name[:1].lower() in {"a", "e", "i", "o"} else "a"
    bases = [base for base in type(value).__mro__[1:] if base in PRIMITIVES or base in CONTAINERS]
    if not bases or isinstance(value, bool):
        return f"{article} {name}"
    return f"{article} {name}, a kind of {bases[0].__name__}"


def _text(value: Any) -> str:
    """Return the value as it may stand in a message: short, and free of lone surrogates."""
    text = repr(value)
    text = text if len(text) <= MAX_TEXT else f"{text[: MAX_TEXT - 3]}..."
    return text.encode("utf-8", "backslashreplace").decode()
