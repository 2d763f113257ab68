"""The `tinker` section of the configuration: what the trainer does, with the third seed's names and values.

Always true: secrets are references (`env:NAME`, `file:PATH`) or hidden where they are saved; whatever may be left out
has the value that the seed's runs have.
"""

from enum import StrEnum
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_serializer, model_validator

from hermes_rl.secrets import HIDDEN, is_literal


class Loss(StrEnum):
    """What the engine minimises; all three weigh a token by its probability now over that when it was sampled."""

    IMPORTANCE_SAMPLING = "importance_sampling"
    PPO = "ppo"
    CISPO = "cispo"


class Baseline(StrEnum):
    """What a score is compared with to be an advantage."""

    MEAN = "mean"
    """The mean of its group."""
    MEAN_STD = "mean_std"
    """The same, divided by the group's standard deviation."""
    LEAVE_ONE_OUT = "leave_one_out"
    """The mean of the others of its group."""


class Schedule(StrEnum):
    CONSTANT = "constant"
    LINEAR = "linear"
    COSINE = "cosine"


class TrainerSettings(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=(), hide_input_in_errors=True)

    # The engine
    base_url: str | None = Field(
        None,
        description="The Tinker API; hosted Tinker when left out. `hermes-rl engine start` prints that of your own.",
    )
    api_key: str | None = Field(
        None, repr=False, description="Key of hosted Tinker: env:NAME or file:PATH; TINKER_API_KEY when left out."
    )
    base_model: str = Field(
        "Qwen/Qwen3-8B", description="The model to train: a name that Tinker knows, or the folder your engine serves."
    )
    tokenizer_name: str | None = Field(None, description="Its tokenizer; the model's own when left out.")
    lora_rank: int = Field(32, ge=1, description="Rank of the LoRA adapter.")
    seed: int = Field(0, ge=0, description="Fixes the adapter's first weights.")

    # The batches
    rollout_server_url: str = Field("http://localhost:8000", description="The trajectory API.")
    rollout_server_token: str | None = Field(None, repr=False, description="Its token: env:NAME or file:PATH.")
    batch_size: int = Field(128, ge=1, description="Rollouts of one optimizer step.")
    total_steps: int = Field(2500, ge=1, description="Optimizer steps of the whole run.")
    max_staleness: int = Field(3, ge=0, description="How many versions behind the policy a rollout may be.")
    max_token_trainer_length: int = Field(9000, ge=2, description="Longer sequences are not trained on.")
    max_batch_tokens: int | None = Field(
        None, ge=2, description="Tokens of one step at most: the groups beyond it are left out and counted."
    )

    # The objective
    loss: Loss = Field(Loss.IMPORTANCE_SAMPLING, description="importance_sampling, ppo or cispo.")
    clip_low: float = Field(0.8, gt=0, le=1, description="Least ratio that ppo and cispo let through.")
    clip_high: float = Field(1.2, ge=1, description="Largest ratio that ppo and cispo let through.")
    advantage: Baseline = Field(Baseline.MEAN, description="mean, mean_std or leave_one_out.")
    per_turn: bool = Field(False, description="Compare rewards of turns, where an environment gives them.")
    kl_coef: float = Field(0.0, ge=0, description="Weight of the KL divergence from the reference; 0 for none.")
    kl_reference: str | None = Field(None, description="tinker:// path of the reference; the base model when left out.")
    max_importance_weight: float | None = Field(
        None,
        gt=0,
        description="Truncate the weights between what sampled and what trains at this, for the price of one more "
        "forward pass; set it to 2 where vLLM samples.",
    )

    # The optimizer
    learning_rate: float = Field(4e-5, gt=0, description="Adam's.")
    lr_schedule: Schedule = Field(
        Schedule.CONSTANT, description="constant, linear or cosine, to zero at the last step."
    )
    warmup_steps: int = Field(0, ge=0, description="Steps over which the learning rate rises from zero.")
    adam_beta1: float = Field(0.9, ge=0, lt=1, description="Adam's decay of the mean of gradients.")
    adam_beta2: float = Field(0.95, ge=0, lt=1, description="Adam's decay of the mean of their squares.")
    adam_eps: float = Field(1e-8, gt=0, description="What keeps Adam from dividing by zero.")
    weight_decay: float = Field(0.0, ge=0, description="How much weights shrink with each step.")
    grad_clip_norm: float = Field(0.0, ge=0, description="0 for none. The self-hosted engine ignores it.")

    # Checkpoints and failures
    checkpoint_every: int | None = Field(
        None, ge=1, description="Steps between two checkpoints; 1 on an engine of your own, 20 on hosted Tinker."
    )
    keep_checkpoints: int = Field(
        3, ge=1, description="The newest that are kept; those of evaluations and the last stay."
    )
    step_retries: int = Field(5, ge=0, description="How often a step that failed is tried again before the run fails.")
    engine_patience: float = Field(600.0, gt=0, description="Seconds to wait for an engine that is away.")

    # Inference
    host: str = Field("127.0.0.1", description="Where inference listens. Anything but this machine needs a token.")
    port: int = Field(8001, ge=0, le=65_535, description="0 takes any that is free, and says which.")
    inference_token: str | None = Field(None, repr=False, description="What callers must send: env:NAME or file:PATH.")
    vllm_servers: list[str] = Field(
        default_factory=list, description="vLLM servers that sample instead of the engine, by their addresses."
    )
    tool_call_parser: str = Field("hermes", description="Format of tool calls in the model's text.")

    # Metrics
    use_wandb: bool = Field(True, description="Metrics to Weights & Biases too, where it is installed and set up.")
    wandb_name: str | None = Field(None, description="Name of the run in metrics; the run's own when left out.")
    metric_sinks: list[Literal["wandb", "trackio"]] = Field(
        default_factory=list, description="Where metrics go besides local files: wandb, trackio."
    )

    @field_serializer("api_key", "rollout_server_token", "inference_token", when_used="json")
    def _hide_literals(self, value: str | None) -> str | None:
        return HIDDEN if value and is_literal(value) else value

    @model_validator(mode="after")
    def _warm_before_the_end(self) -> "TrainerSettings":
        if self.warmup_steps >= self.total_steps:
            raise ValueError(f"warmup_steps {self.warmup_steps} must be less than total_steps {self.total_steps}")
        return self

    @property
    def self_hosted(self) -> bool:
        return self.base_url is not None

    @property
    def checkpoint_interval(self) -> int:
        return self.checkpoint_every or (1 if self.self_hosted else 20)
