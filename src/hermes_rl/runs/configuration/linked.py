"""One field, several parts: which fields of a run stand for one value, and which the run sets itself.

Always true: a place (`SECTION.FIELD`) belongs to one key, which is a linked field's name, and any other's place.
"""

from dataclasses import dataclass

from pydantic import BaseModel

from hermes_rl.environment.config import HermesAgentEnvConfig
from hermes_rl.inference.config import APIServerConfig
from hermes_rl.runs.run_file import EngineEntry
from hermes_rl.training.settings import TrainerSettings

# The first place says what the field takes.
LINKED: dict[str, tuple[str, ...]] = {
    "base_model": ("tinker.base_model", "openai.model_name", "engine.model"),
    "tokenizer_name": ("env.tokenizer_name", "tinker.tokenizer_name", "openai.tokenizer_name"),
    "batch_size": ("tinker.batch_size", "env.batch_size"),
    "max_batches_offpolicy": ("tinker.max_staleness", "env.max_batches_offpolicy"),
    "total_steps": ("tinker.total_steps", "env.total_steps"),
    "wandb_name": ("tinker.wandb_name", "env.wandb_name"),
    "use_wandb": ("env.use_wandb", "tinker.use_wandb"),
    "metric_sinks": ("env.metric_sinks", "tinker.metric_sinks"),
    "tool_call_parser": ("env.tool_call_parser", "tinker.tool_call_parser"),
    "seed": ("env.seed", "tinker.seed"),
}
# What an environment's config_init says of these is meant for the whole run; of the others, for another use of it.
FROM_ENVIRONMENT = ("batch_size", "max_batches_offpolicy", "use_wandb", "metric_sinks", "tool_call_parser", "seed")
# Linked, and yet each environment may have its own.
OWN_TO_EACH = ("seed",)


@dataclass(frozen=True, slots=True)
class RunOwned:
    """A field that the run sets, and what is shown of it."""

    value: object
    why: str


_PORT = "the run takes a free port of its own when it starts, so that two runs never meet; its status tells which"
_PRIVATE = "the run's parts reach each other on this machine only"
_WHOLE = "one process serves an environment in a run"
RUN_OWNED: dict[str, RunOwned] = {
    "env.rollout_server_url": RunOwned("http://localhost:(a free port)", _PORT),
    "tinker.rollout_server_url": RunOwned("http://localhost:(a free port)", _PORT),
    "openai.base_url": RunOwned("http://localhost:(a free port)/v1", _PORT),
    "tinker.port": RunOwned("(a free port)", _PORT),
    "tinker.host": RunOwned("127.0.0.1", _PRIVATE),
    "env.rollout_server_token": RunOwned(None, _PRIVATE),
    "tinker.rollout_server_token": RunOwned(None, _PRIVATE),
    "tinker.inference_token": RunOwned(None, _PRIVATE),
    "openai.api_key": RunOwned(None, _PRIVATE),
    "openai.server_type": RunOwned("vllm", "the trainer's own endpoint speaks vLLM's protocol, with exact tokens"),
    "env.serve_dir": RunOwned("(the run's own folder)", "so that two runs never meet"),
    "env.evaluation_only": RunOwned(False, "set it as NAME.evaluation_only in a run of several environments"),
    "env.inference_weight": RunOwned(1.0, "set it as NAME.weight in a run of several environments"),
    "env.shard": RunOwned(0, _WHOLE),
    "env.shards": RunOwned(1, _WHOLE),
}
MODELS: dict[str, type[BaseModel]] = {
    "env": HermesAgentEnvConfig,
    "openai": APIServerConfig,
    "tinker": TrainerSettings,
    "engine": EngineEntry,
}
_KEYS = {place: name for name, places in LINKED.items() for place in places}


def key_of(place: str) -> str:
    return _KEYS.get(place, place)


def places_of(key: str) -> tuple[str, ...]:
    return LINKED.get(key, (key,))


def plain_name(key: str) -> str:
    """The name that is shown: of the environment and the trainer without the section, unless an endpoint has it too."""
    section, _, name = key.partition(".")
    return name if section == "env" or (section == "tinker" and name not in APIServerConfig.model_fields) else key
