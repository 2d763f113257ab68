"""Run all checks concurrently, each with its own deadline.

Always true: findings are in the order of the checks; a check that raises or hangs becomes a finding and delays none.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from inspect import iscoroutinefunction

from hermes_rl.orchestration.doctor import installed, machine, own_files, sandboxes
from hermes_rl.orchestration.doctor.finding import DoctorFinding, FindingState

Findings = list[DoctorFinding]
Report = Callable[[int, str], object]


@dataclass(frozen=True, slots=True)
class DoctorCheck:
    name: str
    run: Callable[[], Findings] | Callable[[], Awaitable[Findings]]
    """May block: a plain function runs in a thread."""
    deadline: float = 20.0


CHECKS = (
    DoctorCheck("python", installed.python),
    DoctorCheck("hermes-rl", installed.hermes_rl),
    DoctorCheck("extras", installed.extras),
    DoctorCheck("packages load", installed.package_imports, 120.0),
    DoctorCheck("key file", own_files.key_file_permissions),
    DoctorCheck("keys", own_files.known_keys),
    DoctorCheck("sandboxes", sandboxes.sandboxes, 90.0),
    DoctorCheck("left sandboxes", sandboxes.leftover_sandboxes),
    DoctorCheck("engine", own_files.engine_environment),
    DoctorCheck("runs", own_files.runs),
    DoctorCheck("ports", machine.ports),
    DoctorCheck("disk", machine.disk),
    DoctorCheck("memory", machine.memory),
    DoctorCheck("clock", machine.clock),
)


async def run_checks(
    checks: Sequence[DoctorCheck] = CHECKS, report: Report = lambda _done, _name: None
) -> list[DoctorFinding]:
    """Run the checks; `report` gets the number of finished checks and the name of the last."""
    done = 0

    async def run(check: DoctorCheck) -> Findings:
        nonlocal done
        found = await _run_check(check)
        done += 1
        report(done, check.name)
        return found

    return [finding for found in await asyncio.gather(*map(run, checks)) for finding in found]


async def _run_check(check: DoctorCheck) -> Findings:
    try:
        async with asyncio.timeout(check.deadline):
            return await (check.run() if iscoroutinefunction(check.run) else _run_in_thread(check))
    except TimeoutError:
        return [
            DoctorFinding(check.name, FindingState.WARN, f"no answer within {check.deadline:g} s", "hermes-rl doctor")
        ]
    except Exception as error:  # noqa: BLE001 - a failed check must not stop the others
        return [
            DoctorFinding(check.name, FindingState.WARN, f"the check itself failed: {type(error).__name__}: {error}")
        ]


async def _run_in_thread(check: DoctorCheck) -> Findings:
    """Use a daemon thread, not a pool: Python waits for pool threads at exit, and a check may hang forever."""
    loop = asyncio.get_running_loop()
    result: asyncio.Future[Findings] = loop.create_future()

    def resolve(act: Callable[[], None]) -> None:
        # After the deadline the loop may be closed.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(lambda: None if result.done() else act())

    def run() -> None:
        try:
            found = check.run()
        except Exception as error:  # noqa: BLE001 - raised in the waiting coroutine
            failed = error
            resolve(lambda: result.set_exception(failed))
        else:
            resolve(lambda: result.set_result(found))  # type: ignore[arg-type]

    threading.Thread(target=run, name=f"doctor: {check.name}", daemon=True).start()
    return await result
