"""The comparison at the end: what the receivers wrote down against what the engine says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import msgspec

from durably.app import Durably
from durably.core.task import State
from durably.demo.audit import Check, every_task
from durably.demo.deliveries.lines import Line, arrivals


class Account(msgspec.Struct, frozen=True):
    """What the engine says about one message to one peer."""

    message: str
    peer: str
    state: str
    doubtful: bool = False
    """Whether it is marked as a possible duplicate."""


def every_account(app: Durably) -> list[Account]:
    """All that the engine knows."""
    messages = dict.fromkeys(task.arguments["message"] for task in reversed(every_task(app)))
    return [
        Account(message, one.destination, one.info.state if one.info else "", one.possible_duplicate)
        for message in messages
        for one in app.deliveries.report(message)
    ]


def audit(lines: list[Line], accounts: list[Account], late: str) -> Iterator[Check]:
    """Everything that the demo promises; `late` is the peer that nobody could reach at first."""
    published = [line.delivery for line in lines if line.what == "published"]
    seen = arrivals(lines)
    took = Counter(line.delivery for line in seen if line.what == "took")
    known = [(one.message, one.peer) for one in accounts]
    done = {(one.message, one.peer) for one in accounts if one.state == State.DONE}
    dead = {(one.message, one.peer) for one in accounts if one.state == State.DEAD}
    doubtful = {(one.message, one.peer) for one in accounts if one.doubtful}
    peers = sorted({peer for _, peer in published})

    held = bool(published) and sorted(published) == sorted(known) and set(known) == done | dead
    messages = len({message for message, _ in published})
    total = f"{messages:,} messages to {len(peers)} peers = {len(done):,} delivered + {len(dead):,} dead"
    yield Check(held, f"{total}: nothing is lost")

    yield Check(took.keys() == done, f"each of the {len(done):,} arrived where it was sent, and nothing else did")

    wrong = [peer for peer in peers if not in_order([line for line in seen if line.peer == peer])]
    text = f"{len(peers)} peers: every message in the order of publication, and what was replayed after the others"
    yield Check(not wrong, text + (f"; not so for {', '.join(wrong)}" if wrong else ""))

    twice = {delivery for delivery, times in took.items() if times > 1}
    text = f"marked as possible duplicates: {len(doubtful)}; arrived twice, all of these marked: {len(twice)}"
    yield Check(bool(twice) and twice <= doubtful, f"{text}; every other arrived exactly once")

    killed = {line.pid for line in lines if line.what == "killed"}
    refused = {line.delivery for line in seen if line.what == "refused"}
    heard = Counter(line.delivery for line in seen if line.what == "refused" and line.pid not in killed)
    text = f"{len(refused)} were refused for good: once that was known they were left alone until the replay, and then "
    yield Check(refused <= done and max(heard.values(), default=0) == 1, f"{text}all arrived")

    text = f"while {late} was down the others missed nothing: they had everything before it had anything"
    yield Check(held_up_nobody(lines, late), text)

    unsigned = sum(line.what == "unsigned" for line in lines)
    text = f"{len(seen):,} requests were signed as they should be"
    yield Check(not unsigned, text + (f", {unsigned} were not" if unsigned else ""))


def in_order(lines: list[Line]) -> bool:
    """Whether what one peer saw came one after the other, from 1.

    A message may come again, but only before the next one. What was refused may come back later, in its own order.
    """
    last = before = 0
    refused: list[int] = []
    for line in lines:
        if line.number == last + 1:
            last = line.number
        elif line.number != before and line.number not in refused[:1]:
            return False
        before = line.number
        if line.what == "took" and line.number in refused:
            refused.remove(line.number)
        elif line.what == "refused" and line.number not in refused:
            refused.append(line.number)
    return True


def held_up_nobody(lines: list[Line], late: str) -> bool:
    """Whether every other peer had seen all that was published when the late one saw its first message."""
    first = next((at for at, line in enumerate(lines) if line.peer == late and line.what != "published"), 0)
    missing = {line.delivery for line in lines[:first] if line.what == "published" and line.peer != late}
    return first > 0 and missing <= {line.delivery for line in arrivals(lines[:first])}
