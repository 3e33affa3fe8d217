"""How often, and after what wait, a failed task is tried again."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal, assert_never

import msgspec

from durably.core.moment import Duration, seconds
from durably.errors import BadOption

MAX_ATTEMPTS = 10_000


def _named(error: type[BaseException]) -> str:
    return f"{error.__module__}.{error.__qualname__}"


class Retry(msgspec.Struct, frozen=True, omit_defaults=True):
    """A retry policy: validated when it is made, and able to tell its worst case.

    Make one with `Retry.after`, `Retry.exponential`, `Retry.constant`, `Retry.custom` or `Retry.never`.
    """

    kind: Literal["after", "exponential", "constant", "custom"]
    attempts: int
    delays: tuple[float, ...] = ()
    base: float = 0.0
    factor: float = 1.0
    cap: float = 0.0
    jitter: float = 0.0
    permanent: tuple[str, ...] = ()
    function: Any = None

    @classmethod
    def after(cls, *delays: Duration, jitter: float = 0.0, permanent: tuple[type[BaseException], ...] = ()) -> Retry:
        """Wait as listed: n delays make n + 1 attempts. `Retry.after("30s", "5m", "30m", "6h", "24h")`."""
        waits = tuple(seconds(delay, "Retry.after") for delay in delays)
        return _checked(cls("after", len(waits) + 1, delays=waits, jitter=jitter, permanent=_names(permanent)))

    @classmethod
    def exponential(
        cls,
        attempts: int = 8,
        base: Duration = "1s",
        factor: float = 2.0,
        cap: Duration = "1h",
        jitter: float = 0.25,
        permanent: tuple[type[BaseException], ...] = (),
    ) -> Retry:
        """Wait base, base * factor, base * factor**2 ... but never longer than cap nor shorter than base."""
        least, most = seconds(base, "Retry.exponential base"), seconds(cap, "Retry.exponential cap")
        if not math.isfinite(factor) or factor < 1:
            raise BadOption(f"Retry.exponential factor: {factor!r} must be 1 or more")
        if most < least:
            raise BadOption(f"Retry.exponential: the cap {cap!r} is below the base {base!r}")
        return _checked(
            cls(
                "exponential", attempts, base=least, factor=factor, cap=most, jitter=jitter, permanent=_names(permanent)
            )
        )

    @classmethod
    def constant(
        cls,
        attempts: int = 8,
        delay: Duration = "10s",
        jitter: float = 0.0,
        permanent: tuple[type[BaseException], ...] = (),
    ) -> Retry:
        """Wait the same time before every attempt."""
        wait = seconds(delay, "Retry.constant")
        return _checked(cls("constant", attempts, base=wait, jitter=jitter, permanent=_names(permanent)))

    @classmethod
    def custom(
        cls,
        function: Callable[[int], float],
        attempts: int,
        cap: Duration,
        permanent: tuple[type[BaseException], ...] = (),
    ) -> Retry:
        """Wait `function(n)` seconds after the n-th failure of this cycle (from 1), at most cap."""
        if not callable(function):
            raise BadOption(f"Retry.custom: {function!r} is not callable")
        most = seconds(cap, "Retry.custom cap")
        return _checked(cls("custom", attempts, cap=most, permanent=_names(permanent), function=function))

    @classmethod
    def never(cls) -> Retry:
        """One attempt; its failure makes a dead letter."""
        return cls("after", 1)

    @property
    def horizon(self) -> float:
        """The longest time in seconds between the first attempt and the last, not counting the attempts themselves."""
        return sum(self._bounds(spent)[1] for spent in range(1, self.attempts))

    def delay(self, spent: int, jitter: float, at_least: float = 0.0) -> float:
        """Seconds to wait after the attempt number `spent`; `jitter` is a number from 0 to 1.

        The spread stays inside the policy's own floor and cap, so it is never cut off at either.
        """
        low, high = self._bounds(spent)
        return max(low + (high - low) * jitter, at_least)

    def is_permanent(self, error: BaseException) -> bool:
        """Whether the policy names this exception, or one of its ancestors, as one that no retry can help."""
        return bool(self.permanent) and any(_named(kind) in self.permanent for kind in type(error).__mro__)

    def _bounds(self, spent: int) -> tuple[float, float]:
        match self.kind:
            case "after":
                wait = self.delays[min(spent, len(self.delays)) - 1]
                return wait, wait * (1 + self.jitter)
            case "exponential":
                wait = self._grown(spent)
                return max(self.base, wait * (1 - self.jitter)), min(self.cap, wait * (1 + self.jitter))
            case "constant":
                return self.base, self.base * (1 + self.jitter)
            case "custom":
                wait = float(self.function(spent))
                if not math.isfinite(wait) or wait < 0:
                    raise BadOption(f"Retry.custom: the function answered {wait!r} for failure {spent}")
                return min(wait, self.cap), min(wait, self.cap)
            case _:
                assert_never(self.kind)

    def _grown(self, spent: int) -> float:
        try:
            return min(self.cap, self.base * self.factor ** (spent - 1))
        except OverflowError:
            return self.cap


def _names(errors: tuple[type[BaseException], ...]) -> tuple[str, ...]:
    for error in errors:
        if not (isinstance(error, type) and issubclass(error, BaseException)):
            raise BadOption(f"permanent: {error!r} is not an exception class")
    return tuple(_named(error) for error in errors)


def _checked(policy: Retry) -> Retry:
    if not isinstance(policy.attempts, int) or not 1 <= policy.attempts <= MAX_ATTEMPTS:
        raise BadOption(f"Retry: attempts is {policy.attempts!r}; it must be a whole number from 1 to {MAX_ATTEMPTS}")
    if not 0 <= policy.jitter <= 1:
        raise BadOption(f"Retry: jitter is {policy.jitter!r}; it must be from 0 (none) to 1 (100 %)")
    return policy


DEFAULT_RETRY = Retry.exponential()
