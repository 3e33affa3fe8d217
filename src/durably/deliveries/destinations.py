"""What operators do with destinations: add them, look at them, change, pause and resume them, rotate their secrets."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from typing import Unpack

import msgspec

from durably.client.engine import Engine
from durably.client.info import TaskInfo, task_info
from durably.client.loop import synchronously
from durably.client.operator import Operator
from durably.client.plan import Plan, arun, run
from durably.core.delivery import Condition, Destination, Rules, Standing
from durably.core.moment import Duration, micros, seconds
from durably.core.options import text
from durably.core.task import State, Task, full_queue
from durably.deliveries.drive import Driver
from durably.deliveries.options import RuleOptions, rules_with
from durably.deliveries.register import QUEUE
from durably.deliveries.vault import Secret, Vault
from durably.deliveries.webhooks import new_secret, sign
from durably.errors import BadOption, Conflict, UnknownTask
from durably.stores.operations.deliver import (
    add_destinations,
    change_destination,
    change_rules,
    destinations,
    forget_destination,
    hurry,
    list_destinations,
    pending,
    release_line,
)
from durably.stores.operations.read import get
from durably.stores.statement import Operation

ROUNDS = 20
ALL = 1_000_000


class DestinationInfo(msgspec.Struct, frozen=True):
    """A destination as people see it: without its secrets."""

    name: str
    channel: str
    address: str
    rules: Rules
    condition: Condition
    signed: bool
    """Whether it has a secret."""

    @property
    def standing(self) -> str:
        return str(self.condition.standing)


class Flushed(msgspec.Struct, frozen=True):
    """What a flush has come to: the tasks that were delivered, that wait, and that ended otherwise."""

    delivered: builtins.list[str]
    waiting: builtins.list[str]
    ended: builtins.list[str]


class Destinations(Operator):
    """Peers, and how they are delivered to."""

    def __init__(self, engine: Engine, namespace: str, vault: Vault, check: Callable[[str, str], None]) -> None:
        super().__init__(engine, namespace)
        self._vault = vault
        self._check = check
        self.rules = Rules()
        """What a new destination gets where nothing else is said."""
        self.driver: Driver | None = None
        """Who makes attempts for `flush` and `probe`."""

    def defaults(self, **options: Unpack[RuleOptions]) -> None:
        """Choose what destinations get where nothing else is said, from now on and in this process."""
        self.rules = rules_with(self.rules, options)

    def add(
        self,
        name: str,
        address: str,
        *,
        channel: str = "webhook",
        secret: str | None = None,
        signed: bool = True,
        **options: Unpack[RuleOptions],
    ) -> DestinationInfo:
        """Add a destination. A webhook that is `signed` gets a new secret unless one is given; `secrets` shows it."""
        return run(self._store, self._add(name, address, channel, secret, signed, options))

    async def aadd(
        self,
        name: str,
        address: str,
        *,
        channel: str = "webhook",
        secret: str | None = None,
        signed: bool = True,
        **options: Unpack[RuleOptions],
    ) -> DestinationInfo:
        """The asynchronous twin of add."""
        return await arun(self._store, self._add(name, address, channel, secret, signed, options))

    def get(self, name: str) -> DestinationInfo:
        """One destination."""
        return _info(run(self._store, self._found(name)))

    async def aget(self, name: str) -> DestinationInfo:
        """The asynchronous twin of get."""
        return _info(await arun(self._store, self._found(name)))

    def list(self, *, standing: str | None = None, after: str = "", limit: int = 50) -> builtins.list[DestinationInfo]:
        """Destinations in the order of their names, those `after` a name."""
        return [_info(one) for one in self._store.run(list_destinations(self._namespace, after, standing, limit))]

    async def alist(
        self, *, standing: str | None = None, after: str = "", limit: int = 50
    ) -> builtins.list[DestinationInfo]:
        """The asynchronous twin of list."""
        found = await self._store.arun(list_destinations(self._namespace, after, standing, limit))
        return [_info(one) for one in found]

    def set(
        self, name: str, *, address: str | None = None, channel: str | None = None, **options: Unpack[RuleOptions]
    ) -> DestinationInfo:
        """Change a destination. Its order holds for what is published from now on."""
        return run(self._store, self._set(name, address, channel, options))

    async def aset(
        self, name: str, *, address: str | None = None, channel: str | None = None, **options: Unpack[RuleOptions]
    ) -> DestinationInfo:
        """The asynchronous twin of set."""
        return await arun(self._store, self._set(name, address, channel, options))

    def pause(self, name: str, reason: str = "paused") -> DestinationInfo:
        """Deliver nothing to it until it is resumed; what is published meanwhile waits."""
        return run(self._store, self._paused(name, reason))

    async def apause(self, name: str, reason: str = "paused") -> DestinationInfo:
        """The asynchronous twin of pause."""
        return await arun(self._store, self._paused(name, reason))

    def resume(self, name: str) -> DestinationInfo:
        """Deliver again, at once: whatever was held against the peer is forgotten."""
        return run(self._store, self._resumed(name))

    async def aresume(self, name: str) -> DestinationInfo:
        """The asynchronous twin of resume."""
        return await arun(self._store, self._resumed(name))

    def pending(self, name: str, *, limit: int = 50) -> builtins.list[TaskInfo]:
        """What waits for it, or is under way, in the order of acceptance."""
        return self._infos(self._store.run(pending(self._namespace, name, limit)))

    async def apending(self, name: str, *, limit: int = 50) -> builtins.list[TaskInfo]:
        """The asynchronous twin of pending."""
        return self._infos(await self._store.arun(pending(self._namespace, name, limit)))

    def flush(self, name: str, *, force: bool = False) -> Flushed:
        """Try here and now what is due; with `force`, everything that waits, whatever its schedule says.

        No message is tried more than once, a forced attempt that fails is not charged, and those behind one that fails
        in a `fifo` destination are not tried.
        """
        return synchronously(self._engine, self.aflush(name, force=force), "destinations.aflush()")

    async def aflush(self, name: str, *, force: bool = False) -> Flushed:
        """The asynchronous twin of flush."""
        destination = await arun(self._store, self._hurried(name, ALL) if force else self._found(name))
        before = {task.id: task.attempt for task in await self._store.arun(pending(self._namespace, name, ALL))}
        tried: builtins.set[str] = set()
        while await self._round(destination, before, tried, force):
            pass
        found = {task.id: task for task in await self._store.arun(get(builtins.list(before)))}
        return _flushed([found[task] for task in before if task in found])

    def probe(self, name: str) -> DestinationInfo:
        """Try now whether the peer is there, with the message that waits first; how the destination stands then."""
        return synchronously(self._engine, self.aprobe(name), "destinations.aprobe()")

    async def aprobe(self, name: str) -> DestinationInfo:
        """The asynchronous twin of probe."""
        destination = await arun(self._store, self._hurried(name, 1))
        await self._driving().round([destination], 1, force=True)
        return await self.aget(name)

    async def _round(
        self, destination: Destination, before: dict[str, int], tried: builtins.set[str], force: bool
    ) -> bool:
        """Whether another round may find somebody who has not been tried."""
        left = [task for task in before if task not in tried]
        first = await self._store.arun(pending(destination.namespace, destination.name, 1))
        if not left or (destination.rules.order == "fifo" and first and first[0].id in tried):
            return False
        room = 1 if destination.rules.order == "fifo" else min(len(left), destination.rules.concurrency)
        ran = await self._driving().round([destination], room, tried, force=force)
        for task in await self._store.arun(get(left)):
            if task.attempt > before[task.id]:
                tried.add(task.id)
        return ran > 0

    def _driving(self) -> Driver:
        if self.driver is None:
            raise BadOption("flush and probe need the application that the destination belongs to")
        return self.driver

    def secrets(self, name: str) -> tuple[str, ...]:
        """Its secrets, the newest first, for whoever sets up the receiver."""
        return self._opened(run(self._store, self._found(name)))

    async def asecrets(self, name: str) -> tuple[str, ...]:
        """The asynchronous twin of secrets."""
        return self._opened(await arun(self._store, self._found(name)))

    def rotate(self, name: str, secret: str | None = None, *, overlap: Duration = "24h") -> str:
        """A new secret; the old one signs beside it for as long as `overlap` says, or until `retire`. The new one.

        A password is replaced by the one that is given, and not used any more.
        """
        return run(self._store, self._rotated(name, secret, overlap))

    async def arotate(self, name: str, secret: str | None = None, *, overlap: Duration = "24h") -> str:
        """The asynchronous twin of rotate."""
        return await arun(self._store, self._rotated(name, secret, overlap))

    def retire(self, name: str) -> DestinationInfo:
        """Sign with the newest secret only."""
        return run(self._store, self._retired(name))

    async def aretire(self, name: str) -> DestinationInfo:
        """The asynchronous twin of retire."""
        return await arun(self._store, self._retired(name))

    def forget(self, name: str) -> bool:
        """Forget a destination; what still waits for it becomes dead letters. False if it was not known."""
        return run(self._store, self._forgotten(name))

    async def aforget(self, name: str) -> bool:
        """The asynchronous twin of forget."""
        return await arun(self._store, self._forgotten(name))

    def _released(self, destination: Destination) -> Operation[None]:
        return release_line(full_queue(self._namespace, QUEUE), destination.line)

    def _opened(self, destination: Destination) -> tuple[str, ...]:
        return self._vault.open(destination.secrets, self._namespace, destination.name, self._engine.clock.now())

    def _infos(self, tasks: builtins.list[Task]) -> builtins.list[TaskInfo]:
        return [task_info(task, self._engine.codec) for task in tasks]

    def _add(
        self, name: str, address: str, channel: str, secret: str | None, signed: bool, options: RuleOptions
    ) -> Plan[DestinationInfo]:
        self._check(channel, address)
        if secret and not signed:
            raise BadOption("secret: a destination that is not signed for needs none")
        hook = channel == "webhook"
        secrets = [_checked(secret) if hook else secret] if secret else [new_secret()] if signed and hook else []
        made = Destination(
            self._namespace,
            text(name, "destination"),
            text(channel, "channel"),
            address,
            rules_with(self.rules, options),
            secrets=self._vault.seal([Secret(one) for one in secrets], self._namespace, name),
        )
        added: set[str] = yield add_destinations([made])
        if not added:
            raise Conflict(f"there is a destination {name!r} already: change it with `set`, or choose another name")
        return _info(made)

    def _found(self, name: str) -> Plan[Destination]:
        found: dict[str, Destination] = yield destinations(self._namespace, [name])
        if name not in found:
            raise UnknownTask(f"there is no destination {name!r}")
        return found[name]

    def _changed(
        self,
        name: str,
        change: Callable[[Destination], Destination],
        write: Callable[[Destination], Operation[builtins.set[tuple[str, str]]]] = change_destination,
    ) -> Plan[Destination]:
        """Change it as it is now, however often others do the same."""
        for _ in range(ROUNDS):
            destination = yield from self._found(name)
            changed = change(destination)
            written: builtins.set[tuple[str, str]] = yield write(changed)
            if written:
                return changed
        raise Conflict(f"the destination {name!r} changes all the time: try again")

    def _set(self, name: str, address: str | None, channel: str | None, options: RuleOptions) -> Plan[DestinationInfo]:
        def change(one: Destination) -> Destination:
            if address is not None or channel is not None:
                self._check(channel or one.channel, address or one.address)
            return msgspec.structs.replace(
                one,
                address=address or one.address,
                channel=channel or one.channel,
                rules=rules_with(one.rules, options),
            )

        limited = {"order", "concurrency", "rate"} & options.keys()
        write = change_rules if limited else change_destination
        return _info((yield from self._changed(name, change, write)))

    def _paused(self, name: str, reason: str) -> Plan[DestinationInfo]:
        condition = Condition(Standing.DISABLED, text(reason, "reason"))
        changed = yield from self._changed(
            name,
            lambda one: msgspec.structs.replace(
                one, condition=msgspec.structs.replace(condition, learned=one.condition.learned)
            ),
        )
        return _info(changed)

    def _resumed(self, name: str) -> Plan[DestinationInfo]:
        changed = yield from self._changed(
            name, lambda one: msgspec.structs.replace(one, condition=Condition(learned=one.condition.learned))
        )
        tasks: builtins.list[Task] = yield pending(self._namespace, name, ALL)
        yield hurry([task.id for task in tasks])
        yield self._released(changed)
        return _info(changed)

    def _hurried(self, name: str, count: int) -> Plan[Destination]:
        """Let the first of those that wait be due, whatever is held against the peer; one of them is only a probe."""
        waiting: builtins.list[Task] = yield pending(self._namespace, name, 1)
        if not waiting:
            return (yield from self._found(name))
        everything = {} if count == 1 else {"breaker": "closed", "probe": None}
        changed = yield from self._changed(
            name,
            lambda one: msgspec.structs.replace(
                one, condition=msgspec.structs.replace(one.condition, until=0, **everything)
            ),
        )
        tasks: builtins.list[Task] = yield pending(self._namespace, name, count)
        yield hurry([task.id for task in tasks])
        yield self._released(changed)
        return msgspec.structs.replace(changed, version=changed.version + 1)

    def _forgotten(self, name: str) -> Plan[bool]:
        found: dict[str, Destination] = yield destinations(self._namespace, [name])
        if name not in found:
            return False
        known: bool = yield forget_destination(found[name])
        tasks: builtins.list[Task] = yield pending(self._namespace, name, ALL)
        yield hurry([task.id for task in tasks])
        yield self._released(found[name])
        return known

    def _rotated(self, name: str, secret: str | None, overlap: Duration) -> Plan[str]:
        found = yield from self._found(name)
        known = self._opened(found)
        signs = found.channel == "webhook" or (known != () and all(one.startswith("whs") for one in known))
        if not signs and not secret:
            raise BadOption(f"secret: {name!r} needs a password, which nobody can make up: give it")
        new = _checked(secret) if signs and secret else secret or new_secret()
        until = self._engine.clock.now() + micros(seconds(overlap, "overlap"))

        def change(one: Destination) -> Destination:
            kept = [Secret(old, until) for old in self._opened(one)[:1]] if signs else []
            sealed = self._vault.seal([Secret(new), *kept], self._namespace, name)
            return msgspec.structs.replace(one, secrets=sealed)

        yield from self._changed(name, change)
        return new

    def _retired(self, name: str) -> Plan[DestinationInfo]:
        def change(one: Destination) -> Destination:
            newest = [Secret(text) for text in self._opened(one)[:1]]
            return msgspec.structs.replace(one, secrets=self._vault.seal(newest, self._namespace, name))

        return _info((yield from self._changed(name, change)))


def _checked(secret: str) -> str:
    """A secret that messages can be signed with."""
    sign([secret], "check", 0, b"")
    return secret


def _flushed(tasks: builtins.list[Task]) -> Flushed:
    return Flushed(
        delivered=[task.id for task in tasks if task.state == State.DONE],
        waiting=[task.id for task in tasks if not task.ended],
        ended=[task.id for task in tasks if task.ended and task.state != State.DONE],
    )


def _info(destination: Destination) -> DestinationInfo:
    return DestinationInfo(
        destination.name,
        destination.channel,
        destination.address,
        destination.rules,
        destination.condition,
        destination.secrets is not None,
    )
