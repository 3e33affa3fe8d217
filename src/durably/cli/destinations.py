"""`durably destinations`: the peers that messages go to, how they stand, and who got a message."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from shlex import quote
from typing import TYPE_CHECKING, Any, cast

import msgspec

from durably.app import Durably
from durably.cli.connect import on_store
from durably.cli.detail import sentence
from durably.cli.grammar import Commands, Parser, command, group, limited
from durably.cli.output import answer, note
from durably.cli.report import Waiting, as_data, as_table, as_text, facts, outcome, report, standing
from durably.cli.usage import Usage
from durably.cli.words import counted, printable
from durably.core.delivery import Standing
from durably.errors import NotAllowed, Refused, UnknownTask

if TYPE_CHECKING:
    from durably.deliveries.destinations import DestinationInfo, Destinations
    from durably.deliveries.options import RuleOptions

SHOWN = 10
"""How many of those that wait are shown."""
COUNTED = 1000
"""How many of those that wait are counted."""
HOOKS = "https://acme.test/hooks"


def add(commands: Commands[Parser]) -> None:
    """Declare the commands."""
    summary = "peers that messages go to: add, look, change, pause, resume, secrets, reports"
    own = group(
        commands, "destinations", summary, ["durably destinations list", f"durably destinations add acme {HOOKS}"]
    )
    _declare_looks(own)
    _declare_changes(own)
    parser = _of_one(own, "pause", "deliver nothing until it is resumed; what is published meanwhile waits")
    parser.add_argument("--reason", default="paused by an operator", help="it is shown with the destination")
    on_store(parser, pause)

    summary = "deliver again, at once: whatever was held against the peer is forgotten"
    on_store(_of_one(own, "resume", summary), resume)

    parser = _of_one(own, "flush", "try here and now what is due", "acme --app shop.tasks:app --force")
    parser.add_argument("--force", action="store_true", help="everything that waits, whatever its schedule says")
    on_store(parser, flush)

    summary = "try here and now whether the peer is back, with the message that waits first"
    on_store(_of_one(own, "probe", summary, "acme --app shop.tasks:app"), probe)

    parser = _of_one(own, "rotate", "a new secret; the old one signs beside it for a day", "acme", "acme --overlap 7d")
    _secret(parser)
    parser.add_argument("--overlap", metavar="TIME", default="24h", help="how long the old one signs too (24h)")
    on_store(parser, rotate)

    on_store(_of_one(own, "retire", "sign with the newest secret only"), retire)

    parser = _of_one(own, "forget", "forget a destination; what still waits for it becomes dead letters", "acme --yes")
    parser.add_argument("--yes", action="store_true", help="do not ask")
    on_store(parser, forget)


def _of_one(own: Commands[Parser], name: str, summary: str, *examples: str) -> Parser:
    """A command on one destination."""
    parser = command(own, name, summary, [f"durably destinations {name} {one}" for one in examples or ("acme",)])
    parser.add_argument("name", metavar="NAME", help="the destination")
    return parser


def _declare_looks(own: Commands[Parser]) -> None:
    parser = command(
        own,
        "list",
        "destinations in the order of their names, and how they stand",
        ["durably destinations list --standing suspended", "durably destinations list --after acme --limit 200"],
    )
    parser.add_argument("--standing", choices=[one.value for one in Standing], help="only those that stand so")
    parser.add_argument("--after", metavar="NAME", default="", help="only those after this name: the next page")
    limited(parser)
    on_store(parser, list_destinations)

    parser = _of_one(
        own, "show", "a destination: its rules, how it stands, and what waits for it", "acme", "acme --secrets"
    )
    parser.add_argument("--secrets", action="store_true", help="its secrets too, the newest first")
    on_store(parser, show)

    summary = "who got a message, who did not, why, and when it is tried again"
    parser = command(own, "report", summary, ["durably destinations report 0190a5d1-ac96-774b-bcce-b302099a8057"])
    parser.add_argument("message", metavar="MESSAGE", help="the id that publish gave, which is the webhook-id too")
    on_store(parser, report)


def _declare_changes(own: Commands[Parser]) -> None:
    examples = [f"acme {HOOKS}", f"acme {HOOKS} --order unordered --rate 20/s --schedule 30s,5m,1h"]
    parser = _of_one(own, "add", "add a destination; a webhook gets a new secret, unless you give one", *examples)
    parser.add_argument("address", metavar="ADDRESS", help="where it is, in the form that its channel wants")
    parser.add_argument("--channel", default="webhook", help="how messages get there (webhook)")
    _secret(parser)
    parser.add_argument("--unsigned", action="store_true", help="without a secret: messages are not signed")
    _rules(parser, new=True)
    on_store(parser, add_destination)

    examples = ["acme --timeout 30s", "acme --address https://new.acme.test/hooks", "acme --rate none"]
    parser = _of_one(own, "set", "change a destination; what is not given stays as it is", *examples)
    parser.add_argument("--address", metavar="ADDRESS", help="where it is")
    parser.add_argument("--channel", help="how messages get there")
    _rules(parser, new=False)
    on_store(parser, set_destination)


def _secret(parser: Parser) -> None:
    parser.add_argument("--secret", metavar="TEXT", help="this secret instead of a new one; - reads it from stdin")


def _rules(parser: Parser, *, new: bool) -> None:
    """The options that are kept with a destination; their defaults are told where it is `new`."""
    rules = parser.add_argument_group("how it is delivered to")

    def option(name: str, usual: str, about: str, **given: Any) -> None:
        told = f"{about} ({usual})" if new else about
        rules.add_argument(f"--{name}", default=argparse.SUPPRESS, help=told, **given)

    option("order", "fifo", "one after the other, or several at once", choices=["fifo", "unordered"])
    option("policy", "block", "what a failing message does to those behind it", choices=["block", "overtake", "pause"])
    option("schedule", "30s,5m,30m,6h,24h", "how long to wait after each failure; or none", metavar="A,B", type=_waits)
    option("jitter", "0.1", "the share by which waits are stretched, by chance", metavar="N", type=float)
    option("timeout", "15s", "for one attempt", metavar="TIME")
    option("concurrency", "10", "so many at once, if unordered", metavar="N", type=int)
    option("rate", "none", "so many per time, such as 20/s or 300/m; or none", metavar="N/s", type=_or_none)
    option("expires", "7d", "when a message that waits is not worth delivering any more", metavar="TIME")
    option("breaker", "5", "failures in a row after which nobody tries for a while", metavar="N", type=int)
    option("cooldown", "30s", "how long that is at first", metavar="TIME")
    option(
        "fallback",
        "none",
        "the destination that gets what this one cannot take; or none",
        metavar="NAME",
        type=_or_none,
    )
    about = "it is gone when nobody has answered on so many different days; or never"
    option("gone-after", "7", about, metavar="DAYS", type=_or_never)


def _or_none(given: str) -> str | None:
    return None if given == "none" else given


def _or_never(given: str) -> int | None:
    return None if given == "never" else int(given)


def _waits(given: str) -> list[str]:
    return [] if given == "none" else given.split(",")


def _chosen(options: argparse.Namespace) -> RuleOptions:
    """The rules that were given, and no others."""
    from durably.deliveries.options import RuleOptions

    given = {name: value for name, value in vars(options).items() if name in RuleOptions.__annotations__}
    return cast(RuleOptions, given)


def add_destination(app: Durably, options: argparse.Namespace) -> int:
    """`durably destinations add`."""
    destinations = app.deliveries.destinations
    given = _given_secret(options)
    with _told_how_to_allow(options):
        added = destinations.add(
            options.name,
            options.address,
            channel=options.channel,
            secret=given,
            signed=not options.unsigned,
            **_chosen(options),
        )
    _tell_of_channel(app, options, added.channel)
    secret = destinations.secrets(added.name)[0] if added.signed and given is None else None
    told = [f"Destination {printable(added.name)} is added: {printable(added.channel)} to {printable(added.address)}."]
    if secret is not None:
        told += ["", f"  secret  {secret}", "", f"Give it to the receiver. {_shows(added.name)} shows it too."]
    answer(options, {**as_data(added), "secret": secret}, "\n".join(told))
    return 0


def set_destination(app: Durably, options: argparse.Namespace) -> int:
    """`durably destinations set`."""
    rules = _chosen(options)
    if not rules and options.address is None and options.channel is None:
        raise Usage("what should change? Give --address, --channel, --timeout or another option; see --help")
    with _told_how_to_allow(options):
        changed = app.deliveries.destinations.set(
            options.name, address=options.address, channel=options.channel, **rules
        )
    if options.channel is not None or options.address is not None:
        _tell_of_channel(app, options, changed.channel)
    order = " Its order holds for what is published from now on." if "order" in rules else ""
    told = f"Destination {printable(changed.name)} is changed.{order}\n\n{facts(changed)}"
    answer(options, as_data(changed), told)
    return 0


def list_destinations(app: Durably, options: argparse.Namespace) -> int:
    """`durably destinations list`."""
    found = app.deliveries.destinations.list(standing=options.standing, after=options.after, limit=options.limit)
    nobody = "No destinations match."
    if options.standing is None and not options.after:
        nobody = "No destinations. Add one with `durably destinations add NAME ADDRESS`."
    answer(options, [as_data(one) for one in found], as_table(found) if found else nobody)
    if found and len(found) == options.limit and sys.stdout.isatty():
        note(f"{options.limit} are shown; --limit shows more, --after {quote(found[-1].name)} the next ones")
    return 0


def show(app: Durably, options: argparse.Namespace) -> int:
    """`durably destinations show`."""
    destinations = app.deliveries.destinations
    found = destinations.get(options.name)
    secrets = destinations.secrets(options.name) if options.secrets else ()
    pending = destinations.pending(options.name, limit=SHOWN + 1)
    waiting = [Waiting(task, app.handle(task.id).attempts() if task.attempt else ()) for task in pending[:SHOWN]]
    data = {**as_data(found), "waiting": pending[:SHOWN]} | ({"secrets": secrets} if options.secrets else {})
    answer(options, data, as_text(found, waiting, more=len(pending) > SHOWN, secrets=secrets))
    return 0


def pause(app: Durably, options: argparse.Namespace) -> int:
    """`durably destinations pause`."""
    paused = app.deliveries.destinations.pause(options.name, options.reason)
    resume = f"`durably destinations resume {quote(options.name)}`"
    return _told(options, paused, f"is paused: what is published waits until {resume}")


def resume(app: Durably, options: argparse.Namespace) -> int:
    """`durably destinations resume`."""
    resumed = app.deliveries.destinations.resume(options.name)
    return _told(options, resumed, "is active: what waits for it is due now")


def flush(app: Durably, options: argparse.Namespace) -> int:
    """`durably destinations flush`."""
    destinations = _ready_to_deliver(app, options)
    flushed = destinations.flush(options.name, force=options.force)
    counts = [
        f"{len(tasks):,} {what}"
        for tasks, what in (
            (flushed.delivered, "delivered"),
            (flushed.waiting, "waiting"),
            (flushed.ended, "dead or cancelled"),
        )
        if tasks
    ]
    told = f"Destination {options.name}: {', '.join(counts) or 'nothing waits'}."
    if flushed.waiting:
        told += f" {standing(destinations.get(options.name))}"
    answer(options, {"name": options.name, **msgspec.structs.asdict(flushed)}, sentence(told))
    return 0


def probe(app: Durably, options: argparse.Namespace) -> int:
    """`durably destinations probe`."""
    destinations = _ready_to_deliver(app, options)
    first = destinations.pending(options.name, limit=1)
    if not first:
        found, tried, told = destinations.get(options.name), None, "nothing waits, so that there is nothing to try with"
    else:
        found, handle = destinations.probe(options.name), app.handle(first[0].id)
        tried = handle.info()
        told = outcome(Waiting(tried, handle.attempts()))
    text = f"Destination {found.name}: {told}. {standing(found)}"
    answer(options, {**as_data(found), "tried": tried}, sentence(text))
    return 0


def _ready_to_deliver(app: Durably, options: argparse.Namespace) -> Destinations:
    """The destinations, if this one can be delivered to from here.

    Another codec, guard or key than the application's would make dead letters, or disable the destination.
    """
    if options.app is None:
        raise Usage("to deliver takes the channels, the codec and the keys of your application: add --app module:app")
    destinations = app.deliveries.destinations
    found = destinations.get(options.name)
    if found.channel not in app.deliveries.channels:
        where = f"{options.app} has no channel named {found.channel!r}"
        raise UnknownTask(f"{where}, which leads to {options.name!r}: put it into app.deliveries.channels")
    destinations.secrets(options.name)
    return destinations


def rotate(app: Durably, options: argparse.Namespace) -> int:
    """`durably destinations rotate`."""
    destinations = app.deliveries.destinations
    given = _given_secret(options)
    new = destinations.rotate(options.name, given, overlap=options.overlap)
    several = len(destinations.secrets(options.name)) > 1
    told = [f"Destination {printable(options.name)} has a new secret."]
    if given is None:
        told += ["", f"  secret  {new}", "", f"Give it to the receiver. {_shows(options.name)} shows it too."]
    if several:
        told.append(
            f"The old one signs beside it for {options.overlap}. To end that sooner: "
            f"`durably destinations retire {quote(options.name)}`."
        )
    answer(options, {"name": options.name, "secret": new if given is None else None}, "\n".join(told))
    return 0


def retire(app: Durably, options: argparse.Namespace) -> int:
    """`durably destinations retire`."""
    retired = app.deliveries.destinations.retire(options.name)
    told = "is signed for with its newest secret only" if retired.signed else "has no secret: there is none to retire"
    return _told(options, retired, told)


def forget(app: Durably, options: argparse.Namespace) -> int:
    """`durably destinations forget`."""
    destinations = app.deliveries.destinations
    found = destinations.get(options.name)
    waiting = len(destinations.pending(options.name, limit=COUNTED))
    _confirm(options, waiting)
    if not destinations.forget(options.name):
        raise UnknownTask(f"somebody else has forgotten the destination {options.name!r} meanwhile")
    dead = f" What waited for it becomes dead letters: {_messages(waiting)}." if waiting else ""
    answer(options, as_data(found), f"Forgot destination {printable(options.name)}.{dead}")
    return 0


def _given_secret(options: argparse.Namespace) -> str | None:
    """The secret that was given; by stdin, other people on this host do not see it."""
    given: str | None = sys.stdin.readline().strip() if options.secret == "-" else options.secret
    if given == "":
        raise Usage("--secret: it is empty; give a secret, or leave the option out for a new one")
    return given


@contextmanager
def _told_how_to_allow(options: argparse.Namespace) -> Iterator[None]:
    """The guard of this command is the usual one; that of an application may let more through."""
    try:
        yield
    except Refused as error:
        if options.app is not None:
            raise
        raise Refused(f"{error} (if your application allows it, name that with --app module:app)") from None


def _tell_of_channel(app: Durably, options: argparse.Namespace, channel: str) -> None:
    """A mistyped channel is not noticed otherwise: the workers may have others than this command."""
    if channel in app.deliveries.channels:
        return
    where = "this command" if options.app is None else options.app
    named = "; --app module:app uses those of your application" if options.app is None else ""
    note(f"{where} has no channel named {channel!r}, so that the address was not checked{named}")


def _shows(name: str) -> str:
    return f"`durably destinations show {quote(name)} --secrets`"


def _messages(waiting: int) -> str:
    return f"{COUNTED:,} messages or more" if waiting == COUNTED else counted(waiting, "message")


def _confirm(options: argparse.Namespace, waiting: int) -> None:
    if options.yes:
        return
    if options.json or not sys.stdin.isatty():
        raise Usage("forgetting a destination cannot be undone: add --yes to do it without being asked")
    dead = f" What waits for it becomes dead letters: {_messages(waiting)}." if waiting else ""
    question = f"Forget destination {printable(options.name)}, with its secrets?{dead} [y/N] "
    if input(question).strip().lower() not in ("y", "yes"):
        raise NotAllowed("nothing was forgotten")


def _told(options: argparse.Namespace, found: DestinationInfo, what: str) -> int:
    answer(options, as_data(found), f"Destination {printable(found.name)} {what}.")
    return 0
