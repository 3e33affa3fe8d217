"""What the shop writes: a template in files, and who is to get which mail."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from durably.demo.mail.server import FLAKY, GREY, NOBODY, SILENT, STRICT

TEMPLATE = "receipt"
FILES = {
    "receipt.subject": "Your order {{ order }} is on its way",
    "receipt.txt": "Dear customer,\n\nyour order {{ order }} left our house today.\n",
    "receipt.html": "<p>Dear customer,</p>\n<p>your order <b>{{ order }}</b> left our house today.</p>\n",
    "receipt.de.subject": "Ihre Bestellung {{ order }} ist unterwegs",
    "receipt.de.txt": "Guten Tag,\n\nIhre Bestellung {{ order }} hat heute unser Haus verlassen.\n",
    "receipt.de.html": "<p>Guten Tag,</p>\n<p>Ihre Bestellung <b>{{ order }}</b> hat heute unser Haus verlassen.</p>\n",
}
CUSTOMERS = [f"{name}@home.example" for name in ("ann", "bob", "cyd", "dan", "eve", "fay", "gus", "hal", "ida", "jon")]
FIRST, ODD, LAST = range(101, 115), range(115, 123), range(123, 131)
"""The orders before there is a worker, those to people with difficult servers, and those while an account is locked."""
CUT_OFF, WATCHED, DOUBTED, HOPELESS = 105, 116, 118, 121
"""At the first one a worker is killed, the second one is looked at closely, at the third one a server hangs up, and the
fourth one stays dead."""
SPECIAL = {
    CUT_OFF: [SILENT, "ann@home.example"],
    WATCHED: ["ann@home.example", GREY, NOBODY, STRICT, "bob@home.example"],
    DOUBTED: [FLAKY, "cyd@home.example"],
    HOPELESS: ["dan@home.example", STRICT],
    125: [NOBODY, "eve@home.example"],
    128: [NOBODY],
}


class Letter(NamedTuple):
    """A mail that the shop wants to send."""

    order: int
    to: list[str]
    locale: str
    times: int
    """How often the shop says so."""

    @property
    def key(self) -> str:
        return key(self.order)


def key(order: int) -> str:
    """What makes sure that an order is mailed once."""
    return f"order-{order}"


def write_templates(folder: Path) -> None:
    """The files of the template, in English and in German."""
    for name, source in FILES.items():
        (folder / name).write_text(source, "utf-8")


def letter(order: int) -> Letter:
    """The mail about an order: to one to five people, each third in German, each fourth sent twice."""
    usual = [CUSTOMERS[(order + place) % len(CUSTOMERS)] for place in range(1 + order % 5)]
    return Letter(order, SPECIAL.get(order, usual), "de" if order % 3 == 0 else "", 2 if order % 4 == 0 else 1)
