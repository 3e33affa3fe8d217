"""The gates that a claim must pass: which it holds, and how much of each is left."""

from __future__ import annotations

from durably.core.limits import Allowance, Gate, allowance, refilled
from durably.core.moment import SECOND
from durably.stores.statement import Queries, Steps

HELD = SECOND // 200
"""How long a gate is left alone that somebody else holds: no longer than a commit takes."""


class Gatekeeper:
    """The gates that this claim has locked, and how much of them is left."""

    def __init__(self, locked: dict[str, tuple[Gate, Allowance]], absent: set[str], now: int) -> None:
        self._locked = locked
        self._absent = absent
        self._now = now
        self._used: dict[str, int] = {}
        self.permits: list[tuple[str, str, int]] = []

    def left(self, name: str, room: int) -> int:
        """How many more may pass this gate. One that another claim holds lets nobody pass this time."""
        if name in self._locked:
            return min(room, self._locked[name][1].count - self._used.get(name, 0))
        return room if name in self._absent else 0

    def wait(self, name: str) -> int:
        """How long until it is worth asking this gate again."""
        return max(self._locked[name][1].wait, 1000) if name in self._locked else HELD

    def soonest(self) -> int | None:
        """When the first of the shut gates may open."""
        waits = [self.wait(name) for name in self._locked if self.left(name, 1) < 1]
        return min(waits, default=None)

    def take(self, name: str, task: str, token: int) -> None:
        """Use one permit, which is to be noted."""
        self.use(name)
        self.permits.append((name, task, token))

    def use(self, name: str) -> None:
        """Use one permit that is noted already."""
        self._used[name] = self._used.get(name, 0) + 1

    def buckets(self) -> list[tuple[str, float, int]]:
        """The gates whose tokens changed, what is in them now, and as of when; their clock never goes back."""
        return [
            (name, refilled(gate, self._now) - self._used[name], max(self._now, gate.refilled_at))
            for name, (gate, _) in self._locked.items()
            if name in self._used and gate.rate is not None
        ]


def lock_gates(q: Queries, names: list[str], now: int, room: int) -> Steps[Gatekeeper]:
    """Lock those that nobody else holds, and count what they have left."""
    if not names:
        return Gatekeeper({}, set(), now)
    gates = [Gate(*row) for row in (yield q("lock_gates", names))]
    missing = set(names) - {gate.name for gate in gates}
    held = {name for (name,) in (yield q("known_gates", sorted(missing)))} if missing else set()
    # The locks are held before the permits are counted, so no other claim's permit is missed.
    in_use: dict[str, int] = dict((yield q("count_permits", [gate.name for gate in gates])) if gates else [])
    locked = {gate.name: (gate, allowance(gate, in_use.get(gate.name, 0), now, room)) for gate in gates}
    return Gatekeeper(locked, missing - held, now)


def settle_gates(q: Queries, keeper: Gatekeeper) -> Steps[None]:
    """Write down the permits and tokens that were taken."""
    if keeper.permits:
        yield q.each(
            "take_permits",
            [gate for gate, _, _ in keeper.permits],
            [task for _, task, _ in keeper.permits],
            [token for _, _, token in keeper.permits],
        )
    buckets = keeper.buckets()
    if buckets:
        yield q.each("spend_gates", *(list(column) for column in zip(*buckets, strict=True)))
