"""What a catalogue names must be there by the time that it is used."""

from __future__ import annotations

from typing import Any

import pytest

from durably import BadOption, Durably
from tests.notifications.test_notifications import PEOPLE, Told

WRONG: list[tuple[dict[str, Any], str]] = [
    ({"channels": ["mial"]}, "kind 'paid': there is no channel 'mial', only apprise, http, inbox, mail;"),
    ({"channels": ["mail"], "fallback": {"mail": "sms"}}, "kind 'paid': there is no channel 'sms'"),
    ({"channels": ["mail"], "templates": {"mail": "piad"}}, "kind 'paid': there is no template 'piad'"),
]


@pytest.mark.parametrize(("options", "refusal"), WRONG)
async def test_a_producer_is_told_of_a_kind_that_names_what_is_not_there(
    app: Durably, options: dict[str, Any], refusal: str
) -> None:
    app.mail.templates.put("paid", subject="Paid", text="Thanks", locale="de")
    app.notifications.kind("fine", ["inbox"], templates={"inbox": "paid"})
    app.notify("fine", "ann")
    app.notifications.kind("paid", **options)

    for _ in range(2):
        with pytest.raises(BadOption, match=refusal):
            app.notify("fine", "ann")
        with pytest.raises(BadOption, match=refusal):
            await app.anotify("fine", "ann")
    assert len(app.notifications.list()) == 1
    await app.aclose()


@pytest.mark.parametrize(("options", "refusal"), WRONG)
async def test_a_worker_does_not_begin_with_a_kind_that_names_what_is_not_there(
    app: Durably, options: dict[str, Any], refusal: str
) -> None:
    app.notifications.kind("paid", **options)
    worker = app.worker()
    worker.stop()
    with pytest.raises(BadOption, match=refusal):
        await worker.run()
    assert app.sessions.list() == []
    await app.aclose()


def test_channels_and_templates_may_be_declared_after_the_kind(app: Durably) -> None:
    sms = Told()
    app.notifications.resolver(PEOPLE.get)
    app.notifications.kind("paid", ["inbox"], fallback={"inbox": "sms"}, templates={"sms": "paid"})
    app.notifications.kind("sent", ["sms"], templates={"sms": "paid"})
    app.notifications.channels["sms"] = sms
    app.mail.templates.put("paid", subject="Paid", text="Thanks")
    app.notify("sent", "ann")
    app.drain()

    assert [note.title for note in sms.notes] == ["Paid"]


def test_a_channel_that_is_none_of_a_kinds_own_cannot_be_collected_or_have_a_template(app: Durably) -> None:
    for options, refusal in (
        ({"digest": {"mial": "1h"}}, "kind 'paid': digest: 'mial' is none of its channels: mail"),
        ({"templates": {"mial": "paid"}}, "kind 'paid': templates: 'mial' is none of its channels: mail"),
    ):
        with pytest.raises(BadOption, match=refusal):
            app.notifications.kind("paid", ["mail"], **options)  # type: ignore[arg-type]
