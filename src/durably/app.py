"""The application's face: declares tasks, enqueues many at once, runs workers, and gives operators their handles."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ParamSpec, Self, TypeVar, Unpack, cast, overload

from durably.client.bulk import Bulk
from durably.client.dead import Dead
from durably.client.definition import Call, Definition, drafted
from durably.client.engine import Engine
from durably.client.handle import Handle
from durably.client.loop import synchronously
from durably.client.operators import Keys, Limits, Queues, Sessions, Tasks
from durably.core.codec import PAYLOAD_LIMIT, Codec, Signature
from durably.core.explain import Why
from durably.core.ids import Ids
from durably.core.moment import Clock, Duration
from durably.core.options import CallOptions, DeclaredOptions, Settings, queue_name, settings, text
from durably.core.task import DEFAULT_NAMESPACE, full_queue
from durably.errors import BadOption
from durably.observe.events import Events
from durably.stores.open import open_store
from durably.stores.protocol import Store
from durably.worker.options import WorkerOptions, worker_options
from durably.worker.worker import Worker

if TYPE_CHECKING:
    from durably.deliveries.deliveries import Deliveries
    from durably.mail.mail import Mail
    from durably.notifications.notifications import Notifications, Notified

P = ParamSpec("P")
R = TypeVar("R")


class Durably:
    """Tasks that survive anything, in one store.

    `Durably("sqlite:///shop.db")` keeps them in a file, `Durably("postgresql://...")` in a database server; the
    semantics are the same.
    """

    def __init__(
        self,
        url: str | Store = "sqlite:///durably.db",
        *,
        namespace: str = DEFAULT_NAMESPACE,
        schema: str = "durably",
        listen_url: str | None = None,
        codec: Codec | None = None,
        payload_limit: int = PAYLOAD_LIMIT,
        secrets_key: str | Sequence[str] | None = None,
        at_once: bool = False,
        clock: Clock | None = None,
        ids: Ids | None = None,
    ) -> None:
        self.store = open_store(url, schema=schema, listen_url=listen_url, clock=clock) if isinstance(url, str) else url
        self.namespace = queue_name(namespace, "namespace")
        self._engine = Engine(self.store, clock=clock, ids=ids, codec=codec, payload_limit=payload_limit)
        self._definitions: dict[str, Definition[..., Any]] = {}
        self.tasks = Tasks(self._engine, namespace)
        self.dead = Dead(self._engine, namespace)
        self.queues = Queues(self._engine, namespace)
        self.limits = Limits(self._engine, namespace)
        self.keys = Keys(self._engine, namespace)
        self.sessions = Sessions(self._engine, namespace)
        self._secrets_key = secrets_key
        self._at_once = at_once
        self._deliveries: Deliveries | None = None
        self._mail: Mail | None = None
        self._notifications: Notifications | None = None
        self._making = threading.RLock()

    @property
    def events(self) -> Events:
        """Subscribe here to one event for every transition."""
        return self._engine.events

    @property
    def deliveries(self) -> Deliveries:
        """Messages to peers: webhooks, federation, and channels of your own. Whoever reads this serves them too."""
        if self._deliveries is None:
            with self._making:
                if self._deliveries is None:
                    self._deliver()
        assert self._deliveries is not None
        return self._deliveries

    @property
    def mail(self) -> Mail:
        """Mail: transports, templates, and how every recipient stands. Whoever reads this serves deliveries too."""
        _ = self.deliveries
        assert self._mail is not None
        return self._mail

    @property
    def notifications(self) -> Notifications:
        """What happened, for those who want to know. Whoever reads this serves deliveries too."""
        if self._notifications is None:
            with self._making:
                if self._notifications is None:
                    self._route()
        assert self._notifications is not None
        return self._notifications

    def _deliver(self) -> None:
        """Declare what deliveries and mail take."""
        from durably.deliveries.deliveries import TASK, Deliveries
        from durably.deliveries.dispatch import UNTIL_TOLD
        from durably.deliveries.drive import Driver
        from durably.deliveries.register import QUEUE
        from durably.mail.mail import HOOK, Mail

        made = Deliveries(self._engine, self.namespace, secrets_key=self._secrets_key, at_once=self._at_once)
        declared = self.declare(made.dispatcher.deliver, TASK, (), {"queue": QUEUE, "retry": UNTIL_TOLD})
        made.drive_with(Driver(self._engine, declared))
        mail = Mail(self._engine, self.namespace, made)
        self.declare(mail.tell, HOOK, (), {"queue": QUEUE})
        # The one that others look at comes last.
        self._mail, self._deliveries = mail, made

    def _route(self) -> None:
        """Declare what notifications take."""
        from durably.notifications import router
        from durably.notifications.notifications import PATIENCE, Notifications

        made = Notifications(self._engine, self.namespace, self.mail, at_once=self._at_once)
        options: DeclaredOptions = {"queue": router.QUEUE, "retry": PATIENCE}
        made.serve_with(
            self.declare(made.router.route, router.ROUTE, (), options),
            self.declare(made.router.digest, router.DIGEST, (), options),
            self.declare(made.router.undelivered, router.DEAD, (), options),
        )
        self.mail.followers.append(made.mail_died)
        self._notifications = made

    def notify(
        self,
        kind: str,
        recipient: str | Sequence[str],
        data: Any = None,
        *,
        key: str | None = None,
        within: Any = None,
        at_once: bool | None = None,
    ) -> Notified:
        """Let recipients know; see `notifications.notify`."""
        return self.notifications.notify(kind, recipient, data, key=key, within=within, at_once=at_once)

    async def anotify(
        self,
        kind: str,
        recipient: str | Sequence[str],
        data: Any = None,
        *,
        key: str | None = None,
        within: Any = None,
        at_once: bool | None = None,
    ) -> Notified:
        """The asynchronous twin of notify."""
        return await self.notifications.anotify(kind, recipient, data, key=key, within=within, at_once=at_once)

    @property
    def definitions(self) -> Mapping[str, Definition[..., Any]]:
        """The declared tasks by name; aliases are listed too."""
        return self._definitions

    @overload
    def task(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> Definition[P, R]: ...

    @overload
    def task(self, function: Callable[P, R], /) -> Definition[P, R]: ...

    @overload
    def task(
        self, /, *, name: str | None = None, aliases: tuple[str, ...] = (), **options: Unpack[DeclaredOptions]
    ) -> Declare: ...

    def task(
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        name: str | None = None,
        aliases: tuple[str, ...] = (),
        **options: Unpack[DeclaredOptions],
    ) -> Any:
        """Declare a task: an async function runs on the event loop, a plain one in a thread.

        Its name is the function's, or `name`; `aliases` are names that it had before, under which tasks may still wait.
        """
        declare = Declare(self, name, aliases, options)
        return declare if function is None else declare(function)

    def declare(
        self, function: Callable[..., Any], name: str | None, aliases: tuple[str, ...], options: DeclaredOptions
    ) -> Definition[..., Any]:
        """What `task` does, without the decorator."""
        chosen = text(name or getattr(function, "__name__", ""), "task name")
        declared = settings(Settings(namespace=self.namespace), cast(CallOptions, options))
        definition: Definition[..., Any] = Definition(self._engine, function, chosen, declared)
        for known in (chosen, *aliases):
            if known in self._definitions:
                raise BadOption(f"a task named {known!r} is already declared; give one of them another name=")
            self._definitions[text(known, "task name")] = definition
        return definition

    def enqueue_many(self, calls: Iterable[Call[Any]], *, within: Any = None) -> Bulk:
        """Accept any number of calls, in batches, in constant memory.

        Without `within`, each batch is a transaction of its own: after an error those before it are accepted.
        """
        return self._engine.accept_many(drafted(self._engine, calls), within)

    async def aenqueue_many(self, calls: Iterable[Call[Any]], *, within: Any = None) -> Bulk:
        """The asynchronous twin of enqueue_many."""
        return await self._engine.aaccept_many(drafted(self._engine, calls), within)

    def handle(self, task_id: str) -> Handle[Any]:
        """A handle on any task by its id; its result has its declared type if it is declared here."""
        return Handle(self._engine, task_id, find=self._signature)

    def _signature(self, name: str) -> Signature | None:
        definition = self._definitions.get(name)
        return None if definition is None else definition.signature

    def why(self, task_id: str) -> Why:
        """Why a task is not running, or not done."""
        return self.handle(task_id).why()

    async def awhy(self, task_id: str) -> Why:
        """Why a task is not running, or not done."""
        return await self.handle(task_id).awhy()

    def served_queues(self, queues: Iterable[str] | None = None) -> tuple[str, ...]:
        """The full names of the queues that a worker serves: those given, or those of the declared tasks."""
        if queues is not None:
            named = (text(name, "queues") for name in queues)
            return tuple(dict.fromkeys(name if "/" in name else full_queue(self.namespace, name) for name in named))
        declared = {definition.home_queue for definition in self._definitions.values()}
        return tuple(sorted({full_queue(self.namespace, "default"), *declared}))

    def worker(
        self,
        *,
        queues: Iterable[str] | None = None,
        concurrency: int = 100,
        lease: Duration = 30.0,
        heartbeat: Duration | None = None,
        poll: Duration = 1.0,
        grace: Duration = 25.0,
        stuck_limit: int | None = None,
        ahead: int = 1,
        recycle: bool = False,
    ) -> Worker:
        """A worker for this application; `run_worker` is the short way."""
        options = worker_options(
            self.served_queues(queues),
            concurrency=concurrency,
            lease=lease,
            heartbeat=heartbeat,
            poll=poll,
            grace=grace,
            stuck_limit=stuck_limit,
            ahead=ahead,
        )
        return Worker(self._engine, self._definitions, options, recycle=recycle)

    async def run_worker(
        self,
        *,
        queues: Iterable[str] | None = None,
        concurrency: int = 100,
        lease: Duration = 30.0,
        heartbeat: Duration | None = None,
        poll: Duration = 1.0,
        grace: Duration = 25.0,
        stuck_limit: int | None = None,
        ahead: int = 1,
    ) -> None:
        """Run a worker inside this event loop until it is cancelled: in a web application's lifespan, for example."""
        await self.worker(
            queues=queues,
            concurrency=concurrency,
            lease=lease,
            heartbeat=heartbeat,
            poll=poll,
            grace=grace,
            stuck_limit=stuck_limit,
            ahead=ahead,
        ).run()

    def tick(self, limit: int = 1000) -> int:
        """One round in this process, for tests: every task that is due runs once at most; how many ran."""
        return synchronously(self._engine, self.atick(limit), "app.atick()")

    async def atick(self, limit: int = 1000) -> int:
        """The asynchronous twin of tick."""
        options = WorkerOptions(self.served_queues(), concurrency=limit)
        return await Worker(self._engine, self._definitions, options).one_pass(limit)

    def drain(self) -> int:
        """Rounds until one finds nothing to run; how many attempts that were. What is delayed stays."""
        return synchronously(self._engine, self.adrain(), "app.adrain()")

    async def adrain(self) -> int:
        """The asynchronous twin of drain."""
        total = 0
        while ran := await self.atick():
            total += ran
        return total

    def migrate(self) -> list[str]:
        """Bring the store's schema up to date; the migrations that were applied."""
        return self.store.migrate()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

    def close(self) -> None:
        """Close the store's connections; `with Durably(...) as app` does it at the end of the block."""
        self.store.close()

    async def aclose(self) -> None:
        """Close the store's connections, those of the running event loop included."""
        await self._engine.leave()
        await self.store.aclose()
        await asyncio.to_thread(self.store.close)


class Declare:
    """The decorator that `app.task(...)` answers; typed for coroutines and plain functions alike."""

    def __init__(self, app: Durably, name: str | None, aliases: tuple[str, ...], options: DeclaredOptions) -> None:
        self._app = app
        self._name = name
        self._aliases = aliases
        self._options = options

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> Definition[P, R]: ...

    @overload
    def __call__(self, function: Callable[P, R], /) -> Definition[P, R]: ...

    def __call__(self, function: Callable[..., Any], /) -> Any:
        return self._app.declare(function, self._name, self._aliases, self._options)
