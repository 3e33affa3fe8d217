"""Ids: UUIDs of version 7 that carry their partition, and repeat where they must."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from uuid import UUID

import pytest

from durably.core.ids import AHEAD, LAST, PARTITIONS, Ids, _begin_anew, derived, partition_for, partition_of
from durably.core.moment import SECOND, HostClock
from durably.testing.clock import ManualClock


def test_ids_are_uuids_of_version_7_that_sort_by_time_and_carry_their_partition() -> None:
    clock = ManualClock()
    ids = Ids(clock)
    made = []
    for _ in range(50):
        made.append(ids.task("customer-7"))
        clock.advance(0.001)

    assert made == sorted(made)
    assert {UUID(one).version for one in made} == {7}
    assert {partition_of(one) for one in made} == {partition_for("customer-7")}
    assert len({partition_of(ids.task(None)) for _ in range(200)}) > 100


def test_ids_repeat_with_the_same_clock_and_chance() -> None:
    first, second = (Ids(ManualClock(), random.Random(7)) for _ in range(2))

    assert [first.task(None) for _ in range(5)] == [second.task(None) for _ in range(5)]
    assert first.session() == second.session()


def test_many_ids_at_once_are_as_good_as_each_alone() -> None:
    clock = ManualClock()
    ids = Ids(clock, random.Random(7))
    made = [ids.task("k")]
    for _ in range(3):
        made += [*ids.tasks(100), ids.task("k")]
    clock.advance(0.001)
    made += ids.tasks(100)

    assert made == [str(UUID(one)) for one in made]
    assert {UUID(one).version for one in made} == {7}
    assert {UUID(one).variant for one in made} == {"specified in RFC 4122"}
    assert len({one[19:] for one in made}) == len(made) == 404
    assert [one[19:] for one in made[:304]] == sorted(one[19:] for one in made[:304])
    assert len({partition_of(one) for one in made}) > 100
    assert made[304][:13] > made[303][:13]
    assert ids.tasks(3) != ids.tasks(3)
    assert Ids(ManualClock(), random.Random(7)).tasks(3) == Ids(ManualClock(), random.Random(7)).tasks(3)


def test_derived_ids_depend_on_task_attempt_and_index_alone() -> None:
    parent = Ids(ManualClock()).task(None)

    assert derived(parent, 1, 0, None) == derived(parent, 1, 0, None)
    assert len({derived(parent, attempt, index, None) for attempt in range(5) for index in range(5)}) == 25
    assert partition_of(derived(parent, 1, 0, "k")) == partition_for("k") < PARTITIONS
    assert UUID(derived(parent, 1, 0, "k")).version == 7


class Bits:
    """Randomness in which every bit is set, or none."""

    def __init__(self, value: int) -> None:
        self._value = value

    def getrandbits(self, count: int) -> int:
        return (1 << count) - 1 if self._value else 0


def an_id(value: int, anchor: str | None = None) -> str:
    return Ids(ManualClock(0x0123_4567_89AB * 1000 + 999), Bits(value)).task(anchor)  # type: ignore[arg-type]


def test_the_layout_of_an_id_does_not_change() -> None:
    assert an_id(0) == "01234567-89ab-7000-8000-000000000001"
    assert an_id(1) == "01234567-89ab-7fff-a000-0000ffffffff"
    assert an_id(0, "customer-7") == f"01234567-89ab-7{partition_for('customer-7'):03x}-8000-000000000001"


def test_many_ids_at_once_are_laid_out_as_one_is() -> None:
    for value, expected in [
        (0, ["7000-8000-000000000001", "7000-8000-000000000002", "7000-8000-000000000003"]),
        (1, ["7fff-a000-0000ffffffff", "7fff-a000-0001ffffffff", "7fff-a000-0002ffffffff"]),
    ]:
        ids = Ids(ManualClock(0x0123_4567_89AB * 1000 + 999), Bits(value))  # type: ignore[arg-type]
        assert [*ids.tasks(2), *ids.tasks(1)] == [f"01234567-89ab-{one}" for one in expected]


def test_ids_of_a_partition_rise_however_little_the_clock_has_moved() -> None:
    clock = ManualClock()
    ids = Ids(clock)
    made = []
    for step in (0, 0, 0.0004, 0.0007, -10, -0.002, 0, 20):
        clock.advance(step)
        made.append(ids.task("customer-7"))

    assert made == sorted(set(made))


@pytest.mark.parametrize(("value", "step"), [(0, 1), (1, 1 << 32)])
def test_ids_of_a_millisecond_lie_apart_by_chance(value: int, step: int) -> None:
    ids = Ids(ManualClock(), Bits(value))  # type: ignore[arg-type]
    first, second, third = (UUID(ids.task("k")).int for _ in range(3))

    assert second - first == third - second == step


def test_ids_go_on_rising_beyond_those_that_were_made_ahead() -> None:
    ids = Ids(ManualClock())
    made = [ids.task("k") for _ in range(3 * AHEAD + 1)]
    [alone] = ids.tasks(1)
    made += [made[-1][:18] + alone[18:], ids.task("k")]

    assert made == sorted(set(made))


def test_ids_whose_chance_is_used_up_go_on_in_the_next_millisecond() -> None:
    clock = ManualClock(0x0123_4567_89AB * 1000)
    ids = Ids(clock, Bits(1))  # type: ignore[arg-type]
    ids.task(None)
    ids._rest = LAST - (2 << 32)
    made = [ids.tasks(2)[1], ids.task(None)]
    ids._rest, ids._tails = LAST - (2 << 32) + 1, []
    made += ids.tasks(2)
    clock.advance(0.005)
    made += ids.tasks(1)

    assert made == [
        "01234567-89ab-7fff-bfff-ffffffffffff",
        "01234567-89ac-7fff-a000-0000ffffffff",
        "01234567-89ad-7fff-a000-0000ffffffff",
        "01234567-89ad-7fff-a000-0001ffffffff",
        "01234567-89b0-7fff-a000-0002ffffffff",
    ]


def test_what_was_made_ahead_is_forgotten_after_a_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    given, chance = Ids(ManualClock(), random.Random(7)), Ids(ManualClock())
    given.task(None)
    chance.task(None)
    lock, ahead = given._lock, given._tails[-1]
    monkeypatch.setattr("os.urandom", lambda count: b"7" * count)
    made = []
    for _ in range(2):
        _begin_anew()
        made.append((chance.task(None), Ids(ManualClock()).task(None)))

    assert not given.task(None).endswith(ahead)
    assert given._lock is not lock
    assert made[0][1] == made[1][1]
    assert made[0][0] != made[0][1]


def test_threads_make_different_ids_and_each_of_them_rising_ones() -> None:
    ids = Ids(HostClock())
    made: list[list[str]] = []
    begin = threading.Barrier(4)

    def make() -> None:
        begin.wait()
        made.append([ids.task("k") for _ in range(10 * AHEAD)])

    threads = [threading.Thread(target=make) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert all(own == sorted(own) for own in made)
    assert len({one for own in made for one in own}) == 4 * 10 * AHEAD


FORKING = """
import os
from durably.core.ids import Ids
from durably.testing.clock import ManualClock

ids = Ids(ManualClock())
ids.task(None)
child = os.fork()
for source in (ids, Ids(ManualClock())):
    os.write(1, source.task(None).encode() + b" ")
if child:
    os.waitpid(child, 0)
"""


def test_a_process_and_its_child_make_different_ids() -> None:
    made = subprocess.run([sys.executable, "-c", FORKING], capture_output=True, text=True, check=True).stdout.split()

    assert len(set(made)) == 4


def test_the_years_that_an_id_can_hold_wrap_around() -> None:
    assert Ids(ManualClock((1 << 48) * 1000), Bits(0)).task(None) == "00000000-0000-7000-8000-000000000001"  # type: ignore[arg-type]


def test_a_session_is_96_bits_of_chance() -> None:
    assert Ids(ManualClock(), Bits(1)).session() == "f" * 24  # type: ignore[arg-type]
    assert Ids(ManualClock(), Bits(0)).session() == "0" * 24  # type: ignore[arg-type]
    assert Ids(ManualClock()).session() != Ids(ManualClock()).session()


@pytest.mark.parametrize(("key", "partition"), [("", 0), ("customer-7", 2376), ("\ud800", 1320)])
def test_a_key_has_the_same_partition_for_ever(key: str, partition: int) -> None:
    assert partition_for(key) == partition
    assert PARTITIONS == 4096


def test_a_derived_id_has_the_time_of_its_parent_and_never_changes() -> None:
    parent = "01a3185c-5000-726b-92a7-4de452e6b438"
    made = Ids(ManualClock(1_800_000_000 * SECOND)).task(None)

    assert made[:15] == parent[:15]
    assert derived(parent, 1, 0, None) == "01a3185c-5000-7e81-a4af-580f9fc73eaf"
    assert derived(parent, 1, 0, "customer-7") == "01a3185c-5000-7948-a4af-580f9fc73eaf"
    assert derived(parent, 1, 2, None) == "01a3185c-5000-73c7-b032-9497235bb749"
