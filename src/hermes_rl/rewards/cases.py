"""Verification by tests: an agent's program is run on the author's cases, and what it printed is compared here.

Always true: all cases run in one fresh sandbox, each as a command of its own over the warden's channel; nothing that
knows an expected answer ever enters it, no process of one case lives when the next begins, and a case's input arrives
only then. What a program leaves in files for later cases are its own earlier words.
"""

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hermes_rl.errors import ConfigError
from hermes_rl.rewards.sync_bridge import wait
from hermes_rl.rewards.tool_context import ToolContext
from hermes_rl.rewards.verification import ArtifactError, judged_apart
from hermes_rl.sandbox.protocol import ExecResult, Sandbox
from hermes_rl.tools.host import ToolHost
from hermes_rl.tools.session import ToolSession
from hermes_rl.trajectory import Reward

MAX_OUTPUT = 1024 * 1024
SHOWN = 500


@dataclass(frozen=True, slots=True)
class Case:
    """One test of a program: what it is given, and what it must print."""

    stdin: str | bytes
    expected: str
    args: Sequence[str] = ()
    name: str = ""


@dataclass(frozen=True, slots=True)
class CaseOutcome:
    """What came of a case. `why` says in a few words what was wrong; None when it passed."""

    name: str
    why: str | None
    printed: str
    complained: str = ""

    @property
    def passed(self) -> bool:
        return self.why is None


@dataclass(frozen=True, slots=True)
class CaseResults:
    """All cases in their order; none, and the reason, when an artifact could not be had: the agent's own doing."""

    outcomes: tuple[CaseOutcome, ...]
    artifact_error: str | None = None

    @property
    def passed(self) -> bool:
        """Whether every case passed."""
        return bool(self.outcomes) and all(outcome.passed for outcome in self.outcomes)

    @property
    def share(self) -> float:
        """The share of cases that passed."""
        return sum(outcome.passed for outcome in self.outcomes) / len(self.outcomes) if self.outcomes else 0.0

    @property
    def reward(self) -> Reward:
        """The share as score, and beside it whether all passed."""
        return Reward(self.share, {"cases_passed": self.share, "all_cases_passed": float(self.passed)})


def same_text(expected: str, printed: str) -> bool:
    """Equal but for space at the ends of lines and empty lines at the end."""
    return _bare_lines(expected) == _bare_lines(printed)


def run_cases(
    ctx: ToolContext,
    cases: Sequence[Case],
    *,
    program: str | None = None,
    command: str | None = None,
    artifacts: Iterable[str] = (),
    files: Mapping[str, bytes | str | Path] | None = None,
    image: str | None = None,
    timeout: float = 10.0,
    same: Callable[[str, str], bool] = same_text,
) -> CaseResults:
    """Run the agent's program once for each case, `timeout` seconds at most each; without await, as ctx's calls are.

    `program` is a Python file of the rollout. For anything else give the shell `command` that starts it in the
    workspace, and the `artifacts` it needs, which lie below `artifacts/`. A case passes when the program ends with 0
    and `same(expected, printed)`. `files` are there before the first case, and the program may read them.
    """
    if not cases:
        raise ConfigError("run_cases needs at least one case")
    wanted = [artifacts] if isinstance(artifacts, str) else list(artifacts)
    if command is None:
        if program is None or not program.endswith(".py"):
            raise ConfigError(
                f"run_cases starts Python files by itself, got program={program!r}; for anything else say how: "
                'command="./artifacts/tool", artifacts=["tool"]'
            )
        wanted = wanted or [program]
        command = f'python3 "$ARTIFACTS"/{shlex.quote(program)}'
    elif not wanted:
        wanted = [program] if program else []
    session = ToolHost.current().session(ctx.task_id)
    plan = _Plan(command, cases, wanted, files or {}, image, timeout, same)
    return wait(_run(session, plan))


@dataclass(frozen=True, slots=True)
class _Plan:
    command: str
    cases: Sequence[Case]
    artifacts: Sequence[str]
    files: Mapping[str, bytes | str | Path]
    image: str | None
    timeout: float
    same: Callable[[str, str], bool]


async def _run(session: ToolSession, plan: _Plan) -> CaseResults:
    async def judge(sandbox: Sandbox, env: Mapping[str, str]) -> tuple[CaseOutcome, ...]:
        outcomes: list[CaseOutcome] = []
        for number, case in enumerate(plan.cases, start=1):
            result = await sandbox.exec(
                " ".join((plan.command, *map(shlex.quote, case.args))),
                env=env,
                stdin=case.stdin.encode() if isinstance(case.stdin, str) else case.stdin,
                timeout=plan.timeout,
                max_output=MAX_OUTPUT,
            )
            await sandbox.end_processes()
            outcomes.append(_outcome(case.name or f"case {number}", case, result, plan))
        return tuple(outcomes)

    try:
        return CaseResults(
            await judged_apart(session, judge, files=plan.files, artifacts=plan.artifacts, image=plan.image)
        )
    except ArtifactError as error:
        return CaseResults((), artifact_error=str(error))


def _outcome(name: str, case: Case, result: ExecResult, plan: _Plan) -> CaseOutcome:
    printed = result.stdout.decode(errors="replace")
    why: str | None = None
    if result.timed_out:
        why = f"took over {plan.timeout:g} s"
    elif result.truncated:
        why = f"printed over {MAX_OUTPUT} bytes"
    elif result.exit_code != 0:
        why = f"exit code {result.exit_code}"
    elif not plan.same(case.expected, printed):
        why = "printed something else"
    return CaseOutcome(name, why, printed[:SHOWN], result.stderr.decode(errors="replace")[-SHOWN:])


def _bare_lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().splitlines()]
