"""Workers that are killed while channels have what they brought and have not said so: every route ends with its reason,
nothing is lost, and what came more often than it should is marked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from subprocess import Popen
from typing import NamedTuple

import pytest

from durably import Durably
from durably.notifications.info import NotificationInfo, RouteInfo
from tests.crash.news import KINDS, PEOPLE, declare, is_gone, person
from tests.crash.processes import Stage

KILLS = 4
MANY = 40
"""So many notifications before each kill, and as many while channels hold some of them."""
WORKERS = 2
COMMAND = ("-m", "durably", "worker", "tests.crash.news_program:app", "--no-parent", "--log-json")
OPTIONS = ("--lease", "2s", "--poll", "100ms", "--concurrency", "30")
ENDS = {"sent", "skipped", "dead", "cancelled"}


@pytest.fixture
def app(stage: Stage) -> Iterator[Durably]:
    """The same application in this process, to tell things and to look."""
    with Durably(stage.store) as app:
        yield declare(app)


class Workers:
    """Those who bring the news, and what they have written into the ledger."""

    def __init__(self, stage: Stage, stack: ExitStack) -> None:
        self._stage = stage
        self._stack = stack
        self._running: dict[str, Popen[bytes]] = {}
        self._hold = Path(f"{stage.ledger}.hold")

    def said(self, what: str) -> list[list[str]]:
        """These lines of the ledger."""
        return [line[1:] for line in self._stage.lines() if line[0] == what]

    def staff(self) -> None:
        """Start workers until there are enough."""
        while len(self._running) < WORKERS:
            worker = self._stack.enter_context(self._stage.process(*COMMAND, *OPTIONS))
            self._running[str(worker.pid)] = worker

    def kill_who_holds(self, when: str, before: int) -> None:
        """Wait until one is held at this moment, kill it, and let the others go on."""

        def held() -> list[str]:
            return [pid for at, pid in self.said("held")[before:] if at == when and pid in self._running]

        self._stage.until(lambda: bool(held()), *self._running.values())
        victim = self._running.pop(held()[0])
        victim.kill()
        victim.wait()
        self._hold.unlink()

    def hold(self) -> int:
        """Let channels not go on; how many were held before."""
        before = len(self.said("held"))
        self._hold.touch()
        return before

    def until_over(self, app: Durably) -> None:
        """Wait until nothing is on its way any more."""
        self._stage.until(lambda: not left(app), *self._running.values())


def left(app: Durably) -> int:
    """How many tasks have not ended."""
    ended = {"done", "dead", "cancelled"}
    return sum(many for queue in app.queues.list() for state, many in queue.counts.items() if state not in ended)


class Told(NamedTuple):
    """A notification that was accepted, however often it was told."""

    kind: str
    recipients: list[str]
    ids: list[str]
    """What the answers were."""


def tell(app: Durably, numbers: range) -> dict[int, Told]:
    """Tell things from two threads. Every third has a key, and both of them tell it."""
    answers: dict[int, list[str]] = {number: [] for number in numbers}

    def notify(who: int) -> None:
        for number in numbers:
            if number % 2 == who or number % 3 == 0:
                key = f"key {number}" if number % 3 == 0 else None
                told = app.notify(KINDS[number % len(KINDS)], recipients(number), {"n": number}, key=key)
                answers[number].append(told.id)

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(notify, range(2)))
    return {number: Told(KINDS[number % len(KINDS)], recipients(number), ids) for number, ids in answers.items()}


def recipients(number: int) -> list[str]:
    """Some people, and now and then somebody whom nobody knows."""
    known = [PEOPLE[(number + step) % len(PEOPLE)] for step in range(0, 1 + number % 3 * 4, 4)]
    return [*known, "stranger"] if number % 10 == 0 else known


def complaint(route: RouteInfo, times: int) -> str | None:
    """What is wrong with a route on which something came so many times."""
    if route.state not in ENDS:
        return f"is {route.state} at the end"
    if route.state == "sent" and times == 0:
        return "is told to have come, and has not"
    if route.state != "sent" and not route.reason:
        return f"is {route.state} without a reason"
    if times > (route.state == "sent") and not route.possible_duplicate:
        return f"is {route.state}, came {times} times, and is not marked"
    return None


def test_every_route_ends_and_what_may_have_come_twice_is_marked(stage: Stage, app: Durably, tmp_path: Path) -> None:
    told: dict[int, Told] = {}
    outbox = tmp_path / "outbox"
    outbox.mkdir()
    with ExitStack() as stack:
        workers = Workers(stage, stack)
        app.mail.add_transport("main", f"file://{outbox}")
        for kill in range(KILLS):
            workers.staff()
            told |= tell(app, range(2 * kill * MANY, (2 * kill + 1) * MANY))
            stage.until(lambda: bool(app.notifications.inbox.read_all(PEOPLE[kill])))  # noqa: B023 - it is called here
            before = workers.hold()
            told |= tell(app, range((2 * kill + 1) * MANY, (2 * kill + 2) * MANY))
            workers.kill_who_holds("after" if kill % 2 else "before", before)
        workers.staff()
        workers.until_over(app)

    came = Counter(
        (int(number), recipient, channel)
        for channel, recipient, which, _ in workers.said("came")
        for number in which.split(",")
    )
    found = {number: app.notifications.get(one.ids[0]) for number, one in told.items()}
    times = {(number, one.recipient, one.channel): 0 for number, info in found.items() for one in info.routes}
    assert came.keys() <= times.keys()
    times |= came | beside(app, found, outbox)
    wrong = [
        (number, one, complaint(one, times[number, one.recipient, one.channel]))
        for number, info in found.items()
        for one in info.routes
    ]
    assert [one for one in wrong if one[2] is not None] == []

    assert {number for number, one in told.items() if len(set(one.ids)) > 1} == set()
    assert len(app.notifications.list(limit=2 * len(told))) == len(told)
    for number, one in told.items():
        assert [(route.recipient, route.channel) for route in found[number].routes] == expected(app, one)

    routes = [route for info in found.values() for route in info.routes]
    assert {route.state for route in routes} >= {"sent", "skipped", "dead"}
    assert {when for when, _ in workers.said("held")} == {"before", "after"}
    crashed = sum(task.crashes > 0 for task in app.tasks.list(queue="notifications", limit=10_000))
    assert crashed >= KILLS
    assert max(came.values()) > 1


def beside(app: Durably, found: dict[int, NotificationInfo], outbox: Path) -> dict[tuple[int, str, str], int]:
    """What came in inboxes, and by mail: the outbox is a folder."""
    entries = [(who, one.data["n"]) for who in PEOPLE for one in app.notifications.inbox.list(who, limit=10_000)]
    in_inboxes = Counter((number, who, "inbox") for who, number in entries)
    letters = [path.read_text() for path in outbox.rglob("*") if path.is_file()]
    by_mail = {
        (number, one.recipient, "mail"): sum(f"<{one.via}@" in letter for letter in letters)
        for number, info in found.items()
        for one in info.routes
        if one.channel == "mail" and one.via
    }
    return {**in_inboxes, **by_mail}


def expected(app: Durably, told: Told) -> list[tuple[str, str]]:
    """The routes that a notification must have: a fallback only where push surely reaches nobody."""
    ways = [(who, channel) for who in told.recipients for channel in app.notifications.kinds[told.kind].channels]
    if told.kind == "alarm":
        known = [(who, person(who)) for who in told.recipients]
        ways += [(who, "sms") for who, one in known if one and ("push" not in one.addresses or is_gone(who))]
    return sorted(ways)
