"""The suite finds what it is for: a backend that breaks a promise fails the check of that promise; ours pass all."""

import asyncio
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from hermes_rl.core.errors import ConfigError
from hermes_rl.sandbox.conformance.suite import CHECKS, GROUPS, CheckOutcome, CheckResult, check_backend, select_checks
from hermes_rl.sandbox.protocol import Backend
from tests.sandbox import faulty
from tests.sandbox.faulty import LOCAL, Through, ThroughBackend

# What breaks, the check that must say so, and how patient it is where the fault is that nothing comes back.
BROKEN_SANDBOXES: list[tuple[type[Through], str, float]] = [
    (faulty.LosesExitCodes, "exit_codes_are_returned", 1),
    (faulty.TellsSignalsAsOne, "signal_exit_code_is_128_plus_number", 1),
    (faulty.MergesStderr, "stdout_and_stderr_are_separate", 1),
    (faulty.MergesOutOfOrder, "merged_streams_keep_order", 1),
    (faulty.MakesOutputText, "output_is_bytes", 1),
    (faulty.StripsOutput, "large_output_is_exact", 1),
    (faulty.KeepsTruncationQuiet, "output_is_truncated_at_limit", 1),
    (faulty.IgnoresTheOutputLimit, "output_is_truncated_at_limit", 1),
    (faulty.DropsInput, "stdin_is_delivered", 1),
    (faulty.DropsInput, "port_forward_reaches_one_endpoint", 1),
    (faulty.IgnoresCwd, "relative_cwd_is_below_workspace", 1),
    (faulty.IgnoresCwd, "missing_cwd_is_a_result", 1),
    (faulty.IgnoresTheUser, "unknown_user_is_refused", 1),
    (faulty.LeaksOurEnvironment, "host_variables_are_hidden", 1),
    (faulty.FlattensVariables, "variables_are_exact", 1),
    (faulty.CutsLongCommands, "long_command_runs", 1),
    (faulty.RaisesForNul, "nul_in_command_is_a_result", 1),
    (faulty.LeavesTheTree, "timeout_kills_children", 1),
    (faulty.LeavesTheTree, "timeout_kills_orphans", 1),
    (faulty.NeverTimesOut, "timeout_returns_in_time", 0.1),
    (faulty.LosesPartialOutput, "timeout_keeps_output", 1),
    (faulty.KillsAllOnTimeout, "timeout_spares_other_commands", 1),
    (faulty.IgnoresCancellation, "cancellation_kills_tree", 1),
    (faulty.WaitsForChildren, "background_process_does_not_delay_command", 0.1),
    (faulty.KillsChildren, "background_process_outlives_command", 1),
    (faulty.EndsNothing, "end_processes_kills_everything", 1),
    (faulty.ReadsPipes, "special_file_is_refused", 0.1),
    (faulty.LeavesHalfDownloads, "failed_download_leaves_no_file", 1),
    (faulty.AppendsToFiles, "overwriting_replaces_content", 1),
    (faulty.ClosesOnce, "closing_twice_is_harmless", 1),
    (faulty.LivesForever, "alive_is_accurate", 1),
    (faulty.TellsTheWrongCause, "closed_sandbox_raises", 1),
    (faulty.NeverCloses, "close_ends_every_process", 1),
]
BROKEN_BACKENDS: list[tuple[type[ThroughBackend], str]] = [
    (faulty.IgnoresWishes, "unsupported_spec_is_refused"),
    (faulty.ForgetsFiles, "spec_files_are_written"),
    (faulty.ForgetsSetup, "setup_runs_after_files"),
    (faulty.ForgetsSetup, "setup_failure_is_reported"),
    (faulty.SharesOneWorkspace, "workspaces_are_separate"),
    (faulty.NeverStarts, "workspace_is_empty"),
    (faulty.LeaksDescriptors, "closing_frees_descriptors"),
]
FALSE_CLAIMS = {
    "host_files_are_hidden": replace(LOCAL, isolates_files=True),
    "links_do_not_escape": replace(LOCAL, isolates_files=True),
    "host_processes_are_hidden": replace(LOCAL, isolates_processes=True),
    "network_off_is_enforced": replace(LOCAL, network_off=True),
    "network_is_off_by_default": replace(LOCAL, network_off=True),
    "processes_are_limited": replace(LOCAL, limits=frozenset({"processes"})),
    "disk_is_limited": replace(LOCAL, limits=frozenset({"disk_mb"})),
    "memory_is_limited": replace(LOCAL, limits=frozenset({"memory_mb"})),
    "root_can_be_default_user": replace(LOCAL, root_user=True),
    "missing_image_is_reported": replace(LOCAL, images=True),
    "folders_are_mounted_read_only": replace(LOCAL, folders=True),
}


async def row_of(backend: Backend, check: str, patience: float = 1) -> CheckResult:
    report = await check_backend(backend, only=check, patience=patience)
    await backend.close()
    return next(row for row in report.rows if row.name == check)


@pytest.mark.parametrize(("fault", "check", "patience"), BROKEN_SANDBOXES)
async def test_a_sandbox_that_breaks_a_promise_fails_its_check(
    fault: type[Through], check: str, patience: float
) -> None:
    row = await row_of(ThroughBackend(fault), check, patience)
    assert (row.outcome, bool(row.message)) == (CheckOutcome.FAILED, True)


@pytest.mark.parametrize(("fault", "check"), BROKEN_BACKENDS)
async def test_a_backend_that_breaks_a_promise_fails_its_check(fault: Callable[[], ThroughBackend], check: str) -> None:
    row = await row_of(fault(), check)
    assert (row.outcome, bool(row.message)) == (CheckOutcome.FAILED, True)


@pytest.mark.parametrize("check", FALSE_CLAIMS)
async def test_a_capability_that_is_claimed_but_not_held_fails_its_check(check: str) -> None:
    row = await row_of(ThroughBackend(capabilities=FALSE_CLAIMS[check]), check)
    assert (row.outcome, bool(row.message)) == (CheckOutcome.FAILED, True)


@pytest.mark.slow
async def test_without_a_fault_the_wrapper_passes_those_checks() -> None:
    backend = ThroughBackend()
    names = {name for _, name, _ in BROKEN_SANDBOXES} | {name for _, name in BROKEN_BACKENDS}
    rows = [row for name in names for row in (await check_backend(backend, only=name)).rows]
    await backend.close()
    assert {row.name for row in rows} >= names
    assert [row for row in rows if row.outcome != CheckOutcome.PASSED] == []


@pytest.mark.slow
async def test_local_and_bubblewrap_pass_every_check(backend: Backend, capsys: pytest.CaptureFixture[str]) -> None:
    report = await check_backend(backend)
    passed, not_claimed = report.count(CheckOutcome.PASSED), report.count(CheckOutcome.NOT_CLAIMED)
    with capsys.disabled():
        sys.stdout.write(f"\n{backend.name}: {passed} checks passed, {not_claimed} not claimed\n")
    assert report.failures == []
    assert {row.name for row in report.rows if row.outcome == CheckOutcome.NOT_CLAIMED} <= {
        check.name for check in CHECKS if check.claims is not None
    } | {"unreadable_file_is_reported"}


async def test_a_backend_that_hangs_for_good_fails_and_the_suite_ends() -> None:
    backend = faulty.HangsForGood()
    async with asyncio.timeout(60):
        report = await check_backend(backend, patience=0.002)
    backend.let_go.set()
    assert report.count(CheckOutcome.PASSED) <= 1
    assert "hangs" in next(row.message for row in report.rows if row.name == "workspace_is_empty")
    assert "not tried" in report.rows[-1].message


async def test_progress_hears_of_each_check_before_and_after_it() -> None:
    heard: list[tuple[str, CheckOutcome | None]] = []
    backend = ThroughBackend()
    await check_backend(
        backend, only="exit code", progress=lambda check, row: heard.append((check.name, row.outcome if row else None))
    )
    await backend.close()
    names = [check.name for check in select_checks("exit code")]
    assert heard == [(name, outcome) for name in names for outcome in (None, CheckOutcome.PASSED)]


async def test_a_report_is_json() -> None:
    backend = ThroughBackend(faulty.LosesExitCodes)
    report = await check_backend(backend, only="exit_codes")
    await backend.close()
    told = json.loads(json.dumps(report.as_dict()))
    assert (told["backend"], told["passed"], told["counts"]["failed"]) == ("through", False, 1)
    assert told["rows"][0]["outcome"] == "failed"


async def test_without_a_ledger_there_is_nothing_to_reap(tmp_path: Path) -> None:
    backend = ThroughBackend()
    report = await check_backend(backend, only="ledger", ledger=tmp_path)
    (reaped,) = (await check_backend(backend, only="reaping", ledger=tmp_path)).rows
    await backend.close()
    assert [row.outcome for row in report.rows] == [CheckOutcome.FAILED]
    assert reaped.outcome == CheckOutcome.NOT_CLAIMED


def test_a_selection_of_nothing_names_the_groups() -> None:
    with pytest.raises(ConfigError, match="limits, lifetime"):
        select_checks("no such check")


def test_every_check_has_a_name_of_its_own_and_a_description() -> None:
    assert len(CHECKS) >= 45
    assert len({check.name for check in CHECKS}) == len(CHECKS)
    assert all(len(check.description) > 15 for check in CHECKS)
    assert len({group.name for group in GROUPS}) == len(GROUPS)
