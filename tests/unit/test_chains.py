"""Running ahead: what was reported of an earlier lease says nothing about the chain of this one."""

from __future__ import annotations

import msgspec

from durably.worker.chains import Chains
from tests.unit.core.facts import a_task


def test_a_report_of_an_earlier_lease_does_not_settle_the_head_of_a_chain() -> None:
    head, follower = (a_task(id=name, key="k", token=13) for name in ("head", "follower"))
    chains = Chains()
    chains.begin([head], {"head": [follower]}, now=0, since=0.0)

    chains.settled([msgspec.structs.replace(head, token=11)])
    assert chains.going(["head"]) == {"head", "follower"}

    chains.settled([head])
    assert chains.going(["head"]) == set()
    assert chains.going(["follower"]) == {"follower"}
