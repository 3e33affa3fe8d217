"""Workers that send to a server with moods, and are killed in the middle of SMTP: nobody is lost, and who may have it
twice is marked."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from subprocess import Popen
from typing import NamedTuple

import pytest

from durably import Durably
from durably.mail.info import MailInfo, RecipientInfo
from tests.crash.processes import Stage
from tests.support.smtp_ledger import HOW, STAGES

SEED = "1"
KILLS = 5
MAILS = 25
"""So many before each kill, and as many while the server holds some of them."""
WORKERS = 2
COMMAND = ("-m", "durably", "worker", "tests.crash.mail_program:app", "--no-parent", "--log-json")
OPTIONS = ("--lease", "2s", "--poll", "100ms", "--concurrency", "20")


@pytest.fixture
def app(stage: Stage) -> Iterator[Durably]:
    """The same application in this process, to send and to look; it has no channels."""
    app = Durably(stage.store)
    app.deliveries.channels.clear()
    yield app
    app.close()


class Sent(NamedTuple):
    """A mail that was accepted, however often it was sent."""

    recipients: list[str]
    ids: list[str]
    """What the answers were."""


class Post:
    """The server, and the workers that send to it."""

    def __init__(self, stage: Stage, stack: ExitStack) -> None:
        self._stage = stage
        self._stack = stack
        self._server = stack.enter_context(stage.process("-m", "tests.support.smtp_ledger", SEED))
        self._workers: dict[str, Popen[bytes]] = {}
        self._before = 0
        self.until(lambda: bool(self.said("listening")))
        self.address = f"smtp://127.0.0.1:{self.said('listening')[0][0]}?tls=none"

    def said(self, what: str) -> list[list[str]]:
        """These lines of the server's ledger."""
        return [line[1:] for line in self._stage.lines() if line[0] == what]

    def until(self, done: Callable[[], bool]) -> None:
        self._stage.until(done, self._server, *self._workers.values())

    def staff(self) -> None:
        """Start workers until there are enough."""
        while len(self._workers) < WORKERS:
            worker = self._stack.enter_context(self._stage.process(*COMMAND, *OPTIONS))
            self._workers[str(worker.pid)] = worker

    def until_taken(self, many: int) -> None:
        """Wait until the server has taken something for so many recipients."""
        self.until(lambda: len(self.said("taken")) >= many)

    def hold(self) -> None:
        """Let the server hold what comes to its next stage."""
        self._before = len(self.said("held"))
        self.tell(signal.SIGUSR1, "off")

    def kill_who_is_held(self) -> None:
        """Wait for a mail that is held, kill the worker that sends it, and let the server go on."""
        self.until(lambda: bool(self._held()))
        victim = self._workers.pop(self._held()[0])
        victim.kill()
        victim.wait()
        self.tell(signal.SIGUSR1, "on")

    def _held(self) -> list[str]:
        """The workers whose mails the server has begun to hold."""
        senders = [sender.partition(".")[0] for _, sender in self.said("held")[self._before :]]
        return [worker for worker in senders if worker in self._workers]

    def tell(self, what: signal.Signals, answer: str) -> None:
        """Give the server a signal, and wait until it was heard."""
        before = len(self.said(answer))
        self._server.send_signal(what)
        self.until(lambda: len(self.said(answer)) > before)


def accept(app: Durably, numbers: range) -> dict[int, Sent]:
    """Send mails from two threads. Every third has a key, and both of them send it."""
    answers: dict[int, list[str]] = {number: [] for number in numbers}

    def send(who: int) -> None:
        for number in numbers:
            if number % 2 == who or key(number) is not None:
                to, subject = recipients(number), f"Number {number}"
                mail = app.mail.send(
                    sender="shop@here.example", to=to, subject=subject, text="It is there.", key=key(number)
                )
                answers[number].append(mail.id)

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(send, range(2)))
    return {number: Sent(recipients(number), ids) for number, ids in answers.items()}


def recipients(number: int) -> list[str]:
    return [f"{number}.{which}@x.example" for which in range(number % 5 + 1)]


def key(number: int) -> str | None:
    return f"key {number}" if number % 3 == 0 else None


def complaint(mail: MailInfo, one: RecipientInfo, times: int) -> str | None:
    """What is wrong with a recipient whom the server took this mail for so many times."""
    match one.state:
        case "sent" if times == 0:
            return "is told to have it, and has not"
        case "refused" if not one.said:
            return "was refused without a reason"
        case "given up" if mail.state != "dead" or not mail.reason:
            return "was given up without a reason"
        case "waiting" | "suppressed":
            return f"is {one.state} at the end"
    if times > (one.state == "sent") and not one.possible_duplicate:
        return f"is {one.state}, has it {times} times, and is not marked"
    return None


def test_nobody_is_lost_and_who_may_have_it_twice_is_marked(stage: Stage, app: Durably) -> None:
    sent: dict[int, Sent] = {}
    with ExitStack() as stack:
        post = Post(stage, stack)
        app.mail.add_transport(
            "main", post.address, schedule=[0.2] * 40, jitter=0, timeout=20, breaker=10_000, concurrency=30
        )
        for kill in range(KILLS):
            post.staff()
            sent |= accept(app, range(2 * kill * MAILS, (2 * kill + 1) * MAILS))
            post.until_taken(2 * sum(len(one.recipients) for one in sent.values()) // 3)
            post.hold()
            sent |= accept(app, range((2 * kill + 1) * MAILS, (2 * kill + 2) * MAILS))
            post.kill_who_is_held()
        post.staff()
        post.tell(signal.SIGUSR2, "calm")
        post.until(lambda: not app.mail.list(state="waiting", limit=1))

    taken = Counter((mail, recipient) for mail, recipient in post.said("taken"))
    mails = {number: app.mail.get(one.ids[0]) for number, one in sent.items()}
    everyone = [(mails[number], one) for number in sent for one in mails[number].recipients]
    found = [(mail.id, one, complaint(mail, one, taken[mail.id, one.address])) for mail, one in everyone]
    assert [told for told in found if told[2] is not None] == []

    assert {number for number, one in sent.items() if len(set(one.ids)) > 1} == set()
    assert len(app.mail.list(limit=2 * len(sent))) == len(sent)
    assert {number: [one.address for one in mail.recipients] for number, mail in mails.items()} == {
        number: one.recipients for number, one in sent.items()
    }
    assert taken.keys() <= {(mail.id, one.address) for mail, one in everyone}

    assert {at for at, _ in post.said("held")} == set(STAGES)
    assert {" ".join(how) for how in post.said("broken")} == set(HOW)
    assert all(post.said(what) for what in ("refused", "greylisted", "full"))
    assert {one.state for _, one in everyone} >= {"sent", "refused"}
    assert sum(mail.info.crashes for mail in mails.values() if mail.info is not None) >= KILLS
    assert max(taken.values()) > 1
