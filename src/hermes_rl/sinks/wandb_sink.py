"""The Weights & Biases sink: a separate run that logs only what it is given.

wandb would collect arguments, console output, git state, packages and machine data; any of them can contain a key, so
all of it is off. Without a key or a connection the run is stored offline, for `wandb sync`.
"""

import netrc
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal
from urllib.parse import urlsplit

from hermes_rl.sinks.worker import CLOSE_SECONDS, Row, SinkRun, error_line

if TYPE_CHECKING:
    from wandb import Run, Settings

PROJECT = "hermes-rl"
HOSTS = ("api.wandb.ai", "api.forge.coreweave.com")
OFFLINE = ("offline", "dryrun")
# Shorter than the worker's start timeout, to leave time for an offline start.
INIT_SECONDS = 15.0


class WandbSink:
    package: ClassVar[str] = "wandb"

    def __init__(self, run: SinkRun) -> None:
        self.ids, self.group, self.config, self.folder = run.ids, run.group, dict(run.config), run.folder
        self.environment = run.environment
        self._run: Run | None = None

    @property
    def run(self) -> "Run":
        if self._run is None:
            raise RuntimeError("wandb has not started")
        return self._run

    def start(self) -> str:
        offline = self.environment.get("WANDB_MODE", "").lower() in OFFLINE
        if offline or not wandb_is_set_up(self.environment):
            # wandb sends error reports even from offline runs; here offline means no network.
            self.environment.setdefault("WANDB_ERROR_REPORTING", "false")
        import wandb

        # Without a key wandb.init would prompt on the terminal. An open run of the author implies a key.
        offline = offline or (wandb.run is None and not wandb.login(prompt=False, verify=False))
        try:
            self._run = self._init("offline" if offline else None)
        except wandb.Error as error:
            self._run = self._init("offline")
            return f"could not start online ({error_line(error)}), so the run is offline; to upload it: {self._sync()}"
        if self.run.offline:
            return f"stores the run offline; to upload it: {self._sync()}"
        return f"logs to {self.run.url}"

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
            name=self.ids.name,
            id=None if given.get("WANDB_RUN_ID") else self.ids.id,
            resume="allow" if self.ids.id and not given.get("WANDB_RESUME") else None,
            project=None if given.get("WANDB_PROJECT") else PROJECT,
            group=None if given.get("WANDB_RUN_GROUP") else self.group,
            dir=None if given.get("WANDB_DIR") else self.folder,
            config=self.config,
            mode=mode,
            # Another environment in this process, or the author, may have an open run.
            reinit="create_new",
            settings=_settings(),
        )

    def _sync(self) -> str:
        return f"wandb sync {Path(self.run.dir).parent}"


def wandb_is_set_up(environment: Mapping[str, str]) -> bool:
    """Whether wandb is configured: a mode or a key is set. Does not import wandb."""
    if mode := environment.get("WANDB_MODE"):
        return mode.lower() != "disabled"
    if environment.get("WANDB_API_KEY") or environment.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    files = [environment["NETRC"]] if environment.get("NETRC") else ["~/.netrc", "~/_netrc"]
    hosts = {*HOSTS, urlsplit(environment.get("WANDB_BASE_URL", "")).netloc}
    return any(not hosts.isdisjoint(_netrc_hosts(Path(file).expanduser())) for file in files)


def _netrc_hosts(path: Path) -> Sequence[str]:
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
