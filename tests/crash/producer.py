"""A process that enqueues so many tasks one by one: `python -m tests.crash.producer FIRST HOW_MANY`."""

from __future__ import annotations

import sys

from tests.crash.shop import app, count


def main() -> None:
    first, many = int(sys.argv[1]), int(sys.argv[2])
    for number in range(first, first + many):
        count.using(key=f"k{number % 7}" if number % 2 else None).enqueue(number)
    app.close()


if __name__ == "__main__":
    main()
