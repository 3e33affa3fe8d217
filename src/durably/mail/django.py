"""Django's mail, made durable: `EMAIL_BACKEND = "durably.mail.django.EmailBackend"`.

What Django sends is accepted, and workers bring it to a transport. With `DURABLY_MAIL_WITHIN` it is accepted in the
transaction that is open on Django's own connection: a rollback leaves no mail, and a commit does not lose one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from email.message import Message
from email.policy import SMTP
from importlib import import_module
from typing import Any

from durably.core.brief import brief
from durably.errors import DurablyError
from durably.mail.addresses import address
from durably.mail.mail import Mail

KEY, CATEGORY = "x-durably-key", "x-durably-category"
"""What a message says to Durably, in headers that nobody else gets to see."""
SETTINGS = {
    "app": ("DURABLY_APP", None),
    "transport": ("DURABLY_MAIL_TRANSPORT", "main"),
    "within": ("DURABLY_MAIL_WITHIN", None),
}
"""The options of the backend, the settings that they are taken from, and what holds without one."""

_django: Any = import_module("django")
_base: Any = import_module("django.core.mail.backends.base")
_conf: Any = import_module("django.conf")
_db: Any = import_module("django.db")
_exceptions: Any = import_module("django.core.exceptions")

_POLICY: dict[str, Any] = {"policy": SMTP} if _django.VERSION >= (6,) else {}


class EmailBackend(_base.BaseEmailBackend):  # type: ignore[misc]
    """Accepts mail; `get_connection(transport="bulk")` takes other options than the settings name."""

    def __init__(self, fail_silently: bool = False, **options: Any) -> None:
        chosen = {
            name: options.pop(name, getattr(_conf.settings, setting, usual))
            for name, (setting, usual) in SETTINGS.items()
        }
        super().__init__(**options)
        self.fail_silently = fail_silently
        self._where, self._transport, self._within = chosen["app"], chosen["transport"], chosen["within"]

    def send_messages(self, email_messages: Iterable[Any]) -> int:
        """Accept messages; how many. Those that name nobody are left out."""
        messages = [message for message in email_messages or () if message.recipients()]
        if not messages:
            return 0
        mail = _mail_of(self._where)
        return sum(self._accept(mail, message) for message in messages)

    def _accept(self, mail: Mail, message: Any) -> bool:
        said = {name.lower(): str(value) for name, value in message.extra_headers.items()}
        try:
            with self._transaction() as within:
                mail.send(
                    _written(message),
                    sender=address(str(message.from_email), "from_email")[1],
                    to=[address(str(one), "to")[1] for one in message.recipients()],
                    category=said.get(CATEGORY, ""),
                    key=said.get(KEY),
                    transport=self._transport,
                    within=within,
                )
        except DurablyError:
            if not self.fail_silently:
                raise
            return False
        return True

    @contextmanager
    def _transaction(self) -> Iterator[Any]:
        """The connection on which a transaction is open; None if there is none, or if mail is accepted by itself.

        What fails is taken back to a savepoint, so that whoever catches the error can go on with the transaction.
        """
        alias = self._within
        if alias is None:
            yield None
            return
        if alias not in [*_db.connections]:
            raise _wrong(f"DURABLY_MAIL_WITHIN: there is no database {brief(alias)} in DATABASES; write 'default'")
        connection = _db.connections[alias]
        if not connection.in_atomic_block:
            yield None
            return
        with _db.transaction.atomic(using=alias):
            yield connection


def _written(message: Any) -> Message:
    """The message as Django would hand it to a server."""
    made: Message = message.message(**_POLICY)
    for name in (KEY, CATEGORY):
        del made[name]
    return made


def _mail_of(where: Any) -> Mail:
    """The mail of the application that the setting names."""
    name, _, attribute = where.partition(":") if isinstance(where, str) else ("", "", "")
    if not (name and attribute) or not all(name.split(".")):
        raise _wrong(f"DURABLY_APP: {brief(where)} must name your application, such as 'shop.tasks:app'")
    try:
        found: Any = import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if name != missing and not name.startswith(f"{missing}."):
            raise
        raise _wrong(f"DURABLY_APP: there is no module {missing!r}, which {where!r} needs") from None
    for part in attribute.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise _wrong(f"DURABLY_APP: {name} has no {attribute!r}; check {where!r}") from None
    mail = getattr(found, "mail", None)
    if not isinstance(mail, Mail):
        raise _wrong(f"DURABLY_APP: {where!r} is of type {type(found).__name__}, and must be a Durably")
    return mail


def _wrong(told: str) -> Exception:
    error: Exception = _exceptions.ImproperlyConfigured(told)
    return error
