"""A run as it is started: every value of every part, in one YAML file that a person can read.

Always true: it holds no secret and no address of a process, so the same file starts the run again tomorrow.
"""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hermes_rl.errors import ConfigError


class EnvironmentEntry(BaseModel):
    """One environment of the run. `reference` is what `hermes-rl serve` takes; `env` and `openai` its sections."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    id: str = ""
    """The versioned id that discovery gave it."""
    reference: str
    registers_as: str = ""
    """What it calls itself to the trajectory API, where that is not `name`."""
    weight: float = Field(1.0, gt=0)
    evaluation_only: bool = False
    env: dict[str, Any] = Field(default_factory=dict)
    openai: dict[str, Any] = Field(default_factory=dict)


class EngineEntry(BaseModel):
    """A self-hosted engine, started with the run: the options of `hermes-rl engine start`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str = Field(description="Folder of the model, or a hub's name; a run takes the trainer's base_model.")
    environment: str | None = Field(
        None, description="A Python environment with SkyRL in it; one is made if none is named."
    )
    rank: int = Field(32, ge=1, description="The largest LoRA rank that can be trained.")
    adapters: int = Field(8, ge=4, description="Sets of LoRA weights in memory.")
    micro_batch: int = Field(8, ge=0, description="Sequences of one pass; 0 for a whole batch at once.")
    samples: int = Field(8, ge=0, description="Sequences sampled at once; 0 for as many as there are.")


class ReplicasEntry(BaseModel):
    """From how many places each environment that is trained on is served, and where: docs/many-machines.md."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    count: int = Field(ge=1, description="Places at once; `hermes-rl replicas resize RUN N` changes it while it runs.")
    shards: int | None = Field(None, ge=1, description="Parts of the items; as many as places when left out.")
    on: Literal["here", "ray"] = Field("here", description="This machine, or a Ray cluster.")
    ray_address: str | None = Field(None, description="The cluster; the one that runs on this machine when left out.")
    cpus: float = Field(1.0, ge=0, description="What each takes of its node.")


class RunFile(BaseModel):
    """`tinker` is the trainer's section; with no `engine` it goes to the `base_url` in it, else to hosted Tinker."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    run_id: str
    name: str
    preset: str
    created_at: str = Field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    environments: tuple[EnvironmentEntry, ...] = Field(min_length=1)
    tinker: dict[str, Any] = Field(default_factory=dict)
    engine: EngineEntry | None = None
    keys: tuple[str, ...] = ()
    """Names of the keys that its parts are given as variables, where they are set."""
    trace: str | None = None
    """The collector that its parts send their traces to."""
    replicas: ReplicasEntry | None = None
    reach: str | None = None
    """This machine's address as others reach it: there the API and inference listen then, for who has the run's key."""

    def part_of(self, environment: EnvironmentEntry) -> str:
        """The name of an environment's part: env, or env-NAME where there are several."""
        return "env" if len(self.environments) == 1 else f"env-{environment.name}"

    def fleet_of(self, environment: EnvironmentEntry) -> str:
        """What `hermes-rl replicas` calls the replicas of an environment: the run's id, where there is but one."""
        return self.run_id if len(self.environments) == 1 else f"{self.run_id}-{environment.name}"

    def as_yaml(self) -> str:
        return yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False, allow_unicode=True)

    def write(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = path.with_name(f"{path.name}.part")
        aside.write_text(self.as_yaml())
        aside.replace(path)


def read_run_file(path: Path) -> RunFile:
    """ConfigError that names the file, and the field at fault."""
    try:
        return RunFile.model_validate(yaml.safe_load(path.read_text()))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not valid YAML: {error}") from None
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors())
        raise ConfigError(f"{path} describes no run: {problems}") from None
