"""Tree groups: some rollouts begin at the prompt, and the others branch from these at a later turn.

Always true: a branch sends the model the ids that its root was sent, in a sandbox where a replay of the root's calls
gave the recorded results; what cannot be branched is an independent rollout, and says why.
"""

from collections.abc import Mapping
from dataclasses import replace
from random import Random
from typing import Any

from hermes_rl.core.errors import ConfigError, FailureSource
from hermes_rl.core.trajectory import NOT_BRANCHED, Branch, Rollout
from hermes_rl.rollout.branch_points import branchable_turns, opening_of, past_of, turns_to_branch_at
from hermes_rl.rollout.environment_protocol import Environment
from hermes_rl.rollout.group_strategy import MakeRollout, PlannedRollouts, all_at_once
from hermes_rl.rollout.rebuild import rebuild
from hermes_rl.rollout.rollout import FinishedRollout, RolloutPlan, Start
from hermes_rl.tools.selection import OWN_TOOLS
from hermes_rl.tools.toolset import OpenToolset

# Why there is an independent rollout in the place of a branch.
NO_TURN = "no_turn"
REPLAY = "replay"
# They are not in the sandbox, and leave nothing behind.
STATELESS_TOOLS = frozenset({"web_search", "web_extract"})


class TreeGroup:
    """The first `tree_roots` rollouts are roots. Each of the others belongs to one root, which it branches from."""

    def check(self, env: Environment) -> None:
        """Only our own rollouts with exact tokens can be branched."""
        if env.config.external_agent:
            raise ConfigError("group_strategy tree cannot continue the work of an external agent; use flat")
        if not env.server.returns_tokens:
            raise ConfigError(
                "group_strategy tree continues the exact tokens of a rollout, and this endpoint returns none: pass "
                "--openai.server_type vllm (or sglang), or use flat"
            )

    async def rollouts(self, env: Environment, planned: PlannedRollouts, make: MakeRollout) -> list[FinishedRollout]:
        """A root and its branches do not wait for the other roots."""
        roots = min(env.config.tree_roots, planned.size)
        families = await all_at_once(
            _Family(env, planned, make, root, range(roots + root, planned.size, roots)).made() for root in range(roots)
        )
        by_place: dict[int, FinishedRollout] = {}
        for family in families:
            by_place |= family
        return [by_place[place] for place in range(planned.size)]


class _Family:
    """One root, and the places of the group that branch from it."""

    def __init__(self, env: Environment, planned: PlannedRollouts, make: MakeRollout, root: int, places: range) -> None:
        self.env, self.planned, self.make, self.root, self.places = env, planned, make, root, places

    async def made(self) -> dict[int, FinishedRollout]:
        plan = self.planned.rollout(self.root)
        root = await self.make(plan)
        turns = self._turns(root.rollout)
        width = self.env.config.tree_branches
        chosen = [turns[number // width % len(turns)] if turns else None for number in range(len(self.places))]
        branches = await all_at_once(
            self._branch(plan, root.rollout, self.planned.rollout(place), turn)
            for place, turn in zip(self.places, chosen, strict=True)
        )
        return {self.root: root, **dict(zip(self.places, branches, strict=True))}

    def _turns(self, root: Rollout) -> list[int]:
        """The turns to branch at, the best first."""
        turns = branchable_turns(root, not_replayed(self.env))
        return turns_to_branch_at(self.env.config.tree_turn, root, turns, Random(f"{root.seed}/branches"))

    async def _branch(self, plan: RolloutPlan, root: Rollout, own: RolloutPlan, turn: int | None) -> FinishedRollout:
        if turn is None:
            return _noted(await self.make(own), NO_TURN)
        past, tools = past_of(root, turn), sorted(plan.valid_tool_names)
        start = Start(
            root.seed,
            past,
            lambda session: rebuild(self.env, root, tools, past, session),
            opening_of(root, past),
        )
        rollout, result = await self.make(replace(own, start=start))
        failure = rollout.failure
        if failure is not None and (failure.whose, failure.cause) == (FailureSource.ENVIRONMENT, "replay"):
            why = {"failure": str(failure), "message": failure.message, "root": root.index, "turn": turn}
            return _noted(await self.make(own), REPLAY, why)
        # The seed of a record is that of its sandbox and state, with which it is replayed.
        return FinishedRollout(replace(rollout, branch=Branch(root.index, turn), seed=root.seed), result)


def not_replayed(env: Environment) -> frozenset[str]:
    """The tools whose effects on a session a replay does not bring back: a browser's tabs, a list of tasks."""
    own = {tool.name for tool in env.tools.toolsets.get(OWN_TOOLS, OpenToolset(())).tools}
    return frozenset(
        name for name, tool in env.tools.tools.items() if not tool.sandboxed and name not in own | STATELESS_TOOLS
    )


def _noted(finished: FinishedRollout, reason: str, why: Mapping[str, Any] | None = None) -> FinishedRollout:
    """The same, with the reason why it is not a branch."""
    rollout, result = finished
    note = {NOT_BRANCHED: {"reason": reason, **(why or {})}}
    return FinishedRollout(replace(rollout, metadata={**rollout.metadata, **note}), result)
