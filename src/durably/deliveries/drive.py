"""Driving deliveries here and now, without a worker: one round for the destinations that are named."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from durably.client.engine import Engine
from durably.core.delivery import Destination
from durably.core.task import full_queue
from durably.deliveries.dispatch import DRIVEN, Driven
from durably.deliveries.register import QUEUE
from durably.stores.operations.claim import claim_of
from durably.worker.execute import AnyDefinition
from durably.worker.options import worker_options
from durably.worker.worker import Surroundings, Worker

MOST = 1000
"""Attempts in one round."""


class Driver:
    """Makes attempts under a session of its own, as a worker would, but only for the destinations that it is told."""

    def __init__(self, engine: Engine, definition: AnyDefinition, surroundings: Surroundings | None = None) -> None:
        self._engine = engine
        self._definition = definition
        self._surroundings = surroundings

    async def round(
        self, destinations: Sequence[Destination], room: int, tried: Collection[str] = (), *, force: bool = False
    ) -> int:
        """One attempt of each head, and of up to so many that need no order, but of none that was tried; how many."""
        told = DRIVEN.set(Driven(frozenset(tried), force))
        room = min(room, MOST)
        queue = full_queue(destinations[0].namespace, QUEUE)
        keys = [one.name for one in destinations if one.rules.order == "fifo"]
        lines = [one.line for one in destinations if one.rules.order != "fifo"]
        lease = 2 * max(one.rules.timeout for one in destinations) + 30.0
        options = worker_options((queue,), concurrency=room, lease=lease)
        known = {self._definition.name: self._definition}
        worker = Worker(self._engine, known, options, surroundings=self._surroundings)
        try:
            return await worker.one_pass(room, lambda session: claim_of(session, queue, keys, lines, room))
        finally:
            DRIVEN.reset(told)
