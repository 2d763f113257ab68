"""All checks together: none takes another down, and each is heard in its turn."""

import asyncio
import threading
import time

from hermes_rl.runs.doctor.examination import Check, examination, examine
from hermes_rl.runs.doctor.finding import Finding, State, healthy


def fine(name: str) -> Check:
    return Check(name, lambda: [Finding(name, State.OK, "fine")])


def raises() -> list[Finding]:
    raise RuntimeError("no such luck")


async def waits_for_ever() -> list[Finding]:
    await asyncio.Event().wait()
    return []


async def test_a_check_that_raises_is_told_as_such_and_the_others_are_heard() -> None:
    found = await examine([fine("first"), Check("second", raises), fine("third")])
    assert [one.state for one in found] == [State.OK, State.WARN, State.OK]
    assert found[1].what == "the check itself failed: RuntimeError: no such luck"


async def test_a_check_that_hangs_in_a_thread_ends_at_its_deadline() -> None:
    release = threading.Event()

    def hangs() -> list[Finding]:
        release.wait(60)
        return []

    try:
        found = await examine([Check("slow", hangs, 0.05), fine("quick")])
    finally:
        release.set()
    assert [(one.check, one.what) for one in found] == [("slow", "no answer within 0.05 s"), ("quick", "fine")]


async def test_a_coroutine_that_hangs_ends_at_its_deadline() -> None:
    (found,) = await examine([Check("slow", waits_for_ever, 0.05)])
    assert found.state is State.WARN


async def test_checks_run_at_the_same_time() -> None:
    both = threading.Barrier(2, timeout=60)

    def meet() -> list[Finding]:
        both.wait()
        return []

    assert await examine([Check("one", meet), Check("other", meet)]) == []


async def test_findings_come_in_the_order_of_the_checks() -> None:
    def late() -> list[Finding]:
        time.sleep(0.05)
        return [Finding("late", State.OK, "")]

    assert [one.check for one in await examine([Check("late", late), fine("early")])] == ["late", "early"]


async def test_progress_hears_of_every_check() -> None:
    heard: list[int] = []
    await examine([fine("a"), Check("b", raises)], tell=lambda done, _: heard.append(done))
    assert heard == [1, 2]


def test_warnings_and_what_is_absent_are_no_sickness() -> None:
    assert healthy([Finding("a", State.WARN, ""), Finding("b", State.ABSENT, ""), Finding("c", State.OK, "")])
    assert not healthy([Finding("a", State.OK, ""), Finding("b", State.MISSING, "")])


def test_the_whole_examination_of_this_machine_fails_in_no_check() -> None:
    found = examination()
    assert not [one for one in found if "the check itself failed" in one.what]
    assert {"python", "hermes-rl", "extra train", "key TINKER_API_KEY", "sandbox bubblewrap", "port 8000", "clock"} <= {
        one.check for one in found
    }
