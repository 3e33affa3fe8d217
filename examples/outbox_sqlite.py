"""Enqueue within your own transaction: the order and its shipping are stored together, or not at all."""

import sqlite3
from contextlib import closing

from durably import Durably

app = Durably("sqlite:///outbox.db")


@app.task
def ship(order: str) -> str:
    return f"{order} is on its way"


def place_order(database: sqlite3.Connection, order: str, cents: int) -> None:
    """One transaction: commits with both rows, or rolls back with neither."""
    with database:
        database.execute("INSERT INTO orders VALUES (?, ?)", (order, cents))
        ship.using(within=database).enqueue(order)
        if cents <= 0:
            raise ValueError(f"{order} costs nothing")


def main() -> None:
    app.migrate()
    with closing(sqlite3.connect("outbox.db")) as database:
        database.execute("CREATE TABLE IF NOT EXISTS orders (id TEXT, cents INTEGER)")
        place_order(database, "order-1", 1250)
        try:
            place_order(database, "order-2", 0)
        except ValueError as error:
            print(f"rolled back: {error}")

    app.drain()
    for task in app.tasks.list():
        print(task.state, task.arguments, task.result)
    app.close()


if __name__ == "__main__":
    main()
