"""`durably worker`: a process that is replaced when it crashes, and that leaves as it is told."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from durably import Durably
from durably.cli.child import Signals
from durably.cli.parent import LONGEST_PAUSE, STEADY, died, next_pause
from durably.cli.usage import Usage
from durably.cli.worker import queues_to_serve
from durably.worker.interpreter import TURN
from tests.support.command import SAFETY, run, start

APPLICATION = """
import os
import signal
import sys
import threading
import time
from pathlib import Path

from durably import Durably

app = Durably("sqlite:///durably.db")


def say(word):
    print(word, os.getpid(), flush=True)


@app.task
def quick():
    say("quick")


@app.task
def wait_for_go():
    say("started")
    with open("go") as go:
        go.read()


@app.task
async def block_the_loop():
    say("started")
    threading.Event().wait()


@app.task
def hang():
    say("started")
    threading.Event().wait()


@app.task
def kill_the_first_process():
    say("started")
    if not Path("killed").exists():
        Path("killed").touch()
        os.kill(os.getpid(), signal.SIGKILL)


@app.task
def time_turns():
    print("turns", round(sys.getswitchinterval() * 1_000_000), flush=True)


@app.task(timeout="50ms")
def hang_the_first_time():
    say("started")
    if not Path("hung").exists():
        Path("hung").touch()
        threading.Event().wait()
"""


class Site:
    """A folder with an application in it, and the workers that a test starts there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "jobs.py").write_text(APPLICATION)
        os.mkfifo(folder / "go")
        self.app = Durably(f"sqlite:///{folder}/durably.db")
        self._processes: list[subprocess.Popen[str]] = []

    def enqueue(self, name: str) -> Any:
        """Enqueue one of the application's tasks."""
        if name not in self.app.definitions:
            self.app.task(name=name)(_nothing)
        return self.app.definitions[name].enqueue()

    def work(self, *options: str) -> subprocess.Popen[str]:
        """Start `durably worker`."""
        process = start(self.folder, "worker", "jobs:app", "--log-text", *options)
        self._processes.append(process)
        return process

    def go(self) -> None:
        """Let `wait_for_go` return; it waits at the other end."""
        (self.folder / "go").write_text("go")

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.communicate()
        self.app.close()


def _nothing() -> None: ...


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    yield made
    made.close()


def heard(process: subprocess.Popen[str], word: str) -> int:
    """Wait until a handler says the word; the process in which it runs."""
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith(f"{word} "), line
    return int(line.split()[1])


def logged(process: subprocess.Popen[str], words: str) -> str:
    """Wait until the log says so; the line."""
    assert process.stderr is not None
    for line in process.stderr:
        if words in line:
            return line
    raise AssertionError(f"the log ended without {words!r}")


def signalled_until_it_ends(process: subprocess.Popen[str], number: signal.Signals) -> None:
    """A second signal, once more if it came so soon that it was taken for an echo of the first."""
    while process.poll() is None:
        process.send_signal(number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=3)


def ended(process: subprocess.Popen[str]) -> str:
    """Wait for the end of the process and of everything that it started; what it logged."""
    return process.communicate(timeout=SAFETY)[1]


def test_a_crashed_process_is_replaced_and_its_task_runs_again(site: Site) -> None:
    handle = site.enqueue("kill_the_first_process")
    worker = site.work("--lease", "2s")

    first, second = heard(worker, "started"), heard(worker, "started")
    handle.result(timeout=SAFETY)
    worker.send_signal(signal.SIGTERM)

    assert "the worker process was killed by SIGKILL; another starts in 0.5 s" in ended(worker)
    assert worker.returncode == 0
    assert len({worker.pid, first, second}) == 3
    assert (handle.info().attempt, handle.info().crashes) == (2, 1)


def test_a_process_with_too_many_stuck_slots_is_replaced(site: Site) -> None:
    site.enqueue("hang_the_first_time")
    worker = site.work("--concurrency", "1", "--grace", "0s")

    first = heard(worker, "started")
    logged(worker, "asked to be replaced, since too many of its slots are stuck; another starts")
    site.enqueue("quick")
    assert worker.stdout is not None
    line = next(line for line in worker.stdout if line.startswith("quick"))
    worker.send_signal(signal.SIGTERM)

    assert line.split()[1] != str(first)
    ended(worker)
    assert worker.returncode == 0


@pytest.mark.parametrize(
    ("number", "parent"), [(signal.SIGTERM, []), (signal.SIGINT, []), (signal.SIGTERM, ["--no-parent"])]
)
def test_the_first_signal_lets_what_runs_finish_and_starts_nothing_more(
    site: Site, number: signal.Signals, parent: list[str]
) -> None:
    running, waiting = site.enqueue("wait_for_go"), site.enqueue("quick")
    worker = site.work("--concurrency", "1", "--grace", "1h", *parent)
    heard(worker, "started")

    worker.send_signal(number)
    logged(worker, "no new tasks are started, those that run may finish")
    site.go()
    ended(worker)

    assert worker.returncode == 0
    assert (running.info().state, running.info().attempt) == ("done", 1)
    assert (waiting.info().state, waiting.info().attempt) == ("ready", 0)
    assert [session.state for session in site.app.sessions.list() if session.state == "live"] == []


def test_a_signal_to_the_whole_group_counts_once(site: Site) -> None:
    handle = site.enqueue("wait_for_go")
    worker = site.work("--grace", "1h")
    child = heard(worker, "started")

    os.kill(child, signal.SIGTERM)
    worker.send_signal(signal.SIGTERM)
    for _ in range(2):
        logged(worker, "no new tasks are started")
    site.go()
    ended(worker)

    assert worker.returncode == 0
    assert handle.info().state == "done"


@pytest.mark.parametrize(
    ("task", "parent"), [("hang", []), ("block_the_loop", []), ("block_the_loop", ["--no-parent"])]
)
def test_the_second_signal_ends_it_at_once(site: Site, parent: list[str], task: str) -> None:
    handle = site.enqueue(task)
    worker = site.work("--grace", "1h", *parent)
    heard(worker, "started")

    worker.send_signal(signal.SIGTERM)
    logged(worker, "no new tasks are started")
    signalled_until_it_ends(worker, signal.SIGINT)

    assert worker.returncode == 128 + signal.SIGINT
    assert handle.info().state == "leased"


def test_a_child_that_does_not_react_to_the_second_signal_is_killed(site: Site) -> None:
    handle = site.enqueue("hang")
    worker = site.work("--grace", "1h")
    os.kill(heard(worker, "started"), signal.SIGSTOP)

    worker.send_signal(signal.SIGTERM)
    signalled_until_it_ends(worker, signal.SIGINT)

    assert worker.returncode == 128 + signal.SIGINT
    assert handle.info().state == "leased"


def test_without_a_parent_the_exit_code_asks_for_a_replacement(site: Site) -> None:
    site.enqueue("hang_the_first_time")
    worker = site.work("--concurrency", "1", "--grace", "0s", "--no-parent")
    ended(worker)

    assert worker.returncode == 75


@pytest.mark.parametrize("parent", [[], ["--no-parent"]], ids=["parent", "no parent"])
def test_a_thread_that_hangs_does_not_keep_the_process_and_its_task_is_given_back(
    site: Site, parent: list[str]
) -> None:
    handle = site.enqueue("hang")
    worker = site.work("--grace", "0s", *parent)
    heard(worker, "started")

    worker.send_signal(signal.SIGTERM)
    log = ended(worker)

    assert worker.returncode == 0
    assert "given back" in log
    assert (handle.info().state, handle.info().spent, handle.info().crashes) == ("ready", 0, 0)


def test_when_the_parent_is_killed_its_child_finishes_and_leaves(site: Site) -> None:
    handle = site.enqueue("wait_for_go")
    worker = site.work("--grace", "1h")
    heard(worker, "started")

    worker.kill()
    logged(worker, "the parent process is gone")
    site.go()

    assert "worker_stopped" in ended(worker)
    assert (handle.info().state, handle.info().attempt) == ("done", 1)


@pytest.mark.parametrize("parent", [[], ["--no-parent"]], ids=["parent", "no parent"])
def test_a_signal_that_comes_twice_at_once_counts_once(site: Site, parent: list[str]) -> None:
    handle = site.enqueue("wait_for_go")
    worker = site.work("--grace", "1h", *parent)
    heard(worker, "started")

    worker.send_signal(signal.SIGTERM)
    worker.send_signal(signal.SIGINT)
    logged(worker, "no new tasks are started")
    site.go()
    ended(worker)

    assert worker.returncode == 0
    assert handle.info().state == "done"


def test_signals_are_counted_without_their_echo() -> None:
    signals = Signals()

    assert [signals.heard(moment) for moment in (5.0, 5.0, 5.09, 5.2, 5.21)] == [1, 1, 1, 2, 3]


def test_a_child_that_is_asked_to_leave_by_someone_else_is_replaced(site: Site) -> None:
    site.enqueue("wait_for_go")
    worker = site.work("--grace", "1h")
    os.kill(heard(worker, "started"), signal.SIGTERM)
    site.go()

    logged(worker, "the worker process left with exit code 0; another starts")
    site.enqueue("quick")
    heard(worker, "quick")
    worker.send_signal(signal.SIGTERM)
    ended(worker)

    assert worker.returncode == 0


def test_without_a_parent_the_tasks_run_in_the_process_itself(site: Site) -> None:
    site.enqueue("quick")
    worker = site.work("--no-parent")

    assert heard(worker, "quick") == worker.pid


def test_a_thread_that_writes_gets_its_turns_beside_the_tasks(site: Site) -> None:
    site.enqueue("time_turns")
    worker = site.work("--no-parent")

    assert heard(worker, "turns") == TURN * 1_000_000 < 5000


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["nothing_here:app"], "there is no module 'nothing_here'"),
        (["jobs:ap"], "did you mean jobs:app?"),
        (["jobs:app", "--lease", "1s", "--heartbeat", "1s"], "a lease must have room for 4 beats"),
        (["jobs:app", "--lease", "soon"], "is not a duration"),
        (["jobs:app", "--grace", "soon"], "is not a duration"),
        (["jobs:app", "--queues", "a,,b"], "write the names with commas"),
        (["jobs:app", "--concurrency", "0"], "must be from 1 to 10000"),
    ],
)
def test_what_can_never_work_is_not_tried_again(site: Site, arguments: list[str], complaint: str) -> None:
    ran = run(site.folder, "worker", *arguments)

    assert (ran.code, ran.out) == (2, "")
    assert complaint in ran.err
    assert len(ran.err.splitlines()) == 1


def test_a_module_that_fails_is_not_tried_again_and_shows_why(site: Site) -> None:
    (site.folder / "broken.py").write_text("import json\njson.loads('{')\n")

    ran = run(site.folder, "worker", "broken:app")

    assert ran.code == 2
    assert 'broken.py", line 2' in ran.err
    assert "another starts" not in ran.err


def test_logs_can_be_json_and_quieter_or_louder(site: Site) -> None:
    handle = site.enqueue("quick")
    worker = start(site.folder, "worker", "jobs:app", "--log-json", "--log-level", "debug")
    heard(worker, "quick")
    handle.result(timeout=SAFETY)
    worker.send_signal(signal.SIGTERM)
    entries = [json.loads(line) for line in ended(worker).splitlines()]

    assert {"worker_started", "started", "completed", "worker_stopped"} <= {entry["message"] for entry in entries}
    assert {entry["task"] for entry in entries if entry["message"] == "completed"} == {handle.id}

    site.enqueue("quick")
    worker = site.work("--log-level", "error")
    heard(worker, "quick")
    worker.send_signal(signal.SIGTERM)
    assert ended(worker) == ""


def test_the_pause_grows_while_processes_die_young_and_is_forgotten_when_one_lives() -> None:
    pauses = [0.0]
    for _ in range(10):
        pauses.append(next_pause(0.1, pauses[-1]))

    assert pauses[:5] == [0.0, 0.5, 1.0, 2.0, 4.0]
    assert pauses[-1] == LONGEST_PAUSE
    assert next_pause(STEADY, LONGEST_PAUSE) == 0.0


def test_a_signal_during_the_pause_ends_the_parent(site: Site) -> None:
    (site.folder / "dies.py").write_text("import os\nos._exit(7)\n")
    worker = start(site.folder, "worker", "dies:app", "--log-text")

    assert "left with exit code 7; another starts in 0.5 s" in logged(worker, "another starts")
    logged(worker, "another starts in 1 s")
    worker.send_signal(signal.SIGTERM)
    ended(worker)

    assert worker.returncode == 0


def test_how_a_process_died_is_said_in_words() -> None:
    assert died(-signal.SIGSEGV) == "was killed by SIGSEGV"
    assert died(1) == "left with exit code 1"


def served(home: str, **options: str | None) -> list[str] | None:
    """The queues of a worker whose application is at home in this namespace."""
    app = Durably("sqlite:///:memory:", namespace=home)
    app.task(name="a", queue="mail")(_nothing)
    return queues_to_serve(app, argparse.Namespace(**{"queues": None, "namespace": None, **options}))


def test_queues_and_namespaces_can_be_chosen() -> None:
    assert served("default") is None
    assert served("default", queues="a, b") == ["a", "b"]
    assert served("shop", queues="a,other/b") == ["other/b", "shop/a"]
    assert served("default", namespace="x,y") == ["x/default", "x/mail", "y/default", "y/mail"]
    assert served("default", namespace="x,default", queues="mail") == ["mail", "x/mail"]
    with pytest.raises(Usage, match="--namespace"):
        served("default", namespace=",")


def test_only_the_chosen_queues_are_served(site: Site) -> None:
    site.app.task(name="elsewhere", queue="elsewhere")(_nothing).enqueue()
    site.enqueue("quick")
    worker = site.work("--queues", "default")
    heard(worker, "quick")

    [session] = [session for session in site.app.sessions.list() if session.state == "live"]

    assert session.queues == ("default",)
