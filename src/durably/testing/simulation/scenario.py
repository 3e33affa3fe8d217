"""What happens in one simulation, as data: tasks, workers, the weather, and whatever strikes."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from durably.testing.simulation.network import Weather

HORIZON = 5.0
"""Seconds during which things are enqueued and struck; after that everything must come to rest."""
QUEUES = ("default", "mail")
GROUPS = ("tenant-1", "tenant-2")
GATES = (*(f"g:{group}" for group in GROUPS), "q:mail")

Ending = Literal["return", "raise", "permanent", "snooze", "discard", "retry after", "hang", "kill"]


Name = Literal["perform", "enact", "grown", "rare"]
"""`enact` is the new name of `perform`; `grown` has an argument more than it had; some workers do not know `rare`."""


class Step(msgspec.Struct, frozen=True):
    """What the handler does at one attempt: runs so long, then ends so."""

    ending: Ending
    runs: float = 0.0
    wait: float = 0.0
    stubborn: float = 0.0
    """How long it goes on after it was asked to stop."""
    saves: bool = False
    regretted: bool = False
    """Whether someone cancels it in the moment in which it ends."""


class Play(msgspec.Struct, frozen=True):
    """One call: when it is made (more than once, if it is unique), with which options, and how its attempts go."""

    number: int
    at: tuple[float, ...]
    """Empty for a successor, which is enqueued by the task before it."""
    options: dict[str, Any]
    steps: tuple[Step, ...]
    then: int | None = None
    name: Name = "perform"
    note: bool = False
    """Whether it is called with an argument that old code does not know."""

    def step(self, index: int) -> Step:
        """How the attempt with this index goes; those beyond the script just return."""
        return self.steps[index] if index < len(self.steps) else Step("return")


class Cancel(msgspec.Struct, frozen=True):
    """Someone cancels a task: directly, or by a request in a transaction."""

    at: float
    number: int
    request: bool


class Blow(msgspec.Struct, frozen=True):
    """Something befalls a worker."""

    at: float
    worker: int
    kind: Literal["crash", "stop", "block", "restart"]
    lasting: float
    """How long until it is back."""


class Limit(msgspec.Struct, frozen=True):
    """A limit that holds from the beginning."""

    gate: str
    """q:QUEUE or g:GROUP"""
    concurrency: int | None
    rate: float | None
    burst: float


class Order(msgspec.Struct, frozen=True):
    """An operator does something, and takes it back later where that makes sense."""

    at: float
    kind: Literal["pause queue", "drain queue", "pause key", "limit", "replay"]
    queue: str
    key: str = ""
    lasting: float = 0.0
    limit: Limit | None = None


class Outage(msgspec.Struct, frozen=True):
    """Nobody reaches the store for a while; when it is back, some reach it a little sooner than others."""

    at: float
    lasting: float
    stagger: float = 0.0


class Jam(msgspec.Struct, frozen=True):
    """Someone holds the store's one write lock for a while."""

    at: float
    lasting: float


class Jump(msgspec.Struct, frozen=True):
    """Someone sets the wall clock: forward, or back by a negative number of seconds.

    Then leases and delays are as much shorter, or longer, as the clock is wrong: a living worker may lose its session,
    what waits may begin early, and recovery may take longer. Everything else still holds: nothing is lost or recorded
    twice, every write is fenced, keys keep their order, limits hold, and everything ends.
    """

    at: float
    by: float


class Spoiling(msgspec.Struct, frozen=True):
    """Someone writes something into the rows of a call that nobody can read."""

    at: float
    number: int
    column: Literal["payload", "options"]


Reply = Literal[
    "takes",
    "takes silently",
    "is silent",
    "fails",
    "refuses",
    "throttles",
    "is away",
    "leaves",
    "raises",
    "is set up wrongly",
    "finds it unwanted",
]
"""What a peer does with a message. One that takes it silently has it, and its answer never comes."""


class Manner(msgspec.Struct, frozen=True):
    """What a peer does with one attempt, and how long that takes."""

    reply: Reply
    runs: float = 0.0


class Peer(msgspec.Struct, frozen=True):
    """Somebody who is written to. When the script is over, everything is taken."""

    name: str
    order: Literal["fifo", "unordered"]
    policy: Literal["block", "overtake"]
    manners: tuple[Manner, ...]
    breaker: int = 5

    def manner(self, index: int) -> Manner:
        """What becomes of the attempt with this index."""
        return self.manners[index] if index < len(self.manners) else Manner("takes")


class Letter(msgspec.Struct, frozen=True):
    """A message to some peers."""

    number: int
    at: float
    to: tuple[str, ...]
    at_once: bool = False


class Errand(msgspec.Struct, frozen=True):
    """Somebody does something with a peer."""

    at: float
    kind: Literal["pause", "resume", "flush", "force", "probe", "replay"]
    peer: str


Handling = Literal[
    "takes it",
    "does not know one",
    "refuses one",
    "greylists one",
    "has no room for all",
    "rejects the source",
    "wants the source later",
    "says goodbye",
    "hangs up early",
    "hangs up after taking it",
    "hangs up instead of taking it",
    "had hung up before",
    "is not there",
    "wants another password",
]
"""What a mail server does with one transaction. Of two lines that break after the source, one has brought it."""


class Treatment(msgspec.Struct, frozen=True):
    """What a mail server does with one transaction, with which of its recipients, and how long that takes."""

    handling: Handling
    place: int = 0
    runs: float = 0.0


class Host(msgspec.Struct, frozen=True):
    """The mail server behind a transport. When the script is over, everything is taken."""

    treatments: tuple[Treatment, ...]
    pipelines: bool = True
    breaker: int = 5

    def treatment(self, index: int) -> Treatment:
        """What becomes of the transaction with this index."""
        return self.treatments[index] if index < len(self.treatments) else Treatment("takes it")


class Missive(msgspec.Struct, frozen=True):
    """A mail to some people; one with a key may be sent at several moments."""

    number: int
    at: tuple[float, ...]
    to: tuple[str, ...]
    key: str | None = None
    at_once: bool = False


class Chore(msgspec.Struct, frozen=True):
    """Somebody does something about the mail."""

    at: float
    kind: Literal["suppress", "unsuppress", "resend"]
    address: str = ""


INBOX = "inbox"
WINDOW = 3600.0
"""Seconds in which a kind is throttled: longer than any simulation."""


UNHEARD_OF = "rumour"
"""A kind that nobody has declared."""


class Sort(msgspec.Struct, frozen=True):
    """A kind of notification."""

    name: str
    channels: dict[str, float]
    digest: dict[str, float] = {}
    fallback: dict[str, str] = {}
    throttle: int | None = None
    """So many within the window."""
    cancel_on_read: bool = False
    critical: bool = False


class Way(msgspec.Struct, frozen=True):
    """A channel to people. When the script is over, everything is taken."""

    name: str
    manners: tuple[Manner, ...]

    def manner(self, index: int) -> Manner:
        """What becomes of the attempt with this index."""
        return self.manners[index] if index < len(self.manners) else Manner("takes")


Lookup = Literal["knows", "fails", "knows nobody", "knows no address"]
"""What the application says when it is asked who somebody is."""


class Notice(msgspec.Struct, frozen=True):
    """A notification; one with a key may be sent at several moments."""

    number: int
    at: tuple[float, ...]
    sort: str
    to: tuple[str, ...]
    key: str | None = None
    at_once: bool = False


class Doing(msgspec.Struct, frozen=True):
    """Somebody does something about notifications."""

    at: float
    kind: Literal["want", "do not want", "read", "archive", "replay"]
    who: str = ""
    sort: str = ""
    channel: str = ""


class Crew(msgspec.Struct, frozen=True):
    """One worker's settings."""

    concurrency: int
    lease: float
    poll: float
    scan: float
    grace: float
    knows_rare: bool = True
    old: bool = False
    """Whether its code is of the version before."""
    ahead: int = 1
    """How many tasks of a key it takes at once."""


class Scenario(msgspec.Struct, frozen=True):
    """Everything that a simulation is made of."""

    seed: int
    weather: Weather
    crews: tuple[Crew, ...]
    limits: tuple[Limit, ...]
    plays: tuple[Play, ...]
    cancels: tuple[Cancel, ...]
    blows: tuple[Blow, ...]
    orders: tuple[Order, ...]
    outages: tuple[Outage, ...]
    jams: tuple[Jam, ...] = ()
    jumps: tuple[Jump, ...] = ()
    spoilings: tuple[Spoiling, ...] = ()
    upgrades: tuple[float, ...] = ()
    """When the schema gets the columns and the tables of a version to come."""
    peers: tuple[Peer, ...] = ()
    letters: tuple[Letter, ...] = ()
    errands: tuple[Errand, ...] = ()
    host: Host | None = None
    """Without one there is no mail."""
    missives: tuple[Missive, ...] = ()
    chores: tuple[Chore, ...] = ()
    sorts: tuple[Sort, ...] = ()
    """Without any there are no notifications."""
    ways: tuple[Way, ...] = ()
    lookups: tuple[Lookup, ...] = ()
    notices: tuple[Notice, ...] = ()
    doings: tuple[Doing, ...] = ()
    patient: bool = True
    """Whether people wait to the end for what has been put off for long; else they cancel it."""

    @property
    def fair(self) -> bool:
        """Whether only outages and blows can keep a worker from the store, and all leases are the same."""
        weather = self.weather
        lossy = weather.slow + weather.lost_request + weather.broken + weather.lost_reply + weather.late
        return not (lossy or self.jams or self.jumps) and len({crew.lease for crew in self.crews}) == 1

    @property
    def lease(self) -> float:
        """The longest lease."""
        return max(crew.lease for crew in self.crews)
