"""The client's engine room: drafts from calls, acceptance, and the parts that handles and operators share."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import msgspec

from durably.client.bulk import Bulk, Tally, awrite, batches, write
from durably.client.intake import Answers, Intake
from durably.client.persist import persist
from durably.client.waiting import Waiters
from durably.core.change import Change
from durably.core.codec import PAYLOAD_LIMIT, Codec, Plain, fingerprint
from durably.core.ids import Ids, derived
from durably.core.moment import Clock, HostClock, micros, seconds
from durably.core.options import Settings
from durably.core.task import Draft, State, pack_options
from durably.errors import BadOption, BadPayload, Conflict, StoreUnavailable
from durably.observe.events import Event, Events
from durably.stores.operations.accept import accept
from durably.stores.protocol import Store
from durably.stores.statement import Operation


class Engine:
    """Everything that a declared task needs in order to be enqueued."""

    def __init__(
        self,
        store: Store,
        *,
        clock: Clock | None = None,
        ids: Ids | None = None,
        codec: Codec | None = None,
        payload_limit: int = PAYLOAD_LIMIT,
    ) -> None:
        self.store = store
        self.clock = clock or HostClock()
        self.ids = ids or Ids(self.clock)
        self.codec = codec or Plain()
        self.events = Events()
        self.waiters = Waiters(store)
        self.payload_limit = payload_limit
        self._intake = Intake(store, self._told)
        self.arriving: list[Callable[[], Awaitable[None]]] = []
        """What is to be done before a worker begins; it does not begin if that raises."""
        self.pruning: list[Callable[[int], Operation[int]]] = []
        """How to remove what has outlived its retention: so many rows at most, and how many there were."""
        self.leaving: list[Callable[[], Awaitable[None]]] = []
        """What is to be done when the last worker leaves an event loop, by those who keep something open there."""
        self._workers: WeakKeyDictionary[asyncio.AbstractEventLoop, int] = WeakKeyDictionary()

    def arrive(self) -> None:
        """A worker begins on this event loop."""
        loop = asyncio.get_running_loop()
        self._workers[loop] = self._workers.get(loop, 0) + 1

    async def leave(self) -> None:
        """A worker leaves this event loop, or whoever did something on it."""
        loop = asyncio.get_running_loop()
        self._workers[loop] = self._workers.get(loop, 0) - 1
        if self._workers[loop] <= 0:
            del self._workers[loop]
            for do in self.leaving:
                await do()

    def payload(self, name: str, plain: bytes) -> bytes:
        """The encoded arguments as they are stored."""
        data = plain if type(self.codec) is Plain else self.codec.encode(plain)
        if len(data) > self.payload_limit:
            raise BadPayload(
                f"the arguments of task {name!r} take {len(data):,} bytes, and the limit is {self.payload_limit:,}: "
                "store the data elsewhere and pass a reference, or raise payload_limit"
            )
        return data

    def draft(self, name: str, settings: Settings, payload: bytes, plain: bytes, task_id: str | None = None) -> Draft:
        """The draft of one call; `plain` is what the unique fingerprint is made of, before any encryption."""
        unique = settings.unique
        anchor = settings.key or (unique.key if unique is not None else None)
        return Draft(
            task_id or self.ids.task(anchor),
            name,
            settings.full_queue,
            payload,
            settings.priority,
            settings.due_in,
            settings.at,
            settings.key,
            settings.policy,
            settings.gate,
            settings.packed,
            settings.tags,
            settings.once,
            settings.expires,
            None if unique is None else str(unique.scope),
            None if unique is None else unique.key,
            None if unique is None else fingerprint(name, plain),
            None if unique is None or unique.period is None else micros(seconds(unique.period)),
        )

    def respawn(self, draft: Draft, task_id: str, attempt: int, index: int) -> Draft:
        """The draft as the successor of an attempt: its id follows from it, so a repeated commit inserts nothing."""
        if draft.unique_scope is not None:
            raise BadOption("then(): a successor cannot have a unique key; it is accepted exactly once anyway")
        return msgspec.structs.replace(draft, id=derived(task_id, attempt, index, draft.key))

    def sealed(self, change: Change) -> Change:
        """The change with its dead-letter hook's payload run through the codec, as every stored payload is."""
        if change.state != State.DEAD or not change.spawned or isinstance(self.codec, Plain):
            return change
        spawned = tuple(
            msgspec.structs.replace(draft, payload=self.codec.encode(draft.payload)) for draft in change.spawned
        )
        return msgspec.structs.replace(change, spawned=spawned)

    def accept(self, drafts: Sequence[Draft], within: Any) -> Answers:
        """Accept the drafts, in the caller's transaction if one is given."""
        if within is None:
            return self._intake.submit(drafts)
        return self._told(drafts, self.store.caller(within).run(accept(drafts, fresh=True)))

    def put(self, draft: Draft) -> bool:
        """Accept a plain draft by the store's shortest way; False if it has none, or if others wait for theirs."""
        try:
            if self._intake.busy or not self.store.put(draft):
                return False
        except StoreUnavailable as error:
            if not error.fleeting:
                raise
            persist(self.store, lambda again: accept([draft], again=True))
        if self.events.observed:
            self._tell(draft)
        return True

    def aaccept(self, drafts: Sequence[Draft], within: Any) -> Awaitable[Answers]:
        """The asynchronous twin."""
        return self._intake.asubmit(drafts) if within is None else self._aaccept_within(drafts, within)

    async def _aaccept_within(self, drafts: Sequence[Draft], within: Any) -> Answers:
        return self._told(drafts, await self.store.caller(within).arun(accept(drafts, fresh=True)))

    def accept_many(self, slices: Iterator[list[Draft]], within: Any) -> Bulk:
        """Accept any number of drafts, which come a few at a time; no more than two batches are in memory."""
        if within is None:
            return write(self.store, self._told, slices)
        tally = Tally()
        for batch in batches(slices):
            tally.count(self.accept(batch, within))
        return tally.total

    async def aaccept_many(self, slices: Iterator[list[Draft]], within: Any) -> Bulk:
        """The asynchronous twin."""
        if within is None:
            return await awrite(self._intake.asubmit, slices)
        tally = Tally()
        for batch in batches(slices):
            tally.count(await self.aaccept(batch, within))
        return tally.total

    def _told(self, drafts: Sequence[Draft], answers: Answers) -> Answers:
        if self.events.observed:
            for draft, answer in zip(drafts, answers, strict=True):
                if not isinstance(answer, Conflict) and not answer.existing:
                    self._tell(draft)
        return answers

    def _tell(self, draft: Draft) -> None:
        self.events.emit(Event("enqueued", draft.id, draft.name, draft.queue))


def override_options(settings: Settings, declared: Settings) -> Settings:
    """Settings whose per-call retry and timeout travel with the task; the declared ones stay with the code."""
    retry = settings.retry if settings.retry is not declared.retry else None
    timeout = settings.timeout if settings.timeout != declared.timeout else None
    if retry is None and timeout is None:
        return settings
    if retry is not None and retry.function is not None:
        raise BadOption("Retry.custom works in the declaration only: a function cannot travel with a task")
    options = msgspec.structs.replace(settings.options, retry=retry, timeout=timeout)
    return msgspec.structs.replace(settings, options=options, packed=pack_options(options))
