"""Workers that are killed while they send: nothing is lost, order is kept, and what may have come twice says so."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from durably import Durably
from durably.deliveries.deliveries import Deliveries
from durably.deliveries.vault import new_key
from tests.crash.processes import Stage
from tests.support.receivers import Receiver

PEERS = 8
MESSAGES = 40
KILLS = 3


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before there is a stage, whose processes need it too."""
    monkeypatch.setenv("DURABLY_SECRETS_KEY", new_key())


@pytest.fixture
def deliveries(stage: Stage) -> Iterator[Deliveries]:
    app = Durably(stage.store)
    app.deliveries.channels.clear()
    yield app.deliveries
    app.close()


COMMAND = ("-m", "durably", "worker", "tests.crash.post:app", "--no-parent", "--log-json")
OPTIONS = ("--lease", "2s", "--poll", "100ms", "--concurrency", "20")


@pytest.mark.parametrize("order", ["fifo", "unordered"])
def test_what_is_sent_when_its_worker_is_killed_is_sent_again_and_marked(
    stage: Stage, deliveries: Deliveries, order: str
) -> None:
    with Receiver() as receiver, ExitStack() as stack:
        receiver.answer(204, pause=0.01)
        names = [f"peer-{number}" for number in range(PEERS)]
        for name in names:
            deliveries.destinations.add(
                name, receiver.url(f"/{name}"), order="fifo" if order == "fifo" else "unordered", schedule=["1s"] * 20
            )
        sent = [deliveries.publish("n", number, names).id for number in range(MESSAGES)]
        total = PEERS * MESSAGES
        for kill in range(1, KILLS + 1):
            with stage.process(*COMMAND, *OPTIONS) as victim:
                receiver.wait_for(total * kill // (KILLS + 2))
                victim.kill()
                victim.wait()
        stack.enter_context(stage.process(*COMMAND, *OPTIONS))

        def ended() -> bool:
            infos = [one.info for message in sent for one in deliveries.report(message)]
            return all(info is not None and info.state == "done" for info in infos)

        stage.until(ended)
        arrived: dict[str, list[int]] = defaultdict(list)
        for request in receiver.requests:
            arrived[request.path.strip("/")].append(int(request.body))

    for name in names:
        assert sorted(set(arrived[name])) == list(range(MESSAGES))
        if order == "fifo":
            assert arrived[name] == sorted(arrived[name])
    twice = {(name, number) for name in names for number, count in Counter(arrived[name]).items() if count > 1}
    marked = {
        (one.destination, number)
        for number, message in enumerate(sent)
        for one in deliveries.report(message)
        if one.info is not None and one.info.result.get("possible_duplicate")
    }
    assert twice <= marked
    assert marked, "no kill hit a delivery that was under way"
