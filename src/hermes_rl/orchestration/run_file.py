"""The run file: every value of every part of a run, in one readable YAML file. The parts read it when they start.

Always true: it contains no secret and no process address, so the same file can start the run again.
"""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hermes_rl.console.config_options import ConfigSections, read_sections
from hermes_rl.core import yaml_text
from hermes_rl.core.errors import ConfigError
from hermes_rl.core.private_files import private_folder, write_private
from hermes_rl.core.validation import problem_text
from hermes_rl.orchestration.run_paths import RunPaths
from hermes_rl.rollout.config import ENDLESS

# The components' token for each other when they listen on a reachable address.
RUN_KEY = "HERMES_RL_RUN_TOKEN"
RUN_TOKEN = f"env:{RUN_KEY}"


class EnvironmentEntry(BaseModel):
    """One environment of the run. `reference` is what `hermes-rl serve` takes; `env` and `openai` its sections."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    id: str = ""
    """The versioned id from discovery."""
    reference: str
    registers_as: str = ""
    """Its name in the trajectory API, where that is not `name`."""
    weight: float = Field(default=1.0, gt=0)
    evaluation_only: bool = False
    env: dict[str, Any] = Field(default_factory=dict)
    openai: dict[str, Any] = Field(default_factory=dict)


class EngineEntry(BaseModel):
    """A self-hosted engine started with the run, with the options of `hermes-rl engine start`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str = Field(description="Model folder or hub name; a run uses the trainer's base_model.")
    environment: str | None = Field(default=None, description="Python environment with SkyRL; created if not given.")
    rank: int = Field(default=32, ge=1, description="Maximum LoRA rank.")
    adapters: int | None = Field(
        default=None, ge=4, description="LoRA adapters held in memory; 8, or fewer when memory is short."
    )
    micro_batch: int = Field(default=8, ge=0, description="Sequences per forward pass; 0 for the whole batch.")
    samples: int = Field(default=8, ge=0, description="Sequences sampled at once; 0 for no limit.")
    max_length: int | None = Field(default=None, ge=1, description="Longest sequence, in tokens; default: no limit.")
    tensor_parallel: int = Field(default=1, ge=1, description="Devices that split every layer.")
    fsdp: int = Field(default=1, ge=1, description="Devices that share weights and batches.")
    gradient_checkpointing: bool = Field(default=False, description="Recompute layers to save memory.")
    cuda: bool = Field(default=False, description="Compute on NVIDIA GPUs; untested.")


class ReplicasEntry(BaseModel):
    """Replicas of each environment that is trained on: how many, and where. See docs/many-machines.md."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    count: int = Field(ge=1, description="Number of replicas; `hermes-rl replicas resize RUN N` changes it.")
    shards: int | None = Field(
        default=None, ge=1, description="Number of item shards; defaults to the number of replicas."
    )
    on: Literal["here", "ray"] = Field(default="here", description="This machine, or a Ray cluster.")
    ray_address: str | None = Field(
        default=None, description="Ray cluster address; defaults to the one on this machine."
    )
    cpus: float = Field(default=1.0, ge=0, description="CPUs per replica.")


class RunFile(BaseModel):
    """`tinker` is the trainer's section. Without `engine` the trainer uses its `base_url`, else hosted Tinker."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    run_id: str
    name: str
    preset: str
    created_at: str = Field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    environments: tuple[EnvironmentEntry, ...] = Field(min_length=1)
    tinker: dict[str, Any] = Field(default_factory=dict)
    engine: EngineEntry | None = None
    keys: tuple[str, ...] = ()
    """Names of the keys that its parts get as environment variables, where they are set."""
    trace: str | None = None
    """Trace collector of all parts."""
    replicas: ReplicasEntry | None = None
    held_out_items: int = Field(default=0, ge=0)
    """Held-out items of each environment that is trained on, evaluated before the first step and after the last one, at
    temperature 0 and at 1; 0 for no evaluation."""
    reach: str | None = None
    """Address on which the API and inference listen for other machines; they require the run's key."""
    max_minutes: float | None = Field(default=None, gt=0)
    """It stops with a checkpoint after this time, counted from each start."""

    def part_of(self, environment: EnvironmentEntry) -> str:
        """The part name of an environment: env, or env-NAME when there are several."""
        return "env" if len(self.environments) == 1 else f"env-{environment.name}"

    def fleet_of(self, environment: EnvironmentEntry) -> str:
        """The name of an environment's replicas in `hermes-rl replicas`: the run id when there is one environment."""
        return self.run_id if len(self.environments) == 1 else f"{self.run_id}-{environment.name}"

    @property
    def trained_on(self) -> list[EnvironmentEntry]:
        return [entry for entry in self.environments if not entry.evaluation_only]

    def as_yaml(self) -> str:
        return yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False, allow_unicode=True)

    def write(self, path: Path) -> None:
        private_folder(path.parent)
        temporary = path.with_name(f"{path.name}.part")
        write_private(temporary, self.as_yaml().encode())
        temporary.replace(path)


def part_sections(run_file: RunFile, part: str) -> dict[str, dict[str, Any]]:
    """The settings of one component by section: its values in the run file, its folder, its address and its token."""
    if part == "trainer":
        tinker = dict(run_file.tinker)
        if run_file.reach:
            tinker["host"] = run_file.reach
            tinker["inference_token"] = tinker["rollout_server_token"] = RUN_TOKEN
        return {"tinker": tinker}
    for entry in run_file.environments:
        if run_file.part_of(entry) == part:
            # The trainer counts the steps of a run; its environments serve until they are stopped.
            serving = {"serve_dir": str(RunPaths(run_file.run_id).serving(part)), "total_steps": ENDLESS}
            env = {**entry.env, **serving}
            openai = dict(entry.openai)
            if run_file.reach:
                env["rollout_server_token"] = openai["api_key"] = RUN_TOKEN
            return {"env": env, "openai": openai}
    raise ConfigError(f"run {run_file.run_id} has no component {part!r} with settings")


def read_part(file: Path | None, part: str | None) -> ConfigSections:
    """The sections that a command gets with --config, or with --config and --part from a run file."""
    if part is None:
        return read_sections(file)
    if file is None:
        raise ConfigError("--part needs --config with the run.yaml of a run")
    return ConfigSections(part_sections(read_run_file(file), part), str(file))


def read_run_file(path: Path) -> RunFile:
    """Read a run file; ConfigError names the file and the invalid field."""
    try:
        return RunFile.model_validate(yaml_text.loads(path.read_bytes()))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    except yaml_text.BadYamlError as error:
        raise ConfigError(f"{path} is not valid YAML: {error}") from None
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, item['loc']))}: {problem_text(item)}" for item in error.errors())
        raise ConfigError(f"{path} is not a valid run file: {problems}") from None
