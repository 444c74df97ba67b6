"""A job's payload and its result as JSON bytes, checked on the way in and on the way out.

A codec is built once per job, on the decorator line; it knows nothing of headers or brokers.
"""

from __future__ import annotations

from copy import copy
from types import NoneType
from typing import Any, Generic, TypeVar, cast

import msgspec
import orjson

from mega.errors import PayloadError, PayloadInvalid, PayloadNotSerializable
from mega.wire.annotation import TypeTree, short_name, to_plain
from mega.wire.fault import Fault, difference, first_fault, without_surrogates
from mega.wire.misfit import explain, private_field, short_path
from mega.wire.roundtrip import same, same_plain

__all__ = ["Codec"]

T = TypeVar("T")

# The keys of a declared dict[int, ...] become texts; in an untyped place `same` refuses them.
STRICT = orjson.OPT_NON_STR_KEYS | orjson.OPT_PASSTHROUGH_SUBCLASS
# orjson leaves out the private fields of a dataclass, msgspec doesn't; a result keeps them.
LENIENT = orjson.OPT_NON_STR_KEYS | orjson.OPT_PASSTHROUGH_DATACLASS
JSON_TYPES = (str, int, float, bool, NoneType, list, dict)

# An integer of over 64 bits has 19 digits or more. In a long body a regular expression takes
# ten times longer to find them.
AS_ZEROS = bytes.maketrans(b"123456789", b"0" * 9)
LONG_NUMBER = b"0" * 19

TYPE_HINT = "Declare its type in the handler's annotation, or send plain JSON values."


class Codec(Generic[T]):
    """Turn one job's payload into bytes and back, or say exactly why not.

    `declared` is the handler's annotation, resolved; `Any` or none at all means plain JSON
    values, and None a job without a payload. For a codec of results, `noun` is "result".

    Raises:
        BadHandler: the type has no JSON form.
    """

    def __init__(self, declared: Any, *, job: str, noun: str = "payload") -> None:
        tree = TypeTree(declared, job=job, noun=noun)
        self.describe: str = tree.name
        self.is_none: bool = tree.declared in (None, NoneType)
        self._job = job
        self._noun = noun
        self._path = noun
        self._has_untyped = tree.has_untyped
        self._parse = tree.decoder().decode
        self._same = same_plain if tree.is_plain else same

    def __repr__(self) -> str:
        return f"Codec({self.describe}, job={self._job!r})"

    def called(self, path: str) -> Codec[T]:
        """Return a codec whose errors call the value by that path: `payloads[3].tag`."""
        renamed = copy(self)
        renamed._path = path
        return renamed

    def encode(self, payload: Any) -> bytes:
        """Return the payload as JSON, once it is sure to come back equal and of its types.

        Raises:
            PayloadNotSerializable: a part of it would be lost or altered on the way.
            PayloadInvalid: it isn't of the declared type.
        """
        try:
            body = orjson.dumps(payload, to_plain, STRICT)
            if self._same(payload, self._parse(body)):
                return body
        except Exception:
            # Where and why takes far longer to find than a good payload may cost.
            return self._encode_carefully(payload)
        return self._encode_carefully(payload)

    def decode(self, body: bytes) -> T:
        """Return the payload that `body` holds.

        Raises:
            PayloadInvalid: it isn't JSON, doesn't fit the declared type, or holds an integer
                of over 64 bits, which `encode` refuses too.
        """
        try:
            value: T = self._parse(body)
        except Exception as error:
            if self.is_none and not body:
                return cast("T", None)
            raise self._invalid(self._explain(error)) from error
        if LONG_NUMBER in body.translate(AS_ZEROS):
            self._refuse_big_integer(value)
        return value

    def encode_result(self, value: Any) -> bytes:
        """Return a handler's result as JSON.

        It need not come back as it was: a tuple arrives as a list, a subclass as its base, and
        a lone surrogate as a question mark.

        Raises:
            PayloadNotSerializable: a part of it has no JSON form, as NaN and infinity.
        """
        try:
            body = _dumps_leniently(value)
            if b"null" not in body or value is None:
                return body
        except Exception:
            return self._encode_result_carefully(value)
        return self._encode_result_carefully(value)

    def decode_result(self, body: bytes) -> T:
        """Return the result that `body` holds.

        Raises:
            PayloadInvalid: it doesn't fit the declared type.
        """
        return self.decode(body)

    def _encode_carefully(self, payload: Any) -> bytes:
        """Find the fault; or none, where `same` is stricter than the promise."""
        try:
            fault = first_fault(payload, self._path, _dumps)
            body = b"" if fault else _dumps(payload)
            fault = fault or difference(payload, self._parse(body), self._path)
        except Exception as error:
            raise self._unsendable(error) from error
        if fault:
            raise self._altered(fault)
        return body

    def _encode_result_carefully(self, value: Any) -> bytes:
        # orjson writes NaN as null, so a null may be a number that is lost.
        try:
            clean = _clean_copy(value)
            fault = first_fault(clean, self._path, _dumps_leniently)
            body = b"" if fault else _dumps_leniently(clean)
        except Exception as error:
            raise self._unsendable(error) from error
        if fault:
            raise self._altered(fault)
        return body

    def _refuse_big_integer(self, value: Any) -> None:
        try:
            fault = first_fault(value, self._path, repr)
        except RecursionError as error:
            raise self._invalid(self._explain(error)) from error
        if fault:
            raise self._invalid(f"{short_path(fault.path)} {fault.reason}")

    def _unsendable(self, error: Exception) -> PayloadError:
        """Return what the encoder or decoder's own error means to the sender."""
        private = private_field(error, noun=self._path)
        if private:
            return self._altered(Fault(private, "is a private field, which isn't sent"))
        if isinstance(error, msgspec.ValidationError):
            return self._invalid(self._explain(error))
        return self._not_serializable(self._explain(error))

    def _altered(self, fault: Fault) -> PayloadError:
        path, kind = short_path(fault.path), fault.expected
        if kind and (kind not in JSON_TYPES or not self._has_untyped):
            return self._invalid(f"{path} {fault.found}; expected {short_name(kind)}")
        return self._not_serializable(f"{path} {fault.reason}")

    def _explain(self, error: Exception) -> str:
        return explain(error, noun=self._path, declared=self.describe)

    def _not_serializable(self, reason: str) -> PayloadNotSerializable:
        message = f'"{self._job}" can\'t send this {self._noun}: {reason}.'
        return PayloadNotSerializable(message, hint=TYPE_HINT)

    def _invalid(self, reason: str) -> PayloadInvalid:
        verb = "takes" if self._noun == "payload" else "returns"
        what = f"no {self._noun}" if self.is_none else self.describe
        return PayloadInvalid(f'"{self._job}" {verb} {what}: {reason}.')


def _dumps(payload: Any) -> bytes:
    try:
        return orjson.dumps(payload, to_plain, STRICT)
    except TypeError:
        # msgspec has forms that orjson lacks: a time with a zone, keys that are Decimals.
        return orjson.dumps(to_plain(payload))


def _dumps_leniently(value: Any) -> bytes:
    return orjson.dumps(value, to_plain, LENIENT)


def _clean_copy(value: Any) -> Any:
    try:
        return without_surrogates(to_plain(value))
    except Exception:
        # The search for the fault names the part that msgspec can't convert.
        return value
