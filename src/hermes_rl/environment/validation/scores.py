"""From the rollouts of scripted agents to findings: who scored what should not, or not what should. Pure functions."""

from collections.abc import Iterator, Sequence

from hermes_rl.environment.validation.report import Finding, Kind, Severity, Trial, listed, shown
from hermes_rl.errors import Failure, Whose
from hermes_rl.trajectory import StopReason

FORGED = (
    "judge what the agent cannot have prepared: ctx.verify(command, files=…, artifacts=…) runs your check in a fresh "
    "sandbox; or compare ctx.read_file(…)['content'] with the whole expected value; do not look for it somewhere in a "
    "text, and run nothing in the agent's own sandbox"
)
MENDS = {
    Whose.ENDPOINT: "the reward asks a model: give one with --openai.base_url and --openai.model_name",
    Whose.JUDGE: "the judge did not answer: see its endpoint, and that its key is set",
    Whose.SANDBOX: "see `hermes-rl sandbox check`; if only this environment has it, look at sandbox_spec",
    Whose.ENVIRONMENT: "mend the method that is named; an item that it cannot take must not be given",
    Whose.VERIFIER: "let compute_reward give a finite number for whatever an agent says or leaves behind",
}


def score_findings(trials: Sequence[Trial], pass_score: float) -> Iterator[Finding]:
    yield from _failures(trials)
    yield from _null(trials, pass_score)
    yield from _oracle(trials, pass_score)
    yield from _cheats(trials, pass_score)
    yield from _repeats(trials)
    outside = sorted({trial.score for trial in trials if trial.score is not None and not 0 <= trial.score <= 1})
    if outside:
        yield Finding(
            Severity.NOTE,
            "range",
            f"scores outside 0 to 1 were given: {listed([f'{score:g}' for score in outside])}",
            "nothing to mend if it is meant so; pass rates count a score of at least pass_score "
            f"({pass_score:g}) as passed",
        )


def _failures(trials: Sequence[Trial]) -> Iterator[Finding]:
    by_cause: dict[str, list[tuple[Trial, Failure]]] = {}
    for trial in trials:
        if trial.rollout.failure is not None:
            by_cause.setdefault(str(trial.rollout.failure), []).append((trial, trial.rollout.failure))
    for cause, failed in by_cause.items():
        agents = listed(list(dict.fromkeys(trial.agent for trial, _ in failed)), 3)
        failure = failed[0][1]
        yield Finding(
            Severity.ERROR,
            "failure",
            f"{len(failed)} of {len(trials)} rollouts have no score, {cause}, by: {agents}. "
            f"For instance item {failed[0][0].item_id}: {shown(failure.message, 400)}{failed[0][0].raised_at}",
            MENDS.get(failure.whose, "see the message; a rollout that fails is left out of training"),
        )


def _null(trials: Sequence[Trial], pass_score: float) -> Iterator[Finding]:
    scores = _by_item(trials, Kind.NULL)
    passing = [item_id for item_id, score in scores.items() if score >= pass_score]
    if passing:
        yield Finding(
            Severity.ERROR,
            "null_passes",
            f"an agent that does nothing passes: {max(scores.values()):g} on item {listed(passing)}",
            "let the reward ask for something that is not there before the agent works; is the expected value perhaps "
            "empty, or pass_score too low?",
        )
    elif any(scores.values()):
        floor = sorted({round(score, 6) for score in scores.values()})
        yield Finding(
            Severity.WARNING,
            "null_scores",
            f"an agent that does nothing scores {listed([f'{score:g}' for score in floor])}, not 0",
            "a floor hides failures in every mean, and a negative one teaches to do something, whatever it is; give 0 "
            "unless you mean it",
        )


def _oracle(trials: Sequence[Trial], pass_score: float) -> Iterator[Finding]:
    oracle = [trial for trial in trials if trial.kind is Kind.ORACLE]
    if not oracle:
        yield Finding(
            Severity.WARNING,
            "no_oracle",
            "there is no oracle: nothing shows that the items can be solved and that a solution scores",
            'define oracle(item) with the steps of a solution: [("terminal", {"command": "…"}), "what it says last"]',
        )
    failing = [trial for trial in oracle if trial.score is not None and trial.score < pass_score]
    if not failing:
        return
    trial = failing[0]
    ids = list(dict.fromkeys(one.item_id for one in failing))
    yield Finding(
        Severity.ERROR,
        "oracle_fails",
        f"the oracle scores {trial.score:g} on item {listed(ids)}; a pass is {pass_score:g}{_went_wrong(trial)}",
        "mend the oracle or the reward until a true solution passes: else no agent can be taught it",
    )


def _went_wrong(trial: Trial) -> str:
    """What in the oracle's rollout may be the reason."""
    rollout = trial.rollout
    used = rollout.turns_used
    cut = rollout.stop_reason is StopReason.MAX_TURNS and trial.turns > used
    said = f". It has {trial.turns} steps, and max_agent_turns ended it after {used}" if cut else ""
    for use in rollout.tool_uses:
        if use.error:
            return f"{said}. Its call of {use.name} was answered: {shown(use.error, 200)}"
    if rollout.tool_uses:
        return f"{said}. Its last tool answered: {shown(rollout.tool_uses[-1].result, 200)}"
    return said


def _cheats(trials: Sequence[Trial], pass_score: float) -> Iterator[Finding]:
    nothing = _by_item(trials, Kind.NULL)
    agents = {trial.agent: trial.kind for trial in trials if trial.kind in {Kind.CHEAT, Kind.OWN_CHEAT}}
    for agent, kind in agents.items():
        scores = {trial.item_id: trial.score for trial in trials if trial.agent == agent and trial.score is not None}
        above = {item_id: score for item_id, score in scores.items() if score > nothing.get(item_id, 0.0)}
        if not above:
            continue
        item_id = max(above, key=lambda one: above[one])
        best = above[item_id]
        passes = best >= pass_score
        severity = Severity.ERROR if passes or kind is Kind.OWN_CHEAT else Severity.WARNING
        whose = "your own cheat" if kind is Kind.OWN_CHEAT else "the cheat"
        yield Finding(
            severity,
            "cheat_passes" if passes else "cheat_scores",
            f'{whose} "{agent}" {"passes" if passes else "scores"}: {best:g} on item {item_id}, on {len(above)} of '
            f"{len(scores)} items more than an agent that does nothing ({nothing.get(item_id, 0.0):g})",
            FORGED if passes else f"what is easy to get is learned first, and sometimes alone; {FORGED}",
        )


def _repeats(trials: Sequence[Trial]) -> Iterator[Finding]:
    for kind in (Kind.NULL, Kind.ORACLE):
        seen: dict[str, list[float]] = {}
        for trial in trials:
            if trial.kind is kind and trial.score is not None:
                seen.setdefault(trial.item_id, []).append(trial.score)
        changing = {item_id: scores for item_id, scores in seen.items() if len(set(scores)) > 1}
        if changing:
            item_id, scores = next(iter(changing.items()))
            yield Finding(
                Severity.ERROR,
                "score_changes",
                f"the same rollout of the {'oracle' if kind is Kind.ORACLE else 'null agent'} on item {item_id} scored "
                f"{' and '.join(f'{score:g}' for score in scores)}",
                "let the score depend on the item and on what the agent did alone: not on time, random numbers, the "
                "order of a set, or what earlier rollouts left on self",
            )
    for trial in trials:
        if isinstance(trial.again, str) or (trial.again is not None and trial.again != trial.score):
            yield Finding(
                Severity.WARNING,
                "reward_changes",
                f"compute_reward on the rollout of {trial.agent}, item {trial.item_id}, gave {trial.score:g} and, "
                f"asked again: {trial.again if isinstance(trial.again, str) else f'{trial.again:g}'}",
                "let compute_reward leave the sandbox and self as they were, or judge with ctx.verify, which changes "
                "neither",
            )
            return


def _by_item(trials: Sequence[Trial], kind: Kind) -> dict[str, float]:
    scores: dict[str, float] = {}
    for trial in trials:
        if trial.kind is kind and trial.score is not None:
            scores[trial.item_id] = max(trial.score, scores.get(trial.item_id, trial.score))
    return scores
