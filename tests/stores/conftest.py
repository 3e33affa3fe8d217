"""Both ways to the server."""

from __future__ import annotations

import pytest

from tests.stores.test_wire import Run, run_in_loop, run_in_thread


@pytest.fixture(params=[run_in_thread, run_in_loop], ids=["thread", "loop"])
def run(request: pytest.FixtureRequest) -> Run:
    way: Run = request.param
    return way
