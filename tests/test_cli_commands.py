"""What every command on a store says and does."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from durably import Durably, Handle, Permanent, Progress, Retry
from durably.cli.detail import as_text
from durably.core.ids import Ids
from durably.core.moment import SECOND, HostClock
from tests.support import command
from tests.support.command import Ran, in_process


@pytest.fixture
def durably(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> command.Durably:
    """The command, in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DURABLY_STORE", raising=False)
    monkeypatch.setenv("COLUMNS", "")
    return in_process(capsys)


class LaterEachTime(HostClock):
    """A clock by which no two tasks are made in the same millisecond, so that their ids tell which is newer."""

    def __init__(self) -> None:
        super().__init__()
        self._looks = 0

    def now(self) -> int:
        self._looks += 1
        return super().now() + self._looks * SECOND // 1000


class Shop:
    """An application in ./durably.db with a few kinds of tasks."""

    def __init__(self, **options: Any) -> None:
        self.app = Durably("sqlite:///durably.db", ids=Ids(LaterEachTime()), **options)
        self.charge = self.app.task(queue="billing", retry=Retry.after("1h"))(charge)
        self.call = self.app.task(name="call")(lambda: self.called())
        self.called: Callable[[], Any] = lambda: None

    def meanwhile(self, doing: Callable[[str], Any]) -> tuple[Handle[Any], Any]:
        """Enqueue a task that does this with its own id while it runs, and run it; the handle, and what came of it."""
        answers = []
        handle = self.call.enqueue()
        self.called = lambda: answers.append(doing(handle.id))
        self.app.tick()
        return handle, answers[0]


def charge(order: str, cents: int = 100) -> str:
    """Fails, for good or for now, for orders that are named so."""
    if order == "bad":
        raise Permanent("the card is\x1b[2J stolen")
    if order == "flaky":
        raise ConnectionError("the bank does not answer")
    return f"charged {cents}"


@pytest.fixture
def shop(durably: command.Durably) -> Iterator[Shop]:
    made = Shop()
    made.app.migrate()
    yield made
    made.app.close()


def moment(text: str) -> datetime:
    """An ISO time with its zone."""
    found = datetime.fromisoformat(text)
    assert found.tzinfo is not None
    return found


# --- tasks ---


def test_tasks_list_shows_the_newest_first(durably: command.Durably, shop: Shop) -> None:
    first = shop.charge.enqueue("o-1")
    shop.app.tick()
    second = shop.charge.using(delay="5m", key="customer-7").enqueue("o-2")

    lines = durably("tasks", "list").out.splitlines()

    assert lines[0].split() == ["ID", "STATE", "TASK", "QUEUE", "KEY", "TRIES", "WHEN"]
    assert lines[1].split() == [second.id, "delayed", "charge", "billing", "customer-7", "0", "in", "4m"]
    assert lines[2].split()[:4] == [first.id, "done", "charge", "billing"]


def test_tasks_list_for_programs_has_every_field_and_iso_times(durably: command.Durably, shop: Shop) -> None:
    shop.charge.using(tags=["vip"], unique="u", expires="1d").enqueue("o-1")

    [task] = durably("tasks", "list", "--json").data

    assert task["arguments"] == {"order": "o-1"}
    assert task["tags"] == ["vip"]
    assert task["state"] == "ready"
    assert task["finished_at"] is None
    assert moment(task["created_at"]) <= datetime.now(UTC) < moment(task["expires_at"])
    assert {"id", "name", "queue", "namespace", "attempt", "key", "due_at", "reason", "result"} <= task.keys()


def test_tasks_list_can_be_narrowed(durably: command.Durably, shop: Shop) -> None:
    one = shop.charge.using(key="k", tags=["vip"]).enqueue("o-1")
    other = shop.call.enqueue()

    def found(*options: str) -> list[str]:
        return [task["id"] for task in durably("tasks", "list", "--json", *options).data]

    assert found() == [other.id, one.id]
    assert found("--queue", "billing") == [one.id]
    assert found("--task", "call") == [other.id]
    assert found("--key", "k") == [one.id]
    assert found("--tag", "vip") == [one.id]
    assert found("--state", "blocked") == [one.id]
    assert found("--limit", "1") == [other.id]
    assert found("--limit", "1", "--before", other.id) == [one.id]
    assert "argument --limit: '0' must be" in durably("tasks", "list", "--limit", "0").err
    assert durably("tasks", "list", "--state", "dead").out == "No tasks match.\n"
    assert durably("tasks", "list", "--state", "dead", "--json").data == []


def test_a_namespace_shows_its_own_tasks_only(durably: command.Durably, shop: Shop) -> None:
    own = shop.charge.enqueue("o-1")
    theirs = shop.charge.using(namespace="tenant").enqueue("o-2")

    def found(*options: str) -> list[str]:
        return [task["id"] for task in durably("tasks", "list", "--json", *options).data]

    assert found() == [own.id]
    assert found("--namespace", "tenant") == [theirs.id]
    assert found("--namespace", "default") == [own.id]
    assert found("--namespace", "tenant", "--queue", "billing") == [theirs.id]
    queues = durably("queues", "list", "--json", "--namespace", "tenant").data
    assert [queue["name"] for queue in queues] == ["tenant/billing"]


def test_a_table_fits_the_terminal_and_its_ids_can_be_used(
    durably: command.Durably, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = shop.charge.using(key="a-key-that-is-much-longer-than-anyone-would-like-it-to-be").enqueue("o-1")
    monkeypatch.setenv("COLUMNS", "80")

    lines = durably("tasks", "list").out.splitlines()
    shown = lines[1].split()[0]

    assert max(map(len, lines)) <= 80
    assert "…" in lines[1]
    assert handle.id.startswith(shown)
    assert durably("tasks", "show", shown).out.startswith(handle.id)


def test_tasks_show_tells_everything_about_a_task(durably: command.Durably, shop: Shop) -> None:
    handle = shop.charge.using(key="customer-7", tags=["vip"], unique="once", limit="bank").enqueue("flaky", 5)
    shop.app.tick()

    text = durably("tasks", "show", handle.id).out
    data = durably("tasks", "show", handle.id, "--json").data

    assert text.splitlines()[0] == f"{handle.id}  charge  blocked"
    for line in ("queue      billing", "key        customer-7 (order block)", "limit      bank", "tags       vip"):
        assert f"  {line}\n" in text
    assert '  arguments  {"order":"flaky","cents":5}\n' in text
    assert "No live worker: start one with `durably worker module:app`." in text
    assert "attempt 1 failed after" in text
    assert "ConnectionError: the bank does not answer" in text
    assert "Traceback (most recent call last)" in text
    assert data["id"] == handle.id
    assert data["arguments"] == {"order": "flaky", "cents": 5}
    assert data["why"]["code"] == "no_worker"
    assert data["attempts"][0]["error"] == "ConnectionError"
    assert moment(data["attempts"][0]["finished_at"]) <= datetime.now(UTC)


def test_tasks_show_tells_the_result_and_the_progress(durably: command.Durably, shop: Shop) -> None:
    handle = shop.charge.enqueue("o-1")
    shop.app.tick()

    text = durably("tasks", "show", handle.id).out
    halfway = msgspec.structs.replace(handle.info(), progress=Progress(0.5, "half of it"))

    assert '  result     "charged 100"\n' in text
    assert "It is done: it finished" in text
    assert "attempt 1" not in text
    assert "  progress   50% half of it\n" in as_text(halfway, [], handle.why())


def test_tasks_show_tells_what_is_unusual(durably: command.Durably, shop: Shop) -> None:
    usual = shop.charge.using(unique="only-once", expires="1h").enqueue("o-1")
    text = durably("tasks", "show", usual.id).out
    unusual = msgspec.structs.replace(
        usual.info(), namespace="tenant", attempt=4, spent=1, crashes=2, at_most_once=True, order="overtake", key="k"
    )
    other = as_text(unusual, [], usual.why())

    assert "  attempts   0\n" in text
    assert "  unique     only-once\n" in text
    assert "  expires    " in text
    assert "  namespace  tenant\n" in other
    assert "  key        k (order overtake)\n" in other
    assert "  attempts   4 (1 of this cycle, its process died 2 times, at most once)\n" in other


def test_a_list_that_is_cut_short_says_how_to_go_on(
    durably: command.Durably, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _ = shop.charge.enqueue("o-1"), shop.charge.enqueue("o-2")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)

    assert durably("tasks", "list", "--limit", "3").err == ""
    assert f"--before {first.id} the next ones" in durably("tasks", "list", "--limit", "2").err


def test_an_id_can_be_shortened_until_it_is_ambiguous(durably: command.Durably, shop: Shop) -> None:
    handle = shop.charge.enqueue("o-1")

    assert durably("why", handle.id[:20], "--json").data["id"] == handle.id
    shop.charge.enqueue("o-2")
    ambiguous = durably("why", handle.id[:2])
    assert ambiguous.code == 1
    assert "give more characters" in ambiguous.err
    unknown = durably("tasks", "show", "ffff")
    assert unknown.code == 1
    assert "no task ffff" in unknown.err
    assert "is not a task id" in durably("tasks", "show", "order-1").err


def test_tasks_cancel_ends_what_waits_and_keeps_the_reason(durably: command.Durably, shop: Shop) -> None:
    handle = shop.charge.enqueue("o-1")

    ran = durably("tasks", "cancel", handle.id, "--reason", "withdrawn")

    assert (ran.code, ran.out) == (0, f"Task {handle.id} is cancelled.\n")
    assert handle.info().state == "cancelled"
    assert handle.info().reason == "withdrawn"
    again = durably("tasks", "cancel", handle.id)
    assert (again.code, again.out) == (1, "")
    assert "has already ended: it is cancelled" in again.err


def test_tasks_cancel_asks_what_runs_to_stop(durably: command.Durably, shop: Shop) -> None:
    handle, ran = shop.meanwhile(lambda task: durably("tasks", "cancel", task, "--json"))

    assert ran.data == {"id": handle.id, "outcome": "stopping"}
    _, ran = shop.meanwhile(lambda task: durably("tasks", "cancel", task))
    assert "is running and was asked to stop" in ran.out


def test_why_says_it_in_a_sentence_and_for_programs(durably: command.Durably, shop: Shop) -> None:
    handle = shop.charge.using(delay="1h").enqueue("o-1")

    assert "It is not due until" in durably("why", handle.id).out
    data = durably("why", handle.id, "--json").data
    assert (data["id"], data["code"]) == (handle.id, "not_due")
    assert moment(data["evidence"]["due_at"]) > datetime.now(UTC)


def test_data_cannot_drive_the_terminal(durably: command.Durably, shop: Shop) -> None:
    handle = shop.charge.using(key="k\x1b[31m", tags=["\x1b]0;t"]).enqueue("bad")
    shop.app.tick()

    for words in (["dead", "list"], ["dead", "show", handle.id], ["why", handle.id], ["tasks", "list"]):
        ran = durably(*words)
        assert "\x1b" not in ran.out
    assert "\\x1b[2J stolen" in durably("dead", "list").out


# --- dead letters ---


def died(shop: Shop, *, key: str | None = None, namespace: str = "default") -> Handle[str]:
    ordered = shop.charge if key is None else shop.charge.using(key=key)
    handle = ordered.using(namespace=namespace).enqueue("bad")
    worker = Durably(shop.app.store, namespace=namespace)
    worker.task(queue="billing")(charge)
    worker.tick()
    assert handle.state() == "dead"
    return handle


def test_dead_list_tells_the_reason(durably: command.Durably, shop: Shop) -> None:
    assert durably("dead", "list").out == "No dead letters.\n"
    handle = died(shop)

    lines = durably("dead", "list").out.splitlines()
    [data] = durably("dead", "list", "--json", "--queue", "billing", "--task", "charge").data

    assert lines[0].split() == ["ID", "TASK", "QUEUE", "TRIES", "DIED", "REASON"]
    assert lines[1].startswith(handle.id)
    assert "stolen" in lines[1]
    assert data["id"] == handle.id
    assert data["state"] == "dead"
    assert durably("dead", "list", "--json", "--queue", "mail").data == []
    for command_line in (["dead", "list"], ["keys", "list"]):
        for limit in ("0", "-3"):
            ran = durably(*command_line, "--limit", limit)
            assert (ran.code, ran.out) == (2, "")
            assert f"argument --limit: '{limit}' must be a number from 1 to 999999999" in ran.err


def test_dead_show_prints_payload_and_trace_and_refuses_the_living(durably: command.Durably, shop: Shop) -> None:
    handle = died(shop)
    text = durably("dead", "show", handle.id).out

    assert '{"order":"bad"}' in text
    assert "raise Permanent(" in text
    assert durably("dead", "show", handle.id, "--json").data["attempts"][0]["message"].startswith("the card is")
    living = shop.charge.enqueue("o-1")
    ran = durably("dead", "show", living.id)
    assert (ran.code, ran.out) == (1, "")
    assert f"is ready, not a dead letter; see `durably tasks show {living.id}`" in ran.err


def test_dead_replay_takes_ids_or_filters(durably: command.Durably, shop: Shop) -> None:
    one, other, third = died(shop), died(shop, key="k"), died(shop)

    assert durably("dead", "replay", one.id).out == "Replayed 1 dead letter.\n"
    assert one.state() == "ready"
    assert durably("dead", "replay", "--key", "k", "--json").data == {"replayed": 1}
    assert other.state() == "blocked"
    assert durably("dead", "replay", "--queue", "mail").out == "No dead letters match.\n"
    assert durably("dead", "replay", "--queue", "billing", "--task", "charge", "--rate", "1000/s").code == 0
    assert third.state() == "ready"
    refused = durably("dead", "replay", one.id)
    assert refused.code == 1
    assert "is ready, not a dead letter" in refused.err


def test_dead_replay_all_takes_every_one_or_those_of_the_namespace(durably: command.Durably, shop: Shop) -> None:
    own, theirs = died(shop), died(shop, namespace="tenant")

    assert durably("dead", "replay", "--all", "--namespace", "tenant", "--json").data == {"replayed": 1}
    assert (own.state(), theirs.state()) == ("dead", "ready")
    assert durably("dead", "replay", "--all", "--namespace", "tenant", "--json").data == {"replayed": 0}
    assert durably("dead", "replay", "--all", "--json").data == {"replayed": 1}
    assert own.state() == "ready"


def test_dead_purge_forgets_what_is_chosen(durably: command.Durably, shop: Shop) -> None:
    one, other = died(shop), died(shop)

    assert durably("dead", "purge", "--older-than", "1d", "--yes").out == "No dead letters match.\n"
    assert durably("dead", "purge", one.id, "--yes").out == "Forgot 1 dead letter.\n"
    assert "no task" in durably("tasks", "show", one.id).err
    assert other.state() == "dead"
    assert durably("dead", "purge", "--task", "charge", "--yes", "--json").data == {"purged": 1}


def test_dead_purge_all_takes_every_one_or_those_of_the_namespace(durably: command.Durably, shop: Shop) -> None:
    own, _ = died(shop), died(shop, namespace="tenant")

    purge = ("dead", "purge", "--namespace", "tenant", "--yes", "--json")
    assert durably(*purge, "--older-than", "1d").data == {"purged": 0}
    assert durably(*purge, "--all").data == {"purged": 1}
    assert own.state() == "dead"
    assert durably("dead", "purge", "--all", "--yes", "--json").data == {"purged": 1}


def test_dead_purge_asks_first(durably: command.Durably, shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    handle = died(shop)
    questions: list[str] = []

    def answering(answer: str) -> Callable[[str], str]:
        def ask(question: str) -> str:
            questions.append(question)
            return answer

        return ask

    assert "add --yes" in durably("dead", "purge", "--all").err
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    assert "add --yes" in durably("dead", "purge", "--all", "--json").err

    monkeypatch.setattr("builtins.input", answering(""))
    ran = durably("dead", "purge", "--task", "charge", "--older-than", "0s", "--namespace", "default")
    assert (ran.code, ran.err) == (1, "durably: nothing was forgotten\n")
    assert questions == ["Forget every dead letter of task charge older than 0s of namespace default for good? [y/N] "]
    assert handle.state() == "dead"

    monkeypatch.setattr("builtins.input", answering("y"))
    assert durably("dead", "purge", handle.id).out == "Forgot 1 dead letter.\n"
    assert questions[-1] == "Forget 1 dead letter for good? [y/N] "


@pytest.mark.parametrize("what", ["replay", "purge"])
def test_nobody_takes_every_dead_letter_by_leaving_something_out(
    durably: command.Durably, shop: Shop, what: str
) -> None:
    handle = died(shop)

    for options in ([], [handle.id, "--task", "charge"], [handle.id, "--all"], ["--all", "--queue", "billing"]):
        ran = durably("dead", what, *options)
        assert (ran.code, ran.out) == (2, "")
        assert "--" in ran.err
    assert handle.state() == "dead"


# --- queues ---


def queue(durably: command.Durably, name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(one for one in durably("queues", "list", "--json").data if one["name"] == name)
    return found


def test_queues_list_counts_by_state(durably: command.Durably, shop: Shop) -> None:
    assert durably("queues", "list").out == "No queues yet.\n"
    shop.charge.enqueue("o-1")
    shop.app.tick()
    shop.charge.enqueue("o-2")
    shop.charge.using(delay="1h").enqueue("o-3")

    lines = durably("queues", "list").out.splitlines()
    counts = queue(durably, "billing")["counts"]

    assert lines[0].split()[:3] == ["QUEUE", "STATE", "READY"]
    assert lines[1].split() == ["billing", "active", "1", "0", "1", "0", "1", "0", "0"]
    assert counts == {"delayed": 1, "ready": 1, "blocked": 0, "leased": 0, "done": 1, "dead": 0, "cancelled": 0}


def test_queues_pause_drain_and_resume(durably: command.Durably, shop: Shop) -> None:
    shop.charge.enqueue("o-1")

    assert durably("queues", "pause", "billing", "--json").data == {"queue": "billing", "state": "paused"}
    assert queue(durably, "billing")["state"] == "paused"
    assert shop.app.tick() == 0
    assert "is draining" in durably("queues", "drain", "billing").out
    later = shop.charge.enqueue("o-2")
    assert shop.app.tick() == 1
    assert later.state() == "ready"
    assert durably("queues", "resume", "billing").out == "Queue billing is open.\n"
    assert shop.app.tick() == 1


def test_a_queue_that_nobody_used_is_set_with_a_warning(durably: command.Durably, shop: Shop) -> None:
    shop.charge.enqueue("o-1")

    ran = durably("queues", "pause", "biling")

    assert ran.code == 0
    assert ran.err == "durably: no task has been in a queue named 'biling' so far; there are billing\n"
    assert durably("queues", "pause", "billing").err == ""


def test_queues_limit_sets_shows_and_lifts(durably: command.Durably, shop: Shop) -> None:
    both = durably("queues", "limit", "billing", "--concurrency", "5", "--rate", "300/m", "--burst", "10")
    assert both.out == "Queue billing is limited to 5 at once, 5/s (burst 10).\n"
    assert queue(durably, "billing")["limit"] == {"concurrency": 5, "rate": 5.0, "burst": 10.0}
    group = durably("queues", "limit", "tenant-7", "--group", "--concurrency", "2", "--json")
    assert group.data == {
        "name": "tenant-7",
        "kind": "group",
        "limit": {"concurrency": 2, "rate": None, "burst": None},
    }
    assert [(one["kind"], one["name"]) for one in durably("queues", "limits", "--json").data] == [
        ("group", "tenant-7"),
        ("queue", "billing"),
    ]
    assert "tenant-7  group  2 at once" in durably("queues", "limits").out
    assert durably("queues", "limit", "billing", "--off").out == "Queue billing has no limit.\n"
    assert durably("queues", "limit", "tenant-7", "--group", "--off", "--json").data["limit"] is None
    assert durably("queues", "limits").out == "No limits are set.\n"


def test_a_limit_must_be_said_and_make_sense(durably: command.Durably, shop: Shop) -> None:
    for options in ([], ["--off", "--rate", "1/s"], ["--burst", "3"], ["--off", "--burst", "3"]):
        ran = durably("queues", "limit", "billing", *options)
        assert ran.code == 2
        assert "--off" in ran.err
    assert "is not a rate" in durably("queues", "limit", "billing", "--rate", "fast").err


def test_a_queue_belongs_to_the_chosen_namespace(durably: command.Durably, shop: Shop) -> None:
    assert durably("queues", "pause", "mail", "--namespace", "tenant", "--json").data["queue"] == "tenant/mail"
    assert queue(durably, "tenant/mail")["state"] == "paused"
    durably("queues", "limit", "mail", "--namespace", "tenant", "--concurrency", "1")
    assert queue(durably, "tenant/mail")["limit"]["concurrency"] == 1


# --- keys ---


def paused(shop: Shop) -> tuple[Handle[str], Handle[str]]:
    """A key whose head has failed for good, and a task behind it."""
    ordered = shop.charge.using(key="customer-7", order="pause")
    head, next_one = ordered.enqueue("bad"), ordered.enqueue("o-2")
    shop.app.tick()
    return head, next_one


def test_keys_list_and_show_what_waits(durably: command.Durably, shop: Shop) -> None:
    assert durably("keys", "list").out.startswith("No ordering keys wait.")
    head, next_one = paused(shop)

    lines = durably("keys", "list").out.splitlines()
    [listed] = durably("keys", "list", "--json", "--queue", "billing", "--state", "paused").data
    shown = durably("keys", "show", "billing", "customer-7", "--json").data
    text = durably("keys", "show", "billing", "customer-7").out

    assert lines[0].split() == ["QUEUE", "KEY", "STATE", "WAITING", "REASON"]
    assert lines[1].split()[:4] == ["billing", "customer-7", "paused", "2"]
    assert (listed["key"], listed["state"], listed["waiting"]) == ("customer-7", "paused", 2)
    assert moment(listed["ready_at"])
    assert [task["id"] for task in shown["tasks"]] == [head.id, next_one.id]
    assert "paused: permanent" in text
    assert "2 tasks, the head first." in text
    assert durably("keys", "list", "--json", "--namespace", "tenant").data == []
    assert durably("keys", "list", "--json", "--state", "leased").data == []
    assert "see `durably keys list`" in durably("keys", "show", "billing", "nobody").err


def test_a_key_in_backoff_says_so(durably: command.Durably, shop: Shop) -> None:
    shop.charge.using(key="k").enqueue("flaky")
    shop.app.tick()

    assert "waits, due in" in durably("keys", "list").out


def test_keys_resume_gives_the_head_a_new_try(durably: command.Durably, shop: Shop) -> None:
    head, _ = paused(shop)

    ran = durably("keys", "resume", "billing", "customer-7", "--json")

    assert ran.data == {"queue": "billing", "key": "customer-7", "task": head.id}
    assert shop.app.tick() == 1
    assert head.info().attempt == 2
    durably("keys", "resume", "billing", "customer-7")
    refused = durably("keys", "resume", "billing", "customer-7")
    assert refused.code == 1
    assert "not paused" in refused.err


def test_keys_skip_lets_the_others_go_on(durably: command.Durably, shop: Shop) -> None:
    head, next_one = paused(shop)

    ran = durably("keys", "skip", "billing", "customer-7", "--reason", "paid in cash")

    assert f"goes on without {head.id}, which is cancelled" in ran.out
    assert head.info().reason == "skipped: paid in cash"
    shop.app.drain()
    assert next_one.state() == "done"


def test_keys_pause_stops_a_key_before_its_next_task(durably: command.Durably, shop: Shop) -> None:
    refused = durably("keys", "pause", "billing", "k")
    assert refused.code == 1
    assert "it has no task waiting" in refused.err
    shop.charge.using(key="k").enqueue("flaky")

    ran = durably("keys", "pause", "billing", "k", "--reason", "audit", "--json")

    assert ran.data == {"queue": "billing", "key": "k", "task": None}
    [key] = durably("keys", "list", "--json").data
    assert (key["state"], key["reason"]) == ("paused", "audit")
    assert "Key k of queue billing goes on; its head" in durably("keys", "resume", "billing", "k").out
    assert durably("keys", "pause", "billing", "k").out == "Key k of queue billing is paused.\n"


# --- sessions and doctor ---


class Yesterday(HostClock):
    """A clock that is a day behind: what it leases has long run out."""

    def now(self) -> int:
        return super().now() - 86400 * SECOND


def findings(ran: Ran, level: str) -> dict[str, str]:
    return {one["check"]: one["detail"] for one in ran.data["findings"] if one["level"] == level}


def test_sessions_lists_the_workers(durably: command.Durably, shop: Shop) -> None:
    assert durably("sessions").out == "No workers. Start one with `durably worker module:app`.\n"

    _, text = shop.meanwhile(lambda task: durably("sessions").out)
    _, [session] = shop.meanwhile(lambda task: durably("sessions", "--json").data[-1:])

    assert text.splitlines()[0].split()[:3] == ["SESSION", "STATE", "WHERE"]
    assert "live" in text.splitlines()[1]
    assert session["state"] == "live"
    assert session["queues"] == ["billing", "default"]
    assert moment(session["beat_at"]) <= datetime.now(UTC) <= moment(session["expires_at"])
    assert durably("sessions").out.startswith("No workers.")


def test_doctor_is_content_with_a_store_that_is_well(durably: command.Durably, shop: Shop) -> None:
    ran = durably("doctor")
    data = durably("doctor", "--json").data

    assert ran.code == 0
    assert ran.out.splitlines()[0] == data["store"]
    assert ran.out.splitlines()[-1] == "All is well."
    assert data["healthy"] is True
    assert data["store"].endswith("durably.db")
    assert {"version", "journal", "durability", "schema", "workers", "dead"} <= {
        finding["check"] for finding in data["findings"]
    }
    assert {finding["level"] for finding in data["findings"]} == {"ok"}


def test_doctor_finds_tasks_that_nobody_runs(durably: command.Durably, shop: Shop) -> None:
    shop.charge.enqueue("o-1")
    shop.charge.using(namespace="tenant").enqueue("o-2")

    alone = durably("doctor")
    _, served = shop.meanwhile(lambda task: durably("doctor", "--json"))

    assert alone.code == 1
    assert "1 task in queue 'billing' could run, but no worker is running" in alone.out
    assert "-> `durably worker module:app --queues billing`" in alone.out
    assert alone.out.splitlines()[-1] == "2 errors, 0 warnings."
    assert served.code == 1
    assert findings(served, "error") == {
        "waiting": "1 task in queue 'tenant/billing' could run, but no live worker serves it"
    }
    assert findings(served, "ok")["workers"] == "1 worker with 1,000 slots"


def test_doctor_does_not_mind_tasks_of_a_paused_queue_but_mentions_it(durably: command.Durably, shop: Shop) -> None:
    shop.charge.enqueue("o-1")
    durably("queues", "pause", "billing")

    ran = durably("doctor", "--json")

    assert ran.code == 0
    assert findings(ran, "warning") == {"queues": "queue 'billing' is paused"}


def test_doctor_mentions_dead_letters_and_paused_keys(durably: command.Durably, shop: Shop) -> None:
    died(shop)
    paused(shop)

    warnings = findings(durably("doctor", "--json"), "warning")

    assert warnings["dead"] == "1 dead letter"
    assert warnings["keys"] == "1 ordering key paused, the first is 'customer-7'"


def test_doctor_finds_tasks_whose_worker_is_gone(durably: command.Durably, shop: Shop) -> None:
    old = Shop(clock=Yesterday())

    _, alone = old.meanwhile(lambda task: durably("doctor", "--json"))
    _, sessions = old.meanwhile(lambda task: durably("sessions").out)
    _, (_, helped) = old.meanwhile(lambda task: shop.meanwhile(lambda other: durably("doctor", "--json")))
    old.app.close()

    assert alone.code == 1
    assert findings(alone, "error")["leases"].startswith("1 task leased to a worker that is gone (")
    assert "lease over" in sessions
    assert helped.code == 0
    assert findings(helped, "warning")["leases"].startswith("1 task leased to a worker that is gone")


def test_doctor_finds_stuck_slots(durably: command.Durably, shop: Shop) -> None:
    def stick(task: str) -> Ran:
        with closing(sqlite3.connect("durably.db")) as connection, connection:
            connection.execute("UPDATE durably_sessions SET info = json_set(info, '$.stuck', 3)")
        return durably("doctor", "--json")

    _, ran = shop.meanwhile(stick)

    assert ran.code == 0
    assert findings(ran, "warning")["stuck"].startswith("3 of 1,000 slots stuck at ")


def test_doctor_sees_a_missing_schema_without_making_one(durably: command.Durably, tmp_path: Path) -> None:
    (tmp_path / "empty.db").touch()

    for _ in range(2):
        ran = durably("doctor", "--store", "empty.db", "--json")
        assert ran.code == 1
        assert list(findings(ran, "error")) == ["schema"]


def test_doctor_reports_a_server_that_cannot_be_reached(durably: command.Durably) -> None:
    ran = durably("doctor", "--store", "postgresql://shop:pw@127.0.0.1:1/shop", "--json")

    assert ran.code == 1
    assert "127.0.0.1:1" in findings(ran, "error")["connection"]
