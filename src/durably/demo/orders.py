"""The producer: what the shop accepts, in its own transactions and outside of them."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Coroutine, Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec

from durably.client.handle import Handle
from durably.demo.app import book, call_partner, ledger, make_thumbnail, read_invoice, send_mail, ship
from durably.demo.ledger import Entry


class Plan(msgspec.Struct, frozen=True):
    """How much of everything."""

    mails: int = 2_000
    thumbnails: int = 400
    accounts: int = 40
    bookings: int = 25
    partners: int = 50
    orders: int = 100
    rolled_back: int = 13

    @property
    def total(self) -> int:
        """How many tasks will be accepted; one of the orders is not."""
        return self.mails + self.thumbnails + self.accounts * self.bookings + self.partners + self.orders - 1


FAST = Plan(mails=200, thumbnails=100, accounts=8, bookings=10, partners=5, orders=20)


def place_orders(path: Path, plan: Plan, accepted: Callable[[int], None]) -> None:
    """Orders and their shipping, each pair in one transaction of the application; one of them rolls back."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE demo_orders (id INTEGER PRIMARY KEY, cents INTEGER NOT NULL)")
        for order in range(1, plan.orders + 1):
            connection.execute("INSERT INTO demo_orders VALUES (?, ?)", (order, 100 * order))
            task = ship.using(within=connection).enqueue(order)
            if order == plan.rolled_back:
                connection.rollback()
                ledger.write(Entry("rolled back", task.id, "ship"))
            else:
                connection.commit()
                ledger.write(Entry("accepted", task.id, "ship"))
                accepted(1)


async def accept_the_rest(plan: Plan, accepted: Callable[[int], None]) -> None:
    """Everything else, in rounds, so that the kinds mix.

    An account's next booking is enqueued once the one before is accepted: that makes their order.
    """
    for step in range(plan.bookings):
        calls = await _accepted("call_partner", map(call_partner.aenqueue, _share(plan.partners, step, plan)))
        mails = await _accepted("send_mail", map(send_mail.aenqueue, _share(plan.mails, step, plan)))
        images = await _accepted("make_thumbnail", map(make_thumbnail.aenqueue, _share(plan.thumbnails, step, plan)))
        accounts = [f"account-{number:02}" for number in range(plan.accounts)]
        bookings = [book.using(key=account).aenqueue(account, step + 1) for account in accounts]
        accepted(sum(map(len, (calls, mails, images, await _accepted("book", bookings)))))


async def accept_a_call() -> str:
    """One more call to a partner, to be watched."""
    [call] = await _accepted("call_partner", [call_partner.aenqueue(0)])
    return call


async def accept_invoices() -> list[str]:
    """Two invoices that release 1 cannot read; release 2 can read the first."""
    texts = enumerate(("12,50", "see attachment"), start=1)
    return await _accepted("read_invoice", [read_invoice.aenqueue(number, text) for number, text in texts])


async def _accepted(name: str, enqueuing: Iterable[Coroutine[Any, Any, Handle[Any]]]) -> list[str]:
    """Enqueue them at once, and note their ids once they are accepted."""
    ids = [handle.id for handle in await asyncio.gather(*enqueuing)]
    for task in ids:
        ledger.write(Entry("accepted", task, name))
    return ids


def _share(total: int, step: int, plan: Plan) -> range:
    """The numbers that belong to this round."""
    return range(total * step // plan.bookings, total * (step + 1) // plan.bookings)


def stored_orders(path: Path) -> int:
    """How many orders the application has."""
    with closing(sqlite3.connect(path)) as connection:
        [(count,)] = connection.execute("SELECT count(*) FROM demo_orders").fetchall()
    return int(count)
