"""The judge bites: every kind of wrong that a soak looks for is found in evidence that was doctored to have it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from tests.soak.checker import violations
from tests.soak.ledger import Line
from tests.soak.snapshot import Row, Snapshot, Trial

KEY = "a0.1"


class Evidence:
    """A ledger and a store that agree, and ways to make them disagree."""

    def __init__(self) -> None:
        self.now = 0.0
        self.lines: list[Line] = []
        self.rows: dict[str, Row] = {}
        self.trials: dict[str, list[Trial]] = {}
        self.orders: set[str] = set()
        self.left: dict[str, int] = {"turns": 0, "keys": 0}
        self.damage: list[str] = []

    def say(self, what: str, label: str, **facts: Any) -> None:
        self.now += 1.0
        self.lines.append(Line(what, self.now, 1, label, **facts))

    def offer(self, task: str, name: str, label: str, answer: str | None = "accepted", note: str = "") -> None:
        self.say("offered", label, name=name, note=note)
        if answer is not None:
            self.say(answer, label, task=task, name=name, note=note)

    def attempt(self, task: str, label: str, attempt: int, token: int, end: str | None = "ran") -> None:
        self.say("began", label, task=task, attempt=attempt, token=token)
        if end is not None:
            self.say(end, label, task=task, attempt=attempt, token=token)

    def row(self, task: str, name: str, label: str, token: int, **facts: Any) -> None:
        given = {"state": "done", "key": None, "attempt": 1, "spent": 1, "crashes": 0, "reason": ""} | facts
        self.rows[task] = Row(id=task, name=name, label=label, token=token, **given)
        if given["state"] != "dead":
            self.say("completed", "", task=task)

    def change(self, task: str, **facts: Any) -> None:
        self.rows[task] = msgspec.structs.replace(self.rows[task], **facts)

    def drop(self, what: str, task: str) -> None:
        self.lines = [line for line in self.lines if not (line.what == what and line.task == task)]

    def verdict(self, ahead: int = 1) -> list[str]:
        snapshot = Snapshot(list(self.rows.values()), self.trials, self.orders, self.left, self.damage)
        return violations(self.lines, snapshot, ahead=ahead)


def honest() -> Evidence:
    """A small soak in which all went well, one of each kind."""
    told = Evidence()
    told.offer("plain", "plain", "a0.0.1")
    told.attempt("plain", "a0.0.1", 1, 1, end=None)
    told.attempt("plain", "a0.0.1", 2, 5)
    told.row("plain", "plain", "a0.0.1", 5, attempt=2, spent=2, crashes=1)
    told.trials["plain"] = [Trial(1, "crashed", "durably.Crashed", "the worker died")]
    for number in (1, 2, 3):
        told.offer(f"keyed{number}", "keyed", f"{KEY}.{number}", "unsure" if number == 2 else "accepted")
    for number in (1, 2, 3):
        told.attempt(f"keyed{number}", f"{KEY}.{number}", 1, 10 + number)
        told.row(f"keyed{number}", "keyed", f"{KEY}.{number}", 10 + number, key=KEY)
    told.offer("hopeless", "hopeless", "a0.0.2")
    told.attempt("hopeless", "a0.0.2", 1, 20, end="failed")
    told.row("hopeless", "hopeless", "a0.0.2", 20, state="dead", reason="permanent: it cannot be done")
    told.trials["hopeless"] = [Trial(1, "failed", "durably.Permanent", "it cannot be done")]
    told.attempt("mourning", "mourn/hopeless", 1, 21)
    told.row("mourning", "mourn", "mourn/hopeless", 21)
    told.offer("poison", "poison", "a0.0.3")
    for attempt in (1, 2, 3):
        told.attempt("poison", "a0.0.3", attempt, 30 + attempt, end=None)
    told.row(
        "poison",
        "poison",
        "a0.0.3",
        33,
        state="dead",
        attempt=3,
        spent=3,
        crashes=3,
        reason="killed its process 3 times",
    )
    told.trials["poison"] = [Trial(attempt, "crashed", "durably.Crashed", "it died") for attempt in (1, 2, 3)]
    told.offer("once", "once", "a0.0.4")
    told.attempt("once", "a0.0.4", 1, 40, end=None)
    told.row("once", "once", "a0.0.4", 40, state="dead", crashes=1, reason="at most once: it may have run")
    told.trials["once"] = [Trial(1, "crashed", "durably.Crashed", "the worker died")]
    told.offer("parent", "parent", "a0.0.5")
    told.attempt("parent", "a0.0.5", 1, 50)
    told.row("parent", "parent", "a0.0.5", 50)
    told.attempt("child", "a0.0.5/child", 1, 51)
    told.row("child", "child", "a0.0.5/child", 51)
    told.offer("ordered", "plain", "a0.0.6", note="outbox")
    told.orders.add("a0.0.6")
    told.attempt("ordered", "a0.0.6", 1, 60)
    told.row("ordered", "plain", "a0.0.6", 60)
    told.offer("", "plain", "a0.0.7", "rolled back", note="outbox")
    told.offer("", "plain", "a0.0.8", answer=None)
    told.say("offered", "a0.0.9", name="plain", many=2)
    told.say("accepted", "a0.0.9", name="plain", many=2)
    for index in range(2):
        told.attempt(f"bulk{index}", f"a0.0.9:{index}", 1, 70 + index)
        told.row(f"bulk{index}", "plain", f"a0.0.9:{index}", 70 + index)
    return told


def test_evidence_that_agrees_is_not_complained_about() -> None:
    assert honest().verdict() == []


def test_an_unsure_enqueue_may_exist_and_may_not() -> None:
    told = honest()
    told.attempt("landed", "a0.0.8", 1, 80)
    told.row("landed", "plain", "a0.0.8", 80)
    del told.rows["keyed2"]

    assert told.verdict() == []


def test_whoever_runs_ahead_may_begin_the_second_after_a_first_that_was_lost() -> None:
    told = honest()
    early = [
        Line("began", 0.5, 1, f"{KEY}.3", task="keyed3", attempt=1, token=token) for token in (8, 13)
    ]  # before the first had ended for good: with it, and under a lease of its own

    told.lines.insert(0, early[0])
    assert told.verdict(ahead=5) == []
    assert any("began before" in complaint for complaint in told.verdict())
    told.lines[0] = early[1]
    assert any("began before" in complaint for complaint in told.verdict(ahead=5))


def test_a_zombie_that_goes_on_after_its_successor_began_is_no_breach_of_order() -> None:
    told = honest()
    told.change("keyed1", attempt=2, spent=2, crashes=1, token=11)
    told.trials["keyed1"] = [Trial(1, "crashed", "durably.Crashed", "the worker died")]
    told.lines = [
        msgspec.structs.replace(line, attempt=2) if line.task == "keyed1" and line.attempt else line
        for line in told.lines
    ]
    told.attempt("keyed1", f"{KEY}.1", 1, 4)

    assert told.verdict() == []


def lose_a_task(told: Evidence) -> None:
    del told.rows["plain"]


def lose_one_of_a_bulk(told: Evidence) -> None:
    del told.rows["bulk1"]


def leave_a_task_waiting(told: Evidence) -> None:
    told.change("plain", state="ready")


def invent_a_task(told: Evidence) -> None:
    told.attempt("invented", "a0.9.1", 1, 90)
    told.row("invented", "plain", "a0.9.1", 90)


def accept_a_task_twice(told: Evidence) -> None:
    told.attempt("again", "a0.0.1", 1, 90)
    told.row("again", "plain", "a0.0.1", 90)


def mix_up_payloads(told: Evidence) -> None:
    told.change("plain", label="a0.0.4")


def keep_what_was_rolled_back(told: Evidence) -> None:
    told.attempt("ghost", "a0.0.7", 1, 90)
    told.row("ghost", "plain", "a0.0.7", 90)
    told.orders.add("a0.0.7")


def lose_the_order(told: Evidence) -> None:
    told.orders.clear()


def complete_twice(told: Evidence) -> None:
    told.say("completed", "", task="plain")


def complete_what_is_dead(told: Evidence) -> None:
    told.say("completed", "", task="once")


def let_a_zombie_complete(told: Evidence) -> None:
    told.drop("ran", "plain")
    told.say("ran", "a0.0.1", task="plain", attempt=1, token=1)


def begin_too_early(told: Evidence) -> None:
    told.lines = [
        msgspec.structs.replace(line, at=line.at - 6.0) if line.task == "keyed3" and line.what == "began" else line
        for line in told.lines
    ]


def let_tokens_fall_within_a_key(told: Evidence) -> None:
    told.lines = [
        msgspec.structs.replace(line, token=5) if line.task == "keyed3" and line.token else line for line in told.lines
    ]
    told.change("keyed3", token=5)


def begin_an_attempt_twice(told: Evidence) -> None:
    told.attempt("plain", "a0.0.1", 2, 6, end=None)


def let_tokens_fall_within_a_task(told: Evidence) -> None:
    told.attempt("poison", "a0.0.3", 0, 99, end=None)


def begin_an_unknown_attempt(told: Evidence) -> None:
    told.attempt("plain", "a0.0.1", 3, 9, end=None)


def run_once_twice(told: Evidence) -> None:
    told.attempt("once", "a0.0.4", 2, 41, end=None)
    told.change("once", attempt=2)


def crash_too_often(told: Evidence) -> None:
    told.change("poison", crashes=4, spent=4, attempt=4)
    told.trials["poison"].append(Trial(4, "crashed", "durably.Crashed", "it died"))


def fail_too_often(told: Evidence) -> None:
    told.trials["hopeless"].append(Trial(2, "failed", "durably.Permanent", "it cannot be done"))
    told.change("hopeless", attempt=2, spent=2)


def lose_a_dead_letter(told: Evidence) -> None:
    del told.rows["hopeless"], told.rows["mourning"]


def lose_the_errors_of_a_dead_letter(told: Evidence) -> None:
    told.trials.pop("hopeless")


def lose_one_error_of_a_dead_letter(told: Evidence) -> None:
    told.trials["poison"].pop()


def empty_an_error(told: Evidence) -> None:
    told.trials["hopeless"] = [Trial(1, "failed", "durably.Permanent", "")]


def lose_the_payload_of_a_dead_letter(told: Evidence) -> None:
    told.change("hopeless", label="")


def bury_the_innocent(told: Evidence) -> None:
    told.drop("completed", "ordered")
    told.change("ordered", state="dead", reason="attempts exhausted")
    told.trials["ordered"] = [Trial(1, "crashed", "durably.Crashed", "the worker died")]
    told.change("ordered", crashes=1)


def resurrect_the_hopeless(told: Evidence) -> None:
    told.say("ran", "a0.0.2", task="hopeless", attempt=1, token=20)
    told.change("hopeless", state="done", spent=2, reason="")


def lose_a_successor(told: Evidence) -> None:
    del told.rows["child"]


def invent_a_successor(told: Evidence) -> None:
    del told.rows["parent"]
    told.lines = [line for line in told.lines if line.label != "a0.0.5" or line.what not in ("accepted", "offered")]


def lose_a_hook(told: Evidence) -> None:
    del told.rows["mourning"]


def mourn_the_living(told: Evidence) -> None:
    told.attempt("mistake", "mourn/plain", 1, 95)
    told.row("mistake", "mourn", "mourn/plain", 95)


def leave_a_marker(told: Evidence) -> None:
    told.left["turns"] = 1


def damage_the_file(told: Evidence) -> None:
    told.damage.append("row 3 missing from index durably_tasks_key")


@pytest.mark.parametrize(
    ("doctor", "complaint"),
    [
        (lose_a_task, "there is no such task"),
        (lose_one_of_a_bulk, "accepted with others"),
        (leave_a_task_waiting, "has not ended"),
        (invent_a_task, "offered by nobody"),
        (accept_a_task_twice, "became 2 tasks"),
        (mix_up_payloads, "was accepted as plain, which is"),
        (keep_what_was_rolled_back, "its transaction was rolled back"),
        (lose_the_order, "only one exists"),
        (complete_twice, "recorded as ended 2 times"),
        (complete_what_is_dead, "recorded as completed and is dead"),
        (let_a_zombie_complete, "no attempt with that token"),
        (begin_too_early, "began before"),
        (let_tokens_fall_within_a_key, "had a lower token"),
        (begin_an_attempt_twice, "the same attempt twice"),
        (let_tokens_fall_within_a_task, "got token"),
        (begin_an_unknown_attempt, "the store knows of 2"),
        (run_once_twice, "must not begin twice"),
        (crash_too_often, "3 are allowed"),
        (fail_too_often, "failed 2 times"),
        (lose_a_dead_letter, "there is no such task"),
        (lose_the_errors_of_a_dead_letter, "without its payload, its reason or its errors"),
        (lose_one_error_of_a_dead_letter, "2 errors are kept"),
        (empty_an_error, "an attempt without its error"),
        (lose_the_payload_of_a_dead_letter, "without its payload"),
        (bury_the_innocent, "should not have ended as dead"),
        (resurrect_the_hopeless, "should not have ended as done"),
        (lose_a_successor, "has 0 successors"),
        (invent_a_successor, "the successor of nobody"),
        (lose_a_hook, "its hook was not enqueued"),
        (mourn_the_living, "a death that did not happen"),
        (leave_a_marker, "1 turns are left over"),
        (damage_the_file, "the database is damaged"),
    ],
)
def test_doctored_evidence_is_found_out(doctor: Callable[[Evidence], None], complaint: str) -> None:
    told = honest()
    doctor(told)

    assert any(complaint in found for found in told.verdict()), told.verdict()
