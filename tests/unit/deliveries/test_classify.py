"""What an HTTP answer means: every row of the rules."""

from __future__ import annotations

import pytest

from durably.core.delivery import Kind, Outcome
from durably.deliveries.classify import Reply, federation, retry_after, webhook

NOW = 1_800_000_000.0


def kinds(status: int, *headers: tuple[str, str]) -> tuple[Kind, Kind]:
    reply = Reply(status, headers)
    return webhook(reply, NOW).kind, federation(reply, NOW).kind


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
def test_2xx_is_taken_whatever_the_body_says(status: int) -> None:
    assert kinds(status) == (Kind.OK, Kind.OK)
    assert webhook(Reply(status, (), b"\xff\x00 broken"), NOW).kind is Kind.OK


@pytest.mark.parametrize("status", [300, 301, 302, 303, 304, 307, 308, 399])
def test_redirects_are_never_followed(status: int) -> None:
    assert kinds(status) == (Kind.TRANSIENT, Kind.PERMANENT)
    assert ("update the URL" in webhook(Reply(status), NOW).reason) == (status in (301, 308))


@pytest.mark.parametrize("status", [403, 405, 413, 415, 422, 451, 402, 409, 418])
def test_a_webhook_that_refuses_may_be_mended_and_a_server_that_refuses_means_it(status: int) -> None:
    assert kinds(status) == (Kind.TRANSIENT, Kind.PERMANENT)


def test_a_signature_that_is_not_taken_is_tried_again_and_a_bad_request_is_not() -> None:
    assert kinds(401) == (Kind.TRANSIENT, Kind.TRANSIENT)
    assert kinds(400) == (Kind.TRANSIENT, Kind.PERMANENT)


def test_404_means_that_an_inbox_is_gone() -> None:
    assert kinds(404) == (Kind.TRANSIENT, Kind.GONE)


def test_410_disables_a_webhook_and_is_the_end_of_a_federation_peer() -> None:
    assert kinds(410) == (Kind.GONE, Kind.GONE)
    assert webhook(Reply(410), NOW).disables
    assert not federation(Reply(410), NOW).disables


@pytest.mark.parametrize("status", [501, 505])
def test_what_a_server_cannot_do_it_will_not_learn(status: int) -> None:
    assert kinds(status) == (Kind.PERMANENT, Kind.PERMANENT)


@pytest.mark.parametrize("status", [408, 421, 425, 500, 502, 503, 504, 507, 599])
def test_what_may_pass_is_tried_again(status: int) -> None:
    assert kinds(status) == (Kind.TRANSIENT, Kind.TRANSIENT)
    assert webhook(Reply(status), NOW).breaks == federation(Reply(status), NOW).breaks == (status >= 500)


@pytest.mark.parametrize(
    ("status", "headers"), [(429, []), (429, [("retry-after", "7")]), (503, [("retry-after", "7")])]
)
def test_who_asks_for_time_gets_it(status: int, headers: list[tuple[str, str]]) -> None:
    assert kinds(status, *headers) == (Kind.THROTTLED, Kind.THROTTLED)
    assert webhook(Reply(status, headers), NOW).retry_after == (7.0 if headers else 0.0)


@pytest.mark.parametrize("status", [100, 101, 199, 600, 999])
def test_nonsense_is_tried_again(status: int) -> None:
    assert kinds(status) == (Kind.TRANSIENT, Kind.TRANSIENT)


@pytest.mark.parametrize(
    ("values", "seconds"),
    [
        (["120"], 120.0),
        ([" 120 "], 120.0),
        (["0"], 0.0),
        (["Fri, 15 Jan 2027 08:01:40 GMT"], 100.0),
        (["Fri, 15 Jan 2027 07:00:00 GMT"], 0.0),
        (["Fri, 31 Dec 9999 23:59:59 GMT"], 251602300799.0),
        (["9" * 400], 86_400.0),
        (["5", "60", "soon"], 60.0),
        (["-5"], None),
        (["1e99"], None),
        (["1.5"], None),
        (["inf"], None),
        (["nan"], None),
        (["soon"], None),
        ([""], None),
        (["٣٠"], None),
        ([], None),
    ],
)
def test_how_long_a_peer_wants_to_be_left_alone(values: list[str], seconds: float | None) -> None:
    found = retry_after(Reply(503, [("retry-after", value) for value in values]), NOW)

    assert found == seconds


@pytest.mark.parametrize(
    ("status", "wish", "kind", "disables"),
    [
        (200, "disable", Kind.OK, True),
        (500, "disable", Kind.TRANSIENT, True),
        (500, " Abort-Message ", Kind.PERMANENT, False),
        (200, "abort-message", Kind.OK, False),
        (500, "something", Kind.TRANSIENT, False),
    ],
)
def test_a_receiver_may_say_what_it_wants(status: int, wish: str, kind: Kind, disables: bool) -> None:
    outcome = webhook(Reply(status, [("webhook-delivery", wish)]), NOW)

    assert (outcome.kind, outcome.disables) == (kind, disables)


def test_people_are_told_what_the_peer_said_but_not_all_of_it() -> None:
    outcome = webhook(Reply(500, (), b"no\0 idea " * 1000), NOW)

    assert outcome.reason.startswith("500 Internal Server Error: no\ufffd idea")
    assert len(outcome.body) < 400
    assert isinstance(outcome, Outcome)
