"""A model that plays an author's steps, one a turn, and the bundled environments by name."""

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from hermes_rl import APIServerConfig, HermesAgentBaseEnv, Rollout
from hermes_rl.environment.loading.loader import load_environment
from tests.support.scripted_model import Calls, Reply, ScriptedModel, Text

NOTHING: Sequence[Any] = [""]


class Player:
    """Plays `steps` to every conversation; what comes after them is an empty answer."""

    steps: Sequence[Any] = NOTHING

    def __call__(self, request: dict[str, Any]) -> Reply:
        done = sum(message["role"] == "assistant" for message in request["messages"])
        step = self.steps[done] if done < len(self.steps) else ""
        if isinstance(step, str):
            return Text(step)
        calls = [step] if isinstance(step, tuple) else step
        return Calls([(name, json.dumps(arguments)) for name, arguments in calls])


@asynccontextmanager
async def bundled(name: str, player: Player, **config: Any) -> AsyncIterator[Any]:
    """A bundled environment with the configuration its author gives it, and over that the one given here."""
    kind = load_environment(name)
    ours, _ = kind.config_init()
    settings = kind.env_config_cls(**{**ours.model_dump(), "group_size": 1, **config})
    async with ScriptedModel(player) as model:
        endpoint = APIServerConfig(base_url=model.base_url, model_name="scripted", max_retries=0, timeout=20)
        env = kind(settings, [endpoint])
        async with env.opened():
            yield env


async def played(env: HermesAgentBaseEnv, player: Player, item: Any, steps: Sequence[Any]) -> Rollout:
    """The rollout of an agent that takes these steps."""
    player.steps = steps
    group = await env.collect_group(item)
    return group.rollouts[0]
