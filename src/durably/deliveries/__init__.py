"""Messages to peers: `app.deliveries`, and what its users name.

What needs the packages of `durably[http]` is imported when it is asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from durably.core.delivery import Kind, Message, Outcome, Rules
from durably.deliveries.audience import Audience, Peer
from durably.deliveries.channel import Channel, Delivery
from durably.deliveries.deliveries import Deliveries, DeliveryInfo, Publication
from durably.deliveries.destinations import DestinationInfo, Flushed
from durably.deliveries.guard import Guard
from durably.deliveries.register import DestinationChange
from durably.deliveries.vault import new_key
from durably.errors import MissingPackage

if TYPE_CHECKING:
    from durably.deliveries.client import Client
    from durably.deliveries.http import Federation, Webhook

_LATER = {"Client": "client", "Federation": "http", "Webhook": "http"}

__all__ = [
    "Audience",
    "Channel",
    "Client",
    "Deliveries",
    "Delivery",
    "DeliveryInfo",
    "DestinationChange",
    "DestinationInfo",
    "Federation",
    "Flushed",
    "Guard",
    "Kind",
    "Message",
    "Outcome",
    "Peer",
    "Publication",
    "Rules",
    "Webhook",
    "new_key",
]


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(f"{__name__}.{_LATER[name]}"), name)
    except ImportError as error:
        raise MissingPackage(f"{name} needs more packages: pip install 'durably[http]' ({error})") from error
