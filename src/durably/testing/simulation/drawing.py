"""Drawing a scenario from a seed.

Each seed draws which features and which faults it has at all, so that every combination is met sooner or later.
"""

from __future__ import annotations

import math
import random
from typing import Any

import msgspec

from durably.core.options import Unique
from durably.core.retry import Retry
from durably.testing.simulation.network import Weather
from durably.testing.simulation.outgoing import draw_mail, draw_notifications
from durably.testing.simulation.scenario import (
    GATES,
    GROUPS,
    HORIZON,
    QUEUES,
    Blow,
    Cancel,
    Crew,
    Errand,
    Jam,
    Jump,
    Letter,
    Limit,
    Manner,
    Name,
    Order,
    Outage,
    Peer,
    Play,
    Scenario,
    Spoiling,
    Step,
)


def draw(seed: int) -> Scenario:
    """The scenario of a seed."""
    return _Drawing(seed).scenario()


class _Drawing:
    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._chance = random.Random(f"scenario {seed}")
        features = (
            "delayed",
            "keyed",
            "limited",
            "unique",
            "once",
            "expiring",
            "spawning",
            "rare",
            "priorities",
            "old code",
        )
        self._features = {feature for feature in features if self._maybe(0.5)}
        if self._maybe(0.25):
            # Tasks on which nothing hangs are most of what there is, and are treated specially.
            self._features -= {"keyed", "limited", "unique", "spawning"}
        # Many tasks of a few keys: then a worker goes on from one to the next.
        self._ahead = random.Random(f"ahead {seed}")
        self._queuing = self._ahead.random() < 0.15
        if self._queuing:
            self._features = (self._features | {"keyed"}) - {"limited", "delayed"}
        # Many tasks of one limit group: then a commit hands its permits over to the next ones.
        self._lining = not self._queuing and random.Random(f"line {seed}").random() < 0.15
        if self._lining:
            self._features = (self._features | {"limited"}) - {"keyed", "delayed"}
        self._killers = self._maybe(0.4)
        self._snoozers = self._maybe(0.2)
        self._regrets = self._maybe(0.3)
        self._number = 0

    def scenario(self) -> Scenario:
        plays = self._plays()
        return Scenario(
            self._seed,
            self._weather(),
            self._crews(),
            self._limits(),
            plays,
            self._cancels(plays),
            self._blows(),
            self._orders(),
            self._outages(),
            self._jams(),
            self._jumps(),
            self._spoilings(plays),
            (self._moment(),) if self._maybe(0.1) else (),
            **self._post(),
            **draw_mail(self._seed),
            **draw_notifications(self._seed),
            patient=self._maybe(0.1),
        )

    def _post(self) -> dict[str, Any]:
        """Some scenarios have peers that are written to; the others stay as they would be without."""
        chance = random.Random(f"post {self._seed}")
        if chance.random() > 0.2:
            return {}
        peers = tuple(self._peer(chance, name) for name in ("ann", "bob", "cyd")[: chance.randint(1, 3)])
        names = [peer.name for peer in peers]
        hurried = chance.random() < 0.4
        letters = tuple(
            Letter(
                number,
                round(chance.uniform(0, HORIZON * (0.1 if hurried else 0.8)), 3),
                tuple(sorted(chance.sample(names, chance.randint(1, len(names))))),
                at_once=chance.random() < 0.2,
            )
            for number in range(1, chance.randint(3, 8))
        )
        errands = tuple(
            Errand(
                round(chance.uniform(0, HORIZON), 3),
                chance.choice(("pause", "resume", "flush", "force", "probe", "replay")),
                chance.choice(names),
            )
            for _ in range(chance.choice((0, 0, 1, 3)))
        )
        return {"peers": peers, "letters": letters, "errands": errands}

    def _peer(self, chance: random.Random, name: str) -> Peer:
        replies = ["takes", "fails", "is away"]
        replies += chance.sample(["takes silently", "is silent", "refuses", "throttles", "leaves", "raises"], 2)
        manners = tuple(
            Manner(
                chance.choice(replies),  # type: ignore[arg-type]
                round(chance.choice((0.0, 0.05, 0.5, 0.9)) * chance.uniform(0.5, 1), 3),
            )
            for _ in range(chance.choice((0, 2, 6, 12)))
        )
        return Peer(
            name,
            chance.choice(("fifo", "fifo", "unordered")),
            chance.choice(("block", "block", "overtake")),
            manners,
            chance.choice((2, 5)),
        )

    def _maybe(self, probability: float) -> bool:
        return self._chance.random() < probability

    def _weather(self) -> Weather:
        rough = self._rough = self._maybe(0.75)

        def some(most: float) -> float:
            return self._chance.uniform(0, most) if rough and self._maybe(0.6) else 0.0

        return Weather(
            latency=self._chance.choice((0.0, 0.001, 0.005, 0.02)),
            slow=some(0.2),
            lost_request=some(0.06),
            broken=some(0.06),
            lost_reply=some(0.1),
            late=some(0.02),
            crash=some(0.03),
            pause=some(0.08),
            lost_wakeup=self._chance.choice((0.0, 0.3, 1.0)),
        )

    def _crews(self) -> tuple[Crew, ...]:
        self._size = self._chance.choice((1, 2, 2, 3))
        self._lease = self._chance.choice((1.0, 2.0, 2.0, 2.0, 4.0))
        leases = (1.0, 2.0, 4.0) if self._maybe(0.3) else (self._lease,)
        return tuple(
            Crew(
                concurrency=self._chance.choice((1, 2, 4, 8)),
                lease=self._chance.choice(leases),
                poll=self._chance.choice((1.0, 2.0)),
                scan=self._chance.choice((1.0, 3.0, 3.0) if self._rough else (0.3, 2.0)),
                grace=self._chance.choice((0.5, 3.0)),
                knows_rare=index == 0 or self._maybe(0.5),
                old="old code" in self._features and self._maybe(0.5),
                ahead=self._ahead.choice((1, 1, 2, 10)),
            )
            for index in range(self._size)
        )

    def _limits(self) -> tuple[Limit, ...]:
        if "limited" not in self._features:
            return ()
        if self._lining:
            return (self._limit(f"g:{GROUPS[0]}"),)
        return tuple(self._limit(gate) for gate in GATES if self._maybe(0.6))

    def _limit(self, gate: str) -> Limit:
        rate = self._chance.choice((0.8, 2.0, 5.0)) if self._maybe(0.4) else None
        concurrency = self._chance.randint(1, 3) if rate is None or self._maybe(0.5) else None
        return Limit(gate, concurrency, rate, float(self._chance.randint(1, 3)))

    def _plays(self) -> tuple[Play, ...]:
        plays: list[Play] = []
        for _ in range(self._chance.randint(4, 11)):
            plays += self._chain()
        return tuple(plays)

    def _chain(self) -> list[Play]:
        """A play, and those that follow from it."""
        length = self._chance.randint(2, 3) if "spawning" in self._features and self._maybe(0.3) else 1
        chain = []
        for place in range(length):
            self._number += 1
            then = self._number + 1 if place < length - 1 else None
            chain.append(self._play(self._number, then, successor=place > 0))
        return chain

    def _play(self, number: int, then: int | None, *, successor: bool) -> Play:
        at: tuple[float, ...] = () if successor else (self._moment(),)
        options = self._options()
        if "unique" in self._features and not successor and self._maybe(0.3):
            options["unique"] = self._unique()
            at = tuple(sorted(self._moment() for _ in range(self._chance.randint(1, 4))))
        name = self._name()
        note = name == "grown" and self._maybe(0.5)
        return Play(number, at, options, self._steps(options), then, name, note)

    def _name(self) -> Name:
        if "rare" in self._features and self._maybe(0.2):
            return "rare"
        if "old code" in self._features:
            return self._chance.choice(("perform", "enact", "grown"))
        return "perform"

    def _moment(self) -> float:
        """Often close together, so that many things wait at once."""
        if self._queuing or self._lining:
            return round(self._chance.uniform(0, HORIZON * 0.05), 3)
        return round(self._chance.uniform(0, HORIZON * self._chance.choice((0.1, 0.3, 0.9))), 3)

    def _options(self) -> dict[str, Any]:
        options: dict[str, Any] = {"queue": self._chance.choice(QUEUES), "retry": self._retry()}
        if "priorities" in self._features:
            options["priority"] = self._chance.choice((1, 5, 5, 9))
        if self._queuing or self._lining:
            options["queue"] = QUEUES[0]
        if "keyed" in self._features and self._maybe(1.0 if self._queuing else 0.6):
            key = self._chance.choice("ad" if self._queuing else "abcdm")
            mixed = self._chance.choice(("block", "overtake", "pause"))
            options["key"] = key
            options["order"] = {"a": "block", "b": "overtake", "c": "pause", "d": "block", "m": mixed}[key]
        if "limited" in self._features and self._maybe(1.0 if self._lining else 0.5):
            options["limit"] = self._chance.choice(GROUPS[:1] if self._lining else GROUPS)
        if "delayed" in self._features and self._maybe(0.4):
            options["delay"] = round(self._chance.uniform(0.01, 5), 3)
        if "expiring" in self._features and self._maybe(0.3):
            options["expires"] = round(self._chance.uniform(0.05, 6), 3)
        if "once" in self._features and self._maybe(0.4):
            options["at_most_once"] = True
            options["retry"] = Retry.never()
        if self._maybe(0.2):
            options["timeout"] = round(self._chance.uniform(0.3, 3), 3)
        if self._maybe(0.2):
            options["crash_cap"] = 2
        if self._maybe(0.2):
            options["on_dead"] = "mourn"
        return options

    def _unique(self) -> Unique:
        key = f"u{self._chance.randint(1, 3)}"
        scope = self._chance.choice(("waiting", "live", "live", "forever", "period"))
        return Unique(key, period=5.0) if scope == "period" else Unique(key, scope)

    def _retry(self) -> Retry:
        match self._chance.randrange(4):
            case 0:
                return Retry.never()
            case 1:
                return Retry.after(0.2, 1.0, 2.0)
            case 2:
                return Retry.constant(attempts=3, delay=0.5, jitter=0.5)
            case _:
                return Retry.exponential(attempts=4, base=0.1, cap=2.0)

    def _steps(self, options: dict[str, Any]) -> tuple[Step, ...]:
        steps = []
        if self._killers and self._maybe(0.15):
            steps = [self._step("kill") for _ in range(self._chance.randint(1, 4))]
            steps[self._chance.randrange(len(steps))] = self._step(self._chance.choice(("kill", "raise", "snooze")))
        while self._maybe(0.45) and len(steps) < 6:
            ending = self._chance.choice(
                ("raise", "raise", "raise", "permanent", "snooze", "discard", "retry after", "hang", "kill")
            )
            if self._snoozers and self._maybe(0.5):
                ending = "snooze"
            if (ending == "kill" and not self._killers) or (ending == "hang" and "timeout" not in options):
                ending = "raise"
            steps.append(self._step(ending))
        return (*steps, self._step("return"))

    def _step(self, ending: str) -> Step:
        return msgspec.convert(
            {
                "ending": ending,
                "runs": round(self._chance.choice((0.0, 0.01, 0.3, 1.0, 2.0, 5.0)) * self._chance.uniform(0.5, 1), 3),
                "wait": round(self._chance.uniform(0.01, 2), 3),
                "stubborn": self._chance.choice((0.0, 0.0, 0.5, 7.0)) if self._maybe(0.2) else 0.0,
                "saves": self._maybe(0.1),
                "regretted": self._regrets and self._maybe(0.2),
            },
            Step,
        )

    def _cancels(self, plays: tuple[Play, ...]) -> tuple[Cancel, ...]:
        if self._maybe(0.4):
            return ()
        return tuple(
            Cancel(
                round(play.at[0] + self._chance.uniform(0, self._chance.choice((0.1, 1, 4))), 3),
                play.number,
                self._maybe(0.5),
            )
            for play in plays
            if play.at and self._maybe(0.2)
        )

    def _blows(self) -> tuple[Blow, ...]:
        blows = []
        kinds = [kind for kind in ("crash", "stop", "block", "restart") if self._maybe(0.5)]
        for _ in range(self._chance.randint(0, 4) if kinds else 0):
            kind = self._chance.choice(kinds)
            lasting = self._chance.uniform(0.1, 3) if kind in ("crash", "restart") else self._about_a_lease()
            blows.append(
                msgspec.convert(
                    {
                        "at": round(self._chance.uniform(0.1, HORIZON), 3),
                        "worker": self._chance.randrange(self._size),
                        "kind": kind,
                        "lasting": round(lasting, 3),
                    },
                    Blow,
                )
            )
        if self._maybe(0.12):
            blows += self._storm()
        return tuple(sorted(blows, key=lambda blow: blow.at))

    def _storm(self) -> list[Blow]:
        """Everyone is restarted or killed, again and again, and comes back at once."""
        begin = self._chance.uniform(0, HORIZON - 2)
        return [
            Blow(
                round(begin + self._chance.uniform(0, 2), 3),
                worker,
                self._chance.choice(("crash", "restart")),
                round(self._chance.uniform(0.01, 0.3), 3),
            )
            for worker in range(self._size)
            for _ in range(4)
        ]

    def _orders(self) -> tuple[Order, ...]:
        if self._maybe(0.6):
            return ()
        orders = []
        for _ in range(self._chance.randint(1, 3)):
            at, lasting = round(self._chance.uniform(0, HORIZON), 3), round(self._chance.uniform(0.5, 5), 3)
            queue = self._chance.choice(QUEUES)
            lasting = math.inf if self._maybe(0.3) else lasting
            match self._chance.randrange(5):
                case 0:
                    orders.append(Order(at, "pause queue", queue, lasting=lasting))
                case 1:
                    orders.append(Order(at, "drain queue", queue, lasting=lasting))
                case 2:
                    orders.append(Order(at, "pause key", queue, self._chance.choice("abcdm"), min(lasting, 5.0)))
                case 3 if "limited" in self._features:
                    orders.append(Order(at, "limit", queue, limit=self._limit(self._chance.choice(GATES))))
                case _:
                    orders.append(Order(at, "replay", queue))
        return tuple(orders)

    def _outages(self) -> tuple[Outage, ...]:
        if self._maybe(0.8 if self._rough else 0.2):
            return ()
        times = self._chance.randint(1, 2)
        return tuple(
            Outage(round(self._chance.uniform(1, HORIZON), 3), self._about_a_lease(), round(0.4 * self._lease, 3))
            for _ in range(times)
        )

    def _jams(self) -> tuple[Jam, ...]:
        if self._maybe(0.85):
            return ()
        times = self._chance.randint(1, 3)
        return tuple(
            Jam(self._moment(), round(self._chance.choice((0.05, 0.5, 3.0)) * self._chance.uniform(0.5, 1), 3))
            for _ in range(times)
        )

    def _jumps(self) -> tuple[Jump, ...]:
        if self._maybe(0.85):
            return ()
        return tuple(
            Jump(self._moment(), round(self._chance.choice((1, -1)) * self._chance.uniform(0.1, 6), 3))
            for _ in range(self._chance.randint(1, 2))
        )

    def _spoilings(self, plays: tuple[Play, ...]) -> tuple[Spoiling, ...]:
        if self._maybe(0.85):
            return ()
        chosen = [self._chance.choice(plays) for _ in range(self._chance.randint(1, 2))]
        return tuple(
            Spoiling(
                round((play.at[0] if play.at else self._moment()) + self._chance.uniform(0.0, 2), 3),
                play.number,
                self._chance.choice(("payload", "options")),
            )
            for play in chosen
        )

    def _about_a_lease(self) -> float:
        """A time in which a lease may or may not run out."""
        return round(self._lease * self._chance.choice((0.2, 1.0, 1.0, 2.0)) * self._chance.uniform(0.6, 1.5), 3)
