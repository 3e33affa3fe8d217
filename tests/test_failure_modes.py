"""Fifty failures that bit users of systems of this kind, each with the tests of ours that would have caught it."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

CONFORMANCE = "src/durably/testing/conformance"
LATER = ("Valkey", "workflows", "schedules")
"""The parts that are not built yet; their failures wait for them."""


@dataclass(frozen=True)
class Failure:
    """One way in which such a system fails, and the tests, or the part that will bring them."""

    what: str
    tests: tuple[str, ...] = ()
    later: str | None = None


def caught(what: str, *tests: str) -> Failure:
    return Failure(what, tests)


def later(what: str, part: str) -> Failure:
    return Failure(what, later=part)


RECOVERING = f"{CONFORMANCE}/recovering.py"
FENCING = f"{CONFORMANCE}/fencing.py"
ORDERING = f"{CONFORMANCE}/ordering.py"
KILL = "tests/crash/test_kill.py"
WORKER = "tests/test_worker.py"
POSTGRES = "tests/stores/test_postgres_store.py"
SQLITE = "tests/stores/test_sqlite_store.py"
RECOVERY = "tests/failure_modes/test_recovery.py"
HEARTBEAT = "tests/failure_modes/test_heartbeat.py"
NOTIFICATIONS = "tests/failure_modes/test_notifications.py"
SIMULATION = "tests/simulation/test_simulation.py::test_nothing_goes_wrong_whatever_strikes_and_everything_strikes"
SOAK = "tests/soak/test_soak.py::test_nothing_is_lost_doubled_or_reordered_whatever_breaks"

FAILURES = {
    1: caught(
        "a delay that is longer than the lease makes a second copy of the task",
        f"{RECOVERING}::test_a_long_delay_is_not_mistaken_for_a_crash",
    ),
    2: caught(
        "a process that is killed takes its tasks along, because they count as acknowledged",
        f"{KILL}::test_a_killed_worker_with_500_tasks_in_flight_loses_none",
        SOAK,
    ),
    3: caught(
        "a task that kills its process is tried for ever",
        f"{KILL}::test_one_task_that_kills_its_process_among_99_others_is_the_only_dead_letter",
        f"{RECOVERING}::test_only_a_crash_alone_makes_a_dead_letter",
    ),
    4: caught(
        "what a crashed worker ran is said to run for ever",
        f"{RECOVERING}::test_what_a_dead_session_held_runs_again",
        f"{KILL}::test_a_killed_worker_with_500_tasks_in_flight_loses_none",
    ),
    5: caught(
        "a worker that starts under the id of a dead one hides what that one left",
        "tests/unit/core/test_ids.py::test_a_session_is_96_bits_of_chance",
        f"{RECOVERING}::test_a_dead_session_cannot_beat_claim_or_come_back",
    ),
    6: caught(
        "the row of a dead worker is removed, and nobody finds its tasks any more",
        f"{RECOVERING}::test_a_dead_session_stays_known_until_nothing_points_at_it",
        f"{RECOVERING}::test_what_is_leased_to_a_session_nobody_knows_is_found_too",
    ),
    7: caught(
        "a long task is taken from a worker that lives, because time has passed",
        f"{RECOVERING}::test_a_session_that_beats_keeps_what_it_holds",
    ),
    8: caught(
        "recovery overwrites a task that was completed meanwhile",
        f"{RECOVERING}::test_the_reaper_cannot_overwrite_what_completed_meanwhile",
        "tests/isolation/test_pairs.py::test_every_pair_ends_as_some_serial_order_would",
    ),
    9: caught(
        "rows that cannot be recovered fill every batch, and the others wait for ever",
        f"{RECOVERING}::test_rows_to_skip_never_fill_the_batch",
        f"{RECOVERY}::test_rows_that_cannot_be_taken_back_do_not_starve_the_rest",
        f"{RECOVERY}::test_rows_that_cannot_be_expired_do_not_starve_the_rest",
    ),
    10: caught(
        "a task that nobody runs keeps its place in a limit, or its unique key",
        f"{CONFORMANCE}/limiting.py::test_a_crash_leaks_no_permit",
        f"{CONFORMANCE}/uniqueness.py::test_a_dead_or_cancelled_task_frees_its_live_key",
    ),
    11: caught(
        "a heartbeat as rare as the lease is long loses it by one hiccup",
        f"{CONFORMANCE}/serving.py::test_a_heartbeat_that_cannot_fit_into_its_lease_is_refused",
    ),
    12: caught(
        "a blocked event loop starves the heartbeat, or hides behind it",
        f"{HEARTBEAT}::test_a_handler_that_keeps_the_loop_busy_does_not_starve_the_heartbeat",
        f"{WORKER}::test_a_blocked_event_loop_stops_the_heartbeat_and_shows_where_it_hangs",
    ),
    13: caught(
        "the heartbeat ends with the first database error",
        f"{HEARTBEAT}::test_a_heartbeat_goes_on_after_database_errors",
        f"{HEARTBEAT}::test_a_beat_that_finds_no_live_session_is_the_only_thing_that_means_lost",
    ),
    14: caught(
        "once a lease is over, neither may its owner complete nor anybody claim",
        f"{RECOVERY}::test_a_result_that_comes_after_the_lease_but_before_anyone_judged_is_taken",
        f"{RECOVERING}::test_a_late_beat_before_anyone_judged_keeps_the_session",
        f"{RECOVERING}::test_what_a_dead_session_held_runs_again",
    ),
    15: caught(
        "a zombie commits over the claim of its successor",
        f"{FENCING}::test_a_worker_that_lost_its_session_cannot_complete",
        f"{FENCING}::test_a_zombie_cannot_complete_the_next_task_of_its_key",
        f"{FENCING}::test_a_zombie_cannot_fail_snooze_or_release",
    ),
    16: caught(
        "the database restarts in the middle of a recovery",
        f"{RECOVERY}::test_a_recovery_that_was_interrupted_halfway_is_finished_by_whoever_comes_next",
        f"{POSTGRES}::test_a_worker_consumes_again_after_the_server_was_restarted",
        SIMULATION,
        SOAK,
    ),
    17: caught(
        "a polite shutdown leaves rows behind, or costs an attempt",
        f"{CONFORMANCE}/serving.py::test_what_outlasts_the_grace_period_is_given_back_uncharged",
        "tests/test_cli_worker.py::test_the_first_signal_lets_what_runs_finish_and_starts_nothing_more",
        f"{CONFORMANCE}/retrying.py::test_a_graceful_release_refunds_the_budget_but_not_the_number",
    ),
    18: caught(
        "what is recovered goes to the front again and again, and the others starve",
        f"{RECOVERY}::test_what_is_taken_back_from_the_dead_does_not_retake_the_front",
        f"{RECOVERY}::test_a_task_that_kills_its_workers_waits_while_others_go_on",
    ),
    19: caught(
        "the connection for notifications is half open and silent for hours",
        f"{NOTIFICATIONS}::test_a_notification_connection_that_is_half_open_is_found_and_replaced",
        f"{NOTIFICATIONS}::test_a_worker_leaves_though_its_notification_connection_is_half_open",
        f"{WORKER}::test_a_worker_that_lost_its_notifications_listens_again",
    ),
    20: caught(
        "a worker that starts while the database is away stays deaf",
        f"{POSTGRES}::test_a_worker_that_starts_while_the_server_is_away_waits_and_serves",
    ),
    21: caught(
        "after a reconnect a worker lives and takes nothing",
        f"{POSTGRES}::test_a_worker_consumes_again_after_the_server_was_restarted",
    ),
    22: caught(
        "notifications make commits queue up for each other",
        f"{NOTIFICATIONS}::test_an_enqueue_notifies_only_where_someone_sleeps",
    ),
    23: caught(
        "a pooler in transaction mode takes away what a session had set",
        "tests/test_pooler.py::test_it_is_recognised_and_nothing_is_prepared",
        "tests/test_pooler.py::test_it_is_found_out_by_what_it_loses",
    ),
    24: caught(
        "who reads by rising numbers passes over transactions that commit late",
        "tests/isolation/test_pairs.py::test_every_pair_does_so_beside_an_open_transaction_of_a_caller",
        f"{CONFORMANCE}/claiming.py::test_a_floor_skips_what_lies_below_it_and_a_claim_without_finds_it",
        f"{CONFORMANCE}/claiming.py::test_the_floor_a_claim_answers_trails_the_clock",
    ),
    25: caught(
        "a transaction that stays open keeps dead rows, and every claim wades through them",
        "tests/failure_modes/test_old_snapshot.py::"
        "test_claims_stay_cheap_while_an_old_transaction_keeps_every_dead_row",
    ),
    26: caught(
        "a million delayed tasks slow every claim",
        "tests/crash/test_many.py::test_a_worker_before_a_backlog_of_a_million_stays_small",
        f"{POSTGRES}::test_no_hot_query_scans_a_table_whatever_is_known_about_it",
        f"{SQLITE}::test_no_hot_query_scans_the_tasks",
    ),
    27: caught(
        "the commit succeeded, the client saw an error, and the repetition does it twice",
        f"{CONFORMANCE}/accepting.py::test_the_same_id_is_accepted_once",
        f"{CONFORMANCE}/accepting.py::test_a_repeated_enqueue_does_not_revive_a_task_that_ended_meanwhile",
        f"{FENCING}::test_a_repeated_completion_finds_its_own_token_in_history",
        "tests/isolation/test_orders.py::test_a_repeated_acceptance_does_not_revive_a_task_that_ends_meanwhile",
    ),
    28: caught(
        "a cancelled call gives a connection back in mid-transaction",
        f"{POSTGRES}::test_a_cancelled_operation_leaves_no_transaction_behind",
    ),
    29: caught(
        "a transaction that began by reading cannot write, and no time-out helps",
        "tests/crash/test_many.py::test_eight_processes_on_one_store_never_meet_a_locked_database",
    ),
    30: caught(
        "a commit that returned is lost with the power",
        f"{SQLITE}::test_commits_are_durable_by_default",
    ),
    31: later("a store in memory evicts what was accepted, or does not write it down", "Valkey"),
    32: caught(
        "a worker dies between taking a task and saying so",
        f"{WORKER}::test_a_claim_whose_answer_was_lost_is_given_back_and_runs",
        f"{CONFORMANCE}/claiming.py::test_a_claim_counts_the_attempt_and_names_its_holder",
        SIMULATION,
    ),
    33: caught(
        "the disk is full",
        f"{SQLITE}::test_a_full_disk_is_a_clear_error_and_work_goes_on_when_there_is_space",
    ),
    34: caught(
        "two migrate at once, or one migrates under live workers",
        f"{POSTGRES}::test_two_migrators_at_once_are_fine",
        f"{SQLITE}::test_two_migrators_at_once_are_fine",
        f"{POSTGRES}::test_a_migration_runs_under_live_workers",
    ),
    35: caught(
        "what was fetched ahead breaks the order of its key",
        f"{ORDERING}::test_tasks_of_a_key_run_one_at_a_time_in_order",
        f"{CONFORMANCE}/serving.py::test_order_per_key_is_kept_by_a_running_worker",
        f"{CONFORMANCE}/claiming.py::test_a_claim_takes_no_more_than_there_is_room_for",
    ),
    36: caught(
        "nobody said whether a failed head blocks its key or is overtaken",
        f"{ORDERING}::test_a_failing_head_blocks_its_key_until_it_is_done",
        f"{ORDERING}::test_an_overtaken_head_rejoins_at_the_tail_when_it_is_due",
        f"{ORDERING}::test_a_head_that_gave_up_pauses_its_key_until_someone_resumes_it",
    ),
    37: caught(
        "a row that cannot be decoded takes its whole batch along",
        f"{CONFORMANCE}/dead_letters.py::test_a_payload_that_cannot_be_read_is_a_dead_letter_of_its_own",
    ),
    38: caught(
        "recording the failure fails itself",
        f"{CONFORMANCE}/retrying.py::test_an_error_that_cannot_even_be_printed_is_still_an_error",
        "tests/unit/core/test_task.py::test_an_exception_whose_trace_cannot_be_made_is_a_failure_too",
        "tests/unit/core/test_lifecycle.py::test_options_that_cannot_be_read_do_not_stop_a_task_from_ending",
    ),
    39: caught(
        "a NUL or half a character in a text stops the completion",
        f"{CONFORMANCE}/retrying.py::test_an_error_with_nul_and_surrogates_is_kept_readable",
        f"{CONFORMANCE}/accepting.py::test_text_of_every_plane_survives",
        "tests/unit/core/test_codec.py::test_what_json_cannot_hold_is_refused",
    ),
    40: later("code changes in the middle of a workflow", "workflows"),
    41: later("a workflow of an unknown version is tried without a pause", "workflows"),
    42: later("a workflow with a long history cannot go on", "workflows"),
    43: caught(
        "a worker whose clock is wrong takes leases from others",
        f"{HEARTBEAT}::test_a_worker_whose_clock_is_wrong_steals_no_lease",
        "tests/unit/core/test_moment.py::test_the_host_clock_never_runs_backwards",
    ),
    44: later("intervals drift, and an hour comes twice or never", "schedules"),
    45: caught(
        "everyone comes back at the same moment, and jitter is cut off at the longest wait",
        f"{RECOVERY}::test_workers_that_start_together_do_not_ask_in_step",
        f"{RECOVERY}::test_tasks_that_failed_together_do_not_come_back_together",
        "tests/unit/core/test_retry.py::test_jitter_is_not_void_at_the_cap",
    ),
    46: caught(
        "a mail server takes the message and the answer is lost",
        "tests/mail/test_mail.py::test_a_mail_whose_answer_never_came_is_sent_again_with_the_same_id_and_marked",
    ),
    47: caught(
        "one part of a batch fails, and the rest of the results is never reported",
        f"{RECOVERY}::test_a_batch_with_a_row_that_the_store_refuses_is_committed_but_for_that_row",
        f"{RECOVERY}::test_a_verdict_about_one_row_says_nothing_about_its_neighbours",
        f"{FENCING}::test_one_stale_change_does_not_hold_up_the_rest_of_its_batch",
    ),
    48: caught(
        "a task that is ended by hand frees its unique key while its worker still runs it",
        f"{RECOVERY}::test_a_unique_key_stays_taken_while_a_cancelled_task_still_runs",
        f"{CONFORMANCE}/uniqueness.py::test_a_live_key_is_taken_through_retries_and_free_at_the_end",
    ),
    49: caught(
        "one round spends a whole budget, because every retry is due at once",
        f"{CONFORMANCE}/retrying.py::test_each_round_runs_a_task_once_even_if_its_retry_is_due",
    ),
    50: caught(
        "the process dies after a death was recorded, and the hook is never called",
        f"{CONFORMANCE}/dead_letters.py::test_the_hook_is_a_task_that_commits_with_the_death",
        f"{CONFORMANCE}/dead_letters.py::test_a_crash_makes_the_hook_run_too",
    ),
}


@cache
def names_in(path: str) -> frozenset[str]:
    """The names of the tests in a file, those in classes too."""
    file = ROOT / path
    if not file.is_file():
        return frozenset()
    nodes = ast.walk(ast.parse(file.read_text()))
    return frozenset(
        node.name
        for node in nodes
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
    )


def missing(tests: tuple[str, ...]) -> list[str]:
    """Which of these tests do not exist."""
    return [test for test in tests if test.partition("::")[2] not in names_in(test.partition("::")[0])]


def test_every_test_that_the_guarantees_name_exists() -> None:
    page = ROOT / "docs" / "explanation" / "guarantees.md"
    named = re.findall(r"\[`(test_\w+)`\]\(\.\./\.\./([\w/.]+)\)", page.read_text())

    assert missing(tuple(f"{path}::{test}" for test, path in named)) == []
    assert len(named) == page.read_text().count("[`test_")


def test_every_failure_is_in_the_table() -> None:
    assert list(FAILURES) == list(range(1, 51))


@pytest.mark.parametrize("number", FAILURES)
def test_a_failure_has_tests_that_exist_or_a_part_to_wait_for(number: int) -> None:
    failure = FAILURES[number]

    assert missing(failure.tests) == []
    assert bool(failure.tests) != (failure.later in LATER)


def test_a_test_that_does_not_exist_is_noticed() -> None:
    there = "tests/test_failure_modes.py::test_every_failure_is_in_the_table"
    gone = "tests/test_failure_modes.py::test_that_nobody_wrote"

    assert missing((there, gone, "tests/nowhere.py::test_every_failure_is_in_the_table")) == [
        gone,
        "tests/nowhere.py::test_every_failure_is_in_the_table",
    ]
