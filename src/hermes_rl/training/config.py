"""The `tinker` section of the configuration, with the third seed's field names and defaults.

Always true: a secret is a reference (`env:NAME`, `file:PATH`) or is redacted wherever settings are saved.
"""

from enum import StrEnum
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_serializer, model_validator

from hermes_rl.core.secrets import HIDDEN, is_literal
from hermes_rl.extensions import ADVANTAGES, OBJECTIVES, PARSERS, SINKS


class Schedule(StrEnum):
    CONSTANT = "constant"
    LINEAR = "linear"
    COSINE = "cosine"


class TrainerSettings(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=(), hide_input_in_errors=True)

    # The engine
    base_url: str | None = Field(
        default=None,
        description="URL of the Tinker API; default: hosted Tinker. `hermes-rl engine start` prints your own.",
    )
    api_key: str | None = Field(
        default=None,
        repr=False,
        description="API key of hosted Tinker: env:NAME or file:PATH; default: TINKER_API_KEY.",
    )
    base_model: str = Field(
        default="Qwen/Qwen3-8B",
        description="Model to train: a name known to Tinker, or the folder that your engine serves.",
    )
    tokenizer_name: str | None = Field(
        default=None, description="Tokenizer name or folder; default: that of the model."
    )
    lora_rank: int = Field(default=32, ge=1, description="Rank of the LoRA adapter.")
    seed: int = Field(default=0, ge=0, description="Seed of the adapter's initial weights.")
    init_from: str | None = Field(
        default=None,
        description="Start a new run from these weights: a run, its folder, a PEFT folder or a tinker:// path; "
        "default: an untrained adapter.",
    )

    # The batches
    rollout_server_url: str = Field(default="http://localhost:8000", description="URL of the trajectory API.")
    rollout_server_token: str | None = Field(
        default=None, repr=False, description="Token of the trajectory API: env:NAME or file:PATH."
    )
    batch_size: int = Field(default=128, ge=1, description="Rollouts per optimizer step.")
    total_steps: int = Field(default=2500, ge=1, description="Optimizer steps in the run.")
    max_staleness: int = Field(default=3, ge=0, description="Maximum staleness of a rollout, in policy versions.")
    max_token_trainer_length: int = Field(
        default=9000, ge=2, description="Maximum tokens per sequence; longer ones are skipped."
    )
    max_batch_tokens: int | None = Field(
        default=None, ge=2, description="Maximum tokens per step; groups beyond it are skipped and counted."
    )

    # The objective
    loss: Annotated[str, AfterValidator(OBJECTIVES.check)] = Field(
        default="importance_sampling", description="importance_sampling, ppo, cispo, or module:Class for your own."
    )
    clip_low: float = Field(default=0.8, gt=0, le=1, description="Lower end of the clip range of ppo and cispo.")
    clip_high: float = Field(default=1.2, ge=1, description="Upper end of the clip range of ppo and cispo.")
    advantage: Annotated[str, AfterValidator(ADVANTAGES.check)] = Field(
        default="mean", description="mean, mean_std, leave_one_out, or module:function for your own."
    )
    per_turn: bool = Field(
        default=False, description="Compute advantages per turn where the environment gives turn rewards."
    )
    kl_coef: float = Field(
        default=0.0, ge=0, description="Coefficient of the KL penalty against the reference; 0 for none."
    )
    kl_reference: str | None = Field(
        default=None, description="tinker:// path of the reference; default: the base model."
    )
    max_importance_weight: float | None = Field(
        default=None,
        gt=0,
        description="Truncate importance weights between sampler and trainer at this value; costs one forward pass. "
        "Use 2 when vLLM samples.",
    )

    # The optimizer
    learning_rate: float = Field(default=4e-5, gt=0, description="Adam's learning rate.")
    lr_schedule: Schedule = Field(
        default=Schedule.CONSTANT, description="constant, linear or cosine; the latter two decay to zero."
    )
    warmup_steps: int = Field(default=0, ge=0, description="Steps of linear learning-rate warmup.")
    adam_beta1: float = Field(default=0.9, ge=0, lt=1, description="Adam's decay rate of the first moment.")
    adam_beta2: float = Field(default=0.95, ge=0, lt=1, description="Adam's decay rate of the second moment.")
    adam_eps: float = Field(default=1e-8, gt=0, description="Adam's epsilon.")
    weight_decay: float = Field(default=0.0, ge=0, description="Adam's weight decay.")
    grad_clip_norm: float = Field(default=0.0, ge=0, description="Maximum gradient norm; 0 for no clipping.")

    # Checkpoints and failures
    checkpoint_every: int | None = Field(
        default=None,
        ge=1,
        description="Steps between checkpoints; default: 1 on a self-hosted engine, 20 on hosted Tinker.",
    )
    keep_checkpoints: int = Field(
        default=3, ge=1, description="Number of recent checkpoints to keep; the final one always stays."
    )
    step_retries: int = Field(default=5, ge=0, description="Retries of a failed step before the run fails.")
    engine_patience: float = Field(default=600.0, gt=0, description="Seconds to wait for an unreachable engine.")

    # Inference
    host: str = Field(default="127.0.0.1", description="Address inference listens on; any but loopback needs a token.")
    port: int = Field(default=8001, ge=0, le=65_535, description="Port of inference; 0 picks a free one and prints it.")
    inference_token: str | None = Field(
        default=None, repr=False, description="Token of inference: env:NAME or file:PATH."
    )
    vllm_servers: list[str] = Field(
        default_factory=list, description="Addresses of vLLM servers that sample instead of the engine."
    )
    tool_call_parser: Annotated[str, AfterValidator(PARSERS.check)] = Field(
        default="hermes", description="Tool-call format of the model."
    )

    # Metrics
    use_wandb: bool = Field(
        default=True, description="Log metrics to Weights & Biases too, if it is installed and set up."
    )
    wandb_name: str | None = Field(default=None, description="Run name in metric sinks; default: the name of the run.")
    metric_sinks: list[Annotated[str, AfterValidator(SINKS.check)]] = Field(
        default_factory=list, description="Metric sinks besides the local file: wandb, trackio, or module:Class."
    )

    @field_serializer("api_key", "rollout_server_token", "inference_token", when_used="json")
    def _hide_literals(self, value: str | None) -> str | None:
        return HIDDEN if value and is_literal(value) else value

    @model_validator(mode="after")
    def _check_warmup(self) -> "TrainerSettings":
        if self.warmup_steps >= self.total_steps:
            raise ValueError(f"warmup_steps {self.warmup_steps} must be less than total_steps {self.total_steps}")
        return self

    @property
    def self_hosted(self) -> bool:
        return self.base_url is not None

    @property
    def checkpoint_interval(self) -> int:
        return self.checkpoint_every or (1 if self.self_hosted else 20)
