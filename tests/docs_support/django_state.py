"""Django keeps its settings and connections in globals: a page gets new ones, and the other tests get theirs back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any


@contextmanager
def unconfigured_django() -> Iterator[None]:
    """Django as it is in a new process, for the block only."""
    conf: Any = import_module("django.conf")
    connections: Any = import_module("django.db").connections
    wrapped, known = conf.settings._wrapped, _forget(connections)
    conf.settings._wrapped = conf.empty
    try:
        yield
    finally:
        _forget(connections)
        conf.settings._wrapped = wrapped
        if known is not None:
            connections.settings = known


def _forget(connections: Any) -> Any:
    """Close the connections of this thread, and let go of the settings that they were made from."""
    if "settings" in vars(connections):
        for connection in connections.all(initialized_only=True):
            connection.close()
            del connections[connection.alias]
    connections._settings = None
    return vars(connections).pop("settings", None)
