"""Who people are, as the application tells it: asked where it does no harm, and believed as far as it makes sense."""

from __future__ import annotations

import asyncio
import logging
import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from durably import Durably
from durably.notifications.people import Person, quiet_for, usable
from tests.notifications.test_notifications import Told, states

BERLIN = "Europe/Berlin"


class TestResolver:
    def test_a_plain_function_is_asked_in_a_thread(self, app: Durably) -> None:
        asked: list[bool] = []

        def find(recipient: str) -> Person:
            asked.append(
                asyncio._get_running_loop() is None and threading.current_thread() is not threading.main_thread()
            )
            return Person()

        assert resolved(app, find) == "sent"
        assert asked == [True]

    def test_a_coroutine_is_asked_on_the_event_loop(self, app: Durably) -> None:
        asked: list[bool] = []

        async def find(recipient: str) -> Person:
            asked.append(threading.current_thread() is threading.main_thread())
            return Person()

        assert resolved(app, find) == "sent"
        assert asked == [True]

    def test_what_answers_with_something_to_wait_for_is_waited_for(self, app: Durably) -> None:
        async def find(recipient: str) -> Person:
            return Person()

        assert resolved(app, lambda recipient: find(recipient)) == "sent"


def resolved(app: Durably, find: Any) -> str:
    app.notifications.resolver(find)
    app.notifications.kind("paid", ["inbox"])
    sent = app.notify("paid", "ann")
    app.drain()
    return states(app.notifications.get(sent.id))["ann", "inbox"]


class TestWhatMakesNoSense:
    @pytest.mark.parametrize(
        ("given", "said"),
        [
            ({"locale": "not a locale!"}, "locale: 'not a locale!' must be a language tag"),
            ({"locale": None}, "locale: None must be a language tag"),
            ({"timezone": "Mars/Base", "quiet": ("00:00", "00:00")}, "timezone: 'Mars/Base' is not known here"),
            ({"timezone": 7, "quiet": ("00:00", "00:00")}, "timezone: 7 is not known here"),
            ({"quiet": ("late", "07:00")}, "quiet: 'late' must be a time of the day"),
            ({"quiet": ("22:00",)}, "quiet: ('22:00',) must be two times of the day"),
        ],
    )
    def test_it_is_ignored_and_noted_on_the_route(
        self, app: Durably, caplog: pytest.LogCaptureFixture, given: dict[str, Any], said: str
    ) -> None:
        app.mail.templates.put("paid", subject="Paid", text="Thanks")
        app.notifications.channels["sms"] = Told()
        app.notifications.kind("paid", ["sms"], templates={"sms": "paid"})
        app.notifications.resolver(lambda recipient: Person(addresses={"sms": "+1"}, **given))
        sent = app.notify("paid", "ann")
        with caplog.at_level(logging.WARNING, "durably.notifications"):
            app.drain()

        [route] = app.notifications.get(sent.id).routes
        assert (route.state, route.reason[: len(said)]) == ("sent", said)
        assert route.reason.endswith("(it is ignored)")
        assert said in caplog.text

    def test_what_makes_sense_stays(self) -> None:
        given = Person(addresses={"sms": "+1"}, locale="de-AT", timezone=BERLIN, quiet=("22:00", "07:00"))
        assert usable(given) == (given, [])
        assert usable(Person(locale="!", timezone=BERLIN))[0] == Person(timezone=BERLIN)


class TestQuietHoursWhenClocksChange:
    @pytest.mark.parametrize(
        ("now", "quiet", "over"),
        [
            # 02:00 to 03:00 comes twice.
            ("2026-10-25 00:15", ("22:00", "02:30"), "2026-10-25 00:30"),
            ("2026-10-25 00:45", ("22:00", "02:30"), None),
            ("2026-10-25 01:15", ("22:00", "02:30"), "2026-10-25 01:30"),
            ("2026-10-25 01:10", ("02:05", "02:29"), "2026-10-25 01:29"),
            ("2026-10-25 00:59", ("02:45", "02:15"), "2026-10-25 01:15"),
            ("2026-10-24 20:00", ("22:00", "02:30"), "2026-10-25 00:30"),
            # There is no time from 02:00 to 03:00.
            ("2026-03-29 00:45", ("22:00", "02:30"), "2026-03-29 01:00"),
            ("2026-03-28 21:00", ("22:00", "02:30"), "2026-03-29 01:00"),
            ("2026-03-28 21:00", ("22:00", "03:30"), "2026-03-29 01:30"),
        ],
    )
    def test_they_end_when_the_clock_on_the_wall_says_so(
        self, now: str, quiet: tuple[str, str], over: str | None
    ) -> None:
        moment = datetime.fromisoformat(f"{now}+00:00")
        wait = quiet_for(Person(quiet=quiet, timezone=BERLIN), moment)
        ends = moment if over is None else datetime.fromisoformat(f"{over}+00:00")
        assert moment + timedelta(seconds=wait) == ends

    @pytest.mark.parametrize("day", [datetime(2026, 10, 24, 12, tzinfo=UTC), datetime(2026, 3, 28, 12, tzinfo=UTC)])
    def test_whoever_waits_for_their_end_waits_no_more(self, day: datetime) -> None:
        for begin, end in (("22:00", "07:00"), ("02:05", "02:29"), ("01:59", "03:01"), ("23:00", "02:30")):
            person = Person(quiet=(begin, end), timezone=BERLIN)
            for minute in range(24 * 60):
                moment = day + timedelta(minutes=minute, seconds=7)
                wait = quiet_for(person, moment)
                assert quiet_for(person, moment + timedelta(seconds=wait)) == 0
                assert wait == 0 or quiet_for(person, moment + timedelta(seconds=wait - 1)) > 0
