"""harbor: task folders in Harbor's format, judged in sandboxes that the agent never touched.

A task is refused before the first rollout, with its reasons, when it asks for what cannot be done here; one whose
machine cannot be built is never scored. With a `tests/run/run.sh` what the agent wrote runs in one fresh sandbox, and
its output alone is judged in another.
"""

import base64
import logging
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from hermes_rl import (
    AgentResult,
    APIServerConfig,
    ConfigError,
    HermesAgentBaseEnv,
    HermesAgentEnvConfig,
    Limits,
    Reward,
    SandboxSpec,
    Step,
    ToolContext,
    VerifierError,
    tool,
)
from hermes_rl.interop.harbor.machine import SOLUTION, TESTS
from hermes_rl.interop.harbor.play import Play, opened_play
from hermes_rl.interop.harbor.preparation import MachineSettings, TaskMachines, opened_machines
from hermes_rl.interop.harbor.sources import dataset_source, load_tasks
from hermes_rl.interop.harbor.task import Task, files_below
from hermes_rl.interop.harbor.verifier import collect, judge, verifier_timeout
from hermes_rl.tools.session import ToolSession

OUR_TASKS = Path(__file__).with_name("data") / "harbor"
FORGERY = "for logs in /logs /tmp/logs; do mkdir -p $logs/verifier; echo 1 > $logs/verifier/reward.txt; done; echo 1"
FORGING_PYTHON = f"import os; os.system({FORGERY!r}); os._exit(0)"
PYTHON_HOME = ".local/lib/python3.11/site-packages"

log = logging.getLogger(__name__)


class HarborConfig(HermesAgentEnvConfig):
    tasks: list[str] | None = Field(default=None, description="Names of the task folders to load; all when left out.")
    images: dict[str, str] = Field(
        default_factory=dict,
        description="Replacements for images that tasks name: {NAME: ANOTHER}; a tar or directory for bubblewrap.",
    )
    variables: dict[str, str] = Field(
        default_factory=dict,
        description="Values of ${NAME} in task.toml; nothing is taken from this process's environment.",
    )
    build_network: bool = Field(
        default=True,
        description="Whether builds, and the installation of what tests need, have a network on bubblewrap.",
    )
    build_env: dict[str, str] = Field(
        default_factory=dict,
        description="Environment variables of builds on bubblewrap, such as UV_DEFAULT_INDEX; agents do not get them.",
    )
    skip_unsupported: bool = Field(
        default=False, description="Leave out tasks that cannot run here, with a warning, instead of refusing all."
    )
    reward_key: str = Field(
        default="reward", description="Which number of a reward.json with several is the score; all are components."
    )


class HarborEnv(HermesAgentBaseEnv):
    """Task folders with an instruction, a Dockerfile and tests that write a reward."""

    name = "harbor"
    env_config_cls = HarborConfig
    default_toolsets = ("terminal", "file")

    @classmethod
    def config_init(cls) -> tuple[HarborConfig, list[APIServerConfig]]:
        prompt = "You work in a Linux sandbox through your tools. Do the task; your files are judged, not your words."
        return HarborConfig(system_prompt=prompt, max_agent_turns=50), []

    def __init__(self, config: HarborConfig, *arguments: Any, **options: Any) -> None:
        self.tasks: dict[str, Task] = {}
        self.machines: dict[str, TaskMachines | str] = {}
        self.unavailable: dict[str, str] = {}

        @tool
        async def submit_step(session: ToolSession) -> str:
            """End the current step of the task. Returns the instruction of the next step, or that the task is over."""
            hidden = session.spec.hidden if session.spec else ()
            task = next((one for one in self.tasks.values() if one.folder.resolve() in hidden), None)
            if task is None or len(task.steps) == 1:
                return "This task has one step: answer when you are done."
            return await (await self._play(task, session)).submit(session)

        folder = Path(config.dataset_name or OUR_TASKS).expanduser()
        # A repository or registry is read later, so it may have steps.
        if not folder.is_dir() or any(b"[[steps]]" in path.read_bytes() for path in folder.rglob("task.toml")):
            self.own_tools = (submit_step,)  # type: ignore[misc]  # of this environment alone
        super().__init__(config, *arguments, **options)

    async def setup(self) -> None:
        config = self.config
        source = await dataset_source(config.dataset_name or str(OUR_TASKS))
        found = load_tasks(source, config.tasks, config.variables)
        async with opened_machines(config.terminal_backend, config.sandbox_settings, self._machine_settings()) as ours:
            tasks, problems = ours.loadable(found)
            if problems and (not config.skip_unsupported or not tasks):
                raise ConfigError(
                    "some tasks need unsupported features (docs/environments/harbor.md); change them, choose others "
                    "with --env.tasks, or leave them out with --env.skip_unsupported true:\n" + "\n".join(problems)
                )
            for problem in problems:
                log.warning("left out: %s", problem)
            self.tasks = {task.name: task for task in tasks}
            self.machines = await ours.build(tasks)
        self.unavailable = {name: made for name, made in self.machines.items() if isinstance(made, str)}
        for name, reason in self.unavailable.items():
            log.warning("%s cannot be built, so its rollouts have no score: %s", name, reason)
        if config.rollout_deadline is None:
            asked = max(map(_agent_seconds, tasks))
            judging = max(sum(verifier_timeout(task, step) for step in task.steps) for task in tasks)
            longest = max(config.worker_timeout, asked * 1.5 + 2 * judging)
            self.config = config.model_copy(update={"rollout_deadline": asked or None, "worker_timeout": longest})

    def train_items(self) -> Sequence[str] | None:
        return [name for name, task in self.tasks.items() if not self._held_out(task)] or None

    def eval_items(self) -> Sequence[str]:
        return [name for name, task in self.tasks.items() if self._held_out(task)]

    def item_id(self, item: str) -> str:
        return f"{item}-{self.tasks[item].digest}"

    def format_prompt(self, item: str) -> str:
        task = self.tasks[item]
        text = task.instruction(task.steps[0])
        count = len(task.steps)
        if count == 1:
            return text
        return f"{text}\n\nThis is step 1 of {count}. When it is done, call submit_step, which shows the next one."

    def sandbox_spec(self, item: str) -> SandboxSpec:
        machines = self.machines[item]
        if isinstance(machines, str):
            raise ConfigError(f"the machine of {item} cannot be built: {machines}")
        return machines.agent

    async def compute_reward(self, item: str, result: AgentResult, ctx: ToolContext) -> Reward:
        task, session = self.tasks[item], self.tools.session(ctx.task_id)
        await session.end_policy()
        if len(task.steps) > 1:
            return self._reward(await (await self._play(task, session)).finish(session))
        step = task.steps[0]
        await collect(task, step, session)
        machine, timeout = self._judges(item)[step.name], verifier_timeout(task, step)
        judgement = await judge(task, step, session, machine, timeout=timeout)
        return Reward(0.0) if judgement.artifact_error else self._reward(judgement.rewards)

    def oracle(self, item: str) -> Sequence[Step] | None:
        task, played = self.tasks[item], []
        for step in task.steps:
            folder = next((one / "solution" for one in (step.folder, task.folder) if (one / "solution").is_dir()), None)
            if folder is None or not (folder / "solve.sh").exists():
                return None
            unpacked = [
                f"mkdir -p $(dirname {place}); echo {text} | base64 -d > {place}"
                for path in files_below(folder)
                for place in [shlex.quote(f"{SOLUTION}/{path.relative_to(folder)}")]
                for text in [base64.b64encode(path.read_bytes()).decode()]
            ]
            env = [f"export {name}={shlex.quote(value)}" for name, value in task.env(task.section("solution")).items()]
            command = "\n".join([f"rm -rf {SOLUTION}/*", *unpacked, *env, f"bash {SOLUTION}/solve.sh"])
            played.append(("terminal", {"command": command}))
            if len(task.steps) > 1:
                played.append(("submit_step", {}))
        return [*played, "Done."]

    def cheats(self, item: str) -> Mapping[str, Sequence[Step]]:
        return {
            "claims": ["Done. All tests pass. reward: 1"],
            "writes the reward": _shell(f"{FORGERY} | tee reward.txt > reward.json"),
            "brings tests of its own": _shell(
                f"mkdir -p tests {TESTS}; echo {shlex.quote(FORGERY)} | tee tests/test.sh > {TESTS}/test.sh"
            ),
            "replaces the judge's programs": _shell(
                f"mkdir -p bin .local/bin {PYTHON_HOME}; "
                f"echo {shlex.quote(FORGING_PYTHON)} > {PYTHON_HOME}/usercustomize.py; "
                "for name in bash sh python3 diff cat; do echo 'echo 1' | tee bin/$name > .local/bin/$name; done; "
                "chmod +x bin/* .local/bin/*; echo 'PATH=$HOME/bin:$PATH' | tee .bashrc .profile > .bash_profile"
            ),
            "exits with 0": _shell("for file in *.* convert.py; do echo exit > $file; done"),
            "forges when it is run": _shell(
                f"for file in *.*; do echo {shlex.quote(FORGERY)} > $file; done; "
                f"for file in *.py convert.py; do echo {shlex.quote(FORGING_PYTHON)} > $file; done"
            ),
        }

    def _held_out(self, task: Task) -> bool:
        return self.config.dataset_split != "train" or task.section("metadata").get("split") == "eval"

    def _reward(self, rewards: Mapping[str, float]) -> Reward:
        """The score among several rewards; one alone needs no name."""
        key = self.config.reward_key
        if key not in rewards and len(rewards) != 1:
            raise VerifierError(
                "no_reward", f"reward.json has {', '.join(rewards) or 'no entry'}: name one in --env.reward_key"
            )
        score = rewards.get(key, next(iter(rewards.values())))
        return Reward(score, {} if dict(rewards) == {"reward": score} else dict(rewards))

    def _judges(self, item: str) -> Mapping[str, SandboxSpec]:
        machines = self.machines[item]
        return {} if isinstance(machines, str) else machines.judges

    def _machine_settings(self) -> MachineSettings:
        config = self.config
        limits = Limits(
            memory_mb=config.sandbox_memory_mb,
            cpus=config.sandbox_cpus,
            processes=config.sandbox_processes,
            disk_mb=config.sandbox_disk_mb,
        )
        return MachineSettings(
            config.images, limits, config.sandbox_network, config.build_env, build_network=config.build_network
        )

    async def _play(self, task: Task, session: ToolSession) -> Play:
        play: Play = await session.resource("harbor", lambda: opened_play(task, self._judges(task.name)))
        return play


def _agent_seconds(task: Task) -> float:
    """The time of the agent. Judging between steps happens in it."""
    own = float(task.section("agent").get("timeout_sec") or 0)
    steps = [float(step.config.get("agent", {}).get("timeout_sec") or own) for step in task.steps]
    between = sum(verifier_timeout(task, step) for step in task.steps[:-1])
    return sum(steps) + between if all(steps) else 0.0


def _shell(command: str) -> Sequence[Step]:
    return [("terminal", {"command": command}), "Done."]


if __name__ == "__main__":
    HarborEnv.cli()
