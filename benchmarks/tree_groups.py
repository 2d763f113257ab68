"""Tree groups beside flat ones on a corridor: what they sample, what of it has a gradient, and whether that is right.

An agent walks a corridor of doors. At each it picks left or right, one of which is wrong; at the end the score is 1 if
every pick was right. The policy picks right with a fixed probability at each door.

The first part runs whole groups: an environment with a state, a scripted server of tokens, the trainer's own batch. It
counts sampled tokens for each token that has an advantage. The second draws many groups without the machinery, takes
their advantages from the trainer's function, and compares the policy gradient that they estimate with the exact one:
its direction, its size, and its noise for the same number of sampled turns.
"""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from hermes_rl import AgentResult, APIServerConfig, HermesAgentBaseEnv, HermesAgentEnvConfig, ToolContext, tool  # noqa: E402
from hermes_rl.core.trajectory import Branch, Group  # noqa: E402
from hermes_rl.store.codec import encode  # noqa: E402
from hermes_rl.tools.session import ToolSession  # noqa: E402
from hermes_rl.training.advantages import ScoredTurns, leave_one_out  # noqa: E402
from hermes_rl.training.batch import training_batch  # noqa: E402
from hermes_rl.training.config import TrainerSettings  # noqa: E402
from hermes_rl.training.tree_advantages import tree_advantages  # noqa: E402
from tests.support.chat_models import chat_model  # noqa: E402
from tests.support.token_servers import Asked, Tokens, VLLMServer  # noqa: E402

MODEL = chat_model("chatml")
SIZE, ROOTS = 8, 2
RULES = ("uniform", "highest_entropy", "first_failed_call")
# The probability of the right pick at each door. The policy is surest at the first and in doubt at the middle one.
CORRIDORS = {"even": (0.8,) * 6, "one hard door": (0.95, 0.95, 0.95, 0.35, 0.95, 0.95)}
Rows = Sequence[Sequence[bool]]


class Corridor(HermesAgentBaseEnv):
    """The state counts the doors that were passed, and whether each pick was right. `tells` shows a wrong pick."""

    default_toolsets = ()
    tells = False
    doors = 6

    def train_items(self) -> list[dict[str, int]]:
        return [{"corridor": number} for number in range(100_000)]

    def format_prompt(self, item: dict[str, int]) -> str:
        return f"Corridor {item['corridor']}: pick a door {self.doors} times."

    def initial_state(self, item: dict[str, int]) -> dict[str, int]:
        return {"passed": 0, "right": 0}

    @tool(sandboxed=False)
    async def pick(self, session: ToolSession, right: bool) -> dict[str, Any]:
        """Go through a door.

        Args:
            right: Whether it is the right one.
        """
        state = session.state
        state["passed"] += 1
        state["right"] += right
        if state["passed"] == self.doors:
            session.end("out")
        return {"passed": state["passed"], "exit_code": int(self.tells and not right)}

    async def compute_reward(self, item: dict[str, int], result: AgentResult, ctx: ToolContext) -> float:
        return float(ctx.state["right"] == self.doors)


class Telling(Corridor):
    """A wrong pick is a failed call."""

    tells = True


class Costs(NamedTuple):
    """Of one arm: what was sampled, and of the tokens in examples those with an advantage that is not 0."""

    groups: int
    with_signal: int
    sampled: int
    useful: int
    failed_replays: int
    seconds: float

    def figures(self) -> dict[str, float | None]:
        return {
            "groups_with_signal": round(self.with_signal / self.groups, 3),
            "sampled_tokens_per_group": round(self.sampled / self.groups, 1),
            "sampled_per_useful_token": round(self.sampled / self.useful, 2) if self.useful else None,
            "failed_replays": self.failed_replays,
            "seconds": round(self.seconds, 1),
        }


def picks(probabilities: Sequence[float], random: Random) -> Callable[[Asked], Tokens]:
    """The scripted policy: one call at each door, with another logprob for another pick."""
    texts = {
        right: (
            *MODEL.tokenizer.encode(
                f'<tool_call>\n{{"name": "pick", "arguments": {{"right": {str(right).lower()}}}}}\n</tool_call>',
                add_special_tokens=False,
            ),
            MODEL.stop_ids[0],
        )
        for right in (True, False)
    }

    def answer(asked: Asked) -> Tokens:
        text = str(MODEL.tokenizer.decode(asked.prompt, skip_special_tokens=False))
        door = text.split("<|im_start|>user\nCorridor")[1].count("<tool_response>")
        return Tokens(texts[random.random() < probabilities[door]])

    return answer


async def run_groups(kind: type[Corridor], probabilities: Sequence[float], count: int, seed: int, **tree: Any) -> Costs:
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        tokenizer = MODEL.save(Path(folder) / "tokenizer")
        async with VLLMServer(picks(probabilities, Random(seed))) as server:
            endpoint = APIServerConfig.model_validate(
                {"base_url": server.base_url, "model_name": "scripted", "server_type": "vllm", "max_retries": 0}
            )
            settings = {"tokenizer_name": str(tokenizer), "group_size": SIZE, "use_wandb": False, "seed": seed} | tree
            env = kind(HermesAgentEnvConfig.model_validate(settings), [endpoint])
            async with env.opened():
                groups = [await env.collect_group({"corridor": number}, number) for number in range(count)]
    return costs(groups, time.monotonic() - began)


def costs(groups: Sequence[Group], seconds: float) -> Costs:
    settings = TrainerSettings(advantage="leave_one_out")
    batch = training_batch([encode(group) for group in groups], settings, 0)
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    reasons = [rollout.metadata.get("not_branched", {}).get("reason") for rollout in rollouts]
    return Costs(
        len(groups),
        batch.groups_used,
        sum(sum(sequence.mask) for rollout in rollouts for sequence in rollout.sequences),
        sum(int(np.count_nonzero(example.advantages)) for example in batch.examples),
        reasons.count("replay"),
        seconds,
    )


class Drawn(NamedTuple):
    """A group without the machinery: whether each pick of each rollout was right, and where rollouts branch."""

    rows: Rows
    branches: Sequence[Branch | None]

    @property
    def sampled_turns(self) -> int:
        return sum(len(row) - (branch.turn - 1 if branch else 0) for row, branch in zip(*self, strict=True))


def draw(probabilities: Sequence[float], rule: str | None, random: Random, roots: int, width: int) -> Drawn:
    """As TreeGroup makes a group; `highest_entropy` prefers the door at which the policy is most in doubt."""
    doors = len(probabilities)

    def walk(begin: Sequence[bool] = ()) -> list[bool]:
        return [*begin, *(random.random() < probability for probability in probabilities[len(begin) :])]

    if rule is None:
        return Drawn([walk() for _ in range(SIZE)], [None] * SIZE)
    rows: list[Sequence[bool]] = [walk() for _ in range(roots)]
    branches: list[Branch | None] = [None] * roots
    orders = [_turns(rule, row, probabilities, random) for row in rows]
    for place in range(SIZE - roots):
        root, number = place % roots, place // roots
        turns = orders[root]
        turn = turns[number // width % len(turns)] if turns else None
        rows.append(walk() if turn is None else walk(rows[root][: turn - 1]))
        branches.append(None if turn is None else Branch(root, turn))
    assert all(len(row) == doors for row in rows)
    return Drawn(rows, branches)


def _turns(rule: str, row: Sequence[bool], probabilities: Sequence[float], random: Random) -> list[int]:
    turns = list(range(2, len(row) + 1))
    if rule == "first_failed_call":
        return [turn for turn in turns if not row[turn - 1]]
    if rule == "highest_entropy":
        return sorted(turns, key=lambda turn: abs(probabilities[turn - 1] - 0.5))
    return random.sample(turns, len(turns))


def estimate(drawn: Drawn, probabilities: NDArray[np.float64]) -> NDArray[np.float64]:
    """The policy gradient of the logit at each door, as the trainer's advantages estimate it: a sum over own picks."""
    scores = {number: ScoredTurns(float(all(row))) for number, row in enumerate(drawn.rows)}
    advantages = tree_advantages(scores, drawn.branches, leave_one_out)
    gradient = np.zeros(len(probabilities))
    for row, branch, worth in zip(drawn.rows, drawn.branches, advantages, strict=True):
        own = np.arange(branch.turn - 1 if branch else 0, len(row))
        gradient[own] += worth[np.minimum(own, len(worth) - 1)] * (np.array(row)[own] - probabilities[own])
    return gradient


def exact(probabilities: NDArray[np.float64]) -> NDArray[np.float64]:
    """Of the probability that every pick is right."""
    return np.asarray(np.prod(probabilities) * (1 - probabilities))


def quality(
    probabilities: Sequence[float], rule: str | None, groups: int, seed: int, roots: int = ROOTS, width: int = 2
) -> dict[str, Any]:
    """The mean of the estimated gradients beside the exact one, and their noise.

    `cosine` is that of the mean. `noise` is the standard deviation of an estimate over the length of the mean, for
    1,000 sampled turns: estimates from as many turns are averaged.
    """
    random, plain = Random(seed), np.array(probabilities)
    drawn = [draw(probabilities, rule, random, roots, width) for _ in range(groups)]
    estimates = np.array([estimate(each, plain) for each in drawn])
    turns = float(np.mean([each.sampled_turns for each in drawn]))
    found, true = estimates.mean(axis=0), exact(plain)
    error = estimates.std(axis=0) / np.sqrt(groups)
    scale = float(found @ true / (true @ true))
    return {
        "sampled_turns_per_group": round(turns, 1),
        "cosine": round(float(found @ true / np.linalg.norm(found) / np.linalg.norm(true)), 4),
        "cosine_error": round(float(np.linalg.norm(error) / np.linalg.norm(found)), 4),
        "noise": round(float(np.sqrt(estimates.var(axis=0).sum() / (1000 / turns)) / np.linalg.norm(found)), 3),
        "by_door": [round(float(value), 3) for value in found / scale / true],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--groups", type=int, default=200, help="whole groups of each arm (200)")
    parser.add_argument("--drawn", type=int, default=40_000, help="groups of each arm without the machinery (40,000)")
    parser.add_argument("--quick", action="store_true", help="a tenth of both")
    given = parser.parse_args()
    share = 10 if given.quick else 1
    figures: dict[str, Any] = {}
    arms: dict[str, dict[str, Any]] = {"flat": {}} | {
        f"tree, {rule}": {"group_strategy": "tree", "tree_roots": ROOTS, "tree_turn": rule} for rule in RULES
    }
    for name, probabilities in CORRIDORS.items():
        for arm, tree in arms.items():
            kind = Telling if tree.get("tree_turn") == "first_failed_call" else Corridor
            made = asyncio.run(run_groups(kind, probabilities, given.groups // share, 1, **tree))
            figures[f"{name}: {arm}"] = made.figures()
            print(f"{name}: {arm}: {json.dumps(made.figures())}", flush=True)
        for arm, tree in arms.items():
            found = quality(probabilities, tree.get("tree_turn"), given.drawn // share, 2)
            figures[f"{name}: {arm}"] |= found
            print(f"{name}: {arm}: {json.dumps(found)}", flush=True)
    sampled = {arm: figures[f"even: {arm}"]["sampled_tokens_per_group"] for arm in arms}
    goals = {
        "a uniform tree samples fewer tokens than a flat group": {
            "goal": 1.0,
            "measured": round(sampled["tree, uniform"] / sampled["flat"], 3),
            "met": sampled["tree, uniform"] < sampled["flat"],
        },
        "no replay fails": {
            "goal": 0,
            "measured": (failed := sum(row["failed_replays"] for row in figures.values())),
            "met": failed == 0,
        },
    }
    print(json.dumps({"benchmark": "tree_groups", "figures": figures, "goals": goals}))
    return 0 if all(goal["met"] for goal in goals.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
