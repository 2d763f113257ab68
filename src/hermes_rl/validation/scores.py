"""Findings from the scores of scripted agents. Pure functions."""

from collections.abc import Iterator, Sequence

from hermes_rl.core.errors import Failure, FailureSource
from hermes_rl.core.messages import content_text
from hermes_rl.core.tolerance import distinct_scores, exceeds, passes, same_score
from hermes_rl.core.trajectory import StopReason
from hermes_rl.rewards.missing_program import MissingProgram
from hermes_rl.validation.report import AgentKind, ScriptedRollout, Severity, ValidationFinding, join_names, shorten

FORGED_FIX = (
    "check what the agent cannot have prepared: ctx.verify(command, files=…, artifacts=…) runs your check in a fresh "
    "sandbox; or compare ctx.read_file(…)['content'] with the whole expected value; do not search for it within a "
    "text, and run nothing in the agent's own sandbox"
)
FIXES = {
    FailureSource.ENDPOINT: "the reward calls a model: configure it with --openai.base_url and --openai.model_name",
    FailureSource.JUDGE: "the judge did not respond: check its endpoint and its key",
    FailureSource.SANDBOX: "run `hermes-rl sandbox check`; if only this environment fails, check sandbox_spec",
    FailureSource.ENVIRONMENT: "fix the named method, or do not return items that it cannot handle",
    FailureSource.VERIFIER: "return a finite number from compute_reward for any reply and any files of an agent",
}


# Share of the pass score up to which components of the author's own may pay a cheat.
SHAPING_SHARE = 0.25


def score_findings(
    trials: Sequence[ScriptedRollout], pass_score: float, max_cheat_score: float | None = None
) -> Iterator[ValidationFinding]:
    """`max_cheat_score` is the score that the author allows a cheat; None states nothing."""
    yield from _failures(trials)
    yield from _missing_programs(trials, pass_score)
    yield from _null(trials, pass_score)
    yield from _oracle(trials, pass_score)
    yield from _audits(trials, pass_score)
    yield from _cheats(trials, pass_score, max_cheat_score)
    yield from _repeats(trials)
    outside = sorted({trial.score for trial in trials if trial.score is not None and not 0 <= trial.score <= 1})
    if outside:
        yield ValidationFinding(
            Severity.NOTE,
            "range",
            f"some scores are outside 0 to 1: {join_names([f'{score:g}' for score in outside])}",
            f"nothing to fix if intended; pass rates count a score of at least pass_score ({pass_score:g}) as a pass",
        )


def _failures(trials: Sequence[ScriptedRollout]) -> Iterator[ValidationFinding]:
    by_cause: dict[str, list[tuple[ScriptedRollout, Failure]]] = {}
    for trial in trials:
        if trial.rollout.failure is not None:
            by_cause.setdefault(str(trial.rollout.failure), []).append((trial, trial.rollout.failure))
    for cause, failed in by_cause.items():
        agents = join_names(list(dict.fromkeys(trial.agent for trial, _ in failed)), 3)
        failure = failed[0][1]
        yield ValidationFinding(
            Severity.ERROR,
            "failure",
            f"{len(failed)} of {len(trials)} rollouts have no score, {cause}, by: {agents}. "
            f"For example item {failed[0][0].item_id}: {shorten(failure.message, 400)}",
            FIXES.get(failure.whose, "see the message; a rollout that fails is left out of training"),
        )


def _missing_programs(trials: Sequence[ScriptedRollout], pass_score: float) -> Iterator[ValidationFinding]:
    """Of the oracle's rollouts; without an oracle, of those of the null agent that the environment is to blame for."""
    oracle = [trial for trial in trials if trial.kind is AgentKind.ORACLE]
    first: dict[str, tuple[MissingProgram, ScriptedRollout]] = {}
    for trial in oracle or [trial for trial in trials if trial.kind is AgentKind.NULL]:
        for missing in trial.missing:
            if oracle or missing.blames_environment:
                first.setdefault(missing.program, (missing, trial))
    for missing, trial in first.values():
        passed = trial.score is not None and passes(trial.score, pass_score)
        yield ValidationFinding(
            Severity.WARNING if passed else Severity.ERROR,
            "missing_program",
            f"{missing.problem}, on the rollout of {trial.agent}, item {trial.item_id}",
            missing.fix if oracle else f"{missing.fix}; if the agent has to provide it, do so in oracle(item)",
        )


def _null(trials: Sequence[ScriptedRollout], pass_score: float) -> Iterator[ValidationFinding]:
    scores = _by_item(trials, AgentKind.NULL)
    passing = [item_id for item_id, score in scores.items() if passes(score, pass_score)]
    if passing:
        yield ValidationFinding(
            Severity.ERROR,
            "null_passes",
            f"an agent that does nothing passes: {max(scores.values()):g} on item {join_names(passing)}",
            "reward only something that does not exist before the agent starts; is the expected value empty, or "
            "pass_score too low?",
        )
    elif not all(same_score(score, 0.0) for score in scores.values()):
        floor = sorted({round(score, 6) for score in scores.values()})
        yield ValidationFinding(
            Severity.WARNING,
            "null_scores",
            f"an agent that does nothing scores {join_names([f'{score:g}' for score in floor])}, not 0",
            "a floor hides failures in every mean, and a negative one rewards any action; return 0 unless this is "
            "intended",
        )


def _oracle(trials: Sequence[ScriptedRollout], pass_score: float) -> Iterator[ValidationFinding]:
    oracle = [trial for trial in trials if trial.kind is AgentKind.ORACLE]
    if not oracle:
        yield ValidationFinding(
            Severity.WARNING,
            "no_oracle",
            "there is no oracle to show that the items can be solved and that a solution passes",
            'define oracle(item) with the steps of a solution: [("terminal", {"command": "…"}), "final reply"]; with '
            "several agents, seat_oracle(item, seat)",
        )
    failing = [trial for trial in oracle if trial.score is not None and not passes(trial.score, pass_score)]
    if not failing:
        return
    trial = failing[0]
    ids = list(dict.fromkeys(failed.item_id for failed in failing))
    yield ValidationFinding(
        Severity.ERROR,
        "oracle_fails",
        f"the oracle scores {trial.score:g} on item {join_names(ids)}; a pass is {pass_score:g}{_diagnosis(trial)}",
        "fix the oracle or the reward until a correct solution passes; otherwise no agent can learn it",
    )


def _audits(trials: Sequence[ScriptedRollout], pass_score: float) -> Iterator[ValidationFinding]:
    """Of solutions that pass: only those were audited."""
    for trial in trials:
        audit = trial.rollout.audit
        if trial.kind is not AgentKind.ORACLE or audit is None:
            continue
        if audit.score is None or not passes(audit.score, pass_score):
            problem = audit.error or f"scores {audit.score:g}"
            yield ValidationFinding(
                Severity.ERROR,
                "audit_fails",
                f"the audit of the oracle on item {trial.item_id} {problem}, though its reward passes",
                "fix audit_reward until a correct solution passes it; otherwise training shows a gap that is not there",
            )
            return


def _diagnosis(trial: ScriptedRollout) -> str:
    """The likely reason in the oracle's rollout."""
    rollout = trial.rollout
    used = rollout.turns_used
    cut = rollout.stop_reason is StopReason.MAX_TURNS and trial.turns > used
    text = f". It has {trial.turns} steps, but max_agent_turns stopped it after {used}" if cut else ""
    for use in rollout.tool_uses:
        if use.error:
            return f"{text}. Its call of {use.name} failed: {shorten(use.error, 200)}"
    if rollout.tool_uses:
        return f"{text}. Its last tool call returned: {shorten(rollout.tool_uses[-1].result, 200)}"
    last = rollout.messages[-1] if rollout.messages else {}
    if last.get("role") == "user" and rollout.turns_used:
        return f"{text}. Its last answer was followed by: {shorten(content_text(last.get('content')), 200)}"
    return text


def _cheats(
    trials: Sequence[ScriptedRollout], pass_score: float, max_cheat_score: float | None
) -> Iterator[ValidationFinding]:
    baseline = _by_item(trials, AgentKind.NULL)
    agents = {trial.agent: trial.kind for trial in trials if trial.kind in {AgentKind.CHEAT, AgentKind.OWN_CHEAT}}
    for agent, kind in agents.items():
        scored = [trial for trial in trials if trial.agent == agent and trial.score is not None]
        above = [trial for trial in scored if exceeds(trial.score or 0.0, max(baseline.get(trial.item_id, 0.0), 0.0))]
        if not above:
            continue
        best = max(above, key=lambda trial: trial.score or 0.0)
        score = best.score or 0.0
        passed = passes(score, pass_score)
        subject = "your own cheat" if kind is AgentKind.OWN_CHEAT else "the cheat"
        severity, limit, fix = _cheat_verdict(best, pass_score, max_cheat_score)
        yield ValidationFinding(
            severity,
            "cheat_passes" if passed else "cheat_scores",
            f'{subject} "{agent}" {"passes" if passed else "scores"}: {score:g} on item {best.item_id}, on '
            f"{len(above)} of {len(scored)} items more than an agent that does nothing "
            f"({baseline.get(best.item_id, 0.0):g})"
            f"{_paid_by(best)}{limit}",
            fix,
        )


def _cheat_verdict(
    trial: ScriptedRollout, pass_score: float, max_cheat_score: float | None
) -> tuple[Severity, str, str]:
    """How bad the best score of a cheat is, what it was compared with, and the fix.

    A cheat that earns a little with what the author rewards on purpose, such as a format, is no error; it is when it
    earns more than the limit, or when nothing says what it earned it with.
    """
    score = trial.score or 0.0
    if passes(score, pass_score):
        return Severity.ERROR, "", FORGED_FIX
    learned = f"agents learn the easiest reward first; {FORGED_FIX}"
    if max_cheat_score is not None:
        limit = f"; max_cheat_score is {max_cheat_score:g}"
        if not exceeds(score, max_cheat_score):
            return Severity.NOTE, limit, "nothing to fix: it stays within the limit that you stated"
        return _unless_own(trial), limit, learned
    own_limit = SHAPING_SHARE * pass_score
    if trial.kind is AgentKind.OWN_CHEAT and trial.rollout.components and not exceeds(score, own_limit):
        limit = f"; below {own_limit:g}, a quarter of the pass score, the components of a reward may pay a cheat"
        return Severity.WARNING, limit, f"{learned}; or state what a cheat may score: --max-cheat-score"
    return _unless_own(trial), "", learned


def _unless_own(trial: ScriptedRollout) -> Severity:
    return Severity.ERROR if trial.kind is AgentKind.OWN_CHEAT else Severity.WARNING


def _paid_by(trial: ScriptedRollout) -> str:
    """The components that the reward named for a cheat."""
    paid = [f"{name} {value:g}" for name, value in trial.rollout.components.items() if exceeds(value, 0.0)]
    return f", for {join_names(paid)}" if paid else ""


def _repeats(trials: Sequence[ScriptedRollout]) -> Iterator[ValidationFinding]:
    for kind in (AgentKind.NULL, AgentKind.ORACLE):
        seen: dict[str, list[float]] = {}
        for trial in trials:
            if trial.kind is kind and trial.score is not None:
                seen.setdefault(trial.item_id, []).append(trial.score)
        changing = {item_id: scores for item_id, scores in seen.items() if len(distinct_scores(scores)) > 1}
        if changing:
            item_id, scores = next(iter(changing.items()))
            yield ValidationFinding(
                Severity.ERROR,
                "score_changes",
                f"the same rollout of the {'oracle' if kind is AgentKind.ORACLE else 'null agent'} on item {item_id} "
                f"scored {' and '.join(f'{score:g}' for score in scores)}",
                "make the score depend only on the item and on what the agent did: not on time, random numbers, the "
                "order of a set, or state that earlier rollouts left on self",
            )
    for trial in trials:
        if isinstance(trial.again, str) or (trial.again is not None and not same_score(trial.again, trial.score)):
            yield ValidationFinding(
                Severity.WARNING,
                "reward_changes",
                f"compute_reward on the rollout of {trial.agent}, item {trial.item_id}, returned {trial.score:g} and, "
                f"called again: {trial.again if isinstance(trial.again, str) else f'{trial.again:g}'}",
                "do not change the sandbox or self in compute_reward, or use ctx.verify, which changes neither",
            )
            return


def _by_item(trials: Sequence[ScriptedRollout], kind: AgentKind) -> dict[str, float]:
    scores: dict[str, float] = {}
    for trial in trials:
        if trial.kind is kind and trial.score is not None:
            scores[trial.item_id] = max(trial.score, scores.get(trial.item_id, trial.score))
    return scores
