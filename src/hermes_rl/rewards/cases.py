"""Verification by test cases: run the agent's program on the author's cases and compare its output outside the sandbox.

All cases run in one fresh sandbox, each as a separate command. Expected outputs never enter it, all processes are
killed between cases, and a case's input arrives only when it runs. Files can carry only what the program itself wrote.
"""

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hermes_rl.core.errors import ConfigError
from hermes_rl.core.trajectory import Reward
from hermes_rl.rewards.sync_bridge import wait
from hermes_rl.rewards.tool_context import ToolContext
from hermes_rl.rewards.verification import ArtifactError, run_in_fresh_sandbox
from hermes_rl.sandbox.protocol import ExecResult, Sandbox
from hermes_rl.tools.host import ToolHost
from hermes_rl.tools.session import ToolSession

MAX_OUTPUT = 1024 * 1024
MAX_SHOWN_CHARS = 500


@dataclass(frozen=True, slots=True)
class Case:
    """One test of a program: its input and expected output."""

    stdin: str | bytes
    expected: str
    args: Sequence[str] = ()
    name: str = ""


@dataclass(frozen=True, slots=True)
class CaseOutcome:
    """The result of a case. `why` describes the failure; None when it passed."""

    name: str
    why: str | None
    printed: str
    complained: str = ""

    @property
    def passed(self) -> bool:
        return self.why is None


@dataclass(frozen=True, slots=True)
class CaseResults:
    """Outcomes in case order; empty, with the reason, when the agent's artifacts could not be read."""

    outcomes: tuple[CaseOutcome, ...]
    artifact_error: str | None = None

    @property
    def passed(self) -> bool:
        """Whether every case passed."""
        return bool(self.outcomes) and all(outcome.passed for outcome in self.outcomes)

    @property
    def share(self) -> float:
        """Share of cases that passed."""
        return sum(outcome.passed for outcome in self.outcomes) / len(self.outcomes) if self.outcomes else 0.0

    @property
    def reward(self) -> Reward:
        """The share as score, with whether all passed as a component."""
        return Reward(self.share, {"cases_passed": self.share, "all_cases_passed": float(self.passed)})


def same_text(expected: str, printed: str) -> bool:
    """Equal up to trailing whitespace on lines and at the end."""
    return _stripped_lines(expected) == _stripped_lines(printed)


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
    """Run the agent's program once per case, each for at most `timeout` seconds; call it without await.

    `program` is a Python file of the rollout. For anything else pass the shell `command` that starts it in the
    workspace, and the `artifacts` it needs, which are placed below `artifacts/`. A case passes when the exit code is 0
    and `same(expected, printed)`. `files` are written before the first case, and the program can read them.
    """
    if not cases:
        raise ConfigError("run_cases needs at least one case")
    artifact_paths = [artifacts] if isinstance(artifacts, str) else list(artifacts)
    if command is None:
        if program is None or not program.endswith(".py"):
            raise ConfigError(
                f"run_cases can only start Python files, got program={program!r}; for anything else pass "
                'command="./artifacts/tool", artifacts=["tool"]'
            )
        artifact_paths = artifact_paths or [program]
        command = f'python3 "$ARTIFACTS"/{shlex.quote(program)}'
    elif not artifact_paths:
        artifact_paths = [program] if program else []
    session = ToolHost.current().session(ctx.task_id)
    plan = _Plan(command, cases, artifact_paths, files or {}, image, timeout, same)
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
            outcomes.append(_case_outcome(case.name or f"case {number}", case, result, plan))
        return tuple(outcomes)

    try:
        return CaseResults(
            await run_in_fresh_sandbox(session, judge, files=plan.files, artifacts=plan.artifacts, image=plan.image)
        )
    except ArtifactError as error:
        return CaseResults((), artifact_error=str(error))


def _case_outcome(name: str, case: Case, result: ExecResult, plan: _Plan) -> CaseOutcome:
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
    return CaseOutcome(name, why, printed[:MAX_SHOWN_CHARS], result.stderr.decode(errors="replace")[-MAX_SHOWN_CHARS:])


def _stripped_lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().splitlines()]
