"""What a payload's annotation means: its short name, and whether msgspec can convert it.

Types that msgspec doesn't know travel here too: pydantic models (by duck typing) and paths.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Iterator
from pathlib import PurePath
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec
import orjson

from mega.errors import BadHandler

__all__ = ["TypeTree", "is_model", "short_name", "to_plain"]

DECLARE_HINT = (
    "Declare a dataclass, a TypedDict, a msgspec.Struct, a pydantic model, or containers of these."
)

PLAIN_NODES = (
    msgspec.inspect.StrType,
    msgspec.inspect.IntType,
    msgspec.inspect.FloatType,
    msgspec.inspect.BoolType,
    msgspec.inspect.NoneType,
    msgspec.inspect.ListType,
    msgspec.inspect.DictType,
    msgspec.inspect.UnionType,
)


class TypeTree:
    """All the types inside one annotation, checked at declaration."""

    def __init__(self, declared: Any, *, job: str, noun: str = "payload") -> None:
        self.declared = Any if declared is inspect.Parameter.empty else declared
        self.name = short_name(self.declared)
        self._subject = f'The {noun} of "{job}" is declared as {self.name}'
        self._nodes = self._inspect()
        self._refuse_unknown()

    @property
    def has_untyped(self) -> bool:
        """Whether some place in it takes any JSON value."""
        return any(_is_untyped(node) for node in self._nodes)

    @property
    def is_plain(self) -> bool:
        """Whether all that it decodes to is of JSON's own types."""
        return all(isinstance(node, PLAIN_NODES) or _is_untyped(node) for node in self._nodes)

    def decoder(self) -> msgspec.json.Decoder[Any]:
        """Build the decoder for this type."""
        if self.has_foreign:
            return msgspec.json.Decoder(self.declared, dec_hook=_from_plain)
        return msgspec.json.Decoder(self.declared)

    @property
    def has_foreign(self) -> bool:
        """Whether some place in it needs more than msgspec."""
        return any(isinstance(node, msgspec.inspect.CustomType) for node in self._nodes)

    def _inspect(self) -> list[msgspec.inspect.Type]:
        # inspect accepts some types that the decoder refuses, and a forward reference that
        # can't be resolved is a NameError, so both run, and every reason is passed on.
        try:
            msgspec.json.Decoder(self.declared)
            return list(_nodes(msgspec.inspect.type_info(self.declared), set()))
        except Exception as error:
            raise BadHandler(f"{self._subject}: {error}.", hint=DECLARE_HINT) from error

    def _refuse_unknown(self) -> None:
        for node in self._nodes:
            if isinstance(node, msgspec.inspect.CustomType) and not _is_foreign(node.cls):
                message = f"{self._subject}, but {short_name(node.cls)} has no JSON form."
                raise BadHandler(message, hint=DECLARE_HINT)


def short_name(declared: Any) -> str:
    """Return the name of a type as a person would write it, without its modules."""
    if declared is None or declared is types.NoneType:
        return "None"
    origin, arguments = get_origin(declared), get_args(declared)
    if origin is Annotated:
        return short_name(arguments[0])
    if origin is Literal:
        return f"Literal[{', '.join(map(repr, arguments))}]"
    if origin in (Union, types.UnionType):
        return " | ".join(map(short_name, arguments))
    if origin is not None and arguments:
        return f"{short_name(origin)}[{', '.join(map(short_name, arguments))}]"
    if declared is ...:
        return "..."
    return str(getattr(declared, "__name__", declared))


def is_model(kind: type) -> bool:
    """Return whether `kind` is a pydantic model, or looks like one."""
    names = ("model_validate", "model_validate_json", "model_dump")
    return all(callable(getattr(kind, name, None)) for name in names)


def to_plain(value: Any) -> Any:
    """Return `value` as dicts, lists and primitives; TypeError when msgspec can't."""
    return msgspec.to_builtins(value, str_keys=True, enc_hook=_foreign_to_plain)


def _foreign_to_plain(value: Any) -> Any:
    if isinstance(value, PurePath):
        return str(value)
    if is_model(type(value)):
        return value.model_dump(mode="json", by_alias=True, round_trip=True, warnings=False)
    raise TypeError(f"{short_name(type(value))} has no JSON form")


def _from_plain(kind: Any, plain: Any) -> Any:
    if kind is object:
        return plain
    if issubclass(kind, PurePath):
        return _path(kind, plain)
    # From JSON and not from Python values: a strict model takes a text for a date only there.
    return kind.model_validate_json(orjson.dumps(plain))


def _path(kind: type[PurePath], plain: Any) -> PurePath:
    if not isinstance(plain, str):
        raise TypeError(f"Expected `str`, got `{short_name(type(plain))}`")
    return kind(plain)


def _is_foreign(kind: type) -> bool:
    return kind is object or is_model(kind) or issubclass(kind, PurePath)


def _is_untyped(node: msgspec.inspect.Type) -> bool:
    if isinstance(node, msgspec.inspect.CustomType):
        return node.cls is object
    return isinstance(node, msgspec.inspect.AnyType)


def _nodes(node: Any, seen: set[int]) -> Iterator[msgspec.inspect.Type]:
    """Yield each type in the tree once; a dataclass may refer to itself."""
    if isinstance(node, tuple):
        for part in node:
            yield from _nodes(part, seen)
    elif isinstance(node, (msgspec.inspect.Type, msgspec.inspect.Field)) and id(node) not in seen:
        seen.add(id(node))
        if isinstance(node, msgspec.inspect.Type):
            yield node
        for name in node.__struct_fields__:
            yield from _nodes(getattr(node, name), seen)
