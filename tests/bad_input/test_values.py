"""Odd values through the public API, on both stores: they come back as they were, or a clear error says why not."""

from __future__ import annotations

import contextlib
import dataclasses
import tracemalloc
from datetime import UTC, datetime
from typing import Any

import pytest

from durably import BadOption, BadPayload, Discard, Durably, DurablyError, Permanent, Retry, Snooze, Unique, current
from tests.bad_input.raw import Raw
from tests.bad_input.values import Silent, fuzzed, hopeless, odd, wrong_text

CLEAR = 600
"""Characters that a message may have: one that quotes a hundred megabytes is not clear."""


@pytest.fixture
def app(raw: Raw) -> Any:
    with Durably(raw.url) as app:
        yield app


def echoing(app: Durably) -> Any:
    @app.task(retry=Retry.never())
    async def echo(value: Any) -> Any:
        return value

    return echo


def test_what_cannot_be_stored_is_refused_when_it_is_given_and_nothing_is_kept(app: Durably) -> None:
    echo = echoing(app)
    for what, value in hopeless().items():
        with pytest.raises(BadPayload) as caught:
            echo.enqueue(value)
        assert len(str(caught.value)) < CLEAR, what

    assert app.queues.list() == []


def test_what_looks_strange_comes_back_as_it_was(app: Durably) -> None:
    echo = echoing(app)
    values = [*odd().values(), *(fuzzed(seed) for seed in range(100))]
    handles = [echo.enqueue(value) for value in values]
    app.drain()

    assert [handle.result(60) for handle in handles] == values


def test_a_result_that_cannot_be_stored_is_a_dead_letter_of_its_own(app: Durably) -> None:
    values = hopeless()

    @app.task
    async def answer(what: str) -> Any:
        return values[what]

    handles = {what: answer.enqueue(what) for what in values}
    neighbour = echoing(app).enqueue("fine")
    app.drain()

    assert neighbour.result(60) == "fine"
    for what, handle in handles.items():
        info = handle.info()
        assert (info.state, info.attempt) == ("dead", 1), what
        assert info.reason is not None
        assert len(info.reason) < CLEAR, what


def test_details_that_cannot_be_saved_fail_their_own_attempt(app: Durably) -> None:
    values = hopeless()

    @app.task(retry=Retry.never())
    async def keep(what: str) -> None:
        await current().asave(values[what])

    handles = {what: keep.enqueue(what) for what in values}
    app.drain()

    for what, handle in handles.items():
        [attempt] = handle.attempts()
        assert attempt.error == "durably.errors.BadPayload", what


@pytest.mark.parametrize("option", ["key", "unique", "queue", "namespace", "limit", "tags", "on_dead"])
def test_what_is_no_name_is_refused_briefly(app: Durably, option: str) -> None:
    echo = echoing(app)
    for what, value in wrong_text().items():
        given = [value] if option == "tags" else value
        with pytest.raises(BadOption) as caught:
            echo.using(**{option: given}).enqueue(1)
        assert len(str(caught.value)) < CLEAR, what

    assert app.queues.list() == []


@pytest.mark.parametrize("option", ["delay", "timeout", "expires", "retention"])
@pytest.mark.parametrize(
    "value",
    [-1, 10**400, float("nan"), float("inf"), "9" * 100_000, "5 parsecs", "", b"5s", [5], True, object(), Silent()],
    ids=lambda value: type(value).__name__,
)
def test_what_is_no_duration_is_refused_briefly(option: str, value: Any) -> None:
    with Durably("sqlite:///:memory:") as app, pytest.raises(BadOption) as caught:
        echoing(app).using(**{option: value})

    assert len(str(caught.value)) < CLEAR


def test_the_farthest_future_can_be_asked_for_and_looked_at(app: Durably) -> None:
    echo = echoing(app)
    farthest = 2**62 // 1_000_000 - 1
    handles = [
        echo.using(delay=farthest).enqueue(1),
        echo.using(at=datetime.max.replace(tzinfo=UTC)).enqueue(2),
        echo.using(delay="1h", expires=farthest, retention=farthest).enqueue(3),
        echo.using(unique=Unique("k", period=farthest)).enqueue(4),
    ]

    assert all(handle.info().created_at.year < 9999 for handle in handles)
    assert handles[0].info().due_at == datetime.max.replace(tzinfo=UTC)
    assert "It is not due until 9999-12-31" in handles[0].why().sentence
    assert len(app.tasks.list()) == 4


@pytest.mark.parametrize(
    "given",
    [
        {"rate": 5},
        {"rate": "1e308/1ms"},
        {"rate": "1e-300/s"},
        {"rate": "nan/s"},
        {"rate": "5/" + "9" * 100_000},
        {"concurrency": -1},
        {"concurrency": 2**31},
        {"concurrency": "5"},
        {"concurrency": 1.5},
        {"rate": "5/s", "burst": 10**400},
        {"rate": "5/s", "burst": float("nan")},
        {"burst": 5},
    ],
    ids=str,
)
def test_what_is_no_limit_is_refused_briefly(given: dict[str, Any]) -> None:
    with Durably("sqlite:///:memory:") as app:
        for set_limit in (app.queues.limit, app.limits.set):
            with pytest.raises(BadOption) as caught:
                set_limit("default", **given)
            assert len(str(caught.value)) < CLEAR


def test_reasons_messages_and_progress_are_kept_as_far_as_they_can_be(app: Durably) -> None:
    long = "\0\ud800" * 1_000_000

    @app.task(retry=Retry.never())
    async def fail(how: str) -> None:
        current().progress(0.5, long)
        raise {"error": ValueError, "permanent": Permanent, "discard": Discard}[how](long)

    handles = [fail.enqueue(how) for how in ("error", "permanent", "discard")]
    cancelled = fail.using(delay=60).enqueue("error")
    cancelled.cancel(long)
    app.drain()

    for handle in (*handles, cancelled):
        reason = handle.info().reason or ""
        assert "\ufffd" in reason
        assert len(reason) < 3_000
        assert handle.why().sentence
    with pytest.raises(BadOption, match="7 must be text"):
        cancelled.cancel(7)  # type: ignore[arg-type]


@pytest.mark.parametrize("how", ["snooze", "discard", "error", "group", "progress"])
def test_an_exception_that_misbehaves_ends_its_own_attempt_only(app: Durably, how: str) -> None:
    class Mute(Discard):
        def __str__(self) -> str:
            raise RuntimeError("no words")

    class Sly(Exception):
        __module__ = 7  # type: ignore[assignment]

        def __str__(self) -> str:
            return 7  # type: ignore[return-value]

    def group(levels: int) -> Exception:
        error: Exception = ValueError("x" * 1_000_000)
        for _ in range(levels):
            error = ExceptionGroup("g", [error])
        return error

    @app.task(retry=Retry.never())
    async def misbehave() -> None:
        match how:
            case "snooze":
                raise Snooze(10**400)
            case "discard":
                raise Mute
            case "error":
                raise Sly
            case "group":
                raise group(5_000)
            case "progress":
                current().progress(0.5, 7)  # type: ignore[arg-type]

    handle, neighbour = misbehave.enqueue(), echoing(app).enqueue(1)
    app.drain()

    assert neighbour.result(60) == 1
    assert handle.state() == "dead"
    [attempt] = handle.attempts()
    assert attempt.error


def test_a_codec_that_fails_harms_only_what_it_was_asked_to_seal(raw: Raw) -> None:
    class Moody:
        def encode(self, data: bytes) -> bytes:
            if b"secret" in data:
                raise RuntimeError("the key is locked away")
            return data

        def decode(self, data: bytes) -> bytes:
            return data

    with Durably(raw.url, codec=Moody()) as app:

        @app.task
        async def answer(hidden: bool) -> str:
            return "secret" if hidden else "fine"

        bad, good = answer.enqueue(True), answer.enqueue(False)
        app.drain()

        assert good.result(60) == "fine"
        assert "the key is locked away" in (bad.info().reason or "")


def test_values_of_slotted_classes_with_nothing_in_them_can_be_sent(app: Durably) -> None:
    @dataclasses.dataclass(slots=True)
    class Note:
        text: str | None = None
        weight: float = 0.0

    echo = echoing(app)
    handle = echo.enqueue(Note())
    with pytest.raises(BadPayload, match="NaN"):
        echo.enqueue(Note(None, float("nan")))
    app.drain()

    assert handle.result(60) == {"text": None, "weight": 0.0}


def test_a_payload_of_a_hundred_megabytes_is_refused_in_bounded_memory() -> None:
    with Durably("sqlite:///:memory:") as app:
        echo, value = echoing(app), "x" * 100_000_000
        tracemalloc.start()
        with pytest.raises(BadPayload, match="take 100,000,012 bytes, and the limit is 262,144"):
            echo.enqueue(value)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()

    assert peak < 500_000_000


def test_looking_with_odd_words_is_a_clear_error_or_finds_nothing(app: Durably) -> None:
    echoing(app).enqueue(1)
    for what in (*odd().values(), *wrong_text().values()):
        if not isinstance(what, str) or len(what) > 10_000:
            continue
        for look in (
            lambda word: app.tasks.list(queue=word),
            lambda word: app.tasks.list(key=word),
            lambda word: app.tasks.list(task=word),
            lambda word: app.tasks.list(tag=word),
            lambda word: app.tasks.find(word),
            lambda word: app.handle(word),
            lambda word: app.keys.show("default", word),
            lambda word: app.keys.pause(word, word),
            lambda word: app.keys.resume(word, word),
            lambda word: app.dead.list(queue=word),
            lambda word: app.dead.replay(word),
            lambda word: app.dead.replay(queue=word),
            lambda word: app.dead.purge(word),
        ):
            with contextlib.suppress(DurablyError):
                assert look(what) in ([], 0, False), what
    for number in (10**30, -(10**30)):
        with pytest.raises(DurablyError):
            app.tasks.list(limit=number)
