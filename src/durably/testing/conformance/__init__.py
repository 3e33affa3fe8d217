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
from durably.testing.conformance.cancelling import Cancelling
from durably.testing.conformance.claiming import Claiming
from durably.testing.conformance.dead_letters import DeadLetters
from durably.testing.conformance.delivering import Delivering
from durably.testing.conformance.fencing import Fencing
from durably.testing.conformance.going_on import GoingOn
from durably.testing.conformance.handing_over import HandingOver
from durably.testing.conformance.handlers import Handlers
from durably.testing.conformance.handles import Handles
from durably.testing.conformance.limiting import Limiting
from durably.testing.conformance.ordering import Ordering
from durably.testing.conformance.queues import Queues
from durably.testing.conformance.recovering import Recovering
from durably.testing.conformance.retaining import Retaining
from durably.testing.conformance.retrying import Retrying
from durably.testing.conformance.running_ahead import RunningAhead
from durably.testing.conformance.serving import Serving
from durably.testing.conformance.uniqueness import Uniqueness
from durably.testing.conformance.whying import Whying
from durably.testing.conformance.withstanding import Withstanding


class Suite(
    Accepting,
    Cancelling,
    Claiming,
    DeadLetters,
    Delivering,
    Fencing,
    GoingOn,
    HandingOver,
    Handlers,
    Handles,
    Limiting,
    Ordering,
    Queues,
    Recovering,
    Retaining,
    Retrying,
    RunningAhead,
    Serving,
    Uniqueness,
    Whying,
    Withstanding,
):
    """Every behaviour at once."""
