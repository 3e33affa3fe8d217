"""Two callers of the same level want the same unique key: one gets it, the other hears of it or runs again."""

from __future__ import annotations

from itertools import count

import pytest

from durably.stores.operations.read import get
from durably.stores.postgres.store import PostgresStore

from .acts import accepts, draft, id_of
from .maker import Maker
from .party import Level, Party, connect
from .schedule import Choice, Trace, every, run


@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
def test_of_two_callers_with_one_unique_key_exactly_one_has_it_in_every_order(
    level: Level, migrated_postgres_url: str
) -> None:
    queries = PostgresStore(migrated_postgres_url).queries
    numbers = count(1)
    with connect(migrated_postgres_url, "observer") as observer:
        make = Maker(observer, queries)
        parties = [Party(migrated_postgres_url, queries, name) for name in ("one", "two")]

        def attempt(choose: Choice) -> Trace:
            number = next(numbers)
            for party in parties:
                wanted = draft(
                    f"{party.name}-{number}", unique_scope="live", unique_key=f"key-{number}", fingerprint="same"
                )
                party.begin(lambda wanted=wanted: accepts(wanted).start({}), "commit", level)  # type: ignore[misc]
                party.look()
            trace = run(parties, observer, choose)
            if trace.whole:
                names = [f"{party.name}-{number}" for party in parties]
                [only] = make.run(get([id_of(name) for name in names]))
                [holder] = [name for name in names if id_of(name) == only.id]
                other = names[1 - names.index(holder)]
                assert trace.answers[holder.partition("-")[0]] == [holder]
                assert trace.answers[other.partition("-")[0]] == [f"{holder} existed"]
            return trace

        traces = list(every(attempt))
        for party in parties:
            party.close()

    assert len(traces) > 1
    assert any(trace.blocked_by for trace in traces)
    repeated = any([took.label for took in trace.taken].count("take_unique") > 2 for trace in traces)
    assert repeated == (level != "READ COMMITTED"), "who sees the past must begin again to see the holder"
