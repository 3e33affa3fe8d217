"""What `durably destinations` says and does, on every store."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from textwrap import dedent
from typing import Any

import msgspec
import pytest

from durably import Durably
from durably.cli.report import (
    Reported,
    Waiting,
    as_data,
    as_table,
    as_text,
    may_have_arrived,
    next_try,
    report_text,
    standing,
)
from durably.core.delivery import DAY, Condition, Kind, Outcome, Rules, Standing
from durably.core.moment import moment
from durably.deliveries.channel import Delivery
from durably.deliveries.deliveries import DeliveryInfo
from durably.deliveries.destinations import DestinationInfo
from durably.deliveries.vault import new_key
from tests.support import command
from tests.support.command import in_process, run

HOOK = "https://acme.example/hooks"
OK = Outcome(kind=Kind.OK, status=204)
BROKEN = Outcome(kind=Kind.TRANSIENT, reason="500 Internal\x1b[2J Server Error", breaks=True)
THROTTLED = Outcome(kind=Kind.THROTTLED, reason="429 Too Many Requests", retry_after=7200)
UNKNOWN = Outcome(kind=Kind.UNKNOWN, reason="the answer never came")
REFUSED = Outcome(kind=Kind.PERMANENT, reason="501 Not Implemented")


class Post:
    """A channel that answers as it is told, by the name of the destination."""

    def __init__(self) -> None:
        self.answers: dict[str, Outcome] = {}

    async def deliver(self, delivery: Delivery) -> Outcome:
        return self.answers.get(delivery.destination.name, OK)


class Sender:
    """An application with that channel."""

    def __init__(self, app: Durably) -> None:
        self.app = app
        self.post = Post()
        self.deliveries = app.deliveries
        self.deliveries.channels["post"] = self.post

    def peers(self, *names: str, **options: Any) -> None:
        for name in names:
            self.deliveries.destinations.add(name, f"post:{name}", channel="post", **options)

    def publish(self, *names: str) -> str:
        return self.deliveries.publish("order.paid", {"order": "o-1"}, list(names)).id


@pytest.fixture
def durably(
    tmp_path: Path, app: Durably, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> command.Durably:
    """The command, in a folder of its own, on the store of `app`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "")
    monkeypatch.setenv("DURABLY_SECRETS_KEY", new_key())
    monkeypatch.setenv("DURABLY_STORE", app.store.address)
    ran = in_process(capsys)
    return lambda *arguments: ran("destinations", *arguments)


@pytest.fixture
def sender(app: Durably, durably: command.Durably) -> Sender:
    return Sender(app)


def lines(text: str) -> list[list[str]]:
    """A table as rows of cells; two blanks or more are between cells."""
    return [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in text.splitlines()]


# --- add and set ---


def test_adding_a_webhook_shows_its_new_secret_and_how_to_see_it_again(durably: command.Durably) -> None:
    ran = durably("add", "the shop", HOOK)

    [secret] = durably("show", "the shop", "--secrets", "--json").data["secrets"]
    assert ran.out.startswith(f"Destination the shop is added: webhook to {HOOK}.\n")
    assert f"  secret  {secret}\n" in ran.out
    assert secret.startswith("whsec_")
    assert "`durably destinations show 'the shop' --secrets` shows it too" in ran.out
    assert (ran.code, ran.err) == (0, "")


def test_adding_for_programs_answers_with_every_field_and_the_new_secret(durably: command.Durably) -> None:
    added = durably("add", "acme", HOOK, "--json").data

    assert added["secret"].startswith("whsec_")
    assert added["rules"] == msgspec.structs.asdict(Rules()) | {"schedule": [30.0, 300.0, 1800.0, 21600.0, 86400.0]}
    assert added["condition"]["standing"] == "active"
    assert added["condition"]["until"] is None
    assert (added["name"], added["channel"], added["address"], added["signed"]) == ("acme", "webhook", HOOK, True)


@pytest.mark.parametrize("by", ["argument", "stdin"])
def test_a_secret_that_is_given_is_kept_and_not_repeated(
    durably: command.Durably, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    secret = "whsec_" + "QUJD" * 8
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{secret}\n"))

    ran = durably("add", "acme", HOOK, "--secret", secret if by == "argument" else "-")

    assert ran.out == f"Destination acme is added: webhook to {HOOK}.\n"
    assert durably("show", "acme", "--secrets", "--json").data["secrets"] == [secret]


def test_an_empty_secret_is_a_misuse(durably: command.Durably, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("\n"))

    for text in ("", "-"):
        ran = durably("add", "acme", HOOK, "--secret", text)
        assert (ran.code, ran.out) == (2, "")
        assert "--secret: it is empty" in ran.err
    assert durably("list", "--json").data == []


def test_every_rule_can_be_chosen_and_changed(durably: command.Durably, sender: Sender) -> None:
    def rules(text: str) -> list[str]:
        names = text.split()
        return [word for name, value in zip(names[::2], names[1::2], strict=True) for word in (f"--{name}", value)]

    durably("add", "acme", HOOK, *rules("order unordered policy pause schedule 1s,2m jitter 0.5 timeout 3s"))
    durably("set", "acme", *rules("concurrency 4 rate 300/m expires 1h breaker 6 cooldown 7s"))

    found = sender.deliveries.destinations.get("acme").rules
    assert found == Rules("unordered", (1.0, 120.0), 3.0, 4, 5.0, "pause", 3600.0, 6, 7.0, 0.5)

    durably("set", "acme", "--rate", "none", "--schedule", "none", "--order", "fifo")

    found = sender.deliveries.destinations.get("acme").rules
    assert (found.rate, found.schedule, found.order, found.timeout) == (None, (), "fifo", 3.0)


def test_set_says_what_holds_then(durably: command.Durably) -> None:
    durably("add", "acme", HOOK)

    ran = durably("set", "acme", "--address", f"{HOOK}/2", "--rate", "20/s", "--schedule", "none")

    assert ran.out.startswith("Destination acme is changed.\n\n")
    for line in (
        f"address      {HOOK}/2",
        "rate         20/s",
        "schedule     none: one attempt only",
        "policy       block",
    ):
        assert f"  {line}\n" in ran.out
    assert "  order        unordered\n  concurrency  10\n" in durably("set", "acme", "--order", "unordered").out
    assert "holds for what is published from now on" in durably("set", "acme", "--order", "fifo").out
    assert durably("set", "acme", "--timeout", "9s", "--json").data["rules"]["timeout"] == 9.0


def test_set_without_anything_to_change_is_a_misuse(durably: command.Durably) -> None:
    durably("add", "acme", HOOK)

    ran = durably("set", "acme")

    assert (ran.code, ran.out) == (2, "")
    assert "what should change?" in ran.err


def test_a_value_that_makes_no_sense_is_explained(durably: command.Durably) -> None:
    assert "schedule: '3x' is not a duration" in durably("add", "acme", HOOK, "--schedule", "3x").err
    assert "breaker: 0 must be a whole number" in durably("add", "acme", HOOK, "--breaker", "0").err
    assert durably("add", "acme", HOOK, "--timeout", "soon").code == 1
    assert durably("add", "acme", HOOK, "--order", "random").code == 2
    assert durably("list", "--json").data == []


def test_a_name_that_is_taken_is_refused(durably: command.Durably) -> None:
    durably("add", "acme", HOOK)

    ran = durably("add", "acme", f"{HOOK}/2")

    assert (ran.code, ran.out) == (1, "")
    assert "there is a destination 'acme' already" in ran.err


def test_an_address_that_the_guard_refuses_is_explained_with_the_way_out(durably: command.Durably) -> None:
    durably("add", "acme", HOOK)

    for ran in (durably("add", "own", "https://10.0.0.1/"), durably("set", "acme", "--address", "https://10.0.0.1/")):
        assert (ran.code, ran.out) == (1, "")
        assert "10.0.0.1 leads to a private network" in ran.err
        assert "--app module:app" in ran.err
    assert durably("show", "acme", "--json").data["address"] == HOOK


def test_without_a_key_no_secret_is_kept(durably: command.Durably, monkeypatch: pytest.MonkeyPatch) -> None:
    durably("add", "acme", HOOK)
    monkeypatch.delenv("DURABLY_SECRETS_KEY")

    for ran in (durably("add", "other", HOOK), durably("rotate", "acme"), durably("show", "acme", "--secrets")):
        assert (ran.code, ran.out) == (1, "")
        assert "set DURABLY_SECRETS_KEY" in ran.err
    assert durably("show", "acme").code == 0
    assert durably("add", "other", "post:other", "--channel", "post").code == 0


def test_a_channel_that_is_not_known_here_is_noted(durably: command.Durably) -> None:
    added = durably("add", "acme", "mailto:acme", "--channel", "emial")
    changed = durably("set", "acme", "--channel", "email")

    assert "durably: this command has no channel named 'emial'" in added.err
    assert "--app module:app uses those of your application" in added.err
    assert added.out == "Destination acme is added: emial to mailto:acme.\n"
    assert "no channel named 'email'" in changed.err
    assert durably("set", "acme", "--timeout", "9s").err == ""


# --- list and show ---


def test_list_shows_how_everyone_stands_and_when_they_are_tried_again(durably: command.Durably, sender: Sender) -> None:
    sender.peers("busy", "fine", "shut")
    sender.post.answers["busy"] = THROTTLED
    sender.publish("busy", "fine")
    sender.app.drain()
    durably("pause", "shut", "--reason", "they are moving")

    headings, busy, fine, shut = lines(durably("list").out)
    assert headings == ["NAME", "CHANNEL", "STANDING", "NEXT TRY", "REASON"]
    assert busy[:3] == ["busy", "post", "throttled"]
    assert busy[3].startswith("in ")
    assert busy[4] == "429 Too Many Requests"
    assert fine == ["fine", "post", "active"]
    assert shut == ["shut", "post", "disabled", "once resumed", "they are moving"]
    until = datetime.fromisoformat(durably("list", "--json", "--limit", "1").data[0]["condition"]["until"])
    assert until > datetime.now(UTC) + timedelta(hours=1)


def test_list_can_be_narrowed(durably: command.Durably, sender: Sender) -> None:
    assert "No destinations. Add one with" in durably("list").out
    sender.peers("a", "b", "c")
    durably("pause", "b")

    def found(*options: str) -> list[str]:
        return [one["name"] for one in durably("list", "--json", *options).data]

    assert found() == ["a", "b", "c"]
    assert found("--standing", "disabled") == ["b"]
    assert found("--after", "a") == ["b", "c"]
    assert found("--limit", "2") == ["a", "b"]
    for limit in ("0", "-1"):
        assert f"argument --limit: '{limit}' must be a number from 1" in durably("list", "--limit", limit).err
    assert durably("list", "--standing", "gone").out == "No destinations match.\n"


def test_a_list_that_is_cut_short_says_how_to_go_on(
    durably: command.Durably, sender: Sender, monkeypatch: pytest.MonkeyPatch
) -> None:
    sender.peers("the first", "the second")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)

    assert "--after 'the first' the next ones" in durably("list", "--limit", "1").err
    assert durably("list", "--limit", "3").err == ""


def test_another_namespace_has_its_own_destinations(durably: command.Durably) -> None:
    durably("add", "acme", HOOK, "--namespace", "tenant")

    assert durably("list", "--json").data == []
    assert [one["name"] for one in durably("list", "--json", "--namespace", "tenant").data] == ["acme"]


def test_show_tells_the_rules_and_what_waits_with_its_failures(durably: command.Durably, sender: Sender) -> None:
    sender.peers("acme", rate="5/m", jitter=0.25)
    sender.post.answers["acme"] = BROKEN
    sender.publish("acme")
    sender.app.drain()
    sender.publish("acme")

    ran = durably("show", "acme")
    data = durably("show", "acme", "--json").data

    assert ran.out.startswith("acme  post  active\n  address      post:acme\n  signed       no\n")
    assert "  rate         5/m\n  schedule     30s, 5m, 30m, 6h, 1d\n  jitter       up to 25% later\n" in ran.out
    assert "It is active; its last attempt failed.\n" in ran.out
    assert "Waiting for it, 2 messages, the oldest first:\n" in ran.out
    headings, first, second = lines(ran.out)[-3:]
    assert headings == ["ID", "STATE", "TRIES", "NEXT TRY", "LAST FAILURE"]
    assert first[:3] == [data["waiting"][0]["id"], "waiting", "1"]
    assert first[3].startswith("in ")
    assert first[4] == "500 Internal\\x1b[2J Server Error"
    assert second == [data["waiting"][1]["id"], "waiting", "0", "in its turn"]


def test_show_tells_when_nothing_waits_and_shows_no_more_than_the_first_few(
    durably: command.Durably, sender: Sender
) -> None:
    sender.peers("acme")
    assert durably("show", "acme").out.endswith("It is active.\n\nNothing waits for it.\n")

    for _ in range(10):
        sender.publish("acme")
    assert "Waiting for it, 10 messages, the oldest first:\n" in durably("show", "acme").out
    sender.publish("acme")

    assert "Waiting for it, the first 10:\n" in durably("show", "acme").out
    assert len(durably("show", "acme", "--json").data["waiting"]) == 10


def test_secrets_are_shown_only_to_who_asks(durably: command.Durably) -> None:
    durably("add", "acme", HOOK)
    old = durably("show", "acme", "--secrets", "--json").data["secrets"][0]
    durably("rotate", "acme")
    new = durably("show", "acme", "--secrets", "--json").data["secrets"][0]

    assert f"  secret       {new}\n  old secret   {old}\n" in durably("show", "acme", "--secrets").out
    for ran in (durably("show", "acme"), durably("show", "acme", "--json"), durably("list", "--json")):
        assert "whsec_" not in ran.out
    assert "secrets" not in durably("show", "acme", "--json").data


@pytest.mark.parametrize("name", ["show", "set", "pause", "resume", "rotate", "retire", "forget"])
def test_a_destination_that_is_not_known_is_called_so(durably: command.Durably, name: str) -> None:
    given = {"set": ["--timeout", "9s"], "forget": ["--yes"]}.get(name, [])

    ran = durably(name, "nobody", *given)

    assert (ran.code, ran.out) == (1, "")
    assert "there is no destination 'nobody'" in ran.err


# --- pause, resume, secrets, forget ---


def test_what_is_paused_waits_until_it_is_resumed(durably: command.Durably, sender: Sender) -> None:
    sender.peers("the shop")
    paused = durably("pause", "the shop")
    message = sender.publish("the shop")
    sender.app.drain()

    assert "waits until `durably destinations resume 'the shop'`" in paused.out
    shown = durably("show", "the shop").out
    assert "It is disabled: paused by an operator. Everything waits until" in shown
    assert "once resumed" in shown

    assert durably("resume", "the shop").out == "Destination the shop is active: what waits for it is due now.\n"
    sender.app.drain()
    assert durably("report", message, "--json").data["deliveries"][0]["outcome"] == "delivered"
    assert durably("pause", "the shop", "--json").data["condition"]["standing"] == "disabled"


def test_two_secrets_sign_until_the_old_one_is_retired(durably: command.Durably) -> None:
    first = durably("add", "acme", HOOK, "--json").data["secret"]

    rotated = durably("rotate", "acme")
    both = durably("show", "acme", "--secrets", "--json").data["secrets"]
    retired = durably("retire", "acme")

    assert both[1] == first
    assert f"  secret  {both[0]}\n" in rotated.out
    assert "`durably destinations retire acme`" in rotated.out
    assert retired.out == "Destination acme is signed for with its newest secret only.\n"
    assert durably("show", "acme", "--secrets", "--json").data["secrets"] == both[:1]
    assert durably("rotate", "acme", "--json").data["secret"].startswith("whsec_")


def test_a_first_secret_has_no_old_one_beside_it(durably: command.Durably, sender: Sender) -> None:
    sender.peers("acme")
    given = "whsec_" + "QUJD" * 8

    assert durably("retire", "acme").out == "Destination acme has no secret: there is none to retire.\n"
    assert durably("rotate", "acme", "--secret", given).out == "Destination acme has a new secret.\n"
    assert durably("rotate", "acme", "--secret", given, "--json").data == {"name": "acme", "secret": None}


def test_forgetting_asks_first(durably: command.Durably, sender: Sender, monkeypatch: pytest.MonkeyPatch) -> None:
    sender.peers("acme")
    sender.publish("acme")
    questions: list[str] = []

    def reply(word: str) -> Callable[[str], str]:
        def replied(question: str) -> str:
            questions.append(question)
            return word

        return replied

    assert durably("forget", "acme").code == 2
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("builtins.input", reply("n"))
    assert durably("forget", "acme", "--json").code == 2
    refused = durably("forget", "acme")
    assert (refused.code, refused.err) == (1, "durably: nothing was forgotten\n")
    assert durably("show", "acme").code == 0

    monkeypatch.setattr("builtins.input", reply("y"))
    assert durably("forget", "acme").out == (
        "Forgot destination acme. What waited for it becomes dead letters: 1 message.\n"
    )
    assert durably("show", "acme").code == 1
    question = "Forget destination acme, with its secrets? What waits for it becomes dead letters: 1 message. [y/N] "
    assert questions == [question, question]


def test_forgetting_can_be_told_not_to_ask(durably: command.Durably, sender: Sender) -> None:
    sender.peers("a", "b")

    assert durably("forget", "a", "--yes").out == "Forgot destination a.\n"
    assert durably("forget", "b", "--yes", "--json").data["name"] == "b"
    assert durably("list", "--json").data == []


# --- report ---


def test_a_report_says_who_got_it_who_did_not_and_why(durably: command.Durably, sender: Sender) -> None:
    names = ["arrived", "broken", "busy", "doubtful", "lost", "refused", "shut"]
    sender.peers(*names)
    sender.post.answers = {"broken": BROKEN, "busy": THROTTLED, "doubtful": UNKNOWN, "refused": REFUSED}
    durably("pause", "shut", "--reason", "moving")
    durably("pause", "lost")
    message = sender.publish(*names)
    sender.app.drain()
    sender.deliveries.destinations.forget("lost")

    ran = durably("report", message)
    head, _, headings, *rows = lines(ran.out)[:10]
    found = {row[0]: row[1:] for row in rows}

    assert head == [f"Message {message}: delivered to 1 of 7 destinations."]
    assert headings == ["DESTINATION", "OUTCOME", "TRIES", "WHEN", "REASON"]
    assert found["arrived"][:2] == ["delivered", "1"]
    assert len(found["arrived"]) == 3
    assert found["broken"][:2] == ["waiting", "1"]
    assert found["broken"][2].startswith("in ")
    assert found["broken"][3] == "500 Internal\\x1b[2J Server Error"
    assert found["busy"][:2] == ["waiting", "0"]
    assert found["busy"][3] == "throttled: 429 Too Many Requests"
    assert found["doubtful"][0] == "waiting, may have arrived"
    assert found["doubtful"][3] == "unknown: the answer never came"
    assert found["refused"][0] == "dead"
    assert found["refused"][3] == "permanent: 501 Not Implemented"
    assert found["shut"] == ["waiting", "0", "once resumed", "disabled: moving"]
    assert found["lost"][3] == "the destination is not known any more"
    assert "every try has the same message id" in ran.out


def test_a_report_for_programs_has_the_same_facts(durably: command.Durably, sender: Sender) -> None:
    sender.peers("arrived", "doubtful", "shut")
    sender.post.answers["doubtful"] = UNKNOWN
    durably("pause", "shut", "--reason", "moving")
    message = sender.publish("arrived", "doubtful", "shut")
    sender.app.drain()

    data = durably("report", message, "--json").data
    found = {one.pop("destination"): one for one in data["deliveries"]}

    assert data["message"] == message
    assert {name: one["outcome"] for name, one in found.items()} == {
        "arrived": "delivered",
        "doubtful": "waiting",
        "shut": "waiting",
    }
    assert [name for name, one in found.items() if one["possible_duplicate"]] == ["doubtful"]
    assert (found["shut"]["standing"], found["shut"]["reason"]) == ("disabled", "disabled: moving")
    assert (found["arrived"]["standing"], found["arrived"]["reason"]) == (None, None)
    assert found["arrived"]["info"]["id"] == found["arrived"]["task"]


def test_what_may_have_arrived_before_is_marked_when_it_is_delivered(durably: command.Durably, sender: Sender) -> None:
    sender.peers("acme", schedule=[0])
    sender.post.answers["acme"] = UNKNOWN
    message = sender.publish("acme")
    sender.app.tick()
    sender.post.answers.clear()
    sender.app.drain()

    assert "delivered, maybe twice" in durably("report", message).out
    assert durably("report", message, "--json").data["deliveries"][0]["possible_duplicate"] is True


def test_a_message_that_everyone_has_needs_no_explanation(durably: command.Durably, sender: Sender) -> None:
    sender.peers("acme")
    message = sender.publish("acme")
    sender.app.drain()

    ran = durably("report", message.upper())

    assert f"Message {message}: delivered to 1 of 1 destination.\n" in ran.out
    assert "in doubt" not in ran.out.lower()


def test_a_message_that_is_not_known_is_called_so(durably: command.Durably, sender: Sender) -> None:
    sender.peers("acme")
    message = sender.publish("acme")

    for given, complaint in (
        ("nonsense", "'nonsense' is not the id of a message"),
        ("01890a5d-ac96-774b-bcce-b302099a8057", "there is no message 01890a5d-ac96-774b-bcce-b302099a8057"),
    ):
        ran = durably("report", given)
        assert (ran.code, ran.out) == (1, "")
        assert complaint in ran.err
    assert "another namespace than 'tenant'" in durably("report", message, "--namespace", "tenant").err


# --- the words, whatever the condition ---


def peer(condition: Condition) -> DestinationInfo:
    return DestinationInfo("acme", "webhook", HOOK, Rules(), condition, True)


def soon() -> int:
    """More than two days from now, and less than three however long the tests take."""
    return moment(datetime.now(UTC) + timedelta(days=2, hours=12))


@pytest.mark.parametrize(
    ("condition", "told"),
    [
        (Condition(), "It is active."),
        (Condition(failures=3), "It is active; its last 3 attempts failed."),
        (Condition(failures=3, unreachable=(1, 2)), "its last 3 attempts failed. Nobody answered on 2 different days."),
        (
            Condition(reason="500", failures=5, breaker="open", until=soon()),
            "Its breaker is open after 5 failures in a",
        ),
        (Condition(reason="500", failures=5, breaker="open", until=soon()), "row: 500. The next try is at 2"),
        (Condition(reason="500", failures=5, breaker="open", until=1), "in a row: 500. The next try is due."),
        (Condition(reason="500", failures=5, breaker="half-open", probe="t-1"), "500; task t-1 tries whether the peer"),
        (Condition(Standing.THROTTLED, "429", soon()), "It is throttled: 429. The next try is at 2"),
        (Condition(Standing.SUSPENDED, "refused", 1), "It is suspended: refused. The next try is due."),
        (
            Condition(Standing.DISABLED, "410"),
            "It is disabled: 410. Everything waits until `durably destinations resume",
        ),
        (Condition(Standing.GONE, "refused"), "It is gone: refused. What waits becomes dead letters; `durably"),
    ],
)
def test_how_a_destination_stands_is_said_in_a_sentence(condition: Condition, told: str) -> None:
    assert told in standing(peer(condition))


@pytest.mark.parametrize(
    ("condition", "row"),
    [
        (Condition(failures=3, reason="500"), ["acme", "webhook", "active"]),
        (Condition(reason="500", breaker="open", until=soon()), ["acme", "webhook", "breaker open", "in 2d", "500"]),
        (Condition(reason="500", breaker="open", until=1), ["acme", "webhook", "breaker open", "due", "500"]),
        (Condition(Standing.SUSPENDED, "no", soon()), ["acme", "webhook", "suspended", "in 2d", "no"]),
        (Condition(Standing.GONE, "no"), ["acme", "webhook", "gone", "never", "no"]),
    ],
)
def test_how_a_destination_stands_is_said_in_a_line(condition: Condition, row: list[str]) -> None:
    assert lines(as_table([peer(condition)]))[1] == row


def test_programs_get_moments_and_days_as_iso_dates() -> None:
    day = moment(datetime(2026, 11, 16, tzinfo=UTC)) // DAY
    condition = Condition(until=day * DAY, unreachable=(day,), learned="cavage")

    data = msgspec.json.decode(msgspec.json.encode(as_data(peer(condition))))["condition"]

    assert (data["until"], data["unreachable"], data["sent_at"]) == ("2026-11-16T00:00:00Z", ["2026-11-16"], None)
    assert "  learned      cavage" in as_text(peer(condition), [], more=False)


def test_a_delivery_is_tried_when_both_it_and_its_destination_may(app: Durably, sender: Sender) -> None:
    sender.peers("acme")
    sender.publish("acme")
    [task] = sender.deliveries.destinations.pending("acme")
    later = msgspec.structs.replace(task, due_at=datetime.now(UTC) + timedelta(days=4, hours=12))
    running = msgspec.structs.replace(later, state="leased")

    assert next_try(task, Condition()) == "in its turn"
    assert next_try(task, Condition(until=soon())) == "in 2d"
    assert next_try(later, Condition(until=soon())) == "in 4d"
    assert next_try(later, None) == "in 4d"
    assert next_try(later, Condition(Standing.GONE)) == "never"
    assert next_try(running, Condition(Standing.DISABLED)) == "now"
    assert "under way" in as_text(peer(Condition()), [Waiting(running)], more=False)


def test_a_process_that_died_may_have_delivered(app: Durably, sender: Sender) -> None:
    sender.peers("acme")
    sender.publish("acme")
    [task] = sender.deliveries.destinations.pending("acme")

    assert not may_have_arrived(task, [])
    assert may_have_arrived(msgspec.structs.replace(task, crashes=1), [])
    assert not may_have_arrived(msgspec.structs.replace(task, crashes=1, state="done", result="(unreadable)"), [])


def test_a_delivery_whose_history_is_gone_is_still_listed() -> None:
    told = report_text("m-1", [Reported(DeliveryInfo("acme", "t-1", None))])

    assert "delivered to 0 of 1 destination." in told
    assert lines(told)[-1] == ["acme", "forgotten", "its retention has passed"]


# --- flush and probe, as processes of their own, with an application that tells the channel's answer by a file ---

SHOP = dedent("""
    from pathlib import Path

    from durably import Durably
    from durably.core.delivery import Kind, Outcome

    app = Durably("sqlite:///durably.db")

    class Post:
        async def deliver(self, delivery):
            kind = Path("answer").read_text()
            return Outcome(kind=Kind(kind), reason=f"the peer is {kind}", retry_after=7200)

    app.deliveries.channels["post"] = Post()
""")


class Flushing:
    """A folder with that application, in which commands are run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "shop.py").write_text(SHOP)
        self.app = Durably(f"sqlite:///{folder}/durably.db")
        self.app.migrate()
        self.sender = Sender(self.app)

    def answers(self, kind: Kind) -> None:
        (self.folder / "answer").write_text(kind)

    def __call__(self, *arguments: str) -> command.Ran:
        return run(self.folder, "destinations", *arguments, "--app", "shop:app")


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Flushing]:
    monkeypatch.setenv("DURABLY_SECRETS_KEY", new_key())
    monkeypatch.delenv("DURABLY_STORE", raising=False)
    made = Flushing(tmp_path)
    yield made
    made.app.close()


def test_flush_delivers_what_is_due_and_by_force_what_is_not(shop: Flushing) -> None:
    shop.sender.peers("acme")
    assert shop("flush", "acme").out == "Destination acme: nothing waits.\n"
    first, second = shop.sender.publish("acme"), shop.sender.publish("acme")

    shop.answers(Kind.TRANSIENT)
    assert shop("flush", "acme").out == "Destination acme: 2 waiting. It is active.\n"
    shop.answers(Kind.OK)
    assert "2 waiting" in shop("flush", "acme").out
    flushed = shop("flush", "acme", "--force", "--json")

    tasks = [shop.sender.deliveries.report(message)[0].task for message in (first, second)]
    assert flushed.data == {"name": "acme", "delivered": tasks, "waiting": [], "ended": []}
    assert (flushed.code, flushed.err) == (0, "")


def test_flush_counts_what_can_never_be_delivered_and_says_why_the_rest_waits(shop: Flushing) -> None:
    shop.sender.peers("acme")
    shop.sender.publish("acme")

    shop.answers(Kind.PERMANENT)
    assert shop("flush", "acme").out == "Destination acme: 1 dead or cancelled.\n"
    shop.sender.publish("acme")
    shop.answers(Kind.THROTTLED)
    assert "1 waiting. It is throttled: the peer is throttled. The next try is at" in shop("flush", "acme").out


def test_probe_tries_the_first_message_and_says_how_the_peer_stands(shop: Flushing) -> None:
    shop.sender.peers("acme")
    nothing = shop("probe", "acme", "--json").data
    shop.sender.publish("acme")
    shop.sender.publish("acme")

    shop.answers(Kind.TRANSIENT)
    failed = shop("probe", "acme")
    shop.answers(Kind.OK)
    delivered = shop("probe", "acme")
    left = len(shop.sender.deliveries.destinations.pending("acme"))
    tried = shop("probe", "acme", "--json").data

    assert nothing["tried"] is None
    assert failed.out == "Destination acme: its first message is waiting. It is active.\n"
    assert delivered.out == "Destination acme: its first message is delivered. It is active.\n"
    assert left == 1
    assert (tried["tried"]["state"], tried["condition"]["standing"]) == ("done", "active")
    assert "nothing waits, so that there is nothing to try with" in shop("probe", "acme").out


@pytest.mark.parametrize("name", ["flush", "probe"])
def test_delivering_needs_the_application_its_channel_and_its_keys(
    shop: Flushing, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    shop.sender.peers("signed", secret="whsec_" + "QUJD" * 8)
    shop.sender.deliveries.destinations.add("quill", "desk", channel="quill")
    shop.sender.publish("signed", "quill")

    without = run(shop.folder, "destinations", name, "signed")
    assert (without.code, without.out) == (2, "")
    assert "add --app module:app" in without.err
    channel = shop(name, "quill")
    assert (channel.code, channel.out) == (1, "")
    assert "shop:app has no channel named 'quill'" in channel.err
    assert "there is no destination 'nobody'" in shop(name, "nobody").err

    monkeypatch.delenv("DURABLY_SECRETS_KEY")
    keyless = shop(name, "signed")
    assert (keyless.code, keyless.out) == (1, "")
    assert "set DURABLY_SECRETS_KEY" in keyless.err
    assert shop.sender.deliveries.destinations.get("signed").standing == "active"
