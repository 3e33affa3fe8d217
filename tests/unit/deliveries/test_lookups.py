"""Names that do not answer keep nobody waiting whose name is known to."""

from __future__ import annotations

import asyncio
import threading

import pytest

from durably.deliveries.lookups import KNOWN, OTHERS, Lookups


async def test_names_that_hang_take_only_the_threads_of_the_unknown() -> None:
    over = threading.Event()

    def ask(host: str, port: int) -> list[str]:
        if host.startswith("dead"):
            over.wait(60)
            raise OSError("no answer")
        return ["192.0.2.1"]

    lookups = Lookups(ask)
    assert await lookups("alive", 443) == ["192.0.2.1"]
    hanging = [asyncio.create_task(lookups(f"dead {number}", 443)) for number in range(KNOWN + OTHERS)]
    await asyncio.sleep(0)
    found = await lookups("alive", 443)
    over.set()
    answers = await asyncio.gather(*hanging, return_exceptions=True)

    assert found == ["192.0.2.1"]
    assert all(isinstance(one, OSError) for one in answers)


async def test_a_name_that_has_failed_is_no_longer_known() -> None:
    answers: list[list[str] | None] = [["192.0.2.1"], None]

    def ask(host: str, port: int) -> list[str]:
        found = answers.pop(0)
        if found is None:
            raise OSError("gone")
        return found

    lookups = Lookups(ask)
    await lookups("peer", 443)
    assert lookups._found == {"peer"}
    with pytest.raises(OSError, match="gone"):
        await lookups("peer", 443)
    assert lookups._found == set()
