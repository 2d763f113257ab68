"""Rollouts that are attacks: an owner of sandboxes, as a process of its own, root or an ordinary user.

`Arena` is the test's end. Run as a program, this is the owner: it reads what it shall be, then the names of attacks, a
line each, and answers each with what the attack left. It has secrets in its environment, its keyring and an open file,
and beside every attack it keeps a neighbour: another rollout, which must be well afterwards.
"""

import asyncio
import ctypes
import json
import os
import resource
import select
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Self

from hermes_rl.core.errors import SandboxError
from hermes_rl.rewards.sync_bridge import bridged
from hermes_rl.rewards.tool_context import ToolContext
from hermes_rl.sandbox.backends.registry import make_backend
from hermes_rl.sandbox.guest_agent.client import PATH
from hermes_rl.sandbox.ledger import SandboxLedger
from hermes_rl.sandbox.pool import SandboxPool
from hermes_rl.sandbox.process_tree import children
from hermes_rl.sandbox.protocol import Backend, Sandbox
from hermes_rl.sandbox.spec import Limits, SandboxSpec
from hermes_rl.tools.host import ToolHost
from hermes_rl.tools.registry import all_tools
from tests.redteam import keyring
from tests.redteam.attacks import BY_NAME, Attack
from tests.redteam.judges import HONEST, PRELUDE, by_import, every_recipe
from tests.redteam.world import Harm, Traces, World
from tests.sandbox.living import living, nap

CHECKOUT = Path(__file__).parents[2]
LIMITS = Limits(memory_mb=128, processes=64, disk_mb=32)
ANSWER_TIME = 100.0
# How much later than it was told the host may be, on a machine that has much to do.
_SLACK = 6.0
_SCORING_TIME = 30.0


@dataclass(frozen=True, slots=True)
class Plan:
    """What an owner shall be. `image` is for bubblewrap a directory, for docker a name."""

    backend: str
    settings: Mapping[str, Any]
    user: str
    uid: int
    image: str | None
    variables: str
    secret: str
    mark: str
    open_file: str
    downloads: str


@dataclass(slots=True)
class Outcome:
    """What became of an attack. `shared` is the score by plain shared verification, or why there is none."""

    traces: Traces
    shared: float | str | None = None
    by_import: float | None = None
    died: bool = False
    unheld: bool = False
    notes: list[str] = field(default_factory=list)


class Arena:
    """The owner, seen from the test."""

    def __init__(self, plan: Plan, world: World) -> None:
        self.plan = plan
        self.world = world
        self._place = tempfile.TemporaryDirectory(prefix="hermes-rl-arena-", dir="/tmp")
        place = Path(self._place.name)
        os.chown(place, plan.uid, plan.uid)
        # Nothing else of ours: its environment is what attacks look for.
        environment = {"PATH": PATH, "HOME": str(place), "TMPDIR": str(place), "HERMES_HOME": str(place / "home")}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.redteam.arena"],
            cwd=CHECKOUT,
            env={**environment, "OPENAI_API_KEY": world.secret, "AWS_SECRET_ACCESS_KEY": world.secret},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._buffer = b""

    def __enter__(self) -> Self:
        try:
            self._ask(asdict(self.plan))
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(30)
        finally:
            self._process.kill()
            self._process.wait()
            if self._process.stdout is not None:
                self._process.stdout.close()
            self._place.cleanup()

    def play(self, name: str, *, by_import: bool = False) -> Outcome:
        """Play an attack, or `honest`, and look at the world afterwards."""
        told = self._ask({"attack": name, "by_import": by_import})
        traces = self.world.after(Traces(**told.pop("traces")))
        return Outcome(traces=traces, **told)

    def left(self) -> dict[str, list[str]]:
        """Close everything; what is left of it, by kind."""
        return self._ask({"close": True})

    def _ask(self, question: Mapping[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(question).encode() + b"\n")
        self._process.stdin.flush()
        deadline = time.monotonic() + ANSWER_TIME
        while b"\n" not in self._buffer:
            if not select.select([self._process.stdout], [], [], max(deadline - time.monotonic(), 0))[0]:
                raise TimeoutError(f"the owner did not answer {question} within {ANSWER_TIME:.0f} s")
            piece = os.read(self._process.stdout.fileno(), 1 << 16)
            if not piece:
                raise RuntimeError(f"the owner died of {question}")
            self._buffer += piece
        line, self._buffer = self._buffer.split(b"\n", 1)
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer


# --- the owner ---


class Owner:
    """Has the sandboxes: one of a neighbour, and one, or with its verification two, of the attack being played."""

    def __init__(self, plan: Plan, backend: Backend) -> None:
        self.plan = plan
        self.backend = backend
        self.host = ToolHost(all_tools(), SandboxPool(backend), calls_in_flight=8, terminal_timeout=10)
        self._neighbour: Sandbox | None = None
        self._neighbour_nap = nap()
        self._count = 0

    def spec(self, *, image: bool = True) -> SandboxSpec:
        held = {name: value for name, value in LIMITS.named().items() if name in self.backend.capabilities.limits}
        return SandboxSpec(
            image=self.plan.image if image else None,
            user=self.plan.user,
            limits=Limits(**held),  # type: ignore[arg-type]
            # As programs that were installed for one user are found; an attack can put its own there.
            env={"PATH": f"/workspace/.local/bin:{PATH}"},
        )

    async def start(self) -> None:
        await self.backend.probe()
        self._neighbour = await self.host.pool.acquire(self.spec())
        mark, secret = self.plan.mark, shlex.quote(self.plan.secret)
        await self._neighbour.exec(
            f"for f in secret-{mark} /tmp/neighbour-{mark} /dev/shm/neighbour-{mark}; do echo {secret} > $f; done; "
            f"OPENAI_API_KEY={secret} {self._neighbour_nap} > /dev/null 2>&1 &",
            timeout=20,
        )

    async def play(self, name: str, *, with_import: bool) -> Outcome:
        attack = BY_NAME.get(name)
        self._count += 1
        task = f"{name} {self._count}"
        session = self.host.session(task)
        lacks_image = attack is not None and attack.judge.needs is not None and self.plan.backend == "bubblewrap"
        session.spec = self.spec(image=not lacks_image)
        mine = nap()
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        known = {"PARENT": os.getpid(), "NEIGHBOUR": " ".join(map(str, living(self._neighbour_nap))), "NAP": mine}
        told = "".join(f"export {name}={shlex.quote(str(value))}\n" for name, value in known.items())
        script = self.plan.variables + told + PRELUDE + (attack.script if attack else HONEST)
        outcome = Outcome(Traces())
        traces = outcome.traces
        if attack is not None and attack.limit is not None:
            outcome.unheld = attack.limit not in self.backend.capabilities.limits
        try:
            await session.sandbox()
            timeout = attack.timeout if attack else 10
            with _clock(traces, timeout + _SLACK):
                if attack is not None:
                    await session.call("terminal", {"command": told + attack.first, "timeout": 10})
                traces.output = (await session.call("terminal", {"command": script, "timeout": int(timeout)})).text
            # While what the attack left is still running.
            traces.neighbour = await self._neighbour_trouble()
            await self._score(task, attack, outcome, with_import=with_import)
        except SandboxError as error:
            outcome.died = True
            traces.score = None
            outcome.notes.append(repr(error))
        await self.host.close_session(task)
        traces.held_mb = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory) / 1024
        traces.fetched = _content(Path(self.plan.downloads))
        deadline = time.monotonic() + 5
        while (left := living(mine)) and time.monotonic() < deadline:
            await asyncio.sleep(0.05)
        traces.survivors = len(left)
        return outcome

    async def close(self) -> dict[str, list[str]]:
        await self.host.close()
        await asyncio.sleep(0.1)
        home = Path(os.environ["HERMES_HOME"])
        return {
            "ledger": [str(path) for path in home.rglob("*.jsonl")],
            "processes": [str(pid) for pid in children(os.getpid())],
            "files": [str(path) for path in Path(tempfile.gettempdir()).glob("hermes-rl-*")],
        }

    async def _score(self, task: str, attack: Attack | None, outcome: Outcome, *, with_import: bool) -> None:
        """Isolated verification first: it leaves the policy's sandbox as it is, but for the processes."""
        # What does not aim at the score is tried once, on the quickest backend.
        quickest = self.plan.backend == "bubblewrap" and self.plan.uid == 0
        with_shared = quickest or attack is None or attack.harm in {Harm.FORGE, Harm.ESCAPE}
        judge = attack.judge if attack else BY_NAME["exit at import"].judge
        with _clock(outcome.traces, _SCORING_TIME):
            recipe = judge.recommended if attack else every_recipe
            outcome.traces.score = await self._reward(task, recipe, outcome)
        sandbox = await self.host.session(task).sandbox()
        answer = await sandbox.exec("echo honest; exit 3", cwd="/", timeout=10)
        if (answer.stdout, answer.exit_code) != (b"honest\n", 3):
            outcome.traces.channel = f"it said {answer}"
        with _clock(outcome.traces, _SCORING_TIME):
            await self._download(task)
        if with_import:
            outcome.by_import = await self._reward(task, by_import, outcome)
        if not with_shared:
            outcome.shared = "not tried"
        elif judge.needs and (await sandbox.exec(f"command -v {judge.needs}", timeout=10)).exit_code != 0:
            outcome.shared = "absent"
        else:
            outcome.shared = await self._reward(task, judge.shared, outcome)

    async def _reward(self, task: str, function: Callable[[Any], float], outcome: Outcome) -> float | None:
        """The score, or None for a rollout that would have none."""

        async def reward() -> float:
            return function(ToolContext(task))

        try:
            with self.host.running():
                return await bridged(reward())
        except Exception as error:  # noqa: BLE001 - whatever it is, there is no score
            outcome.notes.append(f"{function.__name__}: {error!r}")
            return None

    async def _download(self, task: str) -> None:
        async def download() -> None:
            ctx = ToolContext(task)
            ctx.download_file("answer.txt", f"{self.plan.downloads}/answer.txt")
            ctx.download_dir("out", f"{self.plan.downloads}/out")

        with self.host.running():
            await bridged(download())

    async def _neighbour_trouble(self) -> str:
        """What the neighbour cannot do any more: read its files, write some, start programs, keep its process."""
        assert self._neighbour is not None
        mark, secret = self.plan.mark, self.plan.secret
        script = (
            f"set -e; for f in secret-{mark} /tmp/neighbour-{mark} /dev/shm/neighbour-{mark}; do "
            f'[ "$(cat $f)" = {secret} ]; done; for f in mine /tmp/mine /dev/shm/mine; do head -c 1M /dev/zero > $f; '
            f"rm $f; done; pgrep -f -x '{self._neighbour_nap}' > /dev/null; python3 -c ''; echo well"
        )
        try:
            result = await self._neighbour.exec(script, timeout=15, merge_stderr=True)
        except SandboxError as error:
            return repr(error)
        return "" if result.stdout == b"well\n" else repr(result)


class _clock:  # noqa: N801 - reads as a statement
    """Notes when a block took longer than it may."""

    def __init__(self, traces: Traces, allowed: float) -> None:
        self._traces, self._allowed = traces, allowed

    def __enter__(self) -> None:
        self._began = time.monotonic()

    def __exit__(self, *_: object) -> None:
        self._traces.late = self._traces.late or time.monotonic() - self._began > self._allowed


def _content(directory: Path) -> str:
    found = [path for path in sorted(directory.rglob("*")) if path.is_file()]
    return "\n".join(path.open("rb").read(1 << 16).decode(errors="replace") for path in found)


def _become(plan: Plan) -> None:
    """Everything was imported as root, who may read the checkout; from here on this is the user of the plan."""
    if plan.uid != os.geteuid():
        os.setgroups([])
        os.setgid(plan.uid)
        os.setuid(plan.uid)
        # Else our own /proc would belong to root.
        ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)
    keyring.hold(plan.secret)
    os.set_inheritable(os.open(plan.open_file, os.O_RDONLY), True)


async def _serve() -> None:
    plan = Plan(**json.loads(sys.stdin.readline()))
    # For what it imports: only root may be able to read that.
    make_backend(plan.backend, plan.settings, None)
    all_tools()
    _become(plan)
    backend = make_backend(plan.backend, plan.settings, SandboxLedger())
    owner = Owner(plan, backend)
    await owner.start()
    _say({})
    while line := await asyncio.to_thread(sys.stdin.readline):
        question = json.loads(line)
        try:
            if "close" in question:
                _say(await owner.close())
            else:
                outcome = await owner.play(question["attack"], with_import=question["by_import"])
                _say(
                    {one.name: getattr(outcome, one.name) for one in fields(outcome)}
                    | {"traces": asdict(outcome.traces)}
                )
        except Exception as error:  # noqa: BLE001 - the test shall see it
            _say({"error": repr(error)})


def _say(answer: Mapping[str, Any]) -> None:
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    asyncio.run(_serve())
