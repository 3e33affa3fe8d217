"""What `durably mail` says and does, on every store."""

from __future__ import annotations

import asyncio
import io
import sys
from collections.abc import Mapping, Sequence
from email.message import EmailMessage
from itertools import takewhile
from pathlib import Path
from random import Random
from textwrap import dedent
from typing import Any, get_args

import pytest

from durably import Durably
from durably.cli import mail
from durably.core.ids import Ids
from durably.core.moment import HostClock
from durably.deliveries import new_key
from durably.mail.info import STATES
from durably.mail.suppressions import Cause
from tests.support import command
from tests.support.command import in_process
from tests.support.smtp import CLOSE, Script

ANN, BOB, CYD = "ann@x.example", "bob@x.example", "cyd@x.example"
SERVER = "smtp://mail.example"
RULE = "-" * 72


@pytest.fixture
def durably(
    tmp_path: Path, app: Durably, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> command.Durably:
    """The command, in a folder of its own, on the store of `app`."""
    app.mail.sender = "Shop <shop@here.example>"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "")
    monkeypatch.setenv("DURABLY_SECRETS_KEY", new_key())
    monkeypatch.setenv("DURABLY_STORE", app.store.address)
    ran = in_process(capsys)
    return lambda *arguments: ran("mail", *arguments)


def deliver(app: Durably, *mails: Mapping[str, Any], **answers: Sequence[str]) -> list[str]:
    """Send mails, each by one attempt, through a server that answers so; their ids."""
    server = Script(answers)
    sent: list[str] = []

    async def whole() -> None:
        async with server.listening() as port:
            await app.mail.aadd_transport("main", f"smtp://127.0.0.1:{port}?tls=none", schedule=["2d"], jitter=0)
            for options in mails:
                sent.append((await app.mail.asend(**{"subject": "Hello", "text": "x", **options})).id)
                await app.atick()
            await app.aclose()

    asyncio.run(whole())
    return sent


def lines(text: str) -> list[list[str]]:
    """A table as rows of cells; two blanks or more are between cells."""
    return [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in text.splitlines()]


def test_what_can_be_chosen_is_what_there_is() -> None:
    assert tuple(STATES) == mail.STATES
    assert get_args(Cause) == mail.CAUSES


def test_the_concurrency_that_help_names_is_the_one_that_holds(app: Durably, durably: command.Durably) -> None:
    durably("transport", "main", SERVER)

    holds = app.deliveries.destinations.get("main").rules.concurrency
    assert f"so many mails at once ({holds})" in " ".join(durably("transport", "--help").out.split())


@pytest.mark.parametrize("limit", ["0", "-3", "1.5", "9" * 30])
@pytest.mark.parametrize("what", ["list", "suppressions"])
def test_a_limit_must_let_something_through(durably: command.Durably, what: str, limit: str) -> None:
    ran = durably(what, "--limit", limit)

    assert (ran.code, ran.out) == (2, "")
    assert f"argument --limit: '{limit}' must be a number from 1 to 999999999" in ran.err


# --- list ---


def test_list_shows_the_newest_first_and_to_whom_they_go(app: Durably, durably: command.Durably) -> None:
    ids = deliver(
        app,
        {"to": ANN, "subject": "Hello\x9b2J", "key": "order-7"},
        {"to": [ANN, BOB], "cc": CYD, "subject": "News"},
        {"to": ANN, "cc": BOB, "subject": "More"},
        RCPT=["550 5.7.1 no"],
    )

    headings, *rows = lines(durably("list").out)

    assert headings == ["ID", "STATE", "ACCEPTED", "TO", "SUBJECT", "TRANSPORT", "KEY"]
    assert [[*row[:2], *row[3:]] for row in rows] == [
        [ids[2], "sent", f"{ANN} +1", "More", "main"],
        [ids[1], "sent", f"{ANN} +2", "News", "main"],
        [ids[0], "dead", ANN, "Hello\\x9b2J", "main", "order-7"],
    ]
    newest, _, oldest = durably("list", "--json").data
    assert (newest["id"], newest["about"]["recipients"], oldest["key"]) == (ids[2], 2, "order-7")


def test_list_can_be_narrowed(app: Durably, durably: command.Durably) -> None:
    assert durably("list").out == "No mails match.\n"
    ids = deliver(app, {"to": ANN}, {"to": BOB}, {"to": CYD}, RCPT=["250 fine", "550 5.7.1 no", "450 4.2.0 later"])

    def found(*options: str) -> list[int]:
        return [ids.index(one["id"]) for one in durably("list", "--json", *options).data]

    assert found() == [2, 1, 0]
    assert [found("--state", state) for state in ("sent", "dead", "waiting", "cancelled")] == [[0], [1], [2], []]
    assert found("--before", ids[2]) == found("--before", ids[2][:-1]) == [1, 0]
    assert found("--before", ids[2], "--limit", "1") == [1]
    assert durably("list", "--state", "gone").code == 2
    assert "there is no mail 'nonsense'" in durably("list", "--before", "nonsense").err


def test_a_list_that_is_cut_short_says_how_to_go_on(
    app: Durably, durably: command.Durably, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = deliver(app, {"to": ANN}, {"to": BOB})
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)

    assert f"--before {ids[1]} the next ones" in durably("list", "--limit", "1").err
    assert durably("list", "--limit", "3").err == ""


def test_another_namespace_has_its_own_mails(app: Durably, durably: command.Durably) -> None:
    [id] = deliver(app, {"to": ANN})

    assert durably("list", "--json", "--namespace", "tenant").data == []
    assert durably("show", id, "--namespace", "tenant").code == 1


class Reversed:
    """A codec that the command does not have."""

    def encode(self, data: bytes) -> bytes:
        return data[::-1]

    def decode(self, data: bytes) -> bytes:
        return data[::-1]


def test_what_takes_the_codec_of_the_application_is_called_so(app: Durably, durably: command.Durably) -> None:
    with Durably(app.store, codec=Reversed()) as sealed:
        sealed.mail.add_transport("main", SERVER)
        id = sealed.mail.send(sender="shop@here.example", to=ANN, subject="Hello", text="x").id

    ran = durably("list")

    assert lines(ran.out)[1][-2:] == ["(cannot be read)", "main"]
    assert "--app module:app reads them" in ran.err
    assert durably("list", "--before", id, "--json").data == []
    shown = durably("show", id)
    assert (shown.code, shown.out) == (1, "")
    assert "cannot be read" in shown.err


# --- show ---


def test_show_tells_how_every_recipient_stands_and_when_it_goes_on(app: Durably, durably: command.Durably) -> None:
    [id] = deliver(
        app,
        {"to": [ANN, BOB], "cc": CYD, "key": "order-7", "category": "news"},
        RCPT=["250 fine", "450 4.2.0 later\x9b2J", "550 5.1.1 unknown"],
    )

    ran = durably("show", id)
    head, facts, why, recipients = (
        part.splitlines() for part in ran.out.replace("waiting\n", "waiting\n\n", 1).split("\n\n")
    )

    assert head == [f"{id}  waiting"]
    told = {line[:15].strip(): line[15:] for line in facts}
    assert list(told) == ["subject", "sender", "category", "key", "transport", "accepted", "next attempt", "attempts"]
    assert (told["subject"], told["sender"], told["category"]) == ("Hello", "shop@here.example", "news")
    assert (told["key"], told["transport"], told["attempts"]) == ("order-7", "main", "1")
    assert told["next attempt"].endswith(("(in 2d)", "(in 1d)"))
    assert why[0].startswith(f"1 of 3 recipients wait: {BOB}: 450 4.2.0 later")
    assert lines("\n".join(recipients)) == [
        ["ADDRESS", "STATE", "SAID"],
        [ANN, "sent", "250 fine"],
        [BOB, "waiting", "450 4.2.0 later\\x9b2J"],
        [CYD, "refused", "550 5.1.1 unknown"],
    ]


def test_show_for_programs_has_the_same_facts(app: Durably, durably: command.Durably) -> None:
    [id] = deliver(app, {"to": [ANN, BOB]}, RCPT=["250 fine", "550 5.7.1 no"])

    data = durably("show", id, "--json").data

    assert (data["id"], data["state"], data["transport"], data["about"]["subject"]) == (id, "dead", "main", "Hello")
    assert [(one["address"], one["state"], one["said"]) for one in data["recipients"]] == [
        (ANN, "sent", "250 fine"),
        (BOB, "refused", "550 5.7.1 no"),
    ]
    assert (data["info"]["id"], data["info"]["attempt"]) == (data["task"], 1)


def test_show_marks_what_somebody_may_have_got_twice(app: Durably, durably: command.Durably) -> None:
    server = Script({"dot": [CLOSE]})

    async def story() -> None:
        async with server.listening() as port:
            await app.mail.aadd_transport("main", f"smtp://127.0.0.1:{port}?tls=none", schedule=[0])
            await app.mail.asend(to=ANN, subject="Hello", text="x", key="order-7")
            await app.adrain()
            await app.aclose()

    asyncio.run(story())
    shown = durably("show", "order-7").out

    assert lines(shown)[-1] == [ANN, "sent, maybe twice", "250 fine"]
    assert "next attempt" not in shown


def test_show_tells_what_a_mail_waits_for(app: Durably, durably: command.Durably) -> None:
    app.mail.add_transport("the relay", SERVER)
    id = app.mail.send(to=ANN, subject="Hello", text="x", transport="the relay").id
    assert "  next attempt in its turn\n  attempts     0\n\nADDRESS" in durably("show", id).out

    app.deliveries.destinations.pause("the relay", "they are moving")
    paused = durably("show", id).out
    assert "  next attempt once resumed\n" in paused
    assert "Transport the relay: It is disabled: they are moving. Everything waits until `durably" in paused

    app.deliveries.destinations.forget("the relay")
    assert durably("show", id).code == 0


def test_a_mail_can_be_named_by_its_key_or_by_the_beginning_of_its_id(app: Durably, durably: command.Durably) -> None:
    app.mail.add_transport("main", SERVER)
    first, second = (app.mail.send(to=ANN, subject="x", text="x", key=key).id for key in ("order-7", "face"))

    def found(given: str) -> str:
        return str(durably("show", given, "--json").data["id"])

    shared = "".join(one for one, other in takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=True)))
    assert found("order-7") == found(first) == found(first[: len(shared) + 1]) == found(first.upper()) == first
    assert found("face") == second
    newer, older = sorted([first, second], reverse=True)
    assert f"{shared} is ambiguous: it could be {newer} or {older}" in durably("show", shared).err
    for given in ("order-9", "ffff", "0190a5d1-ac96-774b-bcce-b302099a8057", first + "0", first.replace("-", "")[:12]):
        ran = durably("show", given)
        assert (ran.code, ran.out, ran.err) == (1, "", f"durably: there is no mail {given!r}\n")


class Ones(Random):
    """Chance that makes the highest ids."""

    def getrandbits(self, k: int) -> int:
        return (1 << k) - 1


def test_a_beginning_is_found_whatever_follows(app: Durably, durably: command.Durably) -> None:
    ids = Ids(HostClock(), Ones())
    ids._rest = 0x2000_FFFF_FFFF_FFFF - (1 << 32)
    with Durably(app.store, ids=ids) as highest:
        highest.mail.add_transport("main", SERVER)
        id = highest.mail.send(sender="shop@here.example", to=ANN, subject="x", text="x").id

    assert id.endswith("f" * 12)
    for length in (13, 24, 35):
        assert durably("show", id[:length], "--json").data["id"] == id


def test_show_names_the_template_and_its_version(app: Durably, durably: command.Durably) -> None:
    app.mail.add_transport("main", SERVER)
    for subject in ("Hi", "Hello"):
        app.mail.templates.put("welcome", subject=subject, text="x")
    app.mail.templates.put("welcome", subject="Hallo", text="x", locale="de")
    plain = app.mail.send("welcome", to=ANN).id
    german = app.mail.send("welcome", to=ANN, locale="de-AT").id

    assert "  template     welcome, version 2\n" in durably("show", plain).out
    assert "  template     welcome, version 1, de\n" in durably("show", german).out


def test_the_source_is_shown_as_text_that_drives_no_terminal(app: Durably, durably: command.Durably) -> None:
    app.mail.add_transport("main", SERVER)
    message = EmailMessage()
    message["From"], message["To"], message["Subject"] = "shop@here.example", ANN, "Hello"
    message.set_content("Hello\n\tand \x1b[2J\n", cte="7bit")
    id = app.mail.send(message).id

    text = durably("show", id, "--source").out
    data = durably("show", id, "--source", "--json").data

    assert text.startswith(f"From: shop@here.example\nTo: {ANN}\nSubject: Hello\n")
    assert text.endswith("\n\nHello\n    and \\x1b[2J\n")
    assert (data["id"], data["source"]) == (id, app.mail.source(id).decode().replace("\r\n", "\n"))


# --- resend ---


def test_dead_mails_are_sent_again_to_those_who_did_not_get_them(app: Durably, durably: command.Durably) -> None:
    first, second = deliver(
        app, {"to": [ANN, BOB]}, {"to": CYD, "key": "order-7"}, RCPT=["250 fine", "550 5.7.1 no", "550 5.7.1 no"]
    )

    ran = durably("resend", first, "order-7", first)

    assert ran.out == (
        f"Mail {first} is sent again: 1 of 2 recipients did not get it.\n"
        f"Mail {second} is sent again: 1 of 1 recipient did not get it.\n"
    )
    assert [one.state for one in app.mail.list()] == ["waiting", "waiting"]


def test_show_tells_the_attempts_of_a_cycle_from_all_of_them(app: Durably, durably: command.Durably) -> None:
    [id] = deliver(app, {"to": ANN}, RCPT=["550 5.7.1 no"])

    assert "  attempts     1\n" in durably("show", id).out
    durably("resend", id)
    assert "  attempts     1 (0 of this cycle)\n" in durably("show", id).out


def test_resending_for_programs_answers_how_the_mails_stand(app: Durably, durably: command.Durably) -> None:
    [id] = deliver(app, {"to": ANN}, RCPT=["550 5.7.1 no"])

    [data] = durably("resend", id, "--json").data

    assert (data["id"], data["state"]) == (id, "waiting")


def test_nothing_is_sent_again_if_one_of_them_cannot_be(app: Durably, durably: command.Durably) -> None:
    sent, dead = deliver(app, {"to": ANN}, {"to": BOB}, RCPT=["250 fine", "550 5.7.1 no"])

    for other, complaint in (
        (sent, f"the mail {sent} was sent to everybody: there is nobody to send it to again"),
        ("order-9", "there is no mail 'order-9'"),
    ):
        ran = durably("resend", dead, other)
        assert (ran.code, ran.out) == (1, "")
        assert complaint in ran.err
    assert app.mail.get(dead).state == "dead"
    assert durably("resend").code == 2


# --- suppressions ---


def test_an_address_is_written_to_no_more_and_then_again(app: Durably, durably: command.Durably) -> None:
    assert durably("suppress", "Ann@x.example").out == "Ann@x.example gets no more mail.\n"
    [entry] = app.mail.suppressions.get(ANN)
    assert (entry.cause, entry.category, entry.note) == ("manual", "", "")

    assert durably("unsuppress", "ANN@x.example").out == "ANN@x.example gets mail again.\n"
    assert app.mail.suppressions.get(ANN) == []


def test_an_address_can_be_left_out_of_one_category(app: Durably, durably: command.Durably) -> None:
    told = durably("suppress", ANN, "--cause", "unsubscribe", "--category", "news", "--note", "by \x9b telephone")
    added = durably("suppress", ANN, "--cause", "complaint", "--json").data

    assert told.out == f"{ANN} gets no more mail of news.\n"
    assert (added["address"], added["category"], added["new"]) == (ANN, "", True)
    assert {(one["category"], one["cause"]) for one in added["entries"]} == {("", "complaint"), ("news", "unsubscribe")}
    lifted = durably("unsuppress", ANN, "--category", "news").out
    assert lifted.startswith(f"{ANN} gets mail of news again. It gets no mail since 2")
    assert lifted.endswith(": complaint.\n")
    assert [one.category for one in app.mail.suppressions.get(ANN)] == [""]
    assert durably("unsuppress", ANN, "--json").data == {"address": ANN, "category": None, "entries": []}


def test_what_is_on_the_list_already_is_not_changed(app: Durably, durably: command.Durably) -> None:
    app.mail.suppressions.add(ANN, "bounce", note="550 unknown\x9b2J")
    app.mail.suppressions.add(ANN, "unsubscribe", category="news")

    ran = durably("suppress", ANN, "--note", "again")

    assert ran.out.startswith(f"{ANN} is on the list already, since 2")
    assert ran.out.endswith(": bounce: 550 unknown\\x9b2J. Nothing was changed.\n")
    assert "unsubscribe" not in ran.out
    assert durably("suppress", ANN, "--json").data["new"] is False
    assert {one.note for one in app.mail.suppressions.get(ANN)} == {"550 unknown\x9b2J", ""}


def test_who_is_not_on_the_list_cannot_be_taken_from_it(durably: command.Durably) -> None:
    durably("suppress", ANN, "--category", "news")

    for arguments, complaint in (
        ([BOB], f"{BOB} is not on the list; see"),
        ([ANN, "--category", "offers"], f"{ANN} is not on the list for 'offers'; see"),
        (["nobody"], "'nobody' is not an address"),
    ):
        ran = durably("unsuppress", *arguments)
        assert (ran.code, ran.out) == (1, "")
        assert complaint in ran.err
    assert durably("suppress", "nobody").code == 1
    assert durably("suppress", ANN, "--cause", "whim").code == 2


def test_suppressions_are_listed_with_their_causes(app: Durably, durably: command.Durably) -> None:
    assert durably("suppressions").out == "Everybody gets mail.\n"
    app.mail.suppressions.add(BOB, "bounce", note="550 \x9b2J")
    app.mail.suppressions.add(ANN, "unsubscribe", category="news")

    headings, ann, bob = lines(durably("suppressions").out)
    assert headings == ["ADDRESS", "CATEGORY", "CAUSE", "SINCE", "NOTE"]
    assert ann[:3] == [ANN, "news", "unsubscribe"]
    assert [*bob[:2], bob[3]] == [BOB, "bounce", "550 \\x9b2J"]
    assert [one["cause"] for one in durably("suppressions", "--json").data] == ["unsubscribe", "bounce"]
    assert durably("suppressions", "--after", BOB).out == "No addresses match.\n"


@pytest.mark.parametrize("limit", ["1", "2", "3"])
def test_pages_of_suppressions_leave_nobody_out_and_repeat_nobody(
    app: Durably, durably: command.Durably, limit: str
) -> None:
    for address, category in ((ANN, ""), (ANN, "news"), (ANN, "offers"), (BOB, "news"), (CYD, ""), (CYD, "zebra")):
        app.mail.suppressions.add(address, category=category)

    seen: list[tuple[str, str]] = []
    after: list[str] = []
    while page := durably("suppressions", "--json", "--limit", limit, *after).data:
        found = [(one["address"], one["category"]) for one in page]
        assert not set(found) & set(seen)
        seen += found
        after = ["--after", page[-1]["address"].upper()]

    assert seen == [(one.address, one.category) for one in app.mail.suppressions.list()]


def test_suppressions_that_are_cut_short_say_how_to_go_on(
    app: Durably, durably: command.Durably, monkeypatch: pytest.MonkeyPatch
) -> None:
    for address, category in ((ANN, ""), (ANN, "news"), (BOB, "")):
        app.mail.suppressions.add(address, category=category)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)

    assert (
        f"2 are shown; --limit shows more, --after {ANN} the next ones" in durably("suppressions", "--limit", "1").err
    )
    assert durably("suppressions", "--limit", "4").err == ""


# --- templates ---


@pytest.fixture
def welcome(app: Durably, durably: command.Durably) -> None:
    """A template in the store."""
    app.mail.templates.put(
        "welcome", subject="Hello {{ name }}", text="Dear {{ name }}\n{{ more }}", html="<p>{{ name }}</p>"
    )
    app.mail.templates.put("welcome", subject="Hallo {{ name }}", text="Grüße\n", locale="de")


@pytest.mark.usefixtures("welcome")
def test_a_preview_shows_the_subject_and_the_text_or_the_html(durably: command.Durably) -> None:
    context = ("--context", '{"name": "Ann", "more": "\\u001b[2J"}')

    assert durably("preview", "welcome", *context).out == f"Hello Ann\n{RULE}\nDear Ann\n\\x1b[2J\n"
    assert durably("preview", "welcome", *context, "--html").out == f"Hello Ann\n{RULE}\n<p>Ann</p>\n"
    assert durably("preview", "welcome", *context, "--locale", "de-AT").out == f"Hallo Ann\n{RULE}\nGrüße\n"
    data = durably("preview", "welcome", *context, "--locale", "de", "--json").data
    assert data == {"subject": "Hallo Ann", "text": "Grüße", "html": None, "locale": "de", "version": "1"}


@pytest.mark.usefixtures("welcome")
@pytest.mark.parametrize("way", ["--context=-", "--context-file=-", "--context-file=ann.json"])
def test_what_a_preview_is_about_can_come_from_elsewhere(
    durably: command.Durably, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    given = '{"name": "Änn", "more": ""}'
    (tmp_path / "ann.json").write_text(given, "utf-8")
    monkeypatch.setattr("sys.stdin", io.StringIO("" if way.endswith("json") else given))

    assert durably("preview", "welcome", way).out.startswith("Hello Änn\n")


@pytest.mark.usefixtures("welcome")
def test_a_context_that_is_no_json_object_is_a_misuse(durably: command.Durably, tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_bytes(b'{"name": "\xff"}')

    for arguments, complaint in (
        (["--context", "{name: Ann}"], "--context: this is not a JSON object: JSON is malformed"),
        (["--context", '["Ann"]'], "--context: this is not a JSON object: Expected `object`, got `array`"),
        (["--context", "[" * 5000], "--context: this is not a JSON object"),
        (["--context-file", "bad.json"], "--context-file: this is not a JSON object"),
        (["--context-file", "no.json"], "--context-file: no.json: No such file or directory"),
        (["--context", "{}", "--context-file", "no.json"], "not allowed with argument"),
    ):
        ran = durably("preview", "welcome", *arguments)
        assert (ran.code, ran.out) == (2, "")
        assert complaint in ran.err


@pytest.mark.usefixtures("welcome")
def test_what_cannot_be_previewed_is_explained(app: Durably, durably: command.Durably) -> None:
    app.mail.templates.put("page", subject="x", html="<p>x</p>")

    for arguments, complaint in (
        (["welcom"], "there is no template 'welcom' in the store; for one in a file, name your application with --app"),
        (["welcome"], "'name' is undefined"),
        (["page"], "the template 'page' has only HTML: add --html to see it"),
        (["welcome", "--context", '{"name": "Ann"}', "--locale", "de", "--html"], "has only text: leave out --html"),
        (["welcome", "--locale", "german!"], "locale: 'german!' must be a language tag"),
    ):
        ran = durably("preview", *arguments)
        assert (ran.code, ran.out) == (1, "")
        assert complaint in ran.err
    assert durably("preview", "page", "--json").data["text"] is None


@pytest.fixture
def files(tmp_path: Path, app: Durably, durably: command.Durably, monkeypatch: pytest.MonkeyPatch) -> str:
    """An application with a folder of templates, on the store of `app`."""
    (tmp_path / "templates").mkdir()
    (tmp_path / "templates" / "receipt.subject").write_text("Your order {{ order }}")
    (tmp_path / "templates" / "receipt.txt").write_text("It is paid.")
    module = f"mail_shop_{'sqlite' if app.store.address.startswith('sqlite') else 'postgres'}"
    (tmp_path / f"{module}.py").write_text(
        dedent("""
            import os

            from durably import Durably

            app = Durably(os.environ["DURABLY_STORE"])
            app.mail.templates.folder("templates")
        """)
    )
    monkeypatch.setattr("sys.path", [str(tmp_path), *sys.path])
    monkeypatch.delitem(sys.modules, module, raising=False)
    return f"{module}:app"


@pytest.mark.usefixtures("welcome")
def test_templates_in_files_need_the_application(durably: command.Durably, files: str) -> None:
    told = durably("preview", "receipt", "--context", '{"order": 7}', "--app", files)
    listed = durably("templates", "--app", files, "--json").data

    assert told.out == f"Your order 7\n{RULE}\nIt is paid.\n"
    assert "there is no template 'receipt' in the store" in durably("preview", "receipt").err
    assert "there is no 'reciept' in the folder" in durably("preview", "reciept", "--app", files).err
    assert [(one["name"], one["locale"], one["stored"]) for one in listed] == [
        ("receipt", "", False),
        ("welcome", "", True),
        ("welcome", "de", True),
    ]


def test_templates_are_listed_with_their_versions_and_where_they_are(
    app: Durably, durably: command.Durably, files: str
) -> None:
    assert "No templates are stored." in durably("templates").out
    for locale in ("", "", "de"):
        app.mail.templates.put("welcome", subject="Hello", text="x", locale=locale)

    assert lines(durably("templates").out) == [
        ["NAME", "LOCALE", "VERSION", "WHERE"],
        ["welcome", "2", "store"],
        ["welcome", "de", "1", "store"],
    ]
    receipt = lines(durably("templates", "--app", files).out)[1]
    assert (receipt[0], receipt[-1]) == ("receipt", "file")


# --- transports ---


def test_a_transport_is_added_and_is_a_destination(app: Durably, durably: command.Durably) -> None:
    ran = durably("transport", "the relay", SERVER, "--rate", "300/m", "--concurrency", "4", "--fallback", "backup")

    assert ran.out == (
        f"Transport the relay is added: {SERVER}. `durably destinations show 'the relay'` tells how it stands.\n"
    )
    rules = app.deliveries.destinations.get("the relay").rules
    assert (rules.rate, rules.concurrency, rules.fallback, rules.order) == (5.0, 4, "backup", "unordered")


def test_a_transport_is_patient_and_has_no_limits_unless_they_are_given(app: Durably, durably: command.Durably) -> None:
    data = durably("transport", "main", SERVER, "--json").data

    assert (data["name"], data["channel"], data["address"], data["signed"]) == ("main", "smtp", SERVER, False)
    assert (data["rules"]["rate"], data["rules"]["fallback"], len(data["rules"]["schedule"])) == (None, None, 58)


@pytest.mark.parametrize("by", ["argument", "stdin"])
def test_a_password_is_kept_as_it_is_and_not_repeated(
    app: Durably, durably: command.Durably, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    password = " s3cret "
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{password}\r\n"))

    ran = durably("transport", "main", SERVER, "--password", password if by == "argument" else "-", "--json")

    assert "s3cret" not in ran.out + ran.err
    assert Durably(app.store).deliveries.destinations.secrets("main") == (password,)


def test_a_transport_that_makes_no_sense_is_refused(durably: command.Durably, monkeypatch: pytest.MonkeyPatch) -> None:
    durably("transport", "main", SERVER)
    monkeypatch.setattr("sys.stdin", io.StringIO("\n"))

    for arguments, code, complaint in (
        (["main", SERVER], 1, "there is a destination 'main' already"),
        (["other", "https://mail.example"], 1, "must look like smtp://user@mail.example.org:587"),
        (["other", "smtp://shop:s3cret@mail.example"], 1, "give it apart, as password= or --password"),
        (["other", SERVER, "--rate", "fast"], 1, "rate"),
        (["other", SERVER, "--concurrency", "0"], 1, "concurrency: 0 must be a whole number from 1"),
        (["other", SERVER, "--password", ""], 2, "--password: it is empty"),
        (["other", SERVER, "--password", "-"], 2, "--password: it is empty"),
    ):
        ran = durably("transport", *arguments)
        assert (ran.code, ran.out) == (code, "")
        assert complaint in ran.err
        assert "s3cret" not in ran.err


def test_a_password_needs_a_key_to_be_kept_with(durably: command.Durably, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DURABLY_SECRETS_KEY")

    ran = durably("transport", "main", SERVER, "--password", "s3cret")

    assert (ran.code, ran.out) == (1, "")
    assert "set DURABLY_SECRETS_KEY" in ran.err


def test_an_address_that_could_not_be_checked_is_noted(
    durably: command.Durably, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "durably.mail.smtp", None)

    ran = durably("transport", "main", SERVER)

    assert ran.code == 0
    assert "the address was not checked: pip install 'durably[smtp]'" in ran.err
    assert durably("transport", "local", "console:").err == ""


def test_destinations_show_a_transport_with_its_fallback_and_a_short_schedule(
    durably: command.Durably, capsys: pytest.CaptureFixture[str]
) -> None:
    durably("transport", "main", SERVER, "--password", "s3cret", "--fallback", "the \x9b backup")
    destinations = in_process(capsys)

    shown = destinations("destinations", "show", "main").out
    durably("transport", "backup", SERVER)
    short = destinations("destinations", "set", "backup", "--schedule", "1s,2s,3s,4s,5s,6s,7s,8s").out

    assert "  password     yes\n  order        unordered\n" in shown
    assert "  schedule     5s, 10s, 20s, ... 1h (58 waits)\n" in shown
    assert "  fallback     the \\x9b backup\n" in shown
    assert "s3cret" not in shown
    assert "  password     no\n" in short
    assert "  schedule     1s, 2s, 3s, 4s, 5s, 6s, 7s, 8s\n" in short
    assert "fallback" not in short
