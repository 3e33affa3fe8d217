"""Arguments and results as data: what fits a signature comes back in its own types, what does not is refused."""

from __future__ import annotations

import dataclasses
from hashlib import blake2b
from typing import Annotated, Any

import msgspec
import pytest
from pydantic import BaseModel

from durably import BadPayload
from durably.core.codec import PAYLOAD_LIMIT, Plain, Signature, encode, fingerprint


def test_arguments_travel_by_name_in_every_form_of_signature() -> None:
    def every(a: int, /, b: int, *rest: int, c: int = 3, **more: int) -> None: ...

    signature = Signature(every, "every")
    args, kwargs = signature.decode(signature.encode((1, 2, 8, 9), {"c": 4, "d": 5}))

    assert (args, kwargs) == ([1, 2, 8, 9], {"c": 4, "d": 5})


def test_annotations_that_cannot_be_resolved_are_a_clear_error() -> None:
    async def broken(value: Missing) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(BadPayload, match="signature of task 'broken' cannot be used: name 'Missing' is not defined"):
        Signature(broken, "broken").encode((1,), {})


@pytest.mark.parametrize(
    "value",
    [float("nan"), float("inf"), [1.0, {"x": float("-inf")}], "\ud800", object(), {1, object()}],
)
def test_what_json_cannot_hold_is_refused(value: Any) -> None:
    with pytest.raises(BadPayload, match="cannot be stored"):
        encode(value, "it")


def test_a_value_that_contains_itself_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(BadPayload):
        encode(loop, "it")


def test_null_is_not_mistaken_for_nan() -> None:
    class Holder(msgspec.Struct):
        inner: float | None

    assert encode([None, Holder(None), {"a": None}], "it") == b'[null,{"inner":null},{"a":null}]'
    with pytest.raises(BadPayload):
        encode(Holder(float("nan")), "it")


@dataclasses.dataclass
class Point:
    x: float
    y: float | None = None


class Model(BaseModel):
    cents: int


def test_a_payload_may_have_256_kibibytes() -> None:
    assert PAYLOAD_LIMIT == 262_144


def test_bytes_stay_as_they_are_without_a_codec() -> None:
    assert Plain().encode(b"\x00\xff") == b"\x00\xff"
    assert Plain().decode(b"\x00\xff") == b"\x00\xff"


def test_a_fingerprint_is_that_of_the_name_and_the_arguments() -> None:
    assert fingerprint("charge", b"{}") == blake2b(b"charge\0{}", digest_size=16).hexdigest()
    assert len(fingerprint("charge", b"{}")) == 32


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize(
    "wrap",
    [
        lambda number: [None, number],
        lambda number: (1.5, [number]),
        lambda number: {"a": None, "b": {"c": number}},
        lambda number: Point(1.0, number),
        lambda number: [Point(number), "null"],
        lambda number: {1.5, number},
        lambda number: frozenset({number}),
    ],
)
def test_a_number_that_json_does_not_have_is_found_wherever_it_is(number: float, wrap: Any) -> None:
    with pytest.raises(BadPayload) as refused:
        encode(wrap(number), "the result")
    assert str(refused.value) == (
        "the result cannot be stored: NaN and infinities do not exist in JSON; send text instead"
    )


def test_what_looks_like_null_is_stored() -> None:
    assert encode([None, 1.5, "null", Point(2.0), (), {3.5: None}], "it") == (
        b'[null,1.5,"null",{"x":2.0,"y":null},[],{"3.5":null}]'
    )


def test_a_deep_value_is_refused_and_a_wide_one_is_not() -> None:
    deep: Any = None
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(BadPayload, match="it cannot be stored: "):
        encode(deep, "it")
    assert len(encode([None] * 1000, "it")) == 5001


def test_a_value_of_an_unknown_type_is_named() -> None:
    with pytest.raises(BadPayload) as refused:
        encode(object(), "the result")
    assert str(refused.value) == "the result cannot be stored: a value of type object cannot be stored"


@pytest.mark.parametrize("error", [TypeError, NotImplementedError, ValueError, RecursionError, OverflowError])
def test_a_model_that_cannot_be_dumped_is_refused(error: type[Exception]) -> None:
    class Broken:
        def model_dump(self, mode: str) -> Any:
            raise error("not today")

    with pytest.raises(BadPayload) as refused:
        encode([Broken()], "the result")
    assert str(refused.value) == "the result cannot be stored: not today"


@pytest.mark.parametrize("error", [TypeError, ValueError, RecursionError])
def test_a_model_that_does_not_take_what_it_dumped_is_refused_when_it_is_given(error: type[Exception]) -> None:
    class Changed:
        def model_dump(self, mode: str) -> Any:
            return {"mode": mode}

        @classmethod
        def model_validate(cls, value: Any) -> Any:
            assert value == {"mode": "json"}
            raise error("not today")

    def keep(value: Any) -> None: ...

    keep.__annotations__["value"] = Changed
    with pytest.raises(BadPayload, match="the arguments do not fit the signature of task 'keep': not today"):
        Signature(keep, "keep").encode((Changed(),), {})


def charge(order: str, cents: int = 5, *, now: bool = False) -> None: ...


CHARGE = Signature(charge, "charge")


def test_models_travel_as_data_and_come_back_as_models() -> None:
    def keep(model: Model, points: list[Point]) -> Model:
        return model

    signature = Signature(keep, "keep")
    data = signature.encode((Model(cents=5), [Point(1.0)]), {})

    assert data == b'{"model":{"cents":5},"points":[{"x":1.0,"y":null}]}'
    assert signature.decode(data) == ((Model(cents=5), [Point(1.0)]), {})
    assert signature.decode_result(b'{"cents":7}') == Model(cents=7)


def test_a_type_that_cannot_be_read_back_is_named() -> None:
    def keep(value: complex) -> None: ...

    with pytest.raises(BadPayload) as refused:
        Signature(keep, "keep").encode((5,), {})
    assert str(refused.value) == (
        "the arguments do not fit the signature of task 'keep': a value of type complex cannot be read back - at "
        "`$.value`"
    )


def test_defaults_are_filled_in_when_the_arguments_are_read() -> None:
    assert CHARGE.encode(("o",), {}) == b'{"order":"o"}'
    assert CHARGE.decode(b'{"order":"o"}') == ((), {"order": "o", "cents": 5, "now": False})
    assert CHARGE.encode(("o", 7), {"now": True}) == b'{"order":"o","cents":7,"now":true}'


def test_a_result_without_a_declared_type_is_what_json_says() -> None:
    def plain(): ...  # type: ignore[no-untyped-def]

    assert Signature(plain, "plain").decode_result(b'{"a":[1]}') == {"a": [1]}
    assert Signature(plain, "plain").decode(b"{}") == ((), {})


@pytest.mark.parametrize(
    ("args", "kwargs", "complaint"),
    [
        ((), {}, "charge(): missing a required argument: 'order'"),
        (("o", 1, 2), {}, "charge(): too many positional arguments"),
        (("o",), {"order": "p"}, "charge(): multiple values for argument 'order'"),
        (("o",), {"colour": "red"}, "charge(): got an unexpected keyword argument 'colour'"),
    ],
)
def test_arguments_that_python_would_refuse_are_refused_in_its_words(args: Any, kwargs: Any, complaint: str) -> None:
    with pytest.raises(TypeError) as refused:
        CHARGE.encode(args, kwargs)
    assert str(refused.value) == complaint
    assert refused.value.__suppress_context__


def test_arguments_of_another_type_are_refused() -> None:
    with pytest.raises(BadPayload) as refused:
        CHARGE.encode(("o", "five"), {})
    assert str(refused.value) == (
        "the arguments do not fit the signature of task 'charge': Expected `int`, got `str` - at `$.cents`"
    )


@pytest.mark.parametrize(
    ("args", "stored"),
    [
        (("o", 5, True), b'{"order":"o","cents":5,"now":true}'),
        (("", -(2**70), False), b'{"order":"","cents":-1180591620717411303424,"now":false}'),
        (("null", 0, False), b'{"order":"null","cents":0,"now":false}'),
    ],
)
def test_arguments_of_the_simplest_types_are_stored_as_they_are(args: Any, stored: bytes) -> None:
    def charge(order: str, cents: int, now: bool) -> None: ...

    signature = Signature(charge, "charge")
    for _ in range(2):
        assert signature.encode(args, {}) == stored
        assert signature.decode(stored) == (args, {})
    assert signature.encode(args[:2], {"now": args[2]}) == stored


@pytest.mark.parametrize(
    ("args", "complaint"),
    [
        (("o", True, True), "Expected `int`, got `bool`"),
        (("o", 5, 1), "Expected `bool`, got `int`"),
        ((None, 5, True), "Expected `str`, got `null`"),
        (("o", 10**5000, True), "cannot be stored"),
        (("\ud800", 5, True), "cannot be stored"),
    ],
)
def test_what_is_almost_of_the_simplest_types_is_refused_as_ever(args: Any, complaint: str) -> None:
    def charge(order: str, cents: int, now: bool) -> None: ...

    signature = Signature(charge, "charge")
    signature.resolve()
    with pytest.raises(BadPayload, match=complaint):
        signature.encode(args, {})


def test_only_types_that_travel_as_they_are_need_no_second_look() -> None:
    def positive(number: Annotated[int, msgspec.Meta(gt=0)]) -> None: ...
    def named(*, number: int) -> None: ...
    def maybe(number: int, other: str = "") -> None: ...

    with pytest.raises(BadPayload, match="Expected `int` >= 1"):
        Signature(positive, "positive").encode((-1,), {})
    with pytest.raises(TypeError, match="too many positional arguments"):
        Signature(named, "named").encode((1,), {})
    assert Signature(maybe, "maybe").encode((1,), {}) == b'{"number":1}'


def test_arguments_that_cannot_be_stored_name_their_task() -> None:
    with pytest.raises(BadPayload, match=r"^the arguments of task 'charge' cannot be stored: a value of type object"):
        CHARGE.encode((object(),), {})


def test_a_stored_argument_that_the_signature_no_longer_has_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError, match="unknown field"):
        CHARGE.decode(b'{"order":"o","colour":"red"}')


def test_a_signature_takes_the_rest_only_where_it_says_so() -> None:
    def spread(first: int, *rest: int) -> None: ...
    def named(first: int, **more: int) -> None: ...
    def leading(first: int, /, second: int) -> None: ...
    def apart(first: int, *, second: int = 2) -> None: ...

    assert Signature(spread, "s").decode(b'{"first":1,"rest":[2,3]}') == ([1, 2, 3], {})
    assert Signature(spread, "s").decode(b'{"first":1}') == ([1], {})
    assert Signature(named, "n").decode(b'{"first":1,"more":{"a":2}}') == ([1], {"a": 2})
    assert Signature(named, "n").decode(b'{"first":1}') == ([1], {})
    assert Signature(leading, "l").decode(b'{"first":1,"second":2}') == ((1, 2), {})
    assert Signature(apart, "a").decode(b'{"first":1}') == ((), {"first": 1, "second": 2})
    with pytest.raises(TypeError, match="missing a required argument"):
        Signature(spread, "s").encode((), {})
    with pytest.raises(BadPayload, match="Expected `int`, got `str`"):
        Signature(spread, "s").encode((1, "two"), {})
    with pytest.raises(BadPayload, match="Expected `int`, got `str`"):
        Signature(named, "n").encode((1,), {"a": "two"})


def test_a_default_is_one_object_as_in_python() -> None:
    shared: list[int] = []

    def keep(values: list[int] = shared) -> None: ...

    [args, _] = Signature(keep, "keep").decode(b"{}")
    assert args[0] is shared
