"""The measured programs that send mail: every mail arrives once, and is seen to."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import mails
from bench.contenders import OURS, ceilings, ours
from bench.delivering import receiving
from bench.mailing import RECEIVER
from bench.raw import mails as bare
from durably.bench.drain import Crew, Server
from durably.bench.marks import Marks
from durably.bench.process import Failed, clocked, started, told

MAILS = 60
"""More than there are connections."""
ENTRIES = {entry.name: entry for entry in [*ours(), *ceilings()] if "mails" in entry.takes}


def finish(name: str, url: str, marks: Marks, port: int) -> None:
    """Let one worker send, until each of the mails has arrived."""
    contender = ENTRIES[name].contender
    clocked(contender, "send", url=url, count=MAILS, port=port)
    with started(contender, "work", url=url, count=MAILS, port=port) as program:
        program.expect("ready")
        crew = Crew([program], marks, Server())
        crew.go()
        crew.finish(range(MAILS))


@pytest.mark.parametrize("name", ENTRIES)
def test_every_mail_arrives_once(name: str, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/store.db"
    contender = ENTRIES[name].contender
    told(contender, "prepare", "prepared", url=url)
    with receiving(RECEIVER, MAILS) as (marks, port):
        finish(name, url, marks, port)

    if name == OURS:
        assert told(contender, "counts", "counts", url=url)["done"] == MAILS


def test_a_mail_that_comes_twice_is_noticed() -> None:
    with receiving(RECEIVER, MAILS) as (marks, port):
        finish("bare SMTP client", "", marks, port)
        with pytest.raises(Failed, match="60 tasks ran more than once"):
            finish("bare SMTP client", "", marks, port)


def test_both_send_the_same_over_as_many_connections() -> None:
    assert (mails.CONNECTIONS, mails.TEXT) == (bare.CONNECTIONS, bare.TEXT)
