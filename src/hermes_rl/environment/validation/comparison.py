"""Rewards by comparison: a group of one that did nothing and one that solved the item must come out in that order."""

from collections.abc import Sequence

from hermes_rl.agent.result import AgentResult
from hermes_rl.environment.base import HermesAgentBaseEnv
from hermes_rl.environment.twins import evaluation_twin
from hermes_rl.environment.validation.inventory import HookError, Item, asking
from hermes_rl.environment.validation.report import Finding, Kind, Severity
from hermes_rl.rewards.sync_bridge import bridged
from hermes_rl.trajectory import validate_reward

MEND = "let compute_group_rewards give one reward for each result, in their order, the better work the higher one"


async def comparison_finding(
    env: HermesAgentBaseEnv, item: Item, results: Sequence[tuple[Kind, AgentResult]]
) -> Finding | None:
    """What is wrong with the environment's own compute_group_rewards, if it has one."""
    if type(env).compute_group_rewards is HermesAgentBaseEnv.compute_group_rewards:
        return None
    first = dict(reversed(results))
    if not {Kind.NULL, Kind.ORACLE} <= set(first):
        return None
    twin = evaluation_twin(env)
    try:
        with asking(f"compute_group_rewards, on item {item.id},"), env.running():
            given = await bridged(twin.compute_group_rewards(item.value, [first[Kind.NULL], first[Kind.ORACLE]]))
            scores = None if given is None else [validate_reward(value).score for value in given]
    except HookError as error:
        return Finding(Severity.ERROR, "group_rewards", str(error), MEND)
    if scores is None or (len(scores) == 2 and scores[0] < scores[1]):
        return None
    return Finding(
        Severity.ERROR,
        "group_rewards",
        f"compute_group_rewards gave {scores} to an agent that did nothing and to the oracle, on item {item.id}",
        MEND,
    )
