"""Writing a mail: from a template, a message that is ready, or words, to what is stored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from email.errors import HeaderParseError
from email.header import decode_header, make_header
from email.message import Message as AnyMessage
from typing import Any, TypedDict

import msgspec

from durably.client.engine import Engine
from durably.client.plan import Plan
from durably.core.brief import brief
from durably.core.delivery import Destination, Message, Rules
from durably.core.options import text
from durably.errors import BadOption
from durably.mail.attachments import Attachment
from durably.mail.info import NAMED, About
from durably.mail.letter import Letter, Words, letter
from durably.mail.library import Templates
from durably.mail.ready import from_message
from durably.mail.templates import Rendered
from durably.stores.operations.mail import Row

KIND = "durably.mail"
SUBJECT = 200
"""So many characters of a subject are shown in lists."""
OF_A_TEMPLATE = ("context", "locale")
OF_WORDS = ("cc", "bcc", "subject", "text", "html", "reply_to", "headers", "attachments", "unsubscribe")


class MailOptions(TypedDict, total=False):
    """What can be said about a mail."""

    to: str | Sequence[str]
    cc: str | Sequence[str]
    bcc: str | Sequence[str]
    sender: str
    subject: str
    text: str | None
    html: str | None
    context: Mapping[str, Any]
    locale: str
    reply_to: str | None
    headers: Mapping[str, str]
    attachments: Sequence[Attachment]
    unsubscribe: str | None
    category: str
    key: str | None
    transport: str
    within: Any
    at_once: bool | None


class Post(msgspec.Struct, frozen=True):
    """A mail that is ready to be accepted."""

    row: Row
    message: Message
    target: Destination


def compose(
    engine: Engine, namespace: str, templates: Templates, what: Any, options: MailOptions, usual: str | None
) -> Plan[Post]:
    """The mail as it is stored, and where it goes; `usual` is the sender if none is named."""
    unknown = options.keys() - MailOptions.__annotations__.keys()
    if unknown:
        raise BadOption(f"send: there is no option {', '.join(sorted(unknown))}")
    mail, now = engine.ids.task(KIND), engine.clock.now()
    rendered: Rendered | None = None
    if isinstance(what, AnyMessage):
        _refuse(options, (*OF_A_TEMPLATE, *OF_WORDS), "a message that is ready says it itself")
        made, subject = _of_message(what, mail, now, options), _decoded(what.get("Subject", ""))
    elif what is None or isinstance(what, str):
        if what is None:
            _refuse(options, OF_A_TEMPLATE, "that is for a template: name it first, as in send('welcome', ...)")
        else:
            _refuse(options, ("subject", "text", "html"), "the template says it")
            rendered = yield from templates.rendering(what, options.get("context", {}), options.get("locale", ""))
        words = _words(rendered, options, usual)
        made, subject = letter(words, mail, now), words.subject
    else:
        raise BadOption(f"send: {brief(what)} must be the name of a template, or an email.message.EmailMessage")
    return _post(engine, namespace, options, mail, made, _about(made, subject, what, rendered))


def _words(rendered: Rendered | None, options: MailOptions, usual: str | None) -> Words:
    sender = options.get("sender", usual)
    if sender is None:
        raise BadOption("sender: in whose name? Give sender=, or set app.mail.sender once")
    given: dict[str, Any] = {name: options[name] for name in ("to", *OF_WORDS) if name in options}  # type: ignore[literal-required]
    if rendered is not None:
        given |= {"subject": rendered.subject, "text": rendered.text, "html": rendered.html}
    for needed in ("to", "subject"):
        if needed not in given:
            raise BadOption(f"send: a mail needs {needed}=")
    return Words(sender=sender, category=_category(options), **given)


def _of_message(message: AnyMessage, mail: str, now: int, options: MailOptions) -> Letter:
    to, sender = options.get("to", ()), options.get("sender")
    return from_message(message, mail, now, sender=sender, to=to, category=_category(options))


def _decoded(subject: object) -> str:
    """A subject as people read it: old messages keep it encoded, and folded."""
    try:
        return " ".join(str(make_header(decode_header(str(subject)))).split())
    except (HeaderParseError, LookupError, UnicodeError):
        return str(subject)


def _category(options: MailOptions) -> str:
    given = options.get("category", "")
    return "" if given == "" else text(given, "category")


def _refuse(options: MailOptions, names: Sequence[str], why: str) -> None:
    given = [name for name in names if name in options]
    if given:
        raise BadOption(f"send: {', '.join(given)}: {why}")


def _about(made: Letter, subject: str, what: Any, rendered: Rendered | None) -> About:
    return About(
        made.sender,
        subject[:SUBJECT],
        made.recipients[:NAMED],
        len(made.recipients),
        what if isinstance(what, str) else "",
        rendered.version if rendered is not None else "",
        rendered.locale if rendered is not None else "",
        made.category,
    )


def _post(engine: Engine, namespace: str, options: MailOptions, mail: str, made: Letter, about: About) -> Post:
    key = options.get("key")
    row = Row(
        mail,
        namespace,
        engine.codec.encode(msgspec.json.encode(about)),
        None if key is None else text(key, "key"),
    )
    message = Message(mail, KIND, engine.codec.encode(msgspec.msgpack.encode(made)), "message/rfc822", {}, None)
    transport = text(options.get("transport", "main"), "transport")
    # A transport that is not known is an error: it has no address.
    return Post(row, message, Destination(namespace, transport, "smtp", "", Rules()))
