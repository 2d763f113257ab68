"""All checks together: none takes another down, and each is heard in its turn."""

import asyncio
import threading
import time

from hermes_rl.orchestration.doctor.finding import DoctorFinding, FindingState, healthy
from hermes_rl.orchestration.doctor.runner import DoctorCheck, run_checks


def fine(name: str) -> DoctorCheck:
    return DoctorCheck(name, lambda: [DoctorFinding(name, FindingState.OK, "fine")])


def raises() -> list[DoctorFinding]:
    raise RuntimeError("no such luck")


async def waits_for_ever() -> list[DoctorFinding]:
    await asyncio.Event().wait()
    return []


async def test_a_check_that_raises_is_told_as_such_and_the_others_are_heard() -> None:
    found = await run_checks([fine("first"), DoctorCheck("second", raises), fine("third")])
    assert [one.state for one in found] == [FindingState.OK, FindingState.WARN, FindingState.OK]
    assert found[1].what == "the check itself failed: RuntimeError: no such luck"


async def test_a_check_that_hangs_in_a_thread_ends_at_its_deadline() -> None:
    release = threading.Event()

    def hangs() -> list[DoctorFinding]:
        release.wait(60)
        return []

    try:
        found = await run_checks([DoctorCheck("slow", hangs, 0.05), fine("quick")])
    finally:
        release.set()
    assert [(one.check, one.what) for one in found] == [("slow", "no answer within 0.05 s"), ("quick", "fine")]


async def test_a_coroutine_that_hangs_ends_at_its_deadline() -> None:
    (found,) = await run_checks([DoctorCheck("slow", waits_for_ever, 0.05)])
    assert found.state is FindingState.WARN


async def test_checks_run_at_the_same_time() -> None:
    both = threading.Barrier(2, timeout=60)

    def meet() -> list[DoctorFinding]:
        both.wait()
        return []

    assert await run_checks([DoctorCheck("one", meet), DoctorCheck("other", meet)]) == []


async def test_findings_come_in_the_order_of_the_checks() -> None:
    def late() -> list[DoctorFinding]:
        time.sleep(0.05)
        return [DoctorFinding("late", FindingState.OK, "")]

    assert [one.check for one in await run_checks([DoctorCheck("late", late), fine("early")])] == ["late", "early"]


async def test_progress_hears_of_every_check() -> None:
    heard: list[int] = []
    await run_checks([fine("a"), DoctorCheck("b", raises)], report=lambda done, _: heard.append(done))
    assert heard == [1, 2]


def test_warnings_and_what_is_absent_are_no_sickness() -> None:
    assert healthy(
        [
            DoctorFinding("a", FindingState.WARN, ""),
            DoctorFinding("b", FindingState.ABSENT, ""),
            DoctorFinding("c", FindingState.OK, ""),
        ]
    )
    assert not healthy([DoctorFinding("a", FindingState.OK, ""), DoctorFinding("b", FindingState.MISSING, "")])


def test_the_whole_examination_of_this_machine_fails_in_no_check() -> None:
    found = asyncio.run(run_checks())
    assert not [one for one in found if "the check itself failed" in one.what]
    assert {"python", "hermes-rl", "extra train", "key TINKER_API_KEY", "sandbox bubblewrap", "port 8000", "clock"} <= {
        one.check for one in found
    }
