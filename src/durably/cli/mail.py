"""`durably mail`: what was sent to whom, who gets nothing any more, templates, and transports."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

import msgspec

from durably.app import Durably
from durably.cli.beginnings import whole_id
from durably.cli.connect import on_store
from durably.cli.detail import how_often, sentence
from durably.cli.grammar import Commands, Parser, command, group, limited
from durably.cli.output import answer, note
from durably.cli.report import as_data, next_try, standing
from durably.cli.table import table
from durably.cli.usage import Usage
from durably.cli.words import counted, exact, printable, relative
from durably.client.info import TaskInfo
from durably.core.delivery import Condition
from durably.core.moment import as_datetime
from durably.errors import NotAllowed, UnknownTask

if TYPE_CHECKING:
    from durably.deliveries.destinations import DestinationInfo
    from durably.deliveries.options import RuleOptions
    from durably.mail.info import About, MailInfo, MailSummary, RecipientInfo
    from durably.mail.suppressions import SuppressionInfo

STATES = ("waiting", "sent", "dead", "cancelled")
CAUSES = ("bounce", "complaint", "unsubscribe", "manual")
RULE = "-" * 72
SERVER = "smtp://shop@mail.acme.test:587"


def add(commands: Commands[Parser]) -> None:
    """Declare the commands."""
    summary = "mails and how they stand, addresses that get none, templates, transports"
    own = group(commands, "mail", summary, ["durably mail list --state dead", f"durably mail transport main {SERVER}"])
    _declare_mails(own)
    _declare_suppressions(own)
    _declare_templates(own)

    summary = "add a transport, through which mails go out; `durably destinations` shows, changes and pauses it"
    examples = [
        f"{SERVER} --password -",
        "file:///var/outbox",
        "smtps://mail.acme.test --fallback backup --rate 20/s",
    ]
    parser = command(own, "transport", summary, [f"durably mail transport main {one}" for one in examples])
    parser.add_argument("name", metavar="NAME", help="how it is called; mails that name none go to main")
    parser.add_argument("address", metavar="ADDRESS", help="smtp://..., smtps://..., file:///folder or console:")
    parser.add_argument("--password", metavar="TEXT", help="what the user logs in with; - reads it from stdin")
    parser.add_argument("--fallback", metavar="NAME", help="the transport that gets what this one cannot take")
    parser.add_argument("--rate", metavar="N/s", help="so many mails per time, such as 20/s or 300/m")
    parser.add_argument("--concurrency", metavar="N", type=int, help="so many mails at once (100)")
    on_store(parser, transport)


def _declare_mails(own: Commands[Parser]) -> None:
    examples = ["durably mail list --state dead", "durably mail list --json --limit 1000"]
    parser = command(own, "list", "mails, newest first, and how they stand", examples)
    parser.add_argument("--state", choices=STATES, help="only mails in this state")
    parser.add_argument("--before", metavar="ID", help="only mails older than this one: the next page")
    limited(parser)
    on_store(parser, list_mails)

    examples = ["durably mail show 0190a5d1", "durably mail show order-7 --source"]
    parser = command(own, "show", "a mail, and how each of its recipients stands", examples)
    parser.add_argument("mail", metavar="MAIL", help="the id, its beginning, or the key")
    parser.add_argument("--source", action="store_true", help="what is sent instead, with all its headers")
    on_store(parser, show)

    summary = "send mails again, to those of their recipients who did not get them"
    parser = command(own, "resend", summary, ["durably mail resend 0190a5d1", "durably mail resend order-7 order-8"])
    parser.add_argument("mails", metavar="MAIL", nargs="+", help="ids, their beginnings, or keys")
    on_store(parser, resend)


def _declare_suppressions(own: Commands[Parser]) -> None:
    examples = ["ann@acme.test", "ann@acme.test --cause unsubscribe --category news --note 'by telephone'"]
    summary = "write to an address no more"
    parser = command(own, "suppress", summary, [f"durably mail suppress {one}" for one in examples])
    parser.add_argument("address", metavar="ADDRESS", help="who gets no mail; case does not matter")
    parser.add_argument("--cause", choices=CAUSES, default="manual", help="why (manual)")
    parser.add_argument("--category", metavar="NAME", default="", help="only mail of this category")
    parser.add_argument("--note", metavar="TEXT", default="", help="it is kept with the address")
    on_store(parser, suppress)

    examples = ["ann@acme.test", "ann@acme.test --category news"]
    summary = "write to an address again"
    parser = command(own, "unsuppress", summary, [f"durably mail unsuppress {one}" for one in examples])
    parser.add_argument("address", metavar="ADDRESS", help="who gets mail again; case does not matter")
    parser.add_argument("--category", metavar="NAME", help="lift only what holds for this category")
    on_store(parser, unsuppress)

    examples = ["durably mail suppressions", "durably mail suppressions --after ann@acme.test --limit 200"]
    parser = command(own, "suppressions", "addresses that get no mail, and why", examples)
    parser.add_argument("--after", metavar="ADDRESS", help="only those after this address: the next page")
    limited(parser, "how many (50); entries of one address stay together")
    on_store(parser, suppressions)


def _declare_templates(own: Commands[Parser]) -> None:
    examples = ['welcome --context \'{"name": "Ann"}\' --locale de', "welcome --context-file ann.json --app shop:app"]
    summary = "what a template would say; one in a file needs --app"
    parser = command(own, "preview", summary, [f"durably mail preview {one}" for one in examples])
    parser.add_argument("template", metavar="TEMPLATE", help="its name")
    context = parser.add_mutually_exclusive_group()
    context.add_argument("--context", metavar="JSON", help="the values in it, as a JSON object; - reads it from stdin")
    context.add_argument("--context-file", metavar="FILE", help="a file with that object; - is stdin")
    parser.add_argument("--locale", default="", help="in this language, such as de or pt-BR")
    parser.add_argument("--html", action="store_true", help="the HTML part instead of the text")
    on_store(parser, preview)

    examples = ["durably mail templates --app shop.tasks:app"]
    on_store(command(own, "templates", "every template; those in files need --app", examples), templates)


def list_mails(app: Durably, options: argparse.Namespace) -> int:
    """`durably mail list`."""
    before = None if options.before is None else _whole_id(app, options.before)
    if before is None and options.before is not None:
        raise UnknownTask(f"there is no mail {options.before!r}: --before takes an id, or its beginning")
    found = app.mail.list(state=options.state, before=before, limit=options.limit)
    answer(options, found, _mails(found) if found else "No mails match.")
    if options.app is None and any(one.about is None for one in found):
        note("some mails cannot be read here: --app module:app reads them with the codec of your application")
    if found and len(found) == options.limit and sys.stdout.isatty():
        note(f"{options.limit} are shown; --limit shows more, --before {found[-1].id} the next ones")
    return 0


def _mails(found: Sequence[MailSummary]) -> str:
    rows = [
        (
            one.id,
            one.state,
            relative(one.accepted),
            "" if one.about is None else _recipients(one.about),
            "(cannot be read)" if one.about is None else one.about.subject,
            one.transport,
            one.key,
        )
        for one in found
    ]
    headings = ("ID", "STATE", "ACCEPTED", "TO", "SUBJECT", "TRANSPORT", "KEY")
    return table(headings, rows, whole=("STATE", "ACCEPTED"))


def _recipients(about: About) -> str:
    """The first one, and how many more there are."""
    first = about.to[0] if about.to else ""
    return f"{first} +{about.recipients - 1}" if about.recipients > 1 else first


def show(app: Durably, options: argparse.Namespace) -> int:
    """`durably mail show`."""
    found = _found(app, options.mail)
    if options.source:
        source = app.mail.source(found.id).decode("utf-8", "replace").replace("\r\n", "\n")
        answer(options, {"id": found.id, "source": source}, printable(source, lines=True).rstrip("\n"))
        return 0
    answer(options, found, _mail(found, _transport_of(app, found)))
    return 0


def _found(app: Durably, given: str) -> MailInfo:
    """A mail by its key, its id, or a beginning of its id that no other one has."""
    try:
        return app.mail.get(given)
    except UnknownTask:
        whole = _whole_id(app, given)
        if whole is None:
            raise
    return app.mail.get(whole)


def _whole_id(app: Durably, given: str) -> str | None:
    return whole_id(given, lambda before: [one.id for one in app.mail.list(before=before, limit=2)])


def _transport_of(app: Durably, mail: MailInfo) -> DestinationInfo | None:
    """The transport that a mail waits for."""
    try:
        return app.deliveries.destinations.get(mail.transport) if mail.state == "waiting" else None
    except UnknownTask:
        return None


def _mail(mail: MailInfo, transport: DestinationInfo | None) -> str:
    facts = [f"  {name:<12} {value}" for name, value in _facts(mail, transport) if value]
    told = [f"{mail.id}  {mail.state}", *facts, ""]
    if mail.reason is not None:
        told += [sentence(mail.reason), ""]
    if transport is not None and (stands := standing(transport)) != "It is active.":
        told += [sentence(f"Transport {transport.name}: {stands}"), ""]
    rows = [(one.address, _state(one), one.said) for one in mail.recipients]
    return "\n".join([*told, table(("ADDRESS", "STATE", "SAID"), rows, whole=("ADDRESS", "STATE"))])


def _facts(mail: MailInfo, transport: DestinationInfo | None) -> Iterator[tuple[str, str]]:
    about = mail.about
    yield "subject", printable(about.subject)
    yield "sender", printable(about.sender)
    yield "template", printable(_template(about))
    yield "category", printable(about.category)
    yield "key", printable(mail.key or "")
    yield "transport", printable(mail.transport)
    yield "accepted", exact(mail.accepted)
    if mail.info is None:
        return
    if mail.info.finished_at is None:
        yield "next attempt", _next_attempt(mail.info, None if transport is None else transport.condition)
    yield "attempts", how_often(mail.info)


def _next_attempt(task: TaskInfo, condition: Condition | None) -> str:
    """When it is tried again: by its own schedule, or once its transport may be asked."""
    words = next_try(task, condition)
    until = as_datetime(0 if condition is None else condition.until)
    return exact(max(until, task.due_at or until)) if re.match(r"in \d", words) else words


def _template(about: About) -> str:
    if not about.template:
        return ""
    locale = f", {about.locale}" if about.locale else ""
    return f"{about.template}, version {about.version}{locale}"


def _state(one: RecipientInfo) -> str:
    return f"{one.state}, maybe twice" if one.possible_duplicate else one.state


def resend(app: Durably, options: argparse.Namespace) -> int:
    """`durably mail resend`."""
    found = {one.id: one for one in (_found(app, given) for given in options.mails)}
    for one in found.values():
        if one.state in ("waiting", "forgotten"):
            raise NotAllowed(f"the mail {one.id} is {one.state}: only what has come to its end can be sent again")
        if all(recipient.state == "sent" for recipient in one.recipients):
            raise NotAllowed(f"the mail {one.id} was sent to everybody: there is nobody to send it to again")
    resent = [app.mail.resend(mail) for mail in found]
    lines = [f"Mail {one.id} is sent again: {_left(one)} did not get it." for one in found.values()]
    answer(options, resent, "\n".join(lines))
    return 0


def _left(mail: MailInfo) -> str:
    left = sum(one.state != "sent" for one in mail.recipients)
    return f"{left:,} of {counted(len(mail.recipients), 'recipient')}"


def suppress(app: Durably, options: argparse.Namespace) -> int:
    """`durably mail suppress`."""
    listed = app.mail.suppressions
    new = listed.add(options.address, options.cause, category=options.category, note=options.note)
    entries = listed.get(options.address)
    told = f"{options.address} gets no more mail{_of(options.category)}."
    if not new:
        why = "".join(f", since {_why(one)}" for one in entries if one.category == options.category)
        told = f"{options.address} is on the list already{why}. Nothing was changed."
    _tell_of_address(options, {"new": new, "entries": entries}, told)
    return 0


def unsuppress(app: Durably, options: argparse.Namespace) -> int:
    """`durably mail unsuppress`."""
    if not app.mail.suppressions.remove(options.address, category=options.category):
        about = f" for {options.category!r}" if options.category else ""
        raise NotAllowed(f"{options.address} is not on the list{about}; see `durably mail suppressions`")
    entries = app.mail.suppressions.get(options.address)
    still = "".join(f" It gets no mail{_of(one.category)} since {_why(one)}." for one in entries)
    _tell_of_address(options, {"entries": entries}, f"{options.address} gets mail{_of(options.category)} again.{still}")
    return 0


def _tell_of_address(options: argparse.Namespace, found: dict[str, Any], told: str) -> None:
    answer(options, {"address": options.address, "category": options.category, **found}, printable(told))


def _of(category: str | None) -> str:
    return f" of {category}" if category else ""


def _why(one: SuppressionInfo) -> str:
    note = f": {one.note}" if one.note else ""
    return f"{exact(one.since)}: {one.cause}{note}"


def suppressions(app: Durably, options: argparse.Namespace) -> int:
    """`durably mail suppressions`."""
    found = _page(app, options.after, options.limit)
    rows = [(one.address, one.category, one.cause, relative(one.since), one.note) for one in found]
    text = "Everybody gets mail." if options.after is None else "No addresses match."
    if rows:
        text = table(("ADDRESS", "CATEGORY", "CAUSE", "SINCE", "NOTE"), rows, whole=("ADDRESS", "CAUSE", "SINCE"))
    answer(options, found, text)
    if found and len(found) >= options.limit and sys.stdout.isatty():
        note(f"{len(found)} are shown; --limit shows more, --after {quote(found[-1].address)} the next ones")
    return 0


def _page(app: Durably, after: str | None, limit: int) -> list[SuppressionInfo]:
    """The entries after an address, and all of the last address, so that the next page can begin after that."""
    listed = app.mail.suppressions
    before = [] if after is None else listed.get(after)
    start = before[0].address if before else (after or "").casefold()
    listing = listed.list(after=(start, ""), limit=limit + len(before))
    found = [one for one in listing if one not in before][:limit]
    if found:
        found += [one for one in listed.get(found[-1].address) if one not in found]
    return found


def preview(app: Durably, options: argparse.Namespace) -> int:
    """`durably mail preview`."""
    context = _context(options)
    if options.app is None and options.template not in {one.name for one in app.mail.templates.list()}:
        where = "for one in a file, name your application with --app module:app"
        raise UnknownTask(f"there is no template {options.template!r} in the store; {where}")
    made = app.mail.preview(options.template, context=context, locale=options.locale)
    part, other = (made.html, "text") if options.html else (made.text, "HTML")
    if part is None and not options.json:
        way = "leave out --html" if options.html else "add --html"
        raise NotAllowed(f"the template {options.template!r} has only {other}: {way} to see it")
    told = [printable(made.subject), RULE, printable(part or "", lines=True).rstrip("\n")]
    answer(options, made, "\n".join(told))
    return 0


def _context(options: argparse.Namespace) -> dict[str, Any]:
    option = "--context" if options.context_file is None else "--context-file"
    try:
        source = _context_source(options)
        return {} if source is None else msgspec.json.decode(source, type=dict[str, Any])
    except OSError as error:
        raise Usage(f"--context-file: {options.context_file}: {error.strerror or error}") from None
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        example = """'{"name": "Ann"}'"""
        raise Usage(f"{option}: this is not a JSON object: {error}; write it like {example}") from None


def _context_source(options: argparse.Namespace) -> str | bytes | None:
    if "-" in (options.context, options.context_file):
        return sys.stdin.read()
    if options.context_file is not None:
        return Path(options.context_file).read_bytes()
    given: str | None = options.context
    return given


def templates(app: Durably, options: argparse.Namespace) -> int:
    """`durably mail templates`."""
    found = app.mail.templates.list()
    rows = [(one.name, one.locale, one.version, "store" if one.stored else "file") for one in found]
    text = "No templates."
    if options.app is None:
        text = "No templates are stored. For those in files, name your application with --app module:app."
    answer(options, found, table(("NAME", "LOCALE", "VERSION", "WHERE"), rows, whole=("NAME",)) if rows else text)
    return 0


def transport(app: Durably, options: argparse.Namespace) -> int:
    """`durably mail transport`."""
    password = _password(options)
    chosen: RuleOptions = {}
    if options.fallback is not None:
        chosen["fallback"] = options.fallback
    if options.rate is not None:
        chosen["rate"] = options.rate
    if options.concurrency is not None:
        chosen["concurrency"] = options.concurrency
    added = app.mail.add_transport(options.name, options.address, password=password, **chosen)
    if added.channel not in app.deliveries.channels:
        note("the address was not checked: pip install 'durably[smtp]' here, and where mails are sent")
    shows = f"`durably destinations show {quote(added.name)}` tells how it stands."
    answer(options, as_data(added), printable(f"Transport {added.name} is added: {added.address}. {shows}"))
    return 0


def _password(options: argparse.Namespace) -> str | None:
    """The password that was given; by stdin, other people on this host do not see it."""
    given: str | None = sys.stdin.readline().rstrip("\r\n") if options.password == "-" else options.password
    if given == "":
        raise Usage("--password: it is empty; give one, or leave the option out if nobody logs in")
    return given
