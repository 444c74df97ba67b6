"""Whether a value came back from the wire as it went in.

Stricter than `==`, for which 1, True and 1.0 are one value and a str enum is a str; and wider,
because it needs no `__eq__` and sees dataclass fields that `compare=False` hides.
It runs on every enqueue, so what can be decided once per type is.
"""

from __future__ import annotations

import marshal
import operator
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import fields, is_dataclass
from keyword import iskeyword
from types import NoneType
from typing import Any

from mega.wire.annotation import is_model

__all__ = ["MISSING", "PRIMITIVES", "field_names", "same", "same_plain"]

Compare = Callable[[Any, Any], bool]

PRIMITIVES: frozenset[type] = frozenset({str, int, float, bool, NoneType})
MISSING = object()


def same(sent: Any, arrived: Any) -> bool:
    """Return whether both are equal in every part and of the same types; an int may be a float."""
    kind = type(sent)
    if kind is type(arrived):
        return _comparisons[kind](sent, arrived)
    return kind is int and type(arrived) is float and sent == arrived


def same_plain(sent: Any, arrived: Any) -> bool:
    """Return whether both are equal, where all that arrived is plain JSON values.

    Raises:
        ValueError: a part of `sent` is of a subclass.
    """
    # JSON keeps 1, 1.0 and True apart, so equal values differ only where an enum or a subclass
    # was sent. marshal refuses those, and reads dicts five times faster than `same` does.
    return bool(sent == arrived) and bool(marshal.dumps(sent))


def field_names(kind: type) -> tuple[str, ...] | None:
    """Return the fields of a dataclass, Struct, attrs class or pydantic model, or None."""
    if is_dataclass(kind):
        return tuple(field.name for field in fields(kind))
    if hasattr(kind, "__struct_fields__"):
        return tuple(kind.__struct_fields__)
    if hasattr(kind, "__attrs_attrs__"):
        return tuple(attribute.name for attribute in kind.__attrs_attrs__)
    if is_model(kind) and hasattr(kind, "model_fields"):
        return (*kind.model_fields, "__pydantic_extra__", "__pydantic_private__")
    return None


def _same_items(sent: Sequence[Any], arrived: Sequence[Any]) -> bool:
    kinds = [*map(type, sent)]
    if PRIMITIVES.issuperset(kinds) and kinds == [*map(type, arrived)]:
        return sent == arrived
    return len(sent) == len(arrived) and all(map(same, sent, arrived))


def _same_mapping(sent: dict[Any, Any], arrived: dict[Any, Any]) -> bool:
    # Keys and values in one go take half the time.
    return _same_items([*sent, *sent.values()], [*arrived, *arrived.values()])


def _same_members(sent: AbstractSet[Any], arrived: AbstractSet[Any]) -> bool:
    twins = {member: member for member in arrived}
    return len(sent) == len(arrived) and all(
        same(member, twins.get(member, MISSING)) for member in sent
    )


class _Comparisons(dict[type, Compare]):
    """How to compare two values of one type; found out once for each type."""

    def __missing__(self, kind: type) -> Compare:
        self[kind] = compare = _comparison(kind)
        return compare


def _comparison(kind: type) -> Compare:
    names = field_names(kind)
    if names is not None:
        return _field_comparison(names)
    if issubclass(kind, tuple):
        return _same_items
    return lambda sent, arrived: bool(sent == arrived)


def _field_comparison(names: Sequence[str]) -> Compare:
    """Compile a comparison of these fields, as dataclasses compile `__eq__`.

    Three times faster than a loop over them.
    """
    checks = " and ".join(_FIELD_CHECK.format(field=_field_source(name)) for name in names)
    source = f"lambda sent, arrived: {checks or True}"
    compare: Compare = eval(source, {"PRIMITIVES": PRIMITIVES, "same": same})
    return compare


def _field_source(name: str) -> str:
    # A model made by pydantic.create_model may have a field that no attribute can spell.
    return f".{name}" if name.isidentifier() and not iskeyword(name) else f".__dict__[{name!r}]"


_FIELD_CHECK = (
    "(type(a := sent{field}) is type(b := arrived{field})"
    " and type(a) in PRIMITIVES and a == b or same(a, b))"
)
_comparisons = _Comparisons(
    {
        **dict.fromkeys(PRIMITIVES, operator.eq),
        dict: _same_mapping,
        list: _same_items,
        tuple: _same_items,
        set: _same_members,
        frozenset: _same_members,
    }
)
