"""A worker inside a web application: it starts and stops with it.

`lifespan` is what Starlette, FastAPI and Litestar take under that name; here it is used without any of them.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from durably import Durably

app = Durably("sqlite:///web.db")


@app.task
async def send_welcome(address: str) -> str:
    return f"sent to {address}"


@asynccontextmanager
async def lifespan(_: object) -> AsyncIterator[None]:
    """While the application serves, so does the worker; at the end it finishes what it has begun."""
    worker = asyncio.create_task(app.run_worker(concurrency=20, grace="10s"))
    try:
        yield
    finally:
        worker.cancel()
        with suppress(asyncio.CancelledError):
            await worker
        await app.aclose()


async def sign_up(address: str) -> str:
    """A request handler: it answers once the task is accepted, and does not wait for it to run."""
    welcome = await send_welcome.aenqueue(address)
    return welcome.id


async def main() -> None:
    async with lifespan(None):
        task = await sign_up("ada@example.org")
        print(await send_welcome.handle(task).aresult(timeout="30s"))


if __name__ == "__main__":
    asyncio.run(main())
