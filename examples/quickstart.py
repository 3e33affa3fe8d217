"""Declare a task, enqueue it, run it, read its result.

Run it with `python examples/quickstart.py`, then look at what it did: `durably tasks list --store quickstart.db`.
"""

from durably import Durably, Permanent, Retry, TaskFailed, current

app = Durably("sqlite:///quickstart.db")


@app.task(retry=Retry.exponential(attempts=5, base="1s", cap="1m"))
async def greet(name: str) -> str:
    """Async functions run on the event loop, plain ones in threads."""
    if not name:
        raise Permanent("nobody to greet")
    return f"Hello {name}! This is attempt {current().attempt}."


def main() -> None:
    hello = greet.enqueue("Ada")
    nobody = greet.enqueue("")

    # In production `durably worker quickstart:app` does this, in as many processes as you like.
    app.drain()

    print(hello.result())
    try:
        nobody.result()
    except TaskFailed as error:
        print(error)
    print(nobody.why().sentence)
    app.close()


if __name__ == "__main__":
    main()
