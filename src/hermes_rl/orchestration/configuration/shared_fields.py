"""Fields that several parts of a run share, and fields that the run sets itself.

Always true: each path (`SECTION.FIELD`) has one key: the name of its linked field, or else the path itself.
"""

from dataclasses import dataclass

from hermes_rl.inference.config import APIServerConfig

# The first path defines the field's type.
LINKED_FIELDS: dict[str, tuple[str, ...]] = {
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
# For these, config_init sets the value of the whole run. Its values of the other linked fields are ignored in a run.
FROM_ENVIRONMENT = ("batch_size", "max_batches_offpolicy", "use_wandb", "metric_sinks", "tool_call_parser", "seed")
# Linked, but each environment may have its own value.
PER_ENVIRONMENT = ("seed",)


@dataclass(frozen=True, slots=True)
class RunOwned:
    """A field that the run sets, with the value to display."""

    value: object
    why: str


_PORT = "the run picks a free port when it starts, so that two runs never conflict; its status shows the port"
_PRIVATE = "the parts of a run connect on this machine only"
_SINGLE = "one process serves an environment in a run"
RUN_OWNED_FIELDS: dict[str, RunOwned] = {
    "env.rollout_server_url": RunOwned("http://localhost:(a free port)", _PORT),
    "tinker.rollout_server_url": RunOwned("http://localhost:(a free port)", _PORT),
    "openai.base_url": RunOwned("http://localhost:(a free port)/v1", _PORT),
    "tinker.port": RunOwned("(a free port)", _PORT),
    "tinker.host": RunOwned("127.0.0.1", _PRIVATE),
    "env.rollout_server_token": RunOwned(None, _PRIVATE),
    "tinker.rollout_server_token": RunOwned(None, _PRIVATE),
    "tinker.inference_token": RunOwned(None, _PRIVATE),
    "openai.api_key": RunOwned(None, _PRIVATE),
    "openai.server_type": RunOwned("vllm", "the trainer's endpoint uses vLLM's protocol, with exact tokens"),
    "env.serve_dir": RunOwned("(the run's own folder)", "so that two runs never conflict"),
    "env.evaluation_only": RunOwned(False, "set it as NAME.evaluation_only in a run of several environments"),
    "env.inference_weight": RunOwned(1.0, "set it as NAME.weight in a run of several environments"),
    "env.shard": RunOwned(0, _SINGLE),
    "env.shards": RunOwned(1, _SINGLE),
}
_KEYS = {path: name for name, paths in LINKED_FIELDS.items() for path in paths}


def key_of(path: str) -> str:
    return _KEYS.get(path, path)


def paths_of(key: str) -> tuple[str, ...]:
    return LINKED_FIELDS.get(key, (key,))


def plain_name(key: str) -> str:
    """The display name: env and tinker fields without their section, unless an endpoint has the same field."""
    section, _, name = key.partition(".")
    return name if section == "env" or (section == "tinker" and name not in APIServerConfig.model_fields) else key
