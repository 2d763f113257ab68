"""The `env` section of the configuration: every field of the seeds and of Atropos' base class, with their defaults.

Class defaults are Atropos' own, but for `terminal_backend`: the seed's `local` runs the policy on your machine.
"""

from enum import StrEnum
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from hermes_rl.inference.config import APIServerConfig

# The total_steps of an environment in a run: the run ends it when the trainer has taken its last step.
ENDLESS = 1_000_000_000


class EvalHandling(StrEnum):
    """What training rollouts do while an evaluation runs."""

    STOP_TRAIN = "STOP_TRAIN"
    LIMIT_TRAIN = "LIMIT_TRAIN"
    NONE = "NONE"


class BaseEnvConfig(BaseModel):
    """The fields Atropos gives every environment."""

    model_config = ConfigDict(extra="forbid", use_enum_values=False)

    group_size: int = Field(4, ge=1, description="Rollouts of one item, compared with each other.")
    max_num_workers: int = Field(-1, description="Groups in flight; -1 means max_num_workers_per_node per endpoint.")
    max_eval_workers: int = Field(16, ge=1, description="Rollouts in flight during evaluation.")
    max_num_workers_per_node: int = Field(8, ge=1, description="Groups in flight for each endpoint.")
    steps_per_eval: int = Field(100, ge=1, description="Training steps between two evaluations.")
    max_token_length: int = Field(2048, ge=1, description="Tokens the model may write in one turn.")
    eval_handling: EvalHandling = Field(EvalHandling.STOP_TRAIN, description="Training rollouts during evaluation.")
    eval_limit_ratio: float = Field(0.5, ge=0, le=1, description="Share of workers kept with LIMIT_TRAIN.")
    inference_weight: float = Field(1.0, description="Share of the inference capacity this environment gets.")
    batch_size: int = Field(-1, description="Rollouts of one optimizer step; -1 leaves it to the trainer.")
    max_batches_offpolicy: int = Field(3, ge=0, description="How many batches behind the policy a rollout may be.")
    tokenizer_name: str = Field(
        "NousResearch/DeepHermes-3-Llama-3-3B-Preview",
        description="Tokenizer for exact tokens: a folder or a name on the hub. The model's own when left out.",
    )
    use_wandb: bool = Field(
        True,
        description="Metrics to Weights & Biases too: when set to true, or where it is installed and set up.",
    )
    rollout_server_url: str = Field("http://localhost:8000", description="The trajectory API, for serve.")
    total_steps: int = Field(1000, ge=1, description="Groups to make in process; training steps in serve.")
    wandb_name: str | None = Field(None, description="Name of the run in metrics; the environment's own when left out.")
    num_rollouts_to_keep: int = Field(32, ge=0, description="Groups of rollouts kept for display.")
    num_rollouts_per_group_for_logging: int = Field(1, ge=-1, description="Rollouts of a group to display; -1 for all.")
    ensure_scores_are_not_same: bool = Field(
        True, description="In training, leave out groups whose scores are all equal."
    )
    data_path_to_save_groups: str | None = Field(None, description="JSONL file the groups are written to.")
    data_dir_to_save_evals: str | None = Field(None, description="Folder for metrics.json and samples.jsonl.")
    min_items_sent_before_logging: int = Field(2, ge=0, description="Groups between two lines of metrics.")
    include_messages: bool = Field(False, description="Send messages to the trainer; records hold them always.")
    min_batch_allocation: float | None = Field(None, description="Least share of a batch for this environment.")
    worker_timeout: float = Field(600, gt=0, description="Seconds a rollout may take in all; then it has no score.")
    thinking_mode: bool = Field(
        False,
        description="The model thinks before it answers. With exact tokens its thinking then stays in the history.",
    )
    reasoning_effort: str | None = Field(None, description="How hard to think, where the endpoint takes it.")
    max_reasoning_tokens: int | None = Field(None, ge=1024, le=32000, description="Tokens the thinking may take.")
    custom_thinking_prompt: str | None = Field(None, description="Prompt that asks for thinking.")


class HermesAgentEnvConfig(BaseEnvConfig):
    """The fields an environment with an agent and tools has besides. Subclass it for your own."""

    enabled_toolsets: list[str] | None = Field(
        None, description="Toolsets the agent gets; the environment's default_toolsets when left out."
    )
    disabled_toolsets: list[str] | None = Field(None, description="Toolsets taken away from those.")
    distribution: str | None = Field(None, description="Toolset distribution to sample from, once for each group.")
    tool_settings: dict[str, dict[str, Any]] = Field(
        default_factory=dict, description="Settings of toolsets, by toolset: {web: {provider: bm25, corpus: FILE}}."
    )
    toolset_distributions: dict[str, dict[str, float]] = Field(
        default_factory=dict, description="Distributions of your own: {mine: {terminal: 0.8, file: 0.5}}."
    )
    max_agent_turns: int = Field(30, ge=1, description="Model calls of one rollout at most.")
    max_tool_calls: int | None = Field(None, ge=1, description="Tool calls of one rollout at most.")
    max_repeated_calls: int | None = Field(
        8, ge=2, description="End a rollout that makes the same calls with the same results this often in a row."
    )
    rollout_deadline: float | None = Field(
        None,
        gt=0,
        description="Seconds of the policy's own work: its tools' time and 0.02 s for each token. "
        "Three quarters of worker_timeout when left out.",
    )
    max_context_tokens: int | None = Field(
        None, ge=64, description="Context of the model; what the endpoint tells when left out."
    )
    compaction: Literal["none", "drop_results"] = Field(
        "none", description="What to do when the context is full: end the rollout, or drop the oldest tool results."
    )
    default_result_size_chars: int = Field(
        100_000, ge=100, description="Characters of a tool result before it goes to a file."
    )
    turn_budget_chars: int = Field(200_000, ge=100, description="Characters of all results of a turn.")
    preview_size_chars: int = Field(1_500, ge=50, description="Characters shown of a result that went to a file.")
    tool_result_overrides: dict[str, int] = Field(
        default_factory=dict, description="Characters by tool, over the default."
    )
    system_prompt: str | None = Field(None, description="System prompt of the agent.")
    agent_temperature: float = Field(
        1.0, ge=0, description="Sampling temperature of rollouts; 0 in an evaluation with one sample an item."
    )
    terminal_backend: str = Field(
        "auto",
        description="Where tools run: auto (bubblewrap, else docker), bubblewrap, docker, podman, ssh, singularity, "
        "modal, daytona, or local, which is no sandbox.",
    )
    sandbox_settings: dict[str, dict[str, Any] | list[dict[str, Any]]] = Field(
        default_factory=dict,
        description="Settings of backends, by backend: {ssh: {host: HOST}}. A list means several places at once.",
    )
    sandbox_image: str | None = Field(
        None, description="Image of the sandboxes, unless sandbox_spec names one: a name, a directory or a tar."
    )
    sandbox_memory_mb: int | None = Field(None, ge=16, description="Memory of a sandbox; 2048 where it can be held.")
    sandbox_cpus: float | None = Field(None, gt=0, description="Processors of a sandbox; all when left out.")
    sandbox_processes: int | None = Field(None, ge=8, description="Processes of a sandbox; 512 where it can be held.")
    sandbox_disk_mb: int | None = Field(
        None, ge=1, description="Space of the workspace, and of /tmp; 1024 each where it can be held."
    )
    sandbox_network: bool | None = Field(
        None, description="Network of a sandbox: true, false, or off where the backend can when left out."
    )
    sandbox_start_timeout: float = Field(120.0, gt=0, description="Seconds a sandbox may take to start.")
    terminal_timeout: int = Field(120, ge=1, description="Seconds a command may take unless the call says otherwise.")
    max_terminal_timeout: int = Field(600, ge=1, description="The most seconds a call may ask for.")
    terminal_lifetime: int = Field(3600, ge=1, description="Seconds an idle sandbox may live.")
    dataset_name: str | None = Field(None, description="Dataset to load, for environments that load one.")
    dataset_split: str = Field("train", description="Split of that dataset.")
    prompt_field: str = Field("prompt", description="Field of that dataset that holds the prompt.")
    agent_command: str | list[str] | None = Field(
        None,
        description="A program to run in the sandbox instead of our loop: agent:NAME for a ready-made one, a shell "
        "command, or its words. Marks: {prompt}, {prompt_file}, {messages_file}, {base_url}, {origin}, {key}, {model}, "
        "{context_tokens}.",
    )
    agent_env: dict[str, str] = Field(
        default_factory=dict, description="Further variables of that program; the same marks."
    )
    agent_setup: str | None = Field(
        None, description="Bash script that installs that program; baked once, after the setup of sandbox_spec."
    )
    agent_files: dict[str, str] = Field(
        default_factory=dict, description="Files that program needs: {path in the sandbox: path of a local file}."
    )
    tool_pool_size: int = Field(128, ge=1, description="Tool calls in flight, over all rollouts.")
    tool_call_parser: str = Field(
        "hermes", description="Format of tool calls in the model's text, for endpoints that do not parse them."
    )
    tool_prompt: bool = Field(
        True,
        description="With exact tokens: tell the model of its tools in the prompt; false when your own prompt does.",
    )
    renderer: str = Field(
        "auto",
        description="With exact tokens: what writes conversations as tokens: auto, template (the tokenizer's own), "
        "or the name of a hand-written one (qwen3, glm-4.5, llama-3 …).",
    )
    extra_body: dict[str, Any] | None = Field(None, description="Further fields of every model request.")
    concurrency: Literal["fixed", "auto"] = Field(
        "fixed",
        description="Rollouts in flight: fixed, or auto: as many as the engines bear, by 429s, latency and queues, "
        "up to max_num_workers and max_eval_workers where they are set.",
    )
    engines_file: str | None = Field(
        None,
        description="File with the base_url of an engine on each line, in place of the openai section's one. It is "
        "read again while it runs: engines join and leave by it.",
    )
    max_live_sandboxes: int = Field(1024, ge=1, description="Sandboxes alive at once; further rollouts wait.")
    max_starting_sandboxes: int = Field(8, ge=1, description="Sandboxes being started at once.")
    user_endpoint: APIServerConfig | None = Field(
        None, description="Endpoint of the simulated user, for environments that have one."
    )
    rollout_retries: int = Field(
        1, ge=0, description="How often a rollout that failed for a reason outside the model is tried again."
    )
    min_group_share: float = Field(
        0.75, gt=0, le=1, description="Share of a group's rollouts that must be scored for it to be trained on."
    )
    max_sequence_tokens: int | None = Field(
        None, ge=1, description="Rollouts with a longer sequence are kept out of training."
    )
    pass_score: float = Field(1.0, description="A rollout with at least this score has passed.")
    item_sampler: Literal["in_order", "uniform", "by_difficulty"] = Field(
        "uniform", description="How training items are drawn from train_items()."
    )
    shard: int = Field(0, ge=0, description="Which part of the stream of items this process takes.")
    shards: int = Field(1, ge=1, description="In how many parts the stream is split.")
    token_limit: int | None = Field(None, ge=1, description="Begin nothing new after this many tokens.")
    spend_limit: float | None = Field(None, gt=0, description="Begin nothing new after spending this much.")
    time_limit: float | None = Field(None, gt=0, description="Begin nothing new after this many seconds.")
    stop_timeout: float = Field(
        60.0, gt=0, description="Seconds that serve takes to end when it is told to; groups not finished are given up."
    )
    rollout_server_token: str | None = Field(
        None, description="Token of the trajectory API, for serve: env:NAME or file:PATH."
    )
    serve_dir: str | None = Field(
        None, description="Folder for what serve keeps: spool, metrics, split; the home of hermes-rl when left out."
    )
    evaluation_only: bool = Field(
        False, description="In serve: make no groups for training, only evaluations as the policy moves on."
    )
    metric_sinks: list[Literal["wandb", "trackio"]] = Field(
        default_factory=list, description="Where metrics go besides local files: wandb, trackio."
    )
    eval_size: int = Field(20, ge=1, description="Items of an evaluation.")
    eval_samples: int = Field(
        1, ge=1, description="Rollouts of each item of an evaluation; with one, at temperature 0."
    )
    seed: int = Field(0, ge=0, description="Fixes item order, toolset sampling and the seeds of rollouts.")

    @model_validator(mode="after")
    def _one_way_to_choose_tools(self) -> "HermesAgentEnvConfig":
        if self.enabled_toolsets is not None and self.distribution is not None:
            raise ValueError("enabled_toolsets and distribution exclude each other; set one of them")
        return self

    @model_validator(mode="after")
    def _an_agent_for_its_settings(self) -> "HermesAgentEnvConfig":
        given = [name for name in ("agent_env", "agent_setup", "agent_files") if getattr(self, name)]
        if given and not self.agent_command:
            raise ValueError(f"{given[0]} is for a program that is the agent; name it in agent_command")
        return self

    @model_validator(mode="after")
    def _a_shard_among_them(self) -> "HermesAgentEnvConfig":
        if self.shard >= self.shards:
            raise ValueError(f"shard counts from 0 and is less than shards, got {self.shard} of {self.shards}")
        return self
