"""A declared task, typed: the type checker knows a wrong argument."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, Generic, ParamSpec, TypeVar, Unpack

import msgspec

from durably.client.bulk import SLICE
from durably.client.engine import Engine, override_options
from durably.client.handle import Handle
from durably.core.codec import Signature
from durably.core.options import CallOptions, Settings, settings
from durably.core.task import Draft
from durably.errors import BadOption, Conflict
from durably.stores.operations.accept import Accepted

P = ParamSpec("P")
R = TypeVar("R")


class Call(msgspec.Struct, Generic[R], frozen=True, gc=False):
    """A call that has not been made yet: for `enqueue_many`, and for successors."""

    form: Form
    payload: bytes
    """The arguments as they are stored."""
    arguments: bytes
    """The same before any encryption."""

    def __repr__(self) -> str:
        return f"<call of {self.form.name}>"

    @property
    def within(self) -> Any:
        """The caller's connection that it was given, if any."""
        return self.form.settings.within

    def draft(self) -> Draft:
        """A draft with a new id."""
        return self.form.draft(self.payload, self.arguments)


class Form(msgspec.Struct, frozen=True):
    """What all calls of a task with the same options have in common."""

    engine: Engine
    name: str
    settings: Settings
    plain: bool
    queue: str
    priority: int

    def draft(self, payload: bytes, arguments: bytes) -> Draft:
        """The draft of a call, with a new id."""
        if self.plain:
            return Draft(self.engine.ids.task(None), self.name, self.queue, payload, self.priority)
        return self.engine.draft(self.name, self.settings, payload, arguments)


def drafted(engine: Engine, calls: Iterable[Call[Any]]) -> Iterator[list[Draft]]:
    """The drafts of calls, a few at a time."""
    source = iter(calls)
    while part := list(islice(source, SLICE)):
        for call in part:
            if not isinstance(call, Call):
                raise BadOption(f"enqueue_many takes task.call(...), not {call!r}")
            if call.form.settings.within is not None:
                raise BadOption("enqueue_many: give within= to enqueue_many itself, for all calls")
        forms = [call.form for call in part]
        if all([form.plain for form in forms]):
            yield [
                Draft(task_id, form.name, form.queue, call.payload, form.priority)
                for task_id, form, call in zip(engine.ids.tasks(len(part)), forms, part, strict=True)
            ]
        else:
            yield [call.draft() for call in part]


class Bound(Generic[P, R]):
    """A task with options for the calls that follow."""

    def __init__(self, engine: Engine, definition: Definition[P, R], chosen: Settings) -> None:
        self._engine = engine
        self._definition = definition
        self._settings = chosen
        self._form = Form(engine, definition.name, chosen, chosen.plain, chosen.full_queue, chosen.priority)

    def using(self, **options: Unpack[CallOptions]) -> Bound[P, R]:
        """The same with more options; the later one wins."""
        chosen = settings(self._settings, options)
        return Bound(self._engine, self._definition, override_options(chosen, self._definition.settings))

    def call(self, *args: P.args, **kwargs: P.kwargs) -> Call[R]:
        """The call as data, to be enqueued by someone else."""
        arguments = self._definition.signature.encode(args, kwargs)
        return Call(self._form, self._engine.payload(self._form.name, arguments), arguments)

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """Accept the task: once this returns, or the caller's transaction commits, it will happen."""
        arguments = self._definition.signature.encode(args, kwargs)
        form, engine = self._form, self._engine
        payload = engine.payload(form.name, arguments)
        draft = form.draft(payload, arguments)
        within = self._settings.within
        if form.plain and within is None and engine.put(draft):
            return Handle(engine, draft.id, self._definition.signature, known=True)
        [answer] = engine.accept([draft], within)
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
        self.name = name
        super().__init__(engine, self, declared)
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
