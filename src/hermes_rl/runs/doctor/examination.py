"""All checks at once, each with a deadline of its own.

Always true: the findings come in the order of the checks; one that raises or hangs is told as such, and holds up no
other.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from inspect import iscoroutinefunction

from hermes_rl.runs.doctor import installed, machine, own_files, sandboxes
from hermes_rl.runs.doctor.finding import Finding, State

Findings = list[Finding]
Tell = Callable[[int, str], object]


@dataclass(frozen=True, slots=True)
class Check:
    name: str
    look: Callable[[], Findings] | Callable[[], Awaitable[Findings]]
    """May block: what is no coroutine function gets a thread."""
    deadline: float = 20.0


CHECKS = (
    Check("python", installed.python),
    Check("hermes-rl", installed.hermes_rl),
    Check("extras", installed.extras),
    Check("packages load", installed.packages_load, 120.0),
    Check("key file", own_files.key_file_is_closed),
    Check("keys", own_files.known_keys),
    Check("sandboxes", sandboxes.sandboxes, 90.0),
    Check("left sandboxes", sandboxes.left_sandboxes),
    Check("engine", own_files.engine_environment),
    Check("runs", own_files.runs),
    Check("ports", machine.ports),
    Check("disk", machine.disk),
    Check("memory", machine.memory),
    Check("clock", machine.clock),
)


def examination() -> list[Finding]:
    return asyncio.run(examine())


async def examine(checks: Sequence[Check] = CHECKS, tell: Tell = lambda _done, _name: None) -> list[Finding]:
    """Run the checks; `tell` hears how many are done, and which was the last."""
    done = 0

    async def one(check: Check) -> Findings:
        nonlocal done
        found = await _findings(check)
        done += 1
        tell(done, check.name)
        return found

    return [finding for found in await asyncio.gather(*map(one, checks)) for finding in found]


async def _findings(check: Check) -> Findings:
    try:
        async with asyncio.timeout(check.deadline):
            return await (check.look() if iscoroutinefunction(check.look) else _in_a_thread(check))
    except TimeoutError:
        return [Finding(check.name, State.WARN, f"no answer within {check.deadline:g} s", "hermes-rl doctor")]
    except Exception as error:  # noqa: BLE001 - whatever it is, the other checks go on
        return [Finding(check.name, State.WARN, f"the check itself failed: {type(error).__name__}: {error}")]


async def _in_a_thread(check: Check) -> Findings:
    """A daemon's thread, not a pool's: Python waits for a pool's at its end, and this one may hang for ever."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[Findings] = loop.create_future()

    def settle(act: Callable[[], None]) -> None:
        # The loop is closed when the deadline has passed and everybody has left.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(lambda: None if answer.done() else act())

    def run() -> None:
        try:
            found = check.look()
        except Exception as error:  # noqa: BLE001 - handed to the one who waits
            failed = error
            settle(lambda: answer.set_exception(failed))
        else:
            settle(lambda: answer.set_result(found))  # type: ignore[arg-type]

    threading.Thread(target=run, name=f"doctor: {check.name}", daemon=True).start()
    return await answer
