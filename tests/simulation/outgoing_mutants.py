"""Mail and notifications with one rule broken each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from durably.core.delivery import Kind, Outcome
from durably.mail import results, session, smtp
from durably.mail.letter import Letter
from durably.mail.replies import NEVER, Meaning, Reply, Stage, meaning
from durably.mail.results import Recipient, Results
from durably.mail.session import Session, judged
from durably.mail.suppressions import Suppressions
from durably.notifications import info, router
from durably.notifications.router import Memory, Router
from durably.stores.operations import mail as mail_operations
from durably.stores.operations.mail import Accepted
from durably.stores.statement import Queries, Steps
from durably.testing.simulation.scenario import Scenario
from tests.simulation.mutants import mutant


def _handled(*handlings: str) -> Any:
    def concerned(scenario: Scenario) -> bool:
        host = scenario.host
        return host is not None and any(treatment.handling in handlings for treatment in host.treatments)

    return concerned


def _announces(scenario: Scenario) -> bool:
    return bool(scenario.sorts)


def _answered(*replies: str) -> Any:
    def concerned(scenario: Scenario) -> bool:
        return any(manner.reply in replies for way in scenario.ways for manner in way.manners)

    return concerned


def _does(*kinds: str) -> Any:
    def concerned(scenario: Scenario) -> bool:
        return any(doing.kind in kinds for doing in scenario.doings)

    return concerned


@mutant("no answer to a mail counts as sent", "the server does not have it", _handled("hangs up instead of taking it"))
def _(monkeypatch: pytest.MonkeyPatch) -> None:
    async def trusting(self: Session, letter: Letter, accepted: list[str], found: Results) -> None:
        found.update(dict.fromkeys(accepted, Recipient("sent", "surely")))
        self._write(Stage.DOT, letter.source + b".\r\n", 1)
        await self._reply(Stage.DOT)

    monkeypatch.setattr(Session, "_hand_over", trusting)


@mutant("no answer to a mail counts as not sent", "without a mark", _handled("hangs up after taking it"))
def _(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "_begun", lambda one, interrupted: one)


@mutant("a refusal of the source counts as taken", "the server does not have it", _handled("rejects the source"))
def _(monkeypatch: pytest.MonkeyPatch) -> None:
    def kind(reply: Reply) -> Recipient:
        return Recipient("sent", str(reply)) if reply.stage is Stage.DOT else judged(reply)

    monkeypatch.setattr(session, "judged", kind)


@mutant("who has a mail gets it again with the others", "without a mark", _handled("greylists one"))
def _(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smtp, "due", lambda found, now: list(found))


@mutant("a wrong password bounces everybody", "refused for good", _handled("wants another password"))
def _(monkeypatch: pytest.MonkeyPatch) -> None:
    def harsh(reply: Reply) -> Meaning:
        return NEVER if reply.stage is Stage.AUTH and reply.code == 535 else meaning(reply)

    monkeypatch.setattr("durably.mail.opening.meaning", harsh)


@mutant(
    "nobody asks who gets no mail",
    "which was to get no mail",
    lambda scenario: scenario.host is not None and any(chore.kind == "suppress" for chore in scenario.chores),
)
def _(monkeypatch: pytest.MonkeyPatch) -> None:
    async def nobody(self: Any, addresses: Sequence[str], category: str) -> dict[str, str]:
        return {}

    monkeypatch.setattr(Suppressions, "among", nobody)


@mutant("every attempt has another Message-ID", "the same", _handled("hangs up after taking it"))
def _(monkeypatch: pytest.MonkeyPatch) -> None:
    async def renamed(self: Any, letter: Letter, now: float) -> Letter:
        other = letter.source.replace(b"Message-ID: <", b"Message-ID: <%d." % (now * 1000))
        return msgspec.structs.replace(letter, source=other)

    monkeypatch.setattr(smtp.Smtp, "_signed", renamed)


@mutant("a key does not make a mail the same", "no such mail", lambda scenario: scenario.host is not None)
def _(monkeypatch: pytest.MonkeyPatch) -> None:
    def accept(q: Queries, mail: Any, publishing: Any) -> Steps[Any]:
        yield q("add_mail", mail.id, mail.namespace, None, mail.about)
        return Accepted(mail.id, new=True), (yield from publishing.steps(q))

    monkeypatch.setattr(mail_operations, "_accept", accept)


@mutant("a refusal of a note counts as sent", "never arrived", _answered("refuses", "leaves"))
def _(monkeypatch: pytest.MonkeyPatch) -> None:
    settled = router._settled

    def content(outcome: Outcome, *rest: Any) -> Any:
        final = outcome.kind in (Kind.PERMANENT, Kind.GONE)
        return settled(Outcome(kind=Kind.OK) if final else outcome, *rest)

    monkeypatch.setattr(router, "_settled", content)


@mutant("a note whose answer never came is forgotten", "without a mark", _answered("takes silently"))
def _(monkeypatch: pytest.MonkeyPatch) -> None:
    remembered = router.remembered

    def sure(details: Any) -> Memory:
        return msgspec.structs.replace(remembered(details), possible_duplicate=False)

    monkeypatch.setattr(router, "remembered", sure)
    monkeypatch.setattr(info, "remembered", sure)


@mutant("another channel is tried whatever has failed", "nobody has refused", _answered("fails", "is away"))
def _(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(router, "CONFIRMED", "")


@mutant("what was read is sent all the same", "after it was read", _does("read", "archive"))
def _(monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing(self: Router, *place: Any) -> list[str]:
        return []

    monkeypatch.setattr(Router, "_seen", nothing)


@mutant("nobody asks what people want", "does not want it", _does("do not want"))
def _(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(router, "wanted", lambda said, kind, channel: True)


@mutant("nothing is too much", "are allowed", _announces)
def _(monkeypatch: pytest.MonkeyPatch) -> None:
    async def always(self: Router, *place: Any) -> bool:
        return True

    monkeypatch.setattr(Router, "_let_through", always)


@mutant("what was put off is counted again", "there were only", _answered("throttles"))
def _(monkeypatch: pytest.MonkeyPatch) -> None:
    remembered = router.remembered

    def uncounted(details: Any) -> Memory:
        return msgspec.structs.replace(remembered(details), counted=False)

    monkeypatch.setattr(router, "remembered", uncounted)


@mutant("a digest forgets its first item", "never arrived", _announces)
def _(monkeypatch: pytest.MonkeyPatch) -> None:
    note = Router._note

    async def shortened(self: Router, kind: Any, person: Any, place: Any, items: list[Any], *rest: Any) -> Any:
        return await note(self, kind, person, place, items[1:] or items, *rest)

    monkeypatch.setattr(Router, "_note", shortened)
