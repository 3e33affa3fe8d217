"""Whoever operates on a store, in a namespace."""

from __future__ import annotations

from durably.client.engine import Engine
from durably.core.task import DEFAULT_NAMESPACE, full_queue, split_queue


class Operator:
    """The store and the namespace that an operator works in."""

    def __init__(self, engine: Engine, namespace: str = DEFAULT_NAMESPACE) -> None:
        self._engine = engine
        self._store = engine.store
        self._namespace = namespace

    def _full(self, queue: str) -> str:
        return queue if "/" in queue else full_queue(self._namespace, queue)

    def _space(self, queue: str | None) -> str:
        """The namespace to look in: the one that the queue's full name carries, else the operator's."""
        return self._namespace if queue is None else split_queue(self._full(queue))[0]
