"""Options: checked when they are given, with an error that says what is allowed."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, cast

import msgspec
import pytest

from durably import BadOption, Durably, Retry, Unique
from durably.core.options import CallOptions, Settings, settings
from durably.core.task import Options


@pytest.fixture
def app() -> Durably:
    return Durably("sqlite://")


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"queue": ""}, "queue: '' must be text of 1 to 200"),
        ({"queue": "a/b"}, "must not contain '/'"),
        ({"queue": "a\0b"}, "NUL"),
        ({"namespace": "a/b"}, "namespace: 'a/b' must not contain '/'"),
        ({"priority": 10}, "from 0 \\(last\\) to 9 \\(first\\)"),
        ({"priority": True}, "priority"),
        ({"key": 7}, "key: 7"),
        ({"key": "\ud800"}, "surrogates"),
        ({"order": "fifo"}, "order: 'fifo' is not one of block, overtake, pause"),
        ({"unique": Unique("x", scope="always")}, "not one of waiting, live, period, forever"),
        ({"unique": Unique("x", scope="period")}, "needs period="),
        ({"unique": Unique("x", period=0)}, "longer than nothing"),
        ({"unique": 5}, "must be text or Unique"),
        ({"retry": "often"}, "is not a policy"),
        ({"timeout": 0}, "longer than nothing"),
        ({"expires": "soon"}, "not a duration"),
        ({"tags": "red"}, "must be a list of texts"),
        ({"tags": ["t"] * 21}, "21 are too many"),
        ({"crash_cap": 1}, "from 2 to 100"),
        ({"limit": ""}, "limit"),
        ({"colour": "red"}, "there is no option colour; the options are at, at_most_once"),
    ],
)
def test_an_option_that_makes_no_sense_is_refused(app: Durably, options: dict[str, Any], complaint: str) -> None:
    async def work() -> None: ...

    with pytest.raises(BadOption, match=complaint):
        app.task(**options)(work)
    fine = app.task(work)
    with pytest.raises(BadOption, match=complaint):
        fine.using(**options)


def test_delay_and_at_exclude_each_other_and_at_needs_a_zone(app: Durably) -> None:
    @app.task
    async def work() -> None: ...

    with pytest.raises(BadOption, match="delay or at, not both"):
        work.using(delay=1, at=datetime.now(UTC))
    with pytest.raises(BadOption, match="no time zone"):
        work.using(at=datetime(2026, 1, 1))  # noqa: DTZ001 - that is the point
    with pytest.raises(BadOption, match="must be a datetime"):
        work.using(at="tomorrow")  # type: ignore[arg-type]


def test_later_options_win_and_leave_the_earlier_binding_alone(app: Durably) -> None:
    @app.task(queue="billing", priority=3)
    async def work() -> None: ...

    urgent = work.using(priority=9)
    reports = urgent.using(queue="reports", key="k")

    assert [one.enqueue().info().priority for one in (work, urgent, reports)] == [3, 9, 9]
    assert [one.enqueue().info().queue for one in (work, urgent, reports)] == ["billing", "billing", "reports"]
    app.close()


def test_a_function_cannot_travel_with_a_task(app: Durably) -> None:
    @app.task
    async def work() -> None: ...

    with pytest.raises(BadOption, match="declaration only"):
        work.using(retry=Retry.custom(lambda failures: 1.0, attempts=3, cap="1m"))


def test_two_tasks_cannot_have_one_name(app: Durably) -> None:
    @app.task
    async def work() -> None: ...

    with pytest.raises(BadOption, match="already declared"):
        app.task(name="work")(work.function)


def test_a_store_that_is_not_known_is_named_with_those_that_are() -> None:
    for url in ("mysql://x", "nonsense", "sqlite://host/file.db"):
        with pytest.raises(BadOption, match="sqlite:///"):
            Durably(url)


def settled(**given: Any) -> Settings:
    return settings(Settings(), cast(CallOptions, given))


def refusal(**given: Any) -> str:
    with pytest.raises(BadOption) as refused:
        settled(**given)
    return str(refused.value)


def test_what_is_not_said_has_these_defaults() -> None:
    assert settled() == Settings(
        "default", "default", 5, None, None, None, None, None, None, None, None, False, 0, None, Options(), None, None
    )
    assert Settings().full_queue == "default"


def test_every_option_is_kept_in_the_form_that_a_draft_needs() -> None:
    found = settled(
        queue="billing", namespace="shop", priority=9, key="k", order="pause", limit="api", unique="u",
        retry=Retry.never(), timeout="1m", expires="1h", tags=["a", "b"], at_most_once=True, within="connection",
    )  # fmt: skip

    assert found == Settings(
        "billing", "shop", 9, "k", "pause", "api", Unique("u", "live"), Retry.never(), 60.0, 3_600_000_000,
        '["a","b"]', True, within="connection",
    )  # fmt: skip
    assert found.full_queue == "shop/billing"


def test_an_option_can_be_taken_back() -> None:
    given = {"key": "k", "limit": "l", "unique": "u", "timeout": 1, "expires": 1, "tags": ["a"], "order": "pause"}
    nothing = dict.fromkeys(("key", "limit", "unique", "timeout", "expires"))

    assert settings(settled(**given), {**nothing, "tags": [], "order": "block"}) == Settings()  # type: ignore[typeddict-item]


def test_what_travels_with_the_task_is_packed() -> None:
    found = settled(retention="1m", crash_cap=2, on_dead="tell")

    assert found.options == Options(retention=60.0, crash_cap=2, on_dead="tell", on_dead_queue="default")
    assert found.packed == b'{"retention":60.0,"crash_cap":2,"on_dead":"tell","on_dead_queue":"default"}'
    assert settings(found, {"retention": None, "crash_cap": 3, "on_dead": None}) == Settings()
    assert settings(found, {"retention": 0}).options.retention == 0.0
    assert settings(found, {"crash_cap": 4}).options == Options(None, None, 60.0, 4, "tell", "default")


class Declared:
    name = "tell"
    home_queue = "shop/alarms"


def test_a_hook_runs_where_it_was_declared_or_in_the_namespace_of_its_task() -> None:
    assert settled(on_dead=Declared()).options.on_dead_queue == "shop/alarms"
    assert settled(on_dead="tell", namespace="shop").options.on_dead_queue == "shop/default"
    assert settings(settled(namespace="shop"), {"on_dead": "tell"}).options.on_dead_queue == "shop/default"


def test_a_moment_and_a_delay_replace_each_other() -> None:
    when = datetime(2026, 1, 1, tzinfo=UTC)
    later = settled(delay="1.5s")
    fixed = settled(at=when)

    assert (later.due_in, later.at) == (1_500_000, None)
    assert (fixed.due_in, fixed.at) == (0, 1_767_225_600_000_000)
    assert settings(fixed, {"delay": "1.5s"}) == later
    assert settings(later, {"at": when}) == fixed


@pytest.mark.parametrize("order", ["overtake", "pause"])
def test_the_order_of_a_key_is_kept_unless_it_is_the_plain_one(order: str) -> None:
    assert settled(order=order).policy == order
    assert settled(order="block").policy is None


def test_a_unique_key_is_taken_while_its_task_lives_unless_something_else_is_said() -> None:
    assert Unique("u") == Unique("u", "live", None)
    for scope in ("waiting", "live", "forever"):
        assert settled(unique=Unique("u", scope=scope)).unique == Unique("u", scope)
    assert settled(unique=Unique("u", period="1h")).unique == Unique("u", "period", "1h")
    assert settled(unique=Unique("u", period=0.5)).unique == Unique("u", "period", 0.5)


def test_the_bounds_of_an_option_belong_to_it() -> None:
    assert [settled(priority=value).priority for value in (0, 9)] == [0, 9]
    assert [settled(crash_cap=value).options.crash_cap for value in (2, 100)] == [2, 100]
    assert settled(queue="q" * 200).queue == "q" * 200
    assert settled(tags=["t"] * 20).tags == str(["t"] * 20).replace("'", '"').replace(" ", "")
    assert settled(key="\ud7ff\ue000").key == "\ud7ff\ue000"


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"queue": ""}, "queue: '' must be text of 1 to 200 characters"),
        ({"queue": "q" * 201}, f"queue: '{'q' * 99}... must be text of 1 to 200 characters"),
        ({"queue": "a/b"}, "queue: 'a/b' must not contain '/'; use namespace= for that"),
        ({"namespace": "a/b"}, "namespace: 'a/b' must not contain '/'; use namespace= for that"),
        ({"key": "a\0"}, "key: 'a\\x00' must not contain NUL or lone surrogates"),
        ({"key": "a\ud800"}, "key: 'a\\ud800' must not contain NUL or lone surrogates"),
        ({"key": "\udfff"}, "key: '\\udfff' must not contain NUL or lone surrogates"),
        ({"limit": 5}, "limit: 5 must be text of 1 to 200 characters"),
        ({"priority": 10}, "priority: 10 must be from 0 (last) to 9 (first)"),
        ({"priority": -1}, "priority: -1 must be from 0 (last) to 9 (first)"),
        ({"priority": True}, "priority: True must be from 0 (last) to 9 (first)"),
        ({"priority": 5.0}, "priority: 5.0 must be from 0 (last) to 9 (first)"),
        ({"order": "fifo"}, "order: 'fifo' is not one of block, overtake, pause"),
        ({"unique": 5}, "unique: 5 must be text or Unique(...)"),
        ({"unique": ""}, "unique: '' must be text of 1 to 200 characters"),
        ({"unique": Unique("u", scope="x")}, "unique scope: 'x' is not one of waiting, live, period, forever"),
        (
            {"unique": Unique("u", scope="period")},
            "unique: scope 'period' needs period=, for example Unique('report', period='1h')",
        ),
        ({"unique": Unique("u", period=0)}, "unique: the period must be longer than nothing"),
        (
            {"unique": Unique("u", period="x")},
            "unique period: 'x' is not a duration; write it like '30s', '5m', '1h30m' or '7d'",
        ),
        ({"retry": 5}, "retry: 5 is not a policy; use Retry.exponential(...), Retry.after(...) ..."),
        ({"timeout": 0}, "timeout: 0 must be longer than nothing"),
        ({"expires": 0}, "expires: 0 must be longer than nothing"),
        ({"retention": "x"}, "retention: 'x' is not a duration; write it like '30s', '5m', '1h30m' or '7d'"),
        ({"delay": "x"}, "delay: 'x' is not a duration; write it like '30s', '5m', '1h30m' or '7d'"),
        ({"at": "x"}, "at: 'x' must be a datetime with a time zone; for a duration use delay="),
        ({"tags": "red"}, "tags: 'red' must be a list of texts"),
        ({"tags": {"red"}}, "tags: {'red'} must be a list of texts"),
        ({"tags": [5]}, "tags: 5 must be text of 1 to 200 characters"),
        ({"tags": ["t"] * 21}, "tags: 21 are too many; 20 are allowed"),
        ({"crash_cap": 1}, "crash_cap: 1 must be a whole number from 2 to 100"),
        ({"crash_cap": 101}, "crash_cap: 101 must be a whole number from 2 to 100"),
        ({"crash_cap": True}, "crash_cap: True must be a whole number from 2 to 100"),
        ({"crash_cap": 2.0}, "crash_cap: 2.0 must be a whole number from 2 to 100"),
        ({"on_dead": 5}, "on_dead: 5 must be text of 1 to 200 characters"),
        ({"delay": 1, "at": datetime(2026, 1, 1, tzinfo=UTC)}, "give delay or at, not both"),
    ],
)
def test_an_option_that_makes_no_sense_is_refused_in_these_words(given: dict[str, Any], complaint: str) -> None:
    assert refusal(**given) == complaint


def test_an_option_that_does_not_exist_is_refused_with_those_that_do() -> None:
    assert refusal(colour="red", area=5) == (
        "there is no option area, colour; the options are at, at_most_once, crash_cap, delay, expires, key, limit, "
        "namespace, on_dead, order, priority, queue, retention, retry, tags, timeout, unique, within"
    )


def test_the_shortest_time_is_longer_than_nothing() -> None:
    assert settled(timeout=0.5).timeout == 0.5
    assert settled(expires=0.000001).expires == 1


@pytest.mark.parametrize(
    "special",
    [
        {"key": "k"},
        {"order": "pause"},
        {"limit": "g"},
        {"unique": "u"},
        {"expires": "1h"},
        {"retention": "1h"},
        {"tags": ["red"]},
        {"at_most_once": True},
        {"crash_cap": 5},
        {"on_dead": "other"},
        {"delay": "1s"},
        {"at": datetime(2030, 1, 1, tzinfo=UTC)},
        {"retry": Retry.after("1s")},
        {"timeout": "5s"},
    ],
    ids=lambda special: next(iter(special)),
)
def test_a_task_with_any_special_option_is_not_a_plain_one(app: Durably, special: CallOptions) -> None:
    @app.task
    async def work() -> None: ...

    plain = work.using(queue="other", priority=7).call().draft()
    draft = work.using(**special).using(queue="other", priority=7).call().draft()

    assert settings(Settings(), {"queue": "other", "priority": 7}).plain
    assert msgspec.structs.replace(draft, id=plain.id) != plain
    assert (draft.queue, draft.priority, draft.payload) == (plain.queue, plain.priority, plain.payload)
