"""The `env` section of the configuration: every field of the seeds and of Atropos' base class, with their defaults.

It is in this package because rollouts read it; the base class of environments is one layer above.
The only changed default is `terminal_backend`: the seed's `local` would run the policy on your machine.
"""

from enum import StrEnum
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from hermes_rl.agent.limits import ResultBudget
from hermes_rl.core.help_layout import HelpLayout
from hermes_rl.extensions import AUDITS, GROUP_STRATEGIES, SAMPLERS, SINKS, absolute_reference
from hermes_rl.inference.config import APIServerConfig
from hermes_rl.inference.reasoning import Effort

# A name, or a reference to an extension: module:Name or file.py:Name.
Reference: TypeAlias = Annotated[str, AfterValidator(absolute_reference)]

# total_steps of an environment in a run, which stops it after the trainer's last step.
ENDLESS = 1_000_000_000


def _web_address(value: str) -> str:
    if not value.startswith(("http://", "https://")):
        raise ValueError("an address starts with http:// or https://")
    return value


def _known_audit(value: str) -> str:
    return value if value in AUDITS.special else AUDITS.check(value)


class EvalHandling(StrEnum):
    """What training rollouts do while an evaluation runs."""

    STOP_TRAIN = "STOP_TRAIN"
    LIMIT_TRAIN = "LIMIT_TRAIN"
    NONE = "NONE"


class BaseEnvConfig(BaseModel):
    """The fields Atropos gives every environment."""

    model_config = ConfigDict(extra="forbid", use_enum_values=False)

    group_size: int = Field(default=4, ge=1, description="Make this many rollouts per item; they form one group.")
    max_num_workers: int = Field(
        default=-1,
        description="Keep at most this many groups in flight; -1: max_num_workers_per_node for each endpoint.",
    )
    max_eval_workers: int = Field(
        default=16, ge=1, description="Keep at most this many rollouts in flight during an evaluation."
    )
    max_num_workers_per_node: int = Field(
        default=8, ge=1, description="Keep at most this many groups in flight per endpoint."
    )
    steps_per_eval: int = Field(default=100, ge=1, description="Evaluate every this many training steps.")
    max_token_length: int = Field(
        default=2048, ge=1, description="Let the model generate at most this many tokens per turn."
    )
    eval_handling: EvalHandling = Field(
        default=EvalHandling.STOP_TRAIN,
        description="Choose what training rollouts do while an evaluation runs: stop, continue with fewer "
        "workers, or continue.",
    )
    eval_limit_ratio: float = Field(
        default=0.5, ge=0, le=1, description="Keep this fraction of the workers during an evaluation with LIMIT_TRAIN."
    )
    inference_weight: float = Field(
        default=1.0, description="Give this environment this share of the inference capacity, relative to the others."
    )
    batch_size: int = Field(
        default=-1,
        description="Train on this many rollouts per optimizer step of a run; in serve, the trainer decides.",
    )
    max_batches_offpolicy: int = Field(
        default=3, ge=0, description="Let rollouts lag behind the policy by at most this many batches."
    )
    tokenizer_name: str = Field(
        default="NousResearch/DeepHermes-3-Llama-3-3B-Preview",
        description="Use this tokenizer for exact tokens: a folder or a Hugging Face name. Default: the model's.",
    )
    use_wandb: bool = Field(
        default=True,
        description="Log metrics to Weights & Biases: if set to true, or if it is installed and configured.",
    )
    rollout_server_url: str = Field(
        default="http://localhost:8000", description="Deliver groups to the trajectory API at this URL, in serve."
    )
    total_steps: int = Field(
        default=1000,
        ge=1,
        description="Generate this many groups in process; in serve, stop after this many training steps.",
    )
    wandb_name: str | None = Field(
        default=None, description="Name the run in metrics. Default: the environment's name."
    )
    num_rollouts_to_keep: int = Field(default=32, ge=0, description="Keep this many groups of rollouts for display.")
    num_rollouts_per_group_for_logging: int = Field(
        default=1, ge=-1, description="Display this many rollouts of each group; -1: all."
    )
    ensure_scores_are_not_same: bool = Field(default=True, description="Drop groups with equal scores in training.")
    data_path_to_save_groups: str | None = Field(
        default=None, description="Write groups to this JSONL file. Default: data/NAME.jsonl."
    )
    data_dir_to_save_evals: str | None = Field(
        default=None, description="Write metrics.json and samples.jsonl to this folder."
    )
    min_items_sent_before_logging: int = Field(default=2, ge=0, description="Log metrics once every this many groups.")
    include_messages: bool = Field(
        default=False, description="Post messages to Atropos' run-api too. Our own API and records always have them."
    )
    min_batch_allocation: float | None = Field(
        default=None, description="Give this environment at least this share of a batch, from 0 to 1."
    )
    worker_timeout: float = Field(
        default=600, gt=0, description="End a rollout after this many seconds; it has no score then."
    )
    thinking_mode: bool = Field(
        default=False,
        description="Ask chat endpoints for reasoning. With exact tokens, the reasoning stays in the history.",
    )
    reasoning_effort: Effort | None = Field(
        default=None, description="Ask chat endpoints for this reasoning effort; implies thinking_mode."
    )
    max_reasoning_tokens: int | None = Field(
        default=None,
        ge=1024,
        le=32000,
        description="Ask chat endpoints for at most this many tokens of reasoning, unless reasoning_effort is set.",
    )
    custom_thinking_prompt: str | None = Field(
        default=None, description="Put this text before the system prompt in thinking_mode."
    )

    @model_validator(mode="after")
    def _check_thinking_prompt(self) -> "BaseEnvConfig":
        thinks = self.thinking_mode or self.reasoning_effort or self.max_reasoning_tokens
        if self.custom_thinking_prompt and not thinks:
            raise ValueError("custom_thinking_prompt needs thinking_mode; set it, or use system_prompt instead")
        return self


class HermesAgentEnvConfig(BaseEnvConfig):
    """Adds the fields for an agent with tools. Subclass it to add your own."""

    help_layout: ClassVar[HelpLayout] = HelpLayout(
        headings={
            "Rollouts": (
                "group_size",
                "total_steps",
                "max_agent_turns",
                "max_tool_calls",
                "max_repeated_calls",
                "worker_timeout",
                "rollout_deadline",
                "rollout_retries",
                "item_sampler",
                "seed",
                "data_path_to_save_groups",
                "dataset_name",
                "dataset_split",
                "prompt_field",
            ),
            "Model": (
                "agent_temperature",
                "max_token_length",
                "max_context_tokens",
                "compaction",
                "system_prompt",
                "thinking_mode",
                "reasoning_effort",
                "max_reasoning_tokens",
                "custom_thinking_prompt",
                "extra_body",
                "tool_call_parser",
                "tool_prompt",
                "renderer",
                "tokenizer_name",
                "user_endpoint",
                "seat_endpoints",
            ),
            "Tools": (
                "enabled_toolsets",
                "disabled_toolsets",
                "distribution",
                "toolset_distributions",
                "tool_settings",
                "default_result_size_chars",
                "turn_budget_chars",
                "preview_size_chars",
                "tool_result_overrides",
                "terminal_timeout",
                "max_terminal_timeout",
                "tool_pool_size",
            ),
            "Sandboxes": (
                "terminal_backend",
                "sandbox_settings",
                "sandbox_image",
                "sandbox_memory_mb",
                "sandbox_cpus",
                "sandbox_processes",
                "sandbox_disk_mb",
                "sandbox_network",
                "sandbox_start_timeout",
                "terminal_lifetime",
                "max_live_sandboxes",
                "max_starting_sandboxes",
            ),
            "External agents": (
                "agent_command",
                "agent_env",
                "agent_setup",
                "agent_files",
                "agent_artifacts",
                "agent_packages",
                "agent_url",
                "agent_token",
                "gateway_host",
                "gateway_port",
                "gateway_url",
            ),
            "Rewards and groups": (
                "group_strategy",
                "tree_roots",
                "tree_turn",
                "tree_branches",
                "pass_score",
                "failing_score",
                "ensure_scores_are_not_same",
                "min_group_share",
                "max_sequence_tokens",
                "audit",
                "audit_share",
            ),
            "Evaluation": (
                "eval_size",
                "eval_samples",
                "eval_temperature",
                "steps_per_eval",
                "eval_handling",
                "eval_limit_ratio",
                "max_eval_workers",
                "evaluation_only",
                "data_dir_to_save_evals",
            ),
            "Work in parallel": (
                "max_num_workers",
                "max_num_workers_per_node",
                "concurrency",
                "engines_file",
                "shard",
                "shards",
            ),
            "Limits": ("token_limit", "spend_limit", "time_limit", "stop_timeout"),
            "Delivery to a trainer": (
                "rollout_server_url",
                "rollout_server_token",
                "batch_size",
                "max_batches_offpolicy",
                "inference_weight",
                "min_batch_allocation",
                "include_messages",
                "serve_dir",
            ),
            "Metrics": (
                "use_wandb",
                "wandb_name",
                "metric_sinks",
                "num_rollouts_to_keep",
                "num_rollouts_per_group_for_logging",
                "min_items_sent_before_logging",
            ),
        },
        common=(
            "group_size",
            "total_steps",
            "max_agent_turns",
            "item_sampler",
            "seed",
            "data_path_to_save_groups",
            "agent_temperature",
            "max_token_length",
            "enabled_toolsets",
            "terminal_backend",
            "eval_size",
            "eval_samples",
            "max_num_workers",
        ),
    )

    enabled_toolsets: list[Reference] | None = Field(
        default=None, description="Give the agent these toolsets. Default: the environment's default_toolsets."
    )
    disabled_toolsets: list[str] | None = Field(
        default=None, description="Remove these toolsets, or own tools of the environment."
    )
    distribution: str | None = Field(
        default=None, description="Sample the toolsets of each group from this distribution."
    )
    tool_settings: dict[str, dict[str, Any]] = Field(
        default_factory=dict, description="Set options of toolsets, by toolset: {web: {provider: bm25, corpus: FILE}}."
    )
    toolset_distributions: dict[str, dict[str, float]] = Field(
        default_factory=dict, description="Define distributions of your own: {mine: {terminal: 0.8, file: 0.5}}."
    )
    max_agent_turns: int = Field(default=30, ge=1, description="Call the model at most this many times per rollout.")
    max_tool_calls: int | None = Field(default=None, ge=1, description="Run at most this many tool calls per rollout.")
    max_repeated_calls: int | None = Field(
        default=8, ge=2, description="Stop a rollout after this many identical calls with identical results in a row."
    )
    rollout_deadline: float | None = Field(
        default=None,
        gt=0,
        description="Give the policy's own work this many seconds: its tools' time plus 0.02 s per token. "
        "Default: three quarters of worker_timeout.",
    )
    max_context_tokens: int | None = Field(
        default=None,
        ge=64,
        description="Use this context size of the model, in tokens. Default: what the endpoint reports.",
    )
    compaction: Literal["none", "drop_results"] = Field(
        default="none",
        description="Choose what happens when the context is full: end the rollout (none), or drop the oldest "
        "tool results.",
    )
    default_result_size_chars: int = Field(
        default=100_000, ge=100, description="Write a tool result to a file if it has more characters than this."
    )
    turn_budget_chars: int = Field(
        default=200_000,
        ge=100,
        description="Show the model at most this many characters of all tool results of a turn.",
    )
    preview_size_chars: int = Field(
        default=1_500, ge=50, description="Show this many characters of a result that is written to a file."
    )
    tool_result_overrides: dict[str, int] = Field(
        default_factory=dict, description="Set the maximum characters of a result by tool, in place of the default."
    )
    system_prompt: str | None = Field(default=None, description="Set the agent's system prompt.")
    agent_temperature: float = Field(
        default=1.0,
        ge=0,
        description="Sample rollouts at this temperature. An evaluation with one sample per item uses 0.",
    )
    terminal_backend: Reference = Field(
        default="auto",
        description="Run tools here: auto (bubblewrap, else docker), bubblewrap, docker, podman, ssh, "
        "singularity, modal, daytona, local (no isolation), or module:Class for your own.",
    )
    sandbox_settings: dict[Reference, dict[str, Any] | list[dict[str, Any]]] = Field(
        default_factory=dict,
        description="Set options by backend: {ssh: {host: HOST}}. A list uses several hosts at once.",
    )
    sandbox_image: str | None = Field(
        default=None,
        description="Use this sandbox image, unless sandbox_spec sets one: a name, a directory or a tar file.",
    )
    sandbox_memory_mb: int | None = Field(
        default=None,
        ge=16,
        description="Limit a sandbox to this many megabytes of memory. Default: 2048 where the backend can enforce it.",
    )
    sandbox_cpus: float | None = Field(
        default=None, gt=0, description="Limit a sandbox to this many CPUs. Default: all."
    )
    sandbox_processes: int | None = Field(
        default=None,
        ge=8,
        description="Limit a sandbox to this many processes. Default: 512 where the backend can enforce it.",
    )
    sandbox_disk_mb: int | None = Field(
        default=None,
        ge=1,
        description="Limit the workspace, and /tmp, to this many megabytes each. Default: 1024 where the "
        "backend can enforce it.",
    )
    sandbox_network: bool | None = Field(
        default=None,
        description="Give sandboxes access to the network. Default: off where the backend can turn it off.",
    )
    sandbox_start_timeout: float = Field(
        default=120.0, gt=0, description="Wait at most this many seconds for a sandbox to start."
    )
    terminal_timeout: int = Field(
        default=120, ge=1, description="End a command after this many seconds if its call sets no timeout."
    )
    max_terminal_timeout: int = Field(
        default=600, ge=1, description="Let a call set a timeout of at most this many seconds."
    )
    terminal_lifetime: int = Field(
        default=3600,
        ge=1,
        description="Close a sandbox after this many seconds without a command; its rollout fails. Set it "
        "above the longest wait for the model.",
    )
    dataset_name: str | None = Field(default=None, description="Load this dataset, in environments that load one.")
    dataset_split: str = Field(default="train", description="Load this split of the dataset.")
    prompt_field: str = Field(default="prompt", description="Take the prompt from this field of the dataset.")
    agent_command: str | list[str] | None = Field(
        default=None,
        description="Run this program in the sandbox as the agent: agent:NAME for a bundled one, a shell "
        "command, or a list of words. Placeholders: {prompt}, {prompt_file}, {messages_file}, "
        "{base_url}, {origin}, {key}, {model}, {context_tokens}.",
    )
    agent_env: dict[str, str] = Field(
        default_factory=dict, description="Set environment variables of that program, with the same placeholders."
    )
    agent_setup: str | None = Field(
        default=None,
        description="Install that program with this Bash script; it is baked into the image after the setup "
        "of sandbox_spec.",
    )
    agent_files: dict[str, str] = Field(
        default_factory=dict,
        description="Copy files for that program into the sandbox: {path in the sandbox: local path}.",
    )
    tool_pool_size: int = Field(
        default=128, ge=1, description="Run at most this many tool calls at once, over all rollouts."
    )
    agent_url: Annotated[str, AfterValidator(_web_address)] | None = Field(
        default=None,
        description="Run an agent that lives elsewhere, in place of agent_command: this URL is sent the task "
        "by POST, with the address of the model, and answers when the agent is done.",
    )
    agent_token: str | None = Field(
        default=None, description="Authenticate at agent_url with this bearer token: env:NAME or file:PATH."
    )
    gateway_host: str = Field(default="127.0.0.1", description="Listen on this address with the gateway for agent_url.")
    gateway_port: int = Field(
        default=0, ge=0, le=65_535, description="Listen on this port with the gateway for agent_url; 0: a free one."
    )
    gateway_url: Annotated[str, AfterValidator(_web_address)] | None = Field(
        default=None, description="Tell the agent of agent_url to reach the gateway here, if not at its own address."
    )
    agent_packages: list[str] = Field(
        default_factory=list,
        description="Install these Python packages for agent_command, as requirements: [openai]. They are "
        "installed on this machine once, with what they need, and mounted read-only; the "
        "command's python has them.",
    )
    agent_artifacts: list[str] = Field(
        default_factory=list,
        description="Keep these files and folders when an external agent has ended, so that rescore can score "
        "them again; [.] is the workspace.",
    )
    tool_call_parser: Reference = Field(
        default="hermes",
        description="Parse tool calls in the model's text as this format, for endpoints that do not parse them.",
    )
    tool_prompt: bool = Field(
        default=True,
        description="Describe the tools in the prompt, with exact tokens; false: your own prompt does.",
    )
    renderer: str = Field(
        default="auto",
        description="Turn conversations into exact tokens by: auto, template (the tokenizer's), or the name "
        "of a hand-written renderer (qwen3, glm-4.5, llama-3 …).",
    )
    extra_body: dict[str, Any] | None = Field(default=None, description="Add these fields to every model request.")
    concurrency: Literal["fixed", "auto"] = Field(
        default="fixed",
        description="Choose the number of rollouts in flight: fixed, or auto to follow the engines' 429s, "
        "latency and queues, up to max_num_workers and max_eval_workers if set.",
    )
    engines_file: str | None = Field(
        default=None,
        description="Read engine base_urls from this file, one per line, in place of the openai section. It "
        "is reread during the run, so engines can join and leave.",
    )
    max_live_sandboxes: int = Field(
        default=1024, ge=1, description="Keep at most this many sandboxes alive; further rollouts wait."
    )
    max_starting_sandboxes: int = Field(default=8, ge=1, description="Start at most this many sandboxes at once.")
    user_endpoint: APIServerConfig | None = Field(
        default=None, description="Ask this endpoint for the simulated user's messages, in environments that have one."
    )
    seat_endpoints: dict[str, APIServerConfig] = Field(
        default_factory=dict,
        description="Play these seats by other endpoints, in environments with several agents: {seat: "
        "{base_url: URL, …}}. Their rollouts are not trained on.",
    )
    rollout_retries: int = Field(
        default=1, ge=0, description="Retry a rollout this many times if it failed for a reason outside the model."
    )
    min_group_share: float = Field(
        default=0.75,
        gt=0,
        le=1,
        description="Train on a group only if at least this share of its rollouts has a score.",
    )
    max_sequence_tokens: int | None = Field(
        default=None, ge=1, description="Exclude rollouts with a sequence of more tokens from training."
    )
    pass_score: float = Field(default=1.0, description="Count a rollout as passed from this score on.")
    failing_score: float = Field(
        default=0.0,
        allow_inf_nan=False,
        description="Give this score if the reward cannot run on what the policy left. Set it to your lowest score.",
    )
    audit: Annotated[str, AfterValidator(_known_audit)] = Field(
        default="auto",
        description="Audit training rollouts by: auto (audit_reward of the environment, if it has one), signatures "
        "(of known cheats in the transcript), module:function, or off.",
    )
    audit_share: float = Field(
        default=0.125, ge=0, le=1, description="Audit this share of each group's rollouts, the best scored first."
    )
    group_strategy: Annotated[str, AfterValidator(GROUP_STRATEGIES.check)] = Field(
        default="flat",
        description="Make the rollouts of a training group independently (flat), or branch some from others at a "
        "later turn (tree); or module:Name.",
    )
    tree_roots: int = Field(
        default=2, ge=1, description="Begin this many rollouts of a tree group at the prompt; the others branch off."
    )
    tree_turn: Literal["uniform", "highest_entropy", "first_failed_call"] = Field(
        default="uniform",
        description="Branch at any turn (uniform), where the sampled tokens were least likely (highest_entropy), or "
        "where a tool call failed (first_failed_call).",
    )
    tree_branches: int = Field(
        default=2, ge=1, description="Make this many branches at a turn before the next turn of the same root."
    )
    item_sampler: Annotated[str, AfterValidator(SAMPLERS.check)] = Field(
        default="uniform",
        description="Draw training items this way: in_order, uniform, by_difficulty, or module:Class.",
    )
    shard: int = Field(default=0, ge=0, description="Take this shard of the item stream, counted from 0.")
    shards: int = Field(default=1, ge=1, description="Divide the item stream into this many shards.")
    token_limit: int | None = Field(default=None, ge=1, description="Start no new group after this many tokens.")
    spend_limit: float | None = Field(
        default=None,
        gt=0,
        description="Start no new group after spending this much, in the unit of the endpoint's prices.",
    )
    time_limit: float | None = Field(default=None, gt=0, description="Start no new group after this many seconds.")
    stop_timeout: float = Field(
        default=60.0,
        gt=0,
        description="Wait this many seconds for groups in flight when serve is stopped; unfinished ones are dropped.",
    )
    rollout_server_token: str | None = Field(
        default=None, description="Authenticate at the trajectory API with this token, in serve: env:NAME or file:PATH."
    )
    serve_dir: str | None = Field(
        default=None, description="Keep serve's spool, metrics and split in this folder. Default: the hermes-rl home."
    )
    evaluation_only: bool = Field(
        default=False, description="Run only evaluations as the policy changes, no training groups, in serve."
    )
    metric_sinks: list[Annotated[str, AfterValidator(SINKS.check)]] = Field(
        default_factory=list,
        description="Send metrics here in addition to local files: wandb, trackio, or module:Class.",
    )
    eval_size: int = Field(default=20, ge=1, description="Evaluate on this many items.")
    eval_samples: int = Field(
        default=1, ge=1, description="Make this many rollouts per evaluation item; with 1, at temperature 0."
    )
    eval_temperature: float | None = Field(
        default=None,
        ge=0,
        description="Evaluate at this temperature. Default: 0 for one sample per item, else agent_temperature.",
    )
    seed: int = Field(
        default=0, ge=0, description="Seed the order of items, the sampling of toolsets and the rollouts."
    )

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
    def _check_tree_settings(self) -> "HermesAgentEnvConfig":
        given = [name for name in ("tree_roots", "tree_turn", "tree_branches") if self._differs_from_default(name)]
        if given and self.group_strategy == "flat":
            raise ValueError(f"{given[0]} needs group_strategy tree")
        if self.group_strategy == "tree" and self.tree_roots >= self.group_size:
            raise ValueError(
                f"tree_roots {self.tree_roots} of group_size {self.group_size} leave no rollout to branch; "
                "make the group larger"
            )
        return self

    def _differs_from_default(self, name: str) -> bool:
        return bool(getattr(self, name) != type(self).model_fields[name].default)

    @model_validator(mode="after")
    def _check_agent_settings(self) -> "HermesAgentEnvConfig":
        if self.agent_command and self.agent_url:
            raise ValueError("agent_command and agent_url are mutually exclusive; set one of them")
        needs = {
            "agent_command": ("agent_env", "agent_setup", "agent_files", "agent_packages"),
            "agent_url": ("agent_token", "gateway_url", "gateway_port"),
        }
        for setting, fields in needs.items():
            given = [name for name in fields if getattr(self, name)]
            if given and not getattr(self, setting):
                raise ValueError(f"{given[0]} needs an external agent; set {setting}")
        if self.agent_artifacts and not self.external_agent:
            raise ValueError("agent_artifacts needs an external agent; set agent_command or agent_url")
        return self

    @property
    def external_agent(self) -> bool:
        """Whether a program or a service replaces our agent loop."""
        return bool(self.agent_command or self.agent_url)

    @model_validator(mode="after")
    def _check_shard(self) -> "HermesAgentEnvConfig":
        if self.shard >= self.shards:
            raise ValueError(f"shard counts from 0 and must be less than shards, got {self.shard} of {self.shards}")
        return self
