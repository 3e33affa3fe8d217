"""What really happened, kept outside the store: what was promised to callers, and every attempt that ran."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import msgspec

from durably.observe.events import Event


class Promise(msgspec.Struct, frozen=True):
    """A caller was told that its call is accepted, as this task."""

    number: int
    task: str


class Execution(msgspec.Struct):
    """One attempt that a handler really began."""

    number: int
    task: str
    attempt: int
    token: int
    key: tuple[str, str] | None
    worker: str
    started: float
    ended: float | None = None
    ending: str = "running"
    spawned: str | None = None
    alone: bool = False
    """Whether it was on its last crash life."""
    fresh: bool = True
    """Whether its worker was neither stopped nor blocked when it began."""
    asked: bool = False
    """Whether it was asked to stop."""


class Told(msgspec.Struct, frozen=True):
    """An event that a worker emitted, and when."""

    at: float
    worker: str
    event: Event


class Publication(msgspec.Struct, frozen=True):
    """A caller was told that its message is accepted, with one task for each peer."""

    number: int
    message: str
    tasks: dict[str, str]


class Arrival(msgspec.Struct, frozen=True):
    """A peer has a message."""

    message: str
    peer: str
    task: str
    at: float
    marked: bool
    """Whether it came as a possible duplicate."""


class Posted(msgspec.Struct, frozen=True):
    """A caller was told that its mail is accepted, under this id."""

    number: int
    key: str | None
    mail: str
    new: bool


class Copy(msgspec.Struct, frozen=True):
    """The mail server has taken a mail for somebody."""

    number: int
    address: str
    message_id: str
    source: bytes
    at: float


class Banned(msgspec.Struct):
    """Somebody wanted an address to get no mail, or to get it again; answered when, if ever."""

    address: str
    banned: bool
    asked: float
    answered: float = math.inf


class Announced(msgspec.Struct, frozen=True):
    """A caller was told that its notification is accepted, under this id."""

    number: int
    sort: str
    key: str | None
    notification: str
    new: bool
    problem: str | None


class Asked(msgspec.Struct, frozen=True):
    """A channel was asked to bring a note, and what it did with it."""

    note: str
    channel: str
    reply: str
    at: float


class Reached(msgspec.Struct, frozen=True):
    """A channel has brought a note to somebody."""

    note: str
    """The task of the route, or of the digest."""
    recipient: str
    channel: str
    sort: str
    items: tuple[int, ...]
    """The numbers of the notices in it."""
    at: float
    began: float
    """When the attempt began that brought it."""
    marked: bool
    """Whether it came as a possible duplicate."""


class Wish(msgspec.Struct):
    """Somebody said what they want; it was answered when, if ever."""

    who: str
    sort: str
    channel: str
    wanted: bool
    asked: float
    answered: float = math.inf


class Ledger:
    """Lists, in the order in which things happened."""

    def __init__(self) -> None:
        self.promises: list[Promise] = []
        self.unsure: list[int] = []
        """Numbers of calls whose caller saw an error and cannot know."""
        self.executions: list[Execution] = []
        self.told: list[Told] = []
        self.struck: Counter[str] = Counter()
        """How often which fault struck."""
        self.cancelled: dict[str, float] = {}
        """Tasks that a caller was told would never run, and when it was told."""
        self.resumed: set[tuple[str, str]] = set()
        """Keys that a person let go on, with a new budget for their heads."""
        self.spoiled: set[str] = set()
        """Tasks into whose rows someone wrote something that nobody can read."""
        self.publications: list[Publication] = []
        self.arrivals: list[Arrival] = []
        self.accepted: list[str] = []
        """The tasks of deliveries, in the order in which the store took them."""
        self.letters: list[dict[str, Any]] = []
        """What the dead-letter hook was called with."""
        self.posted: list[Posted] = []
        self.copies: list[Copy] = []
        self.refusals: set[tuple[int, str]] = set()
        """Mails and addresses that the mail server has refused for good."""
        self.bounced: set[str] = set()
        """Addresses that it does not know."""
        self.bans: list[Banned] = []
        self.announced: list[Announced] = []
        self.asked: list[Asked] = []
        self.reached: list[Reached] = []
        self.wishes: list[Wish] = []

    def of(self, task: str) -> list[Execution]:
        """The attempts of a task that really began."""
        return [execution for execution in self.executions if execution.task == task]

    def running(self) -> list[Execution]:
        """The attempts that have not ended, as far as the outside can know."""
        return [execution for execution in self.executions if execution.ended is None]

    def events(self, task: str, *kinds: str) -> list[Told]:
        """What workers said about a task."""
        return [told for told in self.told if told.event.task == task and told.event.kind in kinds]
