"""The `tinker` section of the configuration, with the third seed's field names and defaults.

Always true: a secret is a reference (`env:NAME`, `file:PATH`) or is redacted wherever settings are saved.
"""

from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_serializer, model_validator

from hermes_rl.core.help_layout import HelpLayout
from hermes_rl.core.redaction import HIDDEN, redact_urls
from hermes_rl.core.secrets import is_literal
from hermes_rl.extensions import ADVANTAGES, OBJECTIVES, PARSERS, SINKS


class Schedule(StrEnum):
    CONSTANT = "constant"
    LINEAR = "linear"
    COSINE = "cosine"


class LossAggregation(StrEnum):
    """How the losses of single tokens become the loss of a step. Only sampled tokens that are trained on count."""

    TOKEN_MEAN = "token_mean"  # noqa: S105
    """Mean over all tokens of the step, as in DAPO."""
    TOKEN_SUM = "token_sum"  # noqa: S105
    """Sum over all tokens of the step."""
    CONSTANT = "constant"
    """Sum over all tokens, divided by the number of sequences and by a constant, as in Dr. GRPO."""
    SEQUENCE_MEAN = "sequence_mean"
    """Mean over the tokens of each sequence, then over the sequences, as in GRPO."""


class RatioLevel(StrEnum):
    TOKEN = "token"  # noqa: S105
    SEQUENCE = "sequence"
    """All tokens of a sequence share the geometric mean of their ratios, as in GSPO."""


class TrainerSettings(BaseModel):
    help_layout: ClassVar[HelpLayout] = HelpLayout(
        headings={
            "Engine and model": (
                "base_url",
                "api_key",
                "base_model",
                "tokenizer_name",
                "lora_rank",
                "seed",
                "init_from",
                "engine_patience",
                "step_retries",
            ),
            "Batches": (
                "rollout_server_url",
                "rollout_server_token",
                "batch_size",
                "total_steps",
                "max_staleness",
                "max_token_trainer_length",
                "max_batch_tokens",
            ),
            "Objective": (
                "loss",
                "loss_aggregation",
                "loss_constant",
                "clip_low",
                "clip_high",
                "ratio_level",
                "max_importance_weight",
                "ratio_band",
                "max_probability_change",
                "kl_coef",
                "kl_reference",
                "teacher",
                "teacher_token",
                "teacher_coef",
                "reward_coef",
            ),
            "Advantages": (
                "advantage",
                "advantage_epsilon",
                "sample_std",
                "per_turn",
                "length_penalty",
                "mask_truncated",
            ),
            "Optimizer": (
                "learning_rate",
                "lr_schedule",
                "warmup_steps",
                "adam_beta1",
                "adam_beta2",
                "adam_eps",
                "weight_decay",
                "grad_clip_norm",
                "num_substeps",
            ),
            "Checkpoints": ("checkpoint_every", "keep_checkpoints"),
            "Reward audit": ("max_audit_gap", "audit_gap_steps"),
            "Inference": ("host", "port", "inference_token", "vllm_servers", "tool_call_parser"),
            "Metrics": ("use_wandb", "wandb_name", "metric_sinks"),
        },
        common=(
            "base_url",
            "base_model",
            "lora_rank",
            "rollout_server_url",
            "batch_size",
            "total_steps",
            "loss",
            "learning_rate",
            "checkpoint_every",
        ),
    )
    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=(), hide_input_in_errors=True)

    # The engine
    base_url: str | None = Field(
        default=None,
        description="Train through the Tinker API at this URL; default: hosted Tinker. `hermes-rl engine "
        "start` prints your own.",
    )
    api_key: str | None = Field(
        default=None,
        repr=False,
        description="Authenticate at hosted Tinker with this key: env:NAME or file:PATH; default: TINKER_API_KEY.",
    )
    base_model: str = Field(
        default="Qwen/Qwen3-8B",
        description="Train this model: a name known to Tinker, or the folder that your engine serves.",
    )
    tokenizer_name: str | None = Field(
        default=None, description="Use this tokenizer, a name or a folder; default: that of the model."
    )
    lora_rank: int = Field(default=32, ge=1, description="Give the LoRA adapter this rank.")
    seed: int = Field(default=0, ge=0, description="Seed the adapter's initial weights, and the order of SFT.")
    init_from: str | None = Field(
        default=None,
        description="Start a new run from these weights: a run, its folder, a PEFT folder or a tinker:// "
        "path; default: an untrained adapter.",
    )

    # The batches
    rollout_server_url: str = Field(
        default="http://localhost:8000", description="Take batches from the trajectory API at this URL."
    )
    rollout_server_token: str | None = Field(
        default=None,
        repr=False,
        description="Authenticate at the trajectory API with this token: env:NAME or file:PATH.",
    )
    batch_size: int = Field(default=128, ge=1, description="Train on this many rollouts per optimizer step.")
    total_steps: int = Field(default=2500, ge=1, description="Stop after this many optimizer steps.")
    max_staleness: int = Field(
        default=3, ge=0, description="Train on rollouts that are at most this many policy versions old."
    )
    max_token_trainer_length: int = Field(default=9000, ge=2, description="Skip sequences of more tokens than this.")
    max_batch_tokens: int | None = Field(
        default=None,
        ge=2,
        description="Take at most this many tokens per step; groups beyond it are skipped and counted.",
    )

    # The objective
    loss: Annotated[str, AfterValidator(OBJECTIVES.check)] = Field(
        default="importance_sampling",
        description="Choose the loss: importance_sampling, ppo, cispo, reinforce, or module:function for your own.",
    )
    loss_aggregation: LossAggregation = Field(
        default=LossAggregation.TOKEN_MEAN,
        description="Choose how token losses become the loss of a step.",
    )
    loss_constant: float | None = Field(
        default=None,
        gt=0,
        description="Divide by this many tokens per sequence with loss_aggregation=constant; default: "
        "max_token_trainer_length.",
    )
    clip_low: float = Field(default=0.8, gt=0, le=1, description="Clip ratios of ppo and cispo below this value.")
    clip_high: float = Field(default=1.2, ge=1, description="Clip ratios of ppo and cispo above this value.")
    ratio_level: RatioLevel = Field(
        default=RatioLevel.TOKEN,
        description="Compute ratios per token, or per sequence as the geometric mean over it (GSPO); sequence "
        "costs one forward pass.",
    )
    max_importance_weight: float | None = Field(
        default=2.0,
        ge=1,
        description="Truncate importance ratios at this value (TIS); null: no limit. With ppo it costs one "
        "forward pass.",
    )
    ratio_band: tuple[float, float] | None = Field(
        default=None,
        description="Skip tokens whose ratio is outside [low, high], such as [0.5, 5] (IcePop); costs one "
        "forward pass.",
    )
    max_probability_change: float | None = Field(
        default=None,
        gt=0,
        lt=1,
        description="Skip tokens whose probability moved further than this in the direction of the advantage, "
        "such as 0.2 (DPPO); costs one forward pass.",
    )
    advantage: Annotated[str, AfterValidator(ADVANTAGES.check)] = Field(
        default="mean",
        description="Choose the advantage: mean, mean_std, leave_one_out, or module:function for your own.",
    )
    advantage_epsilon: float = Field(
        default=1e-4,
        ge=0,
        allow_inf_nan=False,
        description="Add this to the standard deviation that mean_std divides by.",
    )
    sample_std: bool = Field(
        default=True, description="Divide the variance of mean_std by n - 1, as in TRL; false: by n."
    )
    per_turn: bool = Field(
        default=False, description="Compute advantages per turn where the environment gives turn rewards."
    )
    length_penalty: float = Field(
        default=0.0,
        ge=0,
        allow_inf_nan=False,
        description="Take this many points off a rollout's score per 1,000 sampled tokens.",
    )
    mask_truncated: bool = Field(
        default=False,
        description="Do not train on rollouts that a token or turn limit cut off; baselines keep them.",
    )
    kl_coef: float = Field(
        default=0.0, ge=0, description="Multiply the KL penalty against the reference by this; 0: no penalty."
    )
    kl_reference: str | None = Field(
        default=None, description="Use the weights of this tinker:// path as the reference; default: the base model."
    )
    teacher: str | None = Field(
        default=None,
        min_length=1,
        description="Distil from this teacher: a tinker:// sampler path, a run on this engine, or the URL of "
        "a server with prompt logprobs.",
    )
    teacher_token: str | None = Field(
        default=None,
        repr=False,
        description="Authenticate at a teacher with a URL by this token: env:NAME or file:PATH.",
    )
    teacher_coef: float = Field(
        default=1.0, gt=0, description="Multiply the teacher's advantage by this: its logprob minus that of sampling."
    )
    reward_coef: float = Field(
        default=1.0,
        ge=0,
        description="Multiply the scores' advantage by this when there is a teacher; 0: learn from the teacher alone.",
    )

    # The optimizer
    learning_rate: float = Field(default=4e-5, gt=0, description="Set Adam's learning rate.")
    lr_schedule: Schedule = Field(
        default=Schedule.CONSTANT, description="Choose the learning-rate schedule; linear and cosine decay to zero."
    )
    warmup_steps: int = Field(default=0, ge=0, description="Raise the learning rate linearly over this many steps.")
    adam_beta1: float = Field(default=0.9, ge=0, lt=1, description="Set Adam's decay rate of the first moment.")
    adam_beta2: float = Field(default=0.95, ge=0, lt=1, description="Set Adam's decay rate of the second moment.")
    adam_eps: float = Field(default=1e-8, gt=0, description="Set Adam's epsilon.")
    weight_decay: float = Field(default=0.0, ge=0, description="Set Adam's weight decay.")
    grad_clip_norm: float = Field(default=1.0, ge=0, description="Clip the gradient to this norm; 0: no clipping.")
    num_substeps: int = Field(
        default=1, ge=1, description="Make this many optimizer steps per batch, each on an equal share of its groups."
    )

    # Checkpoints and failures
    checkpoint_every: int | None = Field(
        default=None,
        ge=1,
        description="Save a checkpoint every this many steps; default: 1 on a self-hosted engine, 20 on hosted Tinker.",
    )
    keep_checkpoints: int = Field(
        default=3, ge=1, description="Keep this many recent checkpoints; the final one always stays."
    )
    step_retries: int = Field(default=5, ge=0, description="Retry a failed step this many times before the run fails.")
    engine_patience: float = Field(
        default=600.0, gt=0, description="Wait at most this many seconds for an unreachable engine."
    )

    # The audit of the reward
    max_audit_gap: float | None = Field(
        default=None,
        allow_inf_nan=False,
        description="Stop the run when the lower 95% end of trained minus audited reward exceeds this; default: never.",
    )
    audit_gap_steps: int = Field(
        default=3, ge=1, description="Stop for max_audit_gap only after this many such steps in a row."
    )

    # Inference
    host: str = Field(
        default="127.0.0.1", description="Listen for inference on this address; any but loopback needs a token."
    )
    port: int = Field(
        default=8001, ge=0, le=65_535, description="Listen for inference on this port; 0: a free one, which is printed."
    )
    inference_token: str | None = Field(
        default=None, repr=False, description="Require this token for inference: env:NAME or file:PATH."
    )
    vllm_servers: list[str] = Field(
        default_factory=list, description="Sample from the vLLM servers at these URLs instead of the engine."
    )
    tool_call_parser: Annotated[str, AfterValidator(PARSERS.check)] = Field(
        default="hermes", description="Parse the model's tool calls as this format."
    )

    # Metrics
    use_wandb: bool = Field(
        default=True, description="Log metrics to Weights & Biases too, if it is installed and configured."
    )
    wandb_name: str | None = Field(
        default=None, description="Name the run in metric sinks; default: the name of the run."
    )
    metric_sinks: list[Annotated[str, AfterValidator(SINKS.check)]] = Field(
        default_factory=list, description="Send metrics here besides the local file: wandb, trackio, or module:Class."
    )

    @field_serializer("api_key", "rollout_server_token", "inference_token", "teacher_token", when_used="json")
    def _hide_literals(self, value: str | None) -> str | None:
        return HIDDEN if value and is_literal(value) else value

    @field_serializer("base_url", when_used="json")
    def _hide_password(self, value: str | None) -> str | None:
        return redact_urls(value) if value else value

    @model_validator(mode="after")
    def _check_warmup(self) -> "TrainerSettings":
        if self.warmup_steps >= self.total_steps:
            raise ValueError(f"warmup_steps {self.warmup_steps} must be less than total_steps {self.total_steps}")
        return self

    @model_validator(mode="after")
    def _check_ratios(self) -> "TrainerSettings":
        """Refuse settings that contradict each other or have no effect; a default never does either."""
        cap, band, clips = self.max_importance_weight, self.ratio_band, self.loss in {"ppo", "cispo"}
        if band is not None and not 0 <= band[0] < 1 < band[1]:
            raise ValueError(f"ratio_band {list(band)} must be [low, high] with low below 1 and high above 1")
        if band is not None and clips and band[0] >= self.clip_low and band[1] <= self.clip_high:
            raise ValueError("ratio_band lies within clip_low and clip_high, so nothing would be clipped; widen it")
        if cap is not None and "max_importance_weight" in self.changed_ratio_settings:
            if band is not None and cap >= band[1]:
                raise ValueError(
                    f"max_importance_weight {cap:g} has no effect: ratio_band skips ratios over {band[1]:g}"
                )
            if clips and cap <= self.clip_high:
                raise ValueError(f"max_importance_weight {cap:g} must exceed clip_high {self.clip_high:g}")
            if self.loss == "cispo":
                raise ValueError("max_importance_weight has no effect on cispo: clip_high truncates its ratios")
            if self.loss == "reinforce":
                raise ValueError("max_importance_weight has no effect on reinforce, which uses no ratio")
        if self.max_probability_change is not None and self.loss == "ppo":
            raise ValueError("max_probability_change replaces ppo's clipping; use it with loss=importance_sampling")
        if self.ratio_level == RatioLevel.SEQUENCE and (self.max_probability_change or self.loss == "reinforce"):
            raise ValueError("ratio_level=sequence needs ratios: not with max_probability_change or loss=reinforce")
        if self.loss_constant is not None and self.loss_aggregation != LossAggregation.CONSTANT:
            raise ValueError("loss_constant needs loss_aggregation=constant")
        return self

    @model_validator(mode="after")
    def _check_teacher(self) -> "TrainerSettings":
        if self.teacher is None and (self.teacher_coef, self.reward_coef) != (1, 1):
            raise ValueError("teacher_coef and reward_coef need a teacher")
        if self.teacher_token is not None and not (self.teacher or "").startswith(("http://", "https://")):
            raise ValueError("teacher_token needs a teacher with a URL")
        return self

    @model_validator(mode="after")
    def _check_audit_limit(self) -> "TrainerSettings":
        if self.max_audit_gap is None and self.audit_gap_steps != type(self).model_fields["audit_gap_steps"].default:
            raise ValueError("audit_gap_steps needs max_audit_gap")
        return self

    @property
    def changed_ratio_settings(self) -> list[str]:
        """Settings of the importance ratio that differ from their default."""
        names = ("ratio_level", "max_importance_weight", "ratio_band", "max_probability_change")
        return [name for name in names if getattr(self, name) != type(self).model_fields[name].default]

    @property
    def self_hosted(self) -> bool:
        return self.base_url is not None

    @property
    def checkpoint_interval(self) -> int:
        return self.checkpoint_every or (1 if self.self_hosted else 20)
