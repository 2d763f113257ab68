"""Weights & Biases as a sink: a run of its own, which sends what it is given and collects nothing by itself.

wandb looks at arguments, console, git, packages and the machine if it is let; a key can stand in any of them, so it is
not. Without a key, or without a connection, the run is kept offline for `wandb sync`.
"""

import netrc
from collections.abc import Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal
from urllib.parse import urlsplit

from hermes_rl.sinks.identity import Identity
from hermes_rl.sinks.worker import CLOSE_SECONDS, Row, short

if TYPE_CHECKING:
    from wandb import Run, Settings

PROJECT = "hermes-rl"
HOSTS = ("api.wandb.ai", "api.forge.coreweave.com")
OFFLINE = ("offline", "dryrun")
# Shorter than what the worker waits for, so that there is time left to begin offline.
INIT_SECONDS = 15.0


class WandbSink:
    package: ClassVar[str] = "wandb"

    def __init__(
        self,
        known: Identity,
        group: str,
        config: Mapping[str, Any],
        folder: Path,
        environment: MutableMapping[str, str],
    ) -> None:
        self.known, self.group, self.config, self.folder = known, group, dict(config), folder
        self.environment = environment
        self._run: Run | None = None

    @property
    def run(self) -> "Run":
        if self._run is None:
            raise RuntimeError("wandb has not started")
        return self._run

    def start(self) -> str:
        offline = self.environment.get("WANDB_MODE", "").lower() in OFFLINE
        if offline or not wandb_is_set_up(self.environment):
            # wandb reports on itself from offline runs too; here offline means no network.
            self.environment.setdefault("WANDB_ERROR_REPORTING", "false")
        import wandb

        # Without a key wandb.init would ask on the terminal. Where a run of the author's is open, there is one.
        offline = offline or (wandb.run is None and not wandb.login(prompt=False, verify=False))
        try:
            self._run = self._init("offline" if offline else None)
        except wandb.Error as error:
            self._run = self._init("offline")
            return f"could not begin online ({short(error)}) and keeps the run offline; to upload it: {self._sync()}"
        if self.run.offline:
            return f"keeps the run offline; to upload it: {self._sync()}"
        return f"shows the run at {self.run.url}"

    def next_step(self) -> int:
        return self.run.step

    def log(self, metrics: Mapping[str, Any], step: int) -> None:
        self.run.log(dict(metrics), step=step)

    def rollouts(self, rows: Sequence[Row], step: int) -> None:
        import wandb

        table = wandb.Table(columns=["text", "score"], data=[list(row) for row in rows])
        self.run.log({"train/rollouts": table}, step=step)

    def finish(self, *, failed: bool) -> None:
        self.run.finish(exit_code=int(failed))

    def _init(self, mode: Literal["offline"] | None) -> "Run":
        import wandb

        given = self.environment
        return wandb.init(
            name=self.known.name,
            id=None if given.get("WANDB_RUN_ID") else self.known.id,
            resume="allow" if self.known.id and not given.get("WANDB_RESUME") else None,
            project=None if given.get("WANDB_PROJECT") else PROJECT,
            group=None if given.get("WANDB_RUN_GROUP") else self.group,
            dir=None if given.get("WANDB_DIR") else self.folder,
            config=self.config,
            mode=mode,
            # Another environment in this process, or the author, has runs of their own.
            reinit="create_new",
            settings=_settings(),
        )

    def _sync(self) -> str:
        return f"wandb sync {Path(self.run.dir).parent}"


def wandb_is_set_up(environment: Mapping[str, str]) -> bool:
    """Whether somebody uses wandb here: a mode is set, or a key is there. Found out without importing it."""
    if mode := environment.get("WANDB_MODE"):
        return mode.lower() != "disabled"
    if environment.get("WANDB_API_KEY") or environment.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    places = [environment["NETRC"]] if environment.get("NETRC") else ["~/.netrc", "~/_netrc"]
    hosts = {*HOSTS, urlsplit(environment.get("WANDB_BASE_URL", "")).netloc}
    return any(not hosts.isdisjoint(_machines(Path(place).expanduser())) for place in places)


def _machines(path: Path) -> Sequence[str]:
    try:
        return list(netrc.netrc(path).hosts)
    except (OSError, netrc.NetrcParseError, UnicodeError):
        return ()


def _settings() -> "Settings":
    import wandb

    return wandb.Settings(
        console="off",
        disable_code=True,
        disable_git=True,
        disable_job_creation=True,
        finish_timeout=CLOSE_SECONDS - 5,
        init_timeout=INIT_SECONDS,
        save_code=False,
        silent=True,
        x_disable_machine_info=True,
        x_disable_meta=True,
        x_disable_stats=True,
        x_save_requirements=False,
    )
