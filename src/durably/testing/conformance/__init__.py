"""The conformance suite: what a store must do to carry Durably. Every behaviour, on every store, both faces.

    from durably.testing.conformance import Suite

    class TestMyStore(Suite):
        @pytest.fixture(params=["sync", "async"])
        def world(self, request):
            clock = ManualClock()
            world = World(MyStore(clock), clock, clock.advance, request.param)
            yield world
            world.close()
"""

from __future__ import annotations

from durably.testing.conformance.accepting import Accepting
from durably.testing.conformance.claiming import Claiming
from durably.testing.conformance.fencing import Fencing
from durably.testing.conformance.limiting import Limiting
from durably.testing.conformance.ordering import Ordering
from durably.testing.conformance.uniqueness import Uniqueness


class Suite(
    Accepting,
    Claiming,
    Fencing,
    Limiting,
    Ordering,
    Uniqueness,
):
    """Every behaviour at once."""
