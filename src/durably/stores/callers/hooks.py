"""Being told that a caller's transaction has been committed, where its connection can tell."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any
from weakref import WeakKeyDictionary

log = logging.getLogger("durably.within")

Then = Callable[[], None]
_waiting: WeakKeyDictionary[Any, list[Then]] = WeakKeyDictionary()


def after_commit(given: Any, then: Then) -> bool:
    """Do something once the transaction that is open there has been committed; False if nobody would tell.

    Django's connections and SQLAlchemy's sessions do. What was accepted in a transaction that is rolled back is gone,
    and so is this.
    """
    session = _session(given)
    if session is not None:
        _on_session(session, then)
        return True
    on_commit = getattr(given, "on_commit", None)
    if on_commit is not None and hasattr(given, "in_atomic_block"):
        on_commit(lambda: _carefully(then))
        return True
    return False


def _session(given: Any) -> Any:
    """The session of SQLAlchemy behind it, if it is one."""
    for module, name in (("sqlalchemy.ext.asyncio", "async_scoped_session"), ("sqlalchemy.orm", "scoped_session")):
        found = sys.modules.get(module)
        if found is not None and isinstance(given, getattr(found, name)):
            given = given()
    asynchronous, orm = sys.modules.get("sqlalchemy.ext.asyncio"), sys.modules.get("sqlalchemy.orm")
    if asynchronous is not None and isinstance(given, asynchronous.AsyncSession):
        given = given.sync_session
    return given if orm is not None and isinstance(given, orm.Session) else None


def _on_session(session: Any, then: Then) -> None:
    waiting = _waiting.get(session)
    if waiting is None:
        waiting = _waiting[session] = []
        event: Any = import_module("sqlalchemy.event")
        event.listen(session, "after_commit", _committed)
        event.listen(session, "after_rollback", _rolled_back)
    waiting.append(then)


def _committed(session: Any) -> None:
    # A savepoint is told of as well.
    if session.in_nested_transaction():
        return
    waiting = _waiting[session]
    due, waiting[:] = waiting[:], []
    for then in due:
        _carefully(then)


def _rolled_back(session: Any) -> None:
    _waiting[session].clear()


def _carefully(then: Then) -> None:
    try:
        then()
    except Exception:
        log.exception("what was to follow a commit failed; the commit stands")
