"""append_log with the rewards of each group dealt out at random: a control, from which nothing can be learned.

Always true: an evaluation is not affected, as a group of one keeps its reward.
"""

import random
from collections.abc import Sequence

from environments.append_log_env import AppendLogEnv, Item
from hermes_rl import AgentResult, Reward


class ShuffledAppendLogEnv(AppendLogEnv):
    """Append a word to a log; in groups, every rollout gets the reward of another."""

    name = "shuffled_append_log"

    async def compute_group_rewards(self, item: Item, results: Sequence[AgentResult]) -> Sequence[float | Reward]:
        rewards = [result.reward or 0.0 for result in results]
        random.shuffle(rewards)
        return rewards


if __name__ == "__main__":
    ShuffledAppendLogEnv.cli()
