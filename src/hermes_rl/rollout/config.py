"""The `env` section of the configuration: every field of the seeds and of Atropos' base class, with their defaults.

It is in this package because rollouts read it; the base class of environments is one layer above.
The only changed default is `terminal_backend`: the seed's `local` would run the policy on your machine.
"""

from enum import StrEnum
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from hermes_rl.agent.limits import ResultBudget
from hermes_rl.extensions import SAMPLERS, SINKS, absolute_reference
from hermes_rl.inference.config import APIServerConfig
from hermes_rl.inference.reasoning import Effort

# A name, or a reference to an extension: module:Name or file.py:Name.
Reference: TypeAlias = Annotated[str, AfterValidator(absolute_reference)]

# total_steps of an environment in a run, which stops it after the trainer's last step.
ENDLESS = 1_000_000_000


class EvalHandling(StrEnum):
    """What training rollouts do while an evaluation runs."""

    STOP_TRAIN = "STOP_TRAIN"
    LIMIT_TRAIN = "LIMIT_TRAIN"
    NONE = "NONE"


class BaseEnvConfig(BaseModel):
    """The fields Atropos gives every environment."""

    model_config = ConfigDict(extra="forbid", use_enum_values=False)

    group_size: int = Field(default=4, ge=1, description="Rollouts per item; they form one group.")
    max_num_workers: int = Field(
        default=-1, description="Groups in flight; -1 means max_num_workers_per_node per endpoint."
    )
    max_eval_workers: int = Field(default=16, ge=1, description="Rollouts in flight during evaluation.")
    max_num_workers_per_node: int = Field(default=8, ge=1, description="Groups in flight per endpoint.")
    steps_per_eval: int = Field(default=100, ge=1, description="Training steps between two evaluations.")
    max_token_length: int = Field(default=2048, ge=1, description="Maximum tokens the model generates per turn.")
    eval_handling: EvalHandling = Field(
        default=EvalHandling.STOP_TRAIN, description="Training rollouts during evaluation."
    )
    eval_limit_ratio: float = Field(
        default=0.5, ge=0, le=1, description="Fraction of workers that continue with LIMIT_TRAIN."
    )
    inference_weight: float = Field(
        default=1.0, description="Relative share of the inference capacity for this environment."
    )
    batch_size: int = Field(
        default=-1, description="Rollouts per optimizer step of a run; in serve, the trainer decides."
    )
    max_batches_offpolicy: int = Field(
        default=3, ge=0, description="Maximum batches a rollout may lag behind the policy."
    )
    tokenizer_name: str = Field(
        default="NousResearch/DeepHermes-3-Llama-3-3B-Preview",
        description="Tokenizer for exact tokens: a folder or a Hugging Face name. Default: the model's.",
    )
    use_wandb: bool = Field(
        default=True,
        description="Log metrics to Weights & Biases: when set to true, or when it is installed and configured.",
    )
    rollout_server_url: str = Field(default="http://localhost:8000", description="The trajectory API, for serve.")
    total_steps: int = Field(default=1000, ge=1, description="Groups to generate in process; training steps in serve.")
    wandb_name: str | None = Field(default=None, description="Run name in metrics. Default: the environment's name.")
    num_rollouts_to_keep: int = Field(default=32, ge=0, description="Groups of rollouts kept for display.")
    num_rollouts_per_group_for_logging: int = Field(
        default=1, ge=-1, description="Rollouts of each group to display; -1 for all."
    )
    ensure_scores_are_not_same: bool = Field(default=True, description="In training, drop groups with equal scores.")
    data_path_to_save_groups: str | None = Field(default=None, description="JSONL file to write groups to.")
    data_dir_to_save_evals: str | None = Field(default=None, description="Folder for metrics.json and samples.jsonl.")
    min_items_sent_before_logging: int = Field(default=2, ge=0, description="Groups between two log lines of metrics.")
    include_messages: bool = Field(
        default=False, description="Post messages to Atropos' run-api too. Our own API and records always have them."
    )
    min_batch_allocation: float | None = Field(
        default=None, description="Minimum share of a batch for this environment."
    )
    worker_timeout: float = Field(
        default=600, gt=0, description="Maximum seconds for a whole rollout; after that it has no score."
    )
    thinking_mode: bool = Field(
        default=False,
        description="Ask chat endpoints for reasoning. With exact tokens, the reasoning stays in the history.",
    )
    reasoning_effort: Effort | None = Field(
        default=None, description="Reasoning effort that chat endpoints are asked for; it implies thinking_mode."
    )
    max_reasoning_tokens: int | None = Field(
        default=None,
        ge=1024,
        le=32000,
        description="Maximum tokens for reasoning that chat endpoints are asked for, unless reasoning_effort is set.",
    )
    custom_thinking_prompt: str | None = Field(
        default=None, description="Put before the system prompt in thinking_mode."
    )

    @model_validator(mode="after")
    def _check_thinking_prompt(self) -> "BaseEnvConfig":
        thinks = self.thinking_mode or self.reasoning_effort or self.max_reasoning_tokens
        if self.custom_thinking_prompt and not thinks:
            raise ValueError("custom_thinking_prompt needs thinking_mode; set it, or use system_prompt instead")
        return self


class HermesAgentEnvConfig(BaseEnvConfig):
    """Adds the fields for an agent with tools. Subclass it to add your own."""

    enabled_toolsets: list[Reference] | None = Field(
        default=None, description="Toolsets the agent gets. Default: the environment's default_toolsets."
    )
    disabled_toolsets: list[str] | None = Field(default=None, description="Toolsets to remove from those.")
    distribution: str | None = Field(default=None, description="Toolset distribution to sample from, once per group.")
    tool_settings: dict[str, dict[str, Any]] = Field(
        default_factory=dict, description="Settings of toolsets, by toolset: {web: {provider: bm25, corpus: FILE}}."
    )
    toolset_distributions: dict[str, dict[str, float]] = Field(
        default_factory=dict, description="Custom distributions: {mine: {terminal: 0.8, file: 0.5}}."
    )
    max_agent_turns: int = Field(default=30, ge=1, description="Maximum model calls per rollout.")
    max_tool_calls: int | None = Field(default=None, ge=1, description="Maximum tool calls per rollout.")
    max_repeated_calls: int | None = Field(
        default=8, ge=2, description="Stop a rollout after this many identical calls with identical results in a row."
    )
    rollout_deadline: float | None = Field(
        default=None,
        gt=0,
        description="Seconds for the policy's own work: its tools' time plus 0.02 s per token. "
        "Default: three quarters of worker_timeout.",
    )
    max_context_tokens: int | None = Field(
        default=None, ge=64, description="Context size of the model. Default: what the endpoint reports."
    )
    compaction: Literal["none", "drop_results"] = Field(
        default="none", description="When the context is full: end the rollout (none), or drop the oldest tool results."
    )
    default_result_size_chars: int = Field(
        default=100_000, ge=100, description="Characters of a tool result above which it is written to a file."
    )
    turn_budget_chars: int = Field(
        default=200_000, ge=100, description="Maximum characters of all tool results of a turn."
    )
    preview_size_chars: int = Field(default=1_500, ge=50, description="Characters shown of a result written to a file.")
    tool_result_overrides: dict[str, int] = Field(
        default_factory=dict, description="Maximum characters by tool, in place of the default."
    )
    system_prompt: str | None = Field(default=None, description="System prompt of the agent.")
    agent_temperature: float = Field(
        default=1.0, ge=0, description="Sampling temperature of rollouts; 0 in an evaluation with one sample per item."
    )
    terminal_backend: Reference = Field(
        default="auto",
        description="Where tools run: auto (bubblewrap, else docker), bubblewrap, docker, podman, ssh, singularity, "
        "modal, daytona, local (no isolation), or module:Class for your own.",
    )
    sandbox_settings: dict[Reference, dict[str, Any] | list[dict[str, Any]]] = Field(
        default_factory=dict,
        description="Settings by backend: {ssh: {host: HOST}}. A list uses several hosts at once.",
    )
    sandbox_image: str | None = Field(
        default=None, description="Sandbox image, unless sandbox_spec sets one: a name, a directory or a tar file."
    )
    sandbox_memory_mb: int | None = Field(
        default=None, ge=16, description="Memory limit of a sandbox. Default: 2048 where the backend can enforce it."
    )
    sandbox_cpus: float | None = Field(default=None, gt=0, description="CPUs of a sandbox. Default: all.")
    sandbox_processes: int | None = Field(
        default=None, ge=8, description="Process limit of a sandbox. Default: 512 where the backend can enforce it."
    )
    sandbox_disk_mb: int | None = Field(
        default=None,
        ge=1,
        description="Disk limit of the workspace, and of /tmp. Default: 1024 each where the backend can enforce it.",
    )
    sandbox_network: bool | None = Field(
        default=None, description="Network access of a sandbox. Default: off where the backend can turn it off."
    )
    sandbox_start_timeout: float = Field(default=120.0, gt=0, description="Maximum seconds for a sandbox to start.")
    terminal_timeout: int = Field(default=120, ge=1, description="Default timeout of a command, in seconds.")
    max_terminal_timeout: int = Field(default=600, ge=1, description="Maximum timeout a call may ask for, in seconds.")
    terminal_lifetime: int = Field(
        default=3600,
        ge=1,
        description="Seconds without a command after which a sandbox is closed and its rollout fails; longer than the "
        "longest wait for the model.",
    )
    dataset_name: str | None = Field(default=None, description="Dataset to load, for environments that load one.")
    dataset_split: str = Field(default="train", description="Split of that dataset.")
    prompt_field: str = Field(default="prompt", description="Field of that dataset that holds the prompt.")
    agent_command: str | list[str] | None = Field(
        default=None,
        description="Program to run in the sandbox as the agent: agent:NAME for a bundled one, a shell command, or a "
        "list of words. Placeholders: {prompt}, {prompt_file}, {messages_file}, {base_url}, {origin}, {key}, {model}, "
        "{context_tokens}.",
    )
    agent_env: dict[str, str] = Field(
        default_factory=dict, description="Extra environment variables of that program, with the same placeholders."
    )
    agent_setup: str | None = Field(
        default=None,
        description="Bash script that installs that program; baked into the image after the setup of sandbox_spec.",
    )
    agent_files: dict[str, str] = Field(
        default_factory=dict, description="Files for that program: {path in the sandbox: local path}."
    )
    tool_pool_size: int = Field(default=128, ge=1, description="Maximum tool calls in flight over all rollouts.")
    tool_call_parser: Reference = Field(
        default="hermes", description="Format of tool calls in the model's text, for endpoints that do not parse them."
    )
    tool_prompt: bool = Field(
        default=True,
        description="With exact tokens: describe the tools in the prompt; false when your own prompt does.",
    )
    renderer: str = Field(
        default="auto",
        description="With exact tokens: how conversations become tokens: auto, template (the tokenizer's), or the "
        "name of a hand-written renderer (qwen3, glm-4.5, llama-3 …).",
    )
    extra_body: dict[str, Any] | None = Field(default=None, description="Extra fields of every model request.")
    concurrency: Literal["fixed", "auto"] = Field(
        default="fixed",
        description="Rollouts in flight: fixed, or auto to follow the engines' 429s, latency and queues, up to "
        "max_num_workers and max_eval_workers if set.",
    )
    engines_file: str | None = Field(
        default=None,
        description="File with one engine base_url per line, in place of the openai section's. It is reread "
        "during the run, so engines can join and leave.",
    )
    max_live_sandboxes: int = Field(default=1024, ge=1, description="Sandboxes alive at once; further rollouts wait.")
    max_starting_sandboxes: int = Field(default=8, ge=1, description="Sandboxes being started at once.")
    user_endpoint: APIServerConfig | None = Field(
        default=None, description="Endpoint of the simulated user, for environments that have one."
    )
    rollout_retries: int = Field(
        default=1, ge=0, description="Retries of a rollout that failed for a reason outside the model."
    )
    min_group_share: float = Field(
        default=0.75, gt=0, le=1, description="Minimum share of scored rollouts for a group to be trained on."
    )
    max_sequence_tokens: int | None = Field(
        default=None, ge=1, description="Exclude rollouts with a longer sequence from training."
    )
    pass_score: float = Field(default=1.0, description="Minimum score of a passed rollout.")
    failing_score: float = Field(
        default=0.0,
        allow_inf_nan=False,
        description="Score of a rollout whose reward cannot run on what the policy left. Set it to your lowest score.",
    )
    item_sampler: Annotated[str, AfterValidator(SAMPLERS.check)] = Field(
        default="uniform",
        description="How training items are drawn: in_order, uniform, by_difficulty, or module:Class.",
    )
    shard: int = Field(default=0, ge=0, description="Index of the shard of the item stream that this process takes.")
    shards: int = Field(default=1, ge=1, description="Number of shards of the item stream.")
    token_limit: int | None = Field(default=None, ge=1, description="Start no new group after this many tokens.")
    spend_limit: float | None = Field(default=None, gt=0, description="Start no new group after spending this much.")
    time_limit: float | None = Field(default=None, gt=0, description="Start no new group after this many seconds.")
    stop_timeout: float = Field(
        default=60.0,
        gt=0,
        description="Seconds that serve waits for groups in flight when stopped; unfinished ones are dropped.",
    )
    rollout_server_token: str | None = Field(
        default=None, description="Token of the trajectory API, for serve: env:NAME or file:PATH."
    )
    serve_dir: str | None = Field(
        default=None, description="Folder for serve's spool, metrics and split. Default: the hermes-rl home."
    )
    evaluation_only: bool = Field(
        default=False, description="In serve: run only evaluations as the policy changes, no training groups."
    )
    metric_sinks: list[Annotated[str, AfterValidator(SINKS.check)]] = Field(
        default_factory=list, description="Metric sinks in addition to local files: wandb, trackio, or module:Class."
    )
    eval_size: int = Field(default=20, ge=1, description="Items per evaluation.")
    eval_samples: int = Field(default=1, ge=1, description="Rollouts per evaluation item; with 1, at temperature 0.")
    seed: int = Field(default=0, ge=0, description="Seed of item order, toolset sampling and rollouts.")

    def build_budget_config(self) -> ResultBudget:
        """How much of a tool result the model is shown."""
        return ResultBudget(
            per_result=self.default_result_size_chars,
            per_turn=self.turn_budget_chars,
            preview=self.preview_size_chars,
            overrides={"read_file": None, **self.tool_result_overrides},
        )

    @model_validator(mode="after")
    def _check_toolset_source(self) -> "HermesAgentEnvConfig":
        if self.enabled_toolsets is not None and self.distribution is not None:
            raise ValueError("enabled_toolsets and distribution are mutually exclusive; set one of them")
        return self

    @model_validator(mode="after")
    def _check_agent_settings(self) -> "HermesAgentEnvConfig":
        given = [name for name in ("agent_env", "agent_setup", "agent_files") if getattr(self, name)]
        if given and not self.agent_command:
            raise ValueError(f"{given[0]} needs an external agent; set agent_command")
        return self

    @model_validator(mode="after")
    def _check_shard(self) -> "HermesAgentEnvConfig":
        if self.shard >= self.shards:
            raise ValueError(f"shard counts from 0 and must be less than shards, got {self.shard} of {self.shards}")
        return self
