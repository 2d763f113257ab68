"""Check of group rewards: an agent that did nothing must score below one that solved the item."""

from collections.abc import Sequence

from hermes_rl.agent.result import AgentResult
from hermes_rl.core.trajectory import validate_reward
from hermes_rl.environment.base import HermesAgentBaseEnv
from hermes_rl.environment.eval_copy import copy_for_evaluation
from hermes_rl.rewards.sync_bridge import bridged
from hermes_rl.validation.item_checks import CheckedItem, HookError, hook_errors
from hermes_rl.validation.report import AgentKind, Severity, ValidationFinding

FIX = "return one reward per result from compute_group_rewards, in order, higher for better work"


async def comparison_finding(
    env: HermesAgentBaseEnv, item: CheckedItem, results: Sequence[tuple[AgentKind, AgentResult]]
) -> ValidationFinding | None:
    """An error when the environment overrides compute_group_rewards and ranks the two wrongly."""
    if type(env).compute_group_rewards is HermesAgentBaseEnv.compute_group_rewards:
        return None
    first = dict(reversed(results))
    if not {AgentKind.NULL, AgentKind.ORACLE} <= set(first):
        return None
    twin = copy_for_evaluation(env)
    try:
        with hook_errors(f"compute_group_rewards, on item {item.id},"), env.running():
            given = await bridged(
                twin.compute_group_rewards(item.value, [first[AgentKind.NULL], first[AgentKind.ORACLE]])
            )
            scores = None if given is None else [validate_reward(value).score for value in given]
    except HookError as error:
        return ValidationFinding(Severity.ERROR, "group_rewards", str(error), FIX)
    if scores is None or (len(scores) == 2 and scores[0] < scores[1]):
        return None
    return ValidationFinding(
        Severity.ERROR,
        "group_rewards",
        f"compute_group_rewards gave {scores} to an agent that did nothing and the oracle, on item {item.id}",
        FIX,
    )
