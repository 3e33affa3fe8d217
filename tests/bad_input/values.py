"""Values that nobody should send, by what is wrong with them."""

from __future__ import annotations

import random
from typing import Any


def deep(levels: int) -> list[Any]:
    """Lists within lists."""
    value: list[Any] = []
    for _ in range(levels):
        value = [value]
    return value


def cyclic() -> list[Any]:
    """A list that holds itself."""
    value: list[Any] = []
    value.append({"again": value})
    return value


class Silent:
    """It cannot be shown."""

    def __repr__(self) -> str:
        raise RuntimeError("no words")

    __str__ = __repr__


class NotOneOfOurs:
    """A class that nobody declared."""


def hopeless() -> dict[str, Any]:
    """What cannot be stored at all."""
    return {
        "lone surrogate": "\ud800",
        "lone surrogate in a key": {"\udfff": 1},
        "not a number": float("nan"),
        "infinity": [1.0, {"a": float("inf")}],
        "negative infinity": {"deep": [[[-float("inf")]]]},
        "a hundred thousand levels": deep(100_000),
        "a hundred megabytes": "x" * 100_000_000,
        "a value of an unknown class": NotOneOfOurs(),
        "a value that cannot be shown": Silent(),
        "a class": NotOneOfOurs,
        "a function": hopeless,
        "a generator": (number for number in range(0)),
        "a cycle": cyclic(),
        "a tuple as a key": {(1, 2): 3},
        "an integer of five thousand digits": 10**5000,
    }


def odd() -> dict[str, Any]:
    """What looks strange and can be stored."""
    return {
        "NUL": "a\0b",
        "NUL in a key": {"\0": "\0"},
        "nothing": "",
        "control characters": "\x1b[31m\r\n\t\x7f\x85",
        "text to the right": "\u202e\u2066\ufeff\uffff\U0010ffff",
        "quotes and braces": "'\"\\{},NULL;--$1?%s:now",
        "an integer beyond 64 bits": 2**64 + 1,
        "a negative integer beyond 64 bits": -(2**63) - 1,
        "the smallest float": 5e-324,
        "the largest float": 1.7976931348623157e308,
        "nine hundred levels": deep(900),
        "null": None,
        "nulls far down": [[[{"a": [None]}]]],
        "an array literal": '{"a",NULL}',
    }


def fuzzed(seed: int) -> Any:
    """Nested data of odd parts, by a seed."""
    chance = random.Random(seed)
    letters = "aZ0 \0\n\\\"'{}[],:;%?$\u00e9\u4e2d\U0001f600\ufffe\u202e"

    def text() -> str:
        return "".join(chance.choice(letters) for _ in range(chance.randrange(12)))

    def value(level: int) -> Any:
        match chance.randrange(8 if level else 6):
            case 0:
                return text()
            case 1:
                return chance.choice([0, -1, 2**31, -(2**63), 2**63, 10**30, chance.getrandbits(200)])
            case 2:
                return chance.uniform(-1e300, 1e300)
            case 3:
                return chance.choice([None, True, False])
            case 4:
                return text() * 200
            case 5:
                return []
            case 6:
                return [value(level - 1) for _ in range(chance.randrange(5))]
            case _:
                return {text(): value(level - 1) for _ in range(chance.randrange(5))}

    return value(4)


def wrong_text() -> dict[str, Any]:
    """What is no name, key, tag or unique key."""
    return {
        "empty": "",
        "too long": "x" * 201,
        "a hundred megabytes": "x" * 100_000_000,
        "NUL": "a\0b",
        "lone surrogate": "a\ud800",
        "a number": 7,
        "bytes": b"key",
        "a list": ["key"],
        "true": True,
        "a float": float("nan"),
        "something silent": Silent(),
    }
