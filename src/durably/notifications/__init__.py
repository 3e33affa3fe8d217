"""Notifications: `app.notify`, `app.notifications`, and what their users name."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from durably.errors import MissingPackage
from durably.notifications.catalogue import Catalogue, Kind
from durably.notifications.channel import Note, NotificationChannel
from durably.notifications.inbox import Counts, EntryInfo, Inbox, Preferences
from durably.notifications.info import NotificationInfo, RouteInfo
from durably.notifications.notifications import Notifications, Notified
from durably.notifications.people import Person
from durably.stores.operations.notify import Preference

if TYPE_CHECKING:
    from durably.notifications.apprise import AppriseChannel
    from durably.notifications.http import HttpChannel

_LATER = {"AppriseChannel": ("apprise", "apprise"), "HttpChannel": ("http", "http")}

__all__ = [
    "AppriseChannel",
    "Catalogue",
    "Counts",
    "EntryInfo",
    "HttpChannel",
    "Inbox",
    "Kind",
    "Note",
    "NotificationChannel",
    "NotificationInfo",
    "Notifications",
    "Notified",
    "Person",
    "Preference",
    "Preferences",
    "RouteInfo",
]


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, extra = _LATER[name]
    try:
        return getattr(import_module(f"{__name__}.{module}"), name)
    except ImportError as error:
        raise MissingPackage(f"{name} needs more packages: pip install 'durably[{extra}]' ({error})") from error
