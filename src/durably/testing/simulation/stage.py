"""The handlers: each attempt plays its step of the script, and the ledger learns of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from durably.client.definition import DeadLetter, Definition
from durably.client.engine import Engine
from durably.core.options import Settings, settings
from durably.errors import Discard, Permanent, RetryAfter, Snooze
from durably.testing.simulation.ledger import Execution
from durably.testing.simulation.process import Process
from durably.testing.simulation.scenario import Play, Step
from durably.testing.simulation.world import World
from durably.worker.context import Context, current

T = TypeVar("T")

AGES = 1_000_000.0


class Stage:
    """Declares the tasks of a scenario for one process after the other."""

    def __init__(self, world: World) -> None:
        self._loop = world.loop
        self._ledger = world.ledger
        self._watcher = world.watcher
        self._trace = world.trace
        self._plays = {play.number: play for play in world.scenario.plays}
        self.regret: Callable[[str], object] = lambda task: None
        """Called when someone cancels a task in the moment in which it ends."""

    def declare(
        self, engine: Engine, process: Process, *, rare: bool = True, old: bool = False
    ) -> dict[str, Definition[..., Any]]:
        """The tasks as this process knows them; its code may be of the version before."""

        async def perform(number: int) -> str:
            return await self._perform(process, self._plays[number], definitions)

        async def grown(number: int, note: str = "") -> str:
            return await perform(number)

        def declared(name: str, function: Callable[..., Any] = perform) -> Definition[..., Any]:
            return Definition(engine, function, name, settings(Settings(), {}))

        async def mourn(letter: DeadLetter) -> None:
            self._ledger.letters.append({"task": letter.id, "attempt": letter.attempt})
            self._trace.say(process.name, f"mourns {self._trace.called(letter.id)}")

        definitions = {"mourn": declared("mourn", mourn)}
        if old:
            definitions |= {"perform": declared("perform"), "grown": declared("grown")}
        else:
            enact = declared("enact")
            definitions |= {"enact": enact, "perform": enact, "grown": declared("grown", grown)}
        if rare:
            definitions["rare"] = declared("rare")
        return definitions

    async def watched(self, process: Process, work: Callable[[], Awaitable[T]]) -> T:
        """Run a handler that is not of the script, in sight of the rules."""
        context = current()
        execution = self._begun(process, context, 0)
        try:
            result = await work()
            execution.ending = "return"
            return result
        except asyncio.CancelledError:
            execution.ending = "stopped"
            raise
        except Exception as error:
            execution.ending = type(error).__name__
            raise
        finally:
            execution.ended = self._loop.time() if execution.ended is None else execution.ended

    async def _perform(self, process: Process, play: Play, definitions: dict[str, Definition[..., Any]]) -> str:
        context = current()
        index = len(self._ledger.of(context.id))
        step = play.step(index)
        execution = self._begun(process, context, play.number)
        self._trace.say(
            process.name,
            f"begins {self._trace.called(context.id)} (attempt {context.attempt}, token {context.token}): "
            f"will {step.ending} after {step.runs:g} s",
        )
        try:
            return await self._play(process, context, play, step, execution, definitions)
        except asyncio.CancelledError:
            execution.ending = "stopped"
            raise
        finally:
            # A process that was killed unwinds only when the simulation is over.
            execution.ended = self._loop.time() if execution.ended is None else execution.ended
            self._trace.say(
                process.name, f"ends {self._trace.called(context.id)} (token {context.token}): {execution.ending}"
            )

    def _begun(self, process: Process, context: Context, number: int) -> Execution:
        row = self._watcher.rows[context.id]
        said = [told for told in self._ledger.events(context.id, "started") if told.event.attempt == context.attempt]
        execution = Execution(
            number,
            context.id,
            context.attempt,
            context.token,
            row.turn,
            process.name,
            self._loop.time(),
            alone=bool(row.alone),
            fresh=bool(said) and said[-1].at == self._loop.time(),
        )
        self._ledger.executions.append(execution)
        self._watcher.begins(execution, process)
        return execution

    async def _play(
        self,
        process: Process,
        context: Context,
        play: Play,
        step: Step,
        execution: Execution,
        definitions: dict[str, Definition[..., Any]],
    ) -> str:
        try:
            await asyncio.sleep(AGES if step.ending == "hang" else step.runs)
        except asyncio.CancelledError:
            execution.asked = True
            if step.stubborn:
                await asyncio.sleep(step.stubborn)
            raise
        execution.ending = "raise"
        if step.saves:
            await context.asave({"number": play.number})
        execution.ending = step.ending
        if step.regretted:
            self.regret(context.id)
        match step.ending:
            case "raise":
                raise ValueError(f"number {play.number} was told to fail")
            case "permanent":
                raise Permanent("it was told to give up")
            case "snooze":
                raise Snooze(step.wait)
            case "discard":
                raise Discard("it was told so")
            case "retry after":
                raise RetryAfter(step.wait)
            case "kill":
                process.crash(f"{self._trace.called(context.id)} kills it")
                await asyncio.sleep(AGES)
        if play.then is not None:
            successor = self._plays[play.then]
            options = {name: value for name, value in successor.options.items() if name != "unique"}
            known = definitions.get(successor.name, definitions["perform"])
            execution.spawned = context.then(known.using(**options).call(successor.number))
        return f"{play.number} under {context.token}"
