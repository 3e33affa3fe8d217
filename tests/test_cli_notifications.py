"""What `durably notifications` says, on every store."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from durably import Durably
from durably.core.delivery import Kind, Outcome
from durably.deliveries.channel import Delivery
from durably.notifications.people import Person
from tests.notifications.test_notifications import Told
from tests.support import command
from tests.support.command import in_process


@pytest.fixture
def durably(
    tmp_path: Path, app: Durably, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> command.Durably:
    """The command, on the store of an application that has told some people something."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "")
    monkeypatch.setenv("DURABLY_STORE", app.store.address)
    app.notifications.channels["sms"] = Told(Outcome(kind=Kind.PERMANENT, reason="no such number"))
    app.notifications.kind("paid", ["inbox", "sms"])
    app.notifications.kind("late", {"sms": "1h"})
    app.notifications.resolver(lambda recipient: Person(addresses={"sms": "+1"} if recipient == "ann" else {}))
    app.notify("paid", ["ann", "bob"], {"title": "Order 7 is \x1b[31mpaid"}, key="order-7")
    app.tick()
    app.notify("late", "ann", {"n": 1})
    app.notify("nope", "ann", {"n": 2})
    ran = in_process(capsys)
    return lambda *arguments: ran("notifications", *arguments)


def lines(text: str) -> list[str]:
    return [" ".join(line.split()) for line in text.splitlines()]


def test_list_shows_what_happened_and_how_its_routes_stand(app: Durably, durably: command.Durably) -> None:
    ran = durably("list")
    ids = [one.id for one in app.notifications.list()]

    assert ran.code == 0
    assert lines(ran.out) == [
        "ID KIND ACCEPTED ROUTES KEY",
        f"{ids[0]} nope just now malformed",
        f"{ids[1]} late just now 1 pending",
        f"{ids[2]} paid just now 2 sent, 1 skipped, 1 dead order-7",
    ]
    assert len(lines(durably("list", "--kind", "paid").out)) == 2
    assert len(lines(durably("list", "--recipient", "bob").out)) == 2
    assert len(lines(durably("list", "--before", ids[0], "--limit", "1").out)) == 2
    assert durably("list", "--kind", "other").out == "No notifications match.\n"
    assert [one["kind"] for one in msgspec.json.decode(durably("list", "--json").out)] == ["nope", "late", "paid"]


def test_show_tells_why_each_route_stands_as_it_does(app: Durably, durably: command.Durably) -> None:
    paid = app.notifications.list(kind="paid")[0].id
    told = lines(durably("show", paid).out)

    assert told[0] == f"{paid} paid"
    assert told[1] == "key order-7"
    assert "\\u001b" in told[3]
    assert told[5:] == [
        "RECIPIENT CHANNEL STATE ATTEMPTS WHY",
        "ann inbox sent 1",
        "ann sms dead 1 permanent: no such number",
        "bob inbox sent 1",
        "bob sms skipped 1 no address for sms",
    ]
    assert msgspec.json.decode(durably("show", paid, "--json").out)["key"] == "order-7"


def test_show_tells_what_is_wrong_with_one_that_is_malformed(app: Durably, durably: command.Durably) -> None:
    bad = app.notifications.list(kind="nope")[0].id

    assert "It is malformed, and nobody gets it: nope: no such kind is declared" in durably("show", bad).out


@pytest.mark.parametrize("given", ["0190a5d1-ac96-774b-bcce-b302099a8057", "0000", "nonsense"])
def test_what_there_is_not_is_said(durably: command.Durably, given: str) -> None:
    ran = durably("show", given)

    assert (ran.code, ran.out) == (1, "")
    assert ran.err == f"durably: there is no notification '{given}'\n"


def test_a_beginning_that_several_have_is_not_enough(app: Durably, durably: command.Durably) -> None:
    ran = durably("show", app.notifications.list()[0].id[:4])

    assert ran.code == 1
    assert "is ambiguous: it could be" in ran.err


def test_routes_can_be_narrowed(durably: command.Durably) -> None:
    assert lines(durably("routes", "--state", "dead").out)[1:] == ["paid ann sms dead 1 permanent: no such number"]
    assert lines(durably("routes", "--recipient", "bob", "--channel", "inbox").out)[1:] == ["paid bob inbox sent 1"]
    assert lines(durably("routes", "--state", "pending").out)[1:] == ["late ann sms pending 0 in 59m"]
    assert durably("routes", "--state", "cancelled").out == "No routes match.\n"
    [dead] = msgspec.json.decode(durably("routes", "--state", "dead", "--json").out)
    assert (dead["kind"], dead["route"]["state"]) == ("paid", "dead")


def test_a_route_tells_what_has_become_of_its_mail(app: Durably, durably: command.Durably) -> None:
    app.mail.sender = "shop@here.example"
    app.mail.add_transport("main", "console:")
    app.notifications.kind("letter", ["mail"])
    app.notifications.resolver(lambda recipient: Person(addresses={"mail": f"{recipient}@x.example"}))
    ids = [app.notify("letter", who).id for who in ("ann", "bob", "cyd")]
    app.tick()
    mails = [app.mail.get(app.notifications.get(one).routes[0].via) for one in ids]
    app.handle(mails[0].task).cancel("nobody wants it")
    assert lines(durably("show", ids[2]).out)[-1] == f"cyd mail sent, mail waiting 1 {mails[2].id}"
    app.deliveries.channels["console"] = Picky(mails[1].task)
    app.drain()

    assert lines(durably("show", ids[0]).out)[-1] == f"ann mail sent, mail cancelled 1 nobody wants it {mails[0].id}"
    assert lines(durably("show", ids[1]).out)[-1] == f"bob mail sent, mail dead 1 permanent: not there {mails[1].id}"
    assert lines(durably("show", ids[2]).out)[-1] == f"cyd mail sent 1 {mails[2].id}"
    dead = lines(durably("routes", "--state", "dead", "--kind", "letter").out)[1:]
    assert [line.split()[1] for line in dead] == ["bob"]
    told = [line.split()[-1] for line in lines(durably("list", "--kind", "letter").out)[1:]]
    assert told == ["sent", "dead", "cancelled"]


class Picky:
    """A transport that refuses one mail."""

    def __init__(self, task: str) -> None:
        self._task = task

    async def deliver(self, delivery: Delivery) -> Outcome:
        refused = delivery.task == self._task
        return Outcome(kind=Kind.PERMANENT, reason="not there") if refused else Outcome(kind=Kind.OK)


def test_an_inbox_shows_what_is_new(app: Durably, durably: command.Durably) -> None:
    [entry] = app.notifications.inbox.list("ann")
    assert lines(durably("inbox", "ann").out) == [
        "ID SINCE KIND TITLE",
        f"{entry.id} new just now paid Order 7 is \\x1b[31mpaid",
        "",
        "The inbox of ann has 1 in it, 1 unread.",
    ]
    app.notifications.inbox.archive_all("ann")
    assert lines(durably("inbox", "ann").out) == ["The inbox of ann has 0 in it, 0 unread."]
    assert "archived" in durably("inbox", "ann", "--archived").out
    assert durably("inbox", "zoe").out == "The inbox of zoe has 0 in it, 0 unread.\n"
    data = msgspec.json.decode(durably("inbox", "bob", "--unread", "--json").out)
    assert (data["counts"], len(data["entries"])) == ({"entries": 1, "unread": 1}, 1)


@pytest.mark.parametrize("limit", ["0", "-3", "some"])
@pytest.mark.parametrize("what", [["list"], ["routes"], ["inbox", "ann"]], ids=lambda what: what[0])
def test_a_limit_must_let_something_through(durably: command.Durably, what: list[str], limit: str) -> None:
    ran = durably(*what, "--limit", limit)

    assert (ran.code, ran.out) == (2, "")
    assert f"argument --limit: '{limit}' must be a number from 1 to 999999999" in ran.err
