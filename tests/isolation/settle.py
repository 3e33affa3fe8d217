"""Once the dust has settled: kill everyone, let time pass, and see whether all that was accepted still ends."""

from __future__ import annotations

from typing import Any, TypeVar

import psycopg

from durably.core.change import Applied
from durably.core.lifecycle import complete, lapse
from durably.core.task import Task
from durably.errors import DurablyError
from durably.stores.operations import control, sweep
from durably.stores.operations.claim import claim
from durably.stores.operations.commit import commit
from durably.stores.statement import Operation, Queries

from .acts import BATCH, names
from .party import Connection, run_alone
from .snapshot import take

T = TypeVar("T")

DAY = 86_400_000_000
ROUNDS = 30


class Settler:
    """The one worker that is left."""

    def __init__(self, connection: Connection, queries: Queries, queues: list[str]) -> None:
        self._connection = connection
        self._queries = queries
        self._queues = queues
        self._places: dict[tuple[str, str], tuple[int, int]] = {}
        self._wrongs: list[str] = []

    def run(self, op: Operation[T]) -> T:
        return run_alone(self._connection, self._queries, op)

    def settle(self) -> list[str]:
        """End everything that is there; what was wrong on the way."""
        before = take(self._connection)
        for row in before.keys:
            self._places[row["queue"], row["key"]] = (0, row["token"])
        self._pass_time()
        self.run(sweep.open_session("settler", 1000 * DAY, "here", 1, "{}"))
        for row in before.queues:
            self.run(control.set_queue(row["name"], "active"))
        try:
            self._end_everything()
        except (psycopg.Error, DurablyError) as error:
            self._wrongs.append(f"the store refused: {error}")
        self._look_for_leftovers()
        return self._wrongs

    def _end_everything(self) -> None:
        for _ in range(ROUNDS):
            self._pass_time()
            self._sweep()
            self._work()
            if not self._query("SELECT 1 FROM durably.tasks LIMIT 1"):
                break
        self._work()
        self.run(sweep.bury())

    def _pass_time(self) -> None:
        self._connection.execute("SELECT setval('isolation.clock', last_value + $1) FROM isolation.clock", [DAY])

    def _query(self, text: str) -> list[tuple[Any, ...]]:
        return self._connection.execute(text.encode()).fetchall()

    def _sweep(self) -> None:
        self.run(sweep.mark_dead())
        lost = self.run(sweep.lapsed(BATCH, []))
        for verdict in self.run(commit([lapse(task) for task in lost])) if lost else []:
            if not isinstance(verdict, Applied):
                self._wrongs.append(f"{names[verdict.change.task.id]} cannot be taken back from the dead")
        self.run(sweep.promote(self.run(sweep.due(BATCH, []))))
        for queue, key in self._query("SELECT queue, key FROM durably.keys WHERE state = 'paused'"):
            self.run(control.resume_key(queue, key))

    def _work(self) -> None:
        concurrency = dict(self._query("SELECT name, concurrency FROM durably.gates"))
        lonely = bool(self._query("SELECT 1 FROM durably.tasks WHERE alone LIMIT 1"))
        for alone in (False, True) if lonely else (False,):
            tasks = self.run(claim("settler", self._queues, BATCH, alone=alone)).tasks
            for name, most in concurrency.items():
                group = [task for task in tasks if name in (f"g:{task.gate}", f"q:{task.queue}")]
                if most is not None and len(group) > most:
                    self._wrongs.append(f"{len(group)} tasks passed {name}, which lets {most} pass")
            for task in tasks:
                self._check_turn(task)
            for verdict in self.run(commit([complete(task, b"ok") for task in tasks])) if tasks else []:
                if not isinstance(verdict, Applied):
                    self._wrongs.append(f"{names[verdict.change.task.id]} cannot be completed by its only holder")

    def _check_turn(self, task: Task) -> None:
        if task.key is None:
            return
        seq, token = self._places.get((task.queue, task.key), (0, 0))
        if task.seq <= seq:
            self._wrongs.append(f"{names[task.id]} ran after one that came later in its key")
        if task.token <= token:
            self._wrongs.append(f"the token of the key {task.key} did not rise")
        self._places[task.queue, task.key] = (task.seq, task.token)

    def _look_for_leftovers(self) -> None:
        shot = take(self._connection)
        self._wrongs += [f"{names.get(row['id'], row['id'])} is stranded ({row['state']})" for row in shot.tasks]
        for table in ("turns", "keys", "lines", "permits", "cancel_requests"):
            rows: list[dict[str, Any]] = getattr(shot, table)
            self._wrongs += [f"something is left in {table}: {row}" for row in rows]
        self._wrongs += [f"a claim of {row['session']} is left" for row in shot.claims if row["session"] != "settler"]
        self._wrongs += [f"the session {row['id']} is left" for row in shot.sessions if row["id"] != "settler"]
        self._wrongs += [
            f"the unique key {row['key']} is left" for row in shot.unique_keys if row["scope"] in ("live", "waiting")
        ]
