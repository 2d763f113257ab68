"""The table of an audit's checks, and what they decide on the evidence of one task. Pure functions."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from hermes_rl.core.tolerance import distinct_scores, exceeds, passes
from hermes_rl.validation.audit import harbor_checks
from hermes_rl.validation.audit.evidence import AgentScores, TaskEvidence
from hermes_rl.validation.report import AgentKind, join_names

Find = Callable[[TaskEvidence], Iterable[str]]


class Needs(StrEnum):
    """What a check needs. Without it, the task is not judged by the check."""

    TASK = "task"
    ROLLOUTS = "rollouts"
    ORACLE = "oracle"
    ELSEWHERE = "elsewhere"
    HARBOR = "harbor"


class Outcome(StrEnum):
    PASSED = "passed"
    DEFECT = "defect"
    WARNING = "warning"
    NOT_JUDGED = "not_judged"


@dataclass(frozen=True, slots=True)
class Check:
    """`proves` is what holds of a task that passes; `fix` is what to do about one that does not."""

    name: str
    proves: str
    fix: str
    needs: Needs
    find: Find
    failed: Outcome = Outcome.DEFECT


@dataclass(frozen=True, slots=True)
class CheckResult:
    check: str
    outcome: Outcome
    seen: tuple[str, ...] = ()


def judge(task: TaskEvidence) -> list[CheckResult]:
    """The result of every check, in the order of the table."""
    results = []
    for check in CHECKS:
        if not _applies(check, task):
            results.append(CheckResult(check.name, Outcome.NOT_JUDGED))
            continue
        seen = tuple(dict.fromkeys(check.find(task)))
        results.append(CheckResult(check.name, check.failed if seen else Outcome.PASSED, seen))
    return results


def _applies(check: Check, task: TaskEvidence) -> bool:
    match check.needs:
        case Needs.ROLLOUTS:
            return bool(task.agents)
        case Needs.ORACLE:
            return task.oracle is not None and bool(task.oracle.scores)
        case Needs.ELSEWHERE:
            return task.oracle is not None and bool(task.oracle.elsewhere)
        case Needs.HARBOR:
            return task.files is not None
    return True


def _null_passes(task: TaskEvidence) -> Iterator[str]:
    if task.null_passes and task.null and task.null.best is not None:
        yield f"an agent that does nothing scores {task.null.best:g}; a pass is {task.pass_score:g}"


def _null_scores(task: TaskEvidence) -> Iterator[str]:
    best = task.null.best if task.null else None
    if best and not task.null_passes:
        yield f"an agent that does nothing scores {best:g}, not 0"


def _no_oracle(task: TaskEvidence) -> Iterator[str]:
    if task.oracle is None:
        yield "there is no solution to run"


def _oracle_fails(task: TaskEvidence) -> Iterator[str]:
    if task.oracle and task.oracle.scores and not passes(max(task.oracle.scores), task.pass_score):
        yield f"the solution scores {max(task.oracle.scores):g}; a pass is {task.pass_score:g}"


def _cheats(task: TaskEvidence, *, passing: bool) -> Iterator[str]:
    """A task that an agent passes by doing nothing has that defect alone: every cheat passes too."""
    baseline = (task.null.best if task.null else None) or 0.0
    for cheat in task.of_kind(AgentKind.CHEAT, AgentKind.OWN_CHEAT):
        if cheat.best is None or not exceeds(cheat.best, baseline):
            continue
        if passes(cheat.best, task.pass_score) is passing:
            yield f'the cheat "{cheat.agent}" scores {cheat.best:g}'


def _cheat_passes(task: TaskEvidence) -> Iterator[str]:
    return _cheats(task, passing=True)


def _cheat_scores(task: TaskEvidence) -> Iterator[str]:
    return _cheats(task, passing=False)


def _changes(task: TaskEvidence) -> Iterator[str]:
    for agent in task.of_kind(AgentKind.NULL, AgentKind.ORACLE):
        if len(distinct_scores(agent.scores)) > 1:
            scores = ", ".join(f"{score:g}" for score in agent.scores)
            yield f"the same work of the {agent.agent} agent scored {scores}"
    yield from harbor_checks.chance(task)


def _elsewhere(task: TaskEvidence) -> Iterator[str]:
    oracle = task.oracle
    here = distinct_scores(oracle.scores) if oracle else []
    if oracle and len(here) == 1 and len(distinct_scores([*here, *oracle.elsewhere])) > 1:
        scores = ", ".join(f"{score:g}" for score in oracle.elsewhere)
        yield f"the solution scored {oracle.scores[0]:g}, but {scores} in two other time zones and locales"


def _unscored(task: TaskEvidence) -> Iterator[str]:
    if task.machine_fault:
        return
    causes: dict[str, list[AgentScores]] = {}
    for agent in task.agents:
        if agent.failure:
            causes.setdefault(f"{agent.failure}: {agent.failure.message[:300]}", []).append(agent)
    for cause, failed in causes.items():
        yield f"no score for {join_names([agent.agent for agent in failed], 3)}: {cause}"


def _broken(task: TaskEvidence) -> Iterator[str]:
    yield from task.broken


def _leaks(task: TaskEvidence) -> Iterator[str]:
    yield from (leak.seen for leak in task.leaks)
    yield from harbor_checks.leaked_answers(task)


def _twins(task: TaskEvidence, *, across: bool) -> Iterator[str]:
    names = [name for name, split in task.twins if (split != task.split) is across]
    if names:
        where = "another split" if across else "its split"
        yield f"the same prompt and machine as {join_names(names)} in {where}"


def _across_splits(task: TaskEvidence) -> Iterator[str]:
    return _twins(task, across=True)


def _within_split(task: TaskEvidence) -> Iterator[str]:
    return _twins(task, across=False)


CHECKS: Sequence[Check] = (
    Check(
        "runs",
        "the environment's methods accept the task",
        "fix the named method, or remove the task",
        Needs.ROLLOUTS,
        _broken,
    ),
    Check(
        "oracle_passes",
        "a known solution gets a passing score",
        "fix the solution or the tests; no agent can learn a task whose solution fails",
        Needs.ORACLE,
        _oracle_fails,
    ),
    Check(
        "null_fails",
        "an agent that does nothing does not pass",
        "reward only what does not exist before the agent starts",
        Needs.ROLLOUTS,
        _null_passes,
    ),
    Check(
        "tests_can_fail",
        "the verifier's verdict depends on the agent's work",
        "assert on what the agent leaves, and let the reward depend on the exit code of the tests",
        Needs.HARBOR,
        harbor_checks.vacuous,
    ),
    Check(
        "no_skips",
        "no test skips itself, which would count as a pass",
        "fail where the test now skips: a missing file or program is the agent's failure",
        Needs.HARBOR,
        harbor_checks.skipped_tests,
    ),
    Check(
        "cheats_fail",
        "no scripted cheat passes",
        "check what the agent cannot have prepared: whole expected values, in a sandbox that it never touched; do not "
        "trust the output or the exit code of its programs",
        Needs.ROLLOUTS,
        _cheat_passes,
    ),
    Check(
        "repeatable",
        "three verifications of the same work give the same score, and none draws random values",
        "seed every random choice, and wait for conditions instead of times",
        Needs.ROLLOUTS,
        _changes,
    ),
    Check(
        "same_elsewhere",
        "two other time zones and locales give the same score",
        "set TZ and LC_ALL in the verifier, or do not depend on them",
        Needs.ELSEWHERE,
        _elsewhere,
    ),
    Check(
        "no_clock",
        "the tests do not read the date or the time of day",
        "compare with fixed dates; measure durations with a monotonic clock",
        Needs.HARBOR,
        harbor_checks.clock,
    ),
    Check(
        "no_locale",
        "the tests name no locale but C",
        "set LC_ALL=C.UTF-8 in the verifier, and format values without the locale",
        Needs.HARBOR,
        harbor_checks.locale,
    ),
    Check(
        "no_network",
        "the tests use no network beyond this machine",
        "put what the tests fetch into tests/, and verify without a network",
        Needs.HARBOR,
        harbor_checks.network,
    ),
    Check(
        "known_paths",
        "the tests name no path of another machine",
        "use paths below the working directory, or create and mention the others",
        Needs.HARBOR,
        harbor_checks.foreign_paths,
    ),
    Check(
        "tests_hidden",
        "the agent can neither read nor edit the tests",
        "keep tests only in tests/, which is added after the agent has ended",
        Needs.HARBOR,
        harbor_checks.tests_in_image,
    ),
    Check(
        "no_leaks",
        "prompt, files and environment variables do not contain the answer",
        "remove the answer from what the agent can read, unless the task is to find it there",
        Needs.TASK,
        _leaks,
    ),
    Check(
        "not_in_other_split",
        "no task of another split has the same prompt and machine",
        "remove duplicates before the split; otherwise the evaluation measures memorization",
        Needs.TASK,
        _across_splits,
    ),
    Check(
        "unique",
        "no other task of the split has the same prompt and machine",
        "remove the duplicates, or they are drawn more often than the others",
        Needs.TASK,
        _within_split,
    ),
    Check(
        "always_scored",
        "the verifier writes a score for every agent",
        "write the reward also when a check fails, and limit the time of each check",
        Needs.ROLLOUTS,
        _unscored,
    ),
    Check(
        "has_oracle",
        "there is a solution to compare with",
        "add solution/solve.sh, or define oracle(item)",
        Needs.ROLLOUTS,
        _no_oracle,
        Outcome.WARNING,
    ),
    Check(
        "zero_floor",
        "an agent that does nothing scores 0",
        "return 0 for no work: a floor hides failures in every mean",
        Needs.ROLLOUTS,
        _null_scores,
        Outcome.WARNING,
    ),
    Check(
        "cheats_score_nothing",
        "no scripted cheat scores more than doing nothing",
        "agents learn the easiest reward first; score parts of a task only after the whole passes",
        Needs.ROLLOUTS,
        _cheat_scores,
        Outcome.WARNING,
    ),
    Check(
        "nothing_installed",
        "the tests install nothing while they verify",
        "install what the tests need in an image, with pinned versions",
        Needs.HARBOR,
        harbor_checks.installs,
        Outcome.WARNING,
    ),
)
BY_NAME = {check.name: check for check in CHECKS}
