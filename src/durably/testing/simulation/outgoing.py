"""Drawing the mail and the notifications of a scenario.

Each comes from a source of its own, so that the other scenarios stay as they would be without.
"""

from __future__ import annotations

import random
from typing import Any, get_args

from durably.testing.simulation.scenario import (
    HORIZON,
    INBOX,
    UNHEARD_OF,
    Chore,
    Doing,
    Handling,
    Host,
    Lookup,
    Manner,
    Missive,
    Notice,
    Reply,
    Sort,
    Treatment,
    Way,
)

SHARE = 0.1
"""The share of the scenarios that have mail, and of those that have notifications."""
ADDRESSES = tuple(f"{name}@x.example" for name in ("ann", "bob", "cyd", "dan"))
PEOPLE = ("ann", "bob")
CHANNELS = ("push", "sms")


def draw_mail(seed: int) -> dict[str, Any]:
    """The mail of a scenario, if it has any."""
    chance = random.Random(f"mail {seed}")
    if chance.random() >= SHARE:
        return {}
    return {"host": _host(chance), "missives": _missives(chance), "chores": _chores(chance)}


def _host(chance: random.Random) -> Host:
    handlings = ["takes it", *chance.sample([one for one in get_args(Handling) if one != "takes it"], 5)]
    treatments = tuple(
        Treatment(
            chance.choice(handlings),
            chance.randrange(3),
            _lasting(chance, (0.0, 0.0, 0.1, 0.6, 1.9)),
        )
        for _ in range(chance.choice((2, 6, 12)))
    )
    return Host(treatments, chance.random() < 0.7, chance.choice((2, 5)))


def _missives(chance: random.Random) -> tuple[Missive, ...]:
    found = []
    for number in range(1, chance.randint(4, 9)):
        keyed = chance.random() < 0.4
        found.append(
            Missive(
                number,
                tuple(_moment(chance) for _ in range(chance.randint(1, 3) if keyed else 1)),
                tuple(chance.sample(ADDRESSES, chance.randint(1, 3))),
                f"k{chance.randint(1, 3)}" if keyed else None,
                at_once=chance.random() < 0.2,
            )
        )
    return tuple(found)


def _chores(chance: random.Random) -> tuple[Chore, ...]:
    kinds: list[Any] = chance.choice(
        ([], ["resend"], ["suppress", "unsuppress"], ["suppress", "suppress", "unsuppress", "resend"])
    )
    return tuple(
        Chore(_moment(chance, 1.0), chance.choice(kinds), chance.choice(ADDRESSES))
        for _ in range(chance.randint(1, 5) if kinds else 0)
    )


def draw_notifications(seed: int) -> dict[str, Any]:
    """The notifications of a scenario, if it has any."""
    chance = random.Random(f"notifications {seed}")
    if chance.random() >= SHARE:
        return {}
    sorts = tuple(chance.sample(_sorts(chance), chance.randint(2, 3)))
    return {
        "sorts": sorts,
        "ways": tuple(Way(name, _manners(chance)) for name in CHANNELS),
        "lookups": _lookups(chance),
        "notices": _notices(chance, sorts),
        "doings": _doings(chance, sorts),
    }


def _sorts(chance: random.Random) -> list[Sort]:
    window = round(chance.uniform(0.3, 3), 3)
    read = chance.random() < 0.5
    return [
        Sort(
            "news",
            {**({INBOX: 0.0} if read else {}), "push": 0.0},
            digest={"push": window},
            fallback={"push": "sms"} if chance.random() < 0.3 else {},
            throttle=chance.choice((None, None, 1, 2)),
            cancel_on_read=read,
        ),
        Sort("offers", dict.fromkeys(CHANNELS, 0.0), throttle=chance.randint(1, 2)),
        Sort(
            "alarm",
            {"push": 0.0},
            fallback={"push": "sms"},
            critical=chance.random() < 0.3,
        ),
        Sort(
            "mention",
            {INBOX: 0.0, "push": _lasting(chance, (0.0, 1.0, 3.0))},
            fallback={"push": "sms"} if chance.random() < 0.3 else {},
            cancel_on_read=True,
        ),
    ]


def _manners(chance: random.Random) -> tuple[Manner, ...]:
    replies = ["takes", "fails", "is away"]
    replies += chance.sample([one for one in get_args(Reply) if one not in replies], 3)
    manners = [
        Manner(chance.choice(replies), _lasting(chance, (0.0, 0.05, 0.5, 0.9)))  # type: ignore[arg-type]
        for _ in range(chance.choice((0, 3, 8, 15)))
    ]
    # Whoever is silent is waited for a whole minute.
    silent = [place for place, one in enumerate(manners) if one.reply == "is silent"]
    return tuple(one for place, one in enumerate(manners) if place not in silent[1:])


def _lookups(chance: random.Random) -> tuple[Lookup, ...]:
    kinds = list(get_args(Lookup))
    often = ["knows"] * chance.choice((1, 4))
    return tuple(chance.choice(kinds + often) for _ in range(chance.choice((0, 0, 5, 12))))


def _notices(chance: random.Random, sorts: tuple[Sort, ...]) -> tuple[Notice, ...]:
    found = []
    for number in range(1, chance.randint(5, 12)):
        keyed = chance.random() < 0.3
        found.append(
            Notice(
                number,
                tuple(_moment(chance) for _ in range(chance.randint(1, 3) if keyed else 1)),
                chance.choice(sorts).name if chance.random() < 0.95 else UNHEARD_OF,
                tuple(chance.sample(PEOPLE, chance.choice((1, 1, 2)))),
                f"k{chance.randint(1, 2)}" if keyed else None,
                at_once=chance.random() < 0.2,
            )
        )
    return tuple(found)


def _doings(chance: random.Random, sorts: tuple[Sort, ...]) -> tuple[Doing, ...]:
    kinds: list[Any] = chance.choice(
        ([], ["read"], ["read", "archive", "replay"], ["want", "do not want", "do not want", "read", "replay"])
    )
    return tuple(
        Doing(
            _moment(chance, 1.0),
            chance.choice(kinds),
            chance.choice(PEOPLE),
            chance.choice(sorts).name,
            chance.choice(CHANNELS),
        )
        for _ in range(chance.randint(2, 8) if kinds else 0)
    )


def _moment(chance: random.Random, share: float = 0.8) -> float:
    return round(chance.uniform(0, HORIZON * chance.choice((0.1, share))), 3)


def _lasting(chance: random.Random, about: tuple[float, ...]) -> float:
    return round(chance.choice(about) * chance.uniform(0.5, 1), 3)
