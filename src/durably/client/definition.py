"""A declared task, typed: the type checker knows a wrong argument."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Generic, ParamSpec, TypeVar, Unpack

import msgspec

from durably.client.engine import Engine, override_options
from durably.client.handle import Handle
from durably.core.codec import Signature
from durably.core.options import CallOptions, Settings, settings
from durably.core.task import Draft
from durably.errors import Conflict
from durably.stores.operations.accept import Accepted

P = ParamSpec("P")
R = TypeVar("R")


class Call(Generic[R]):
    """A call that has not been made yet: for `enqueue_many`, and for successors."""

    __slots__ = ("_engine", "_payload", "_plain", "_settings", "definition")

    def __init__(
        self, engine: Engine, definition: Definition[..., R], settings: Settings, payload: bytes, plain: bytes
    ) -> None:
        self.definition = definition
        self._engine = engine
        self._settings = settings
        self._payload = payload
        self._plain = plain

    @property
    def within(self) -> Any:
        """The caller's connection that it was given, if any."""
        return self._settings.within

    def draft(self) -> Draft:
        """A draft with a new id."""
        return self._engine.draft(self.definition.name, self._settings, self._payload, self._plain)


class Bound(Generic[P, R]):
    """A task with options for the calls that follow."""

    def __init__(self, engine: Engine, definition: Definition[P, R], chosen: Settings) -> None:
        self._engine = engine
        self._definition = definition
        self._settings = chosen

    def using(self, **options: Unpack[CallOptions]) -> Bound[P, R]:
        """The same with more options; the later one wins."""
        chosen = settings(self._settings, options)
        return Bound(self._engine, self._definition, override_options(chosen, self._definition.settings))

    def call(self, *args: P.args, **kwargs: P.kwargs) -> Call[R]:
        """The call as data, to be enqueued by someone else."""
        plain = self._definition.signature.encode(args, kwargs)
        payload = self._engine.payload(self._definition.name, plain)
        return Call(self._engine, self._definition, self._settings, payload, plain)

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """Accept the task: once this returns, or the caller's transaction commits, it will happen."""
        draft = self.call(*args, **kwargs).draft()
        [answer] = self._engine.accept([draft], self._settings.within)
        return self._handle(answer)

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """The asynchronous twin of enqueue."""
        draft = self.call(*args, **kwargs).draft()
        [answer] = await self._engine.aaccept([draft], self._settings.within)
        return self._handle(answer)

    def _handle(self, answer: Accepted | Conflict) -> Handle[R]:
        if isinstance(answer, Conflict):
            raise answer
        return Handle(
            self._engine,
            answer.id,
            self._definition.signature,
            existing=answer.existing,
            uncommitted=self._settings.within is not None,
            known=True,
        )


class Definition(Bound[P, R]):
    """What `@app.task` makes of a function. Calling it runs the function here and now, as if it were undecorated."""

    def __init__(self, engine: Engine, function: Callable[P, Any], name: str, declared: Settings) -> None:
        super().__init__(engine, self, declared)
        self.name = name
        self.function = function
        self.settings = declared
        self.signature = Signature(function, name)
        self.is_async = inspect.iscoroutinefunction(function)
        self.__doc__ = function.__doc__
        self.__name__ = getattr(function, "__name__", name)
        self.__wrapped__ = function

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<task {self.name}>"

    @property
    def home_queue(self) -> str:
        """The full name of the queue that it is declared for."""
        return self.settings.full_queue

    def handle(self, task_id: str) -> Handle[R]:
        """A handle on a task of this kind that was enqueued before."""
        return Handle(self._engine, task_id, self.signature)


class DeadLetter(msgspec.Struct, frozen=True):
    """What a dead-letter hook receives as its argument `letter`."""

    id: str
    name: str
    queue: str
    reason: str
    attempt: int
