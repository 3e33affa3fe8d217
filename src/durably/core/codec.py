"""Arguments and results as data: JSON by msgspec, typed from the handler's signature. Nothing is ever unpickled."""

from __future__ import annotations

import dataclasses
import inspect
import math
import typing
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Any, Protocol

import msgspec
from msgspec.structs import astuple

from durably.errors import BadPayload

PAYLOAD_LIMIT = 256 * 1024


class Codec(Protocol):
    """A hook around stored bytes: encrypt, compress. `decode(encode(data))` must be `data`."""

    def encode(self, data: bytes) -> bytes: ...

    def decode(self, data: bytes) -> bytes: ...


class Plain:
    """Bytes as they are."""

    def encode(self, data: bytes) -> bytes:
        return data

    def decode(self, data: bytes) -> bytes:
        return data


def _foreign(value: Any) -> Any:
    """What msgspec does not know by itself: pydantic models, which know how to dump themselves."""
    dump = getattr(value, "model_dump", None)
    if callable(dump):
        return dump(mode="json")
    raise NotImplementedError(f"a value of type {type(value).__qualname__} cannot be stored")


def _native(kind: type, value: Any) -> Any:
    validate = getattr(kind, "model_validate", None)
    if callable(validate):
        return validate(value)
    raise TypeError(f"a value of type {kind.__qualname__} cannot be read back")


_encoder = msgspec.json.Encoder(enc_hook=_foreign)


def encode(value: Any, what: str) -> bytes:
    """The value as JSON, or a `BadPayload` that says what is wrong with it."""
    try:
        data = _encoder.encode(value)
    except (TypeError, NotImplementedError, ValueError, RecursionError, OverflowError) as error:
        raise BadPayload(f"{what} cannot be stored: {error}") from error
    if data.find(b"null") >= 0 and _has_nonfinite(value):
        raise BadPayload(f"{what} cannot be stored: NaN and infinities do not exist in JSON; send text instead")
    return data


def _has_nonfinite(value: Any) -> bool:
    """NaN and infinities, which JSON would turn into null without a word. Without recursion: values may be deep."""
    pending = [value]
    while pending:
        one = pending.pop()
        if isinstance(one, float):
            if not math.isfinite(one):
                return True
        elif isinstance(one, dict):
            pending += one.keys()
            pending += one.values()
        elif isinstance(one, list | tuple | set | frozenset):
            pending += one
        elif isinstance(one, msgspec.Struct):
            pending += (getattr(one, name) for name in one.__struct_fields__)
        elif dataclasses.is_dataclass(one) and not isinstance(one, type):
            pending += (getattr(one, field.name, None) for field in dataclasses.fields(one))
    return False


def fingerprint(name: str, payload: bytes) -> str:
    """What a unique key stands for: the same task with the same arguments."""
    return blake2b(name.encode() + b"\0" + payload, digest_size=16).hexdigest()


def _is_scalar(hint: Any) -> bool:
    """Whether values of exactly this type are stored, and read back, as what they are."""
    return hint is int or hint is str or hint is bool


def _always(value: Any) -> Callable[[], Any]:
    return lambda: value


class Signature:
    """How a function's arguments and result travel: by parameter name, so that a signature can grow defaults."""

    def __init__(self, function: Callable[..., Any], name: str) -> None:
        self._function = function
        self._name = name
        self._what = f"the arguments of task {name!r}"
        self._signature = inspect.signature(function)
        self._positional = [
            parameter.name
            for parameter in self._signature.parameters.values()
            if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        ]
        kinds = {parameter.kind for parameter in self._signature.parameters.values()}
        self._simple = kinds <= {inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY}
        self._by_place = kinds <= {inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD}
        """Whether all arguments can be given by place, which makes for the quickest call."""
        self._spread = next((p.name for p in self._signature.parameters.values() if p.kind is p.VAR_POSITIONAL), None)
        self._rest = next((p.name for p in self._signature.parameters.values() if p.kind is p.VAR_KEYWORD), None)
        self._exact: tuple[Any, ...] | None = None
        """The types of all arguments, if values that are exactly of these types need no further look."""
        self._arguments: msgspec.json.Decoder[Any] | None = None
        self._result: msgspec.json.Decoder[Any] | None = None

    def resolve(self) -> None:
        """Read the annotations; called once they can all be named, at the latest when the task is first used."""
        try:
            hints = typing.get_type_hints(self._function, include_extras=True)
            self._arguments = msgspec.json.Decoder(self._struct(hints), dec_hook=_native)
            kinds = [hints.get(name) for name in self._positional]
            if self._simple and len(kinds) == len(self._signature.parameters) and all(map(_is_scalar, kinds)):
                self._exact = tuple(kinds)
            returned = hints.get("return", Any)
            self._result = msgspec.json.Decoder(returned, dec_hook=_native)
        except (TypeError, NameError) as error:
            raise BadPayload(f"the signature of task {self._name!r} cannot be used: {error}") from error

    def _struct(self, hints: dict[str, Any]) -> type[msgspec.Struct]:
        fields: list[tuple[str, Any] | tuple[str, Any, Any]] = []
        for parameter in self._signature.parameters.values():
            hint = hints.get(parameter.name, Any)
            if parameter.kind is parameter.VAR_POSITIONAL:
                fields.append((parameter.name, list[hint], msgspec.field(default_factory=list)))  # type: ignore[valid-type]
            elif parameter.kind is parameter.VAR_KEYWORD:
                fields.append((parameter.name, dict[str, hint], msgspec.field(default_factory=dict)))  # type: ignore[valid-type]
            elif parameter.default is parameter.empty:
                fields.append((parameter.name, hint))
            else:
                fields.append((parameter.name, hint, msgspec.field(default_factory=_always(parameter.default))))
        return msgspec.defstruct("Arguments", fields, kw_only=True, forbid_unknown_fields=self._rest is None)

    def encode(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
        """The arguments as JSON, checked against the signature now rather than when nobody is looking."""
        if not kwargs and tuple(map(type, args)) == self._exact:
            try:
                return _encoder.encode(dict(zip(self._positional, args)))  # noqa: B905 - there are as many, and this is hot
            except (ValueError, OverflowError):
                pass  # Too large, or no text after all: said below.
        if self._simple and len(args) <= len(self._positional):
            bound: dict[str, Any] = dict(zip(self._positional, args))  # noqa: B905 - there may be fewer, and this is hot
            if kwargs:
                if not bound.keys().isdisjoint(kwargs):
                    self._complain(args, kwargs)
                bound.update(kwargs)
        else:
            bound = self._complain(args, kwargs)
        data = encode(bound, self._what)
        try:
            (self._arguments or self._read()).decode(data)
        except (msgspec.MsgspecError, ValueError, TypeError, RecursionError) as error:
            self._complain(args, kwargs)
            raise BadPayload(f"the arguments do not fit the signature of task {self._name!r}: {error}") from error
        return data

    def _complain(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Bind as Python would; a missing or surplus argument is a TypeError with Python's own words."""
        try:
            return dict(self._signature.bind(*args, **kwargs).arguments)
        except TypeError as error:
            raise TypeError(f"{self._name}(): {error}") from None

    def _read(self) -> msgspec.json.Decoder[Any]:
        """What reads the arguments, from now on."""
        self.resolve()
        assert self._arguments is not None
        return self._arguments

    def decode(self, data: bytes) -> tuple[Sequence[Any], dict[str, Any]]:
        """The positional and the keyword arguments for a call."""
        arguments = (self._arguments or self._read()).decode(data)
        if self._by_place:
            return astuple(arguments), {}
        if self._simple:
            return (), msgspec.structs.asdict(arguments)
        positional = [getattr(arguments, name) for name in self._positional]
        if self._spread is not None:
            positional.extend(getattr(arguments, self._spread))
        taken = {*self._positional, self._spread, self._rest}
        named = {name: getattr(arguments, name) for name in arguments.__struct_fields__ if name not in taken}
        if self._rest is not None:
            named.update(getattr(arguments, self._rest))
        return positional, named

    def decode_result(self, data: bytes) -> Any:
        """The result in the type that the function declares."""
        if self._result is None:
            self.resolve()
        assert self._result is not None
        return self._result.decode(data)
