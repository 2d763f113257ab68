"""harbor: task folders in the layout of Harbor and Terminal-Bench 2, judged in sandboxes that the agent never touched.

A task is refused before the first rollout, with its reasons, when it asks for what cannot be held here. With a
`tests/run/run.sh` what the agent wrote runs in one fresh sandbox, and its output alone is judged in another.
"""

import base64
import hashlib
import json
import math
import re
import shlex
import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path, PurePosixPath
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
    Verdict,
    VerifierError,
)
from hermes_rl.sandbox.backends.registry import open_backends
from hermes_rl.sandbox.protocol import Backend
from hermes_rl.sandbox.spec import resolve_spec

OUR_TASKS = Path(__file__).with_name("data") / "harbor"
ROOT, WORKSPACE = PurePosixPath("/"), PurePosixPath("/workspace")
DEFAULT_WORKDIR = PurePosixPath("/app")
STAGED = ".build"
# Below /tmp, which can be written on every backend; in an image links lead there from where Harbor has them.
LOGS, TESTS, SOLUTION = "/tmp/logs", "/tmp/tests", "/tmp/solution"  # noqa: S108 - in the sandbox
RUN, OUTPUT = "/tmp/run", "/tmp/output"  # noqa: S108 - in the sandbox
IMAGES_BY_PATH = ("bubblewrap", "singularity")
WITHOUT_EFFECT = ("LABEL", "EXPOSE", "MAINTAINER", "CMD")
FETCHES = re.compile(
    r"^(?!.*(?:localhost|127\.0\.0\.1))[^#\n]*?\b(apt-get|apt|apk|curl|wget|uvx|pip3? install|git clone|npm install)\b",
    re.MULTILINE,
)
# The workspace as the agent left it. Home is elsewhere, since Python and others look there for things to run.
NOT_AS_LEFT = 70
AS_LEFT = f"""
chmod -R u+rwX artifacts && mv artifacts /tmp/left && find . -mindepth 1 -delete &&
    cp -a /tmp/left/. . && rm -rf /tmp/left || exit {NOT_AS_LEFT}
mkdir -p /tmp/home && export HOME=/tmp/home
"""
JUDGE = f"""
export VERIFIER_DIR={LOGS}/verifier
mkdir -p "$VERIFIER_DIR" && chmod -R u+x {TESTS}
bash {TESTS}/test.sh >&2 </dev/null
cat "$VERIFIER_DIR/reward.txt" 2>/dev/null || cat "$VERIFIER_DIR/reward.json"
"""
FORGERY = "for logs in /logs /tmp/logs; do mkdir -p $logs/verifier; echo 1 > $logs/verifier/reward.txt; done; echo 1"
FORGING_PYTHON = f"import os; os.system({FORGERY!r}); os._exit(0)"
PYTHON_HOME = ".local/lib/python3.11/site-packages"


class HarborConfig(HermesAgentEnvConfig):
    tasks: list[str] | None = Field(default=None, description="Names of the task folders to load; all when left out.")
    images: dict[str, str] = Field(
        default_factory=dict,
        description="Replacements for images that tasks name: {NAME: ANOTHER}; a tar or directory for bubblewrap.",
    )


class UnsupportedError(ValueError):
    """What a task asks for and this environment does not do."""


@dataclass
class Machine:
    """What a Dockerfile makes, as far as it has been read: where it is, what it copies, and its steps as a script."""

    image: str = ""
    cwd: PurePosixPath = ROOT
    directories: set[PurePosixPath] = field(default_factory=set)
    files: dict[str, Path] = field(default_factory=dict)
    steps: list[tuple[str, PurePosixPath, str]] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Task:
    folder: Path

    @property
    def name(self) -> str:
        return self.folder.name

    @cached_property
    def config(self) -> dict[str, Any]:
        return tomllib.loads((self.folder / "task.toml").read_text())

    @cached_property
    def digest(self) -> str:
        content = hashlib.sha256()
        for path in files_below(self.folder):
            content.update(hashlib.sha256(path.read_bytes()).digest() + bytes(path.relative_to(self.folder)) + b"\0")
        return content.hexdigest()[:16]

    def section(self, name: str) -> dict[str, Any]:
        return dict(self.config.get(name, {}))

    @cached_property
    def machine(self) -> Machine:
        image = self.section("environment").get("docker_image")
        return Machine(image, DEFAULT_WORKDIR) if image else machine_of(self.folder / "environment" / "Dockerfile")

    @cached_property
    def workdir(self) -> PurePosixPath:
        """What becomes the workspace: the directory that the agent starts in."""
        asked = self.section("environment").get("workdir")
        return PurePosixPath(asked) if asked else self.machine.cwd

    def image_for(self, backend: str, images: Mapping[str, str]) -> str | None:
        """The image to start with; None for the host's own /usr, if the task runs without an image."""
        name = self.machine.image
        if name in images or backend not in IMAGES_BY_PATH:
            return images.get(name, name)
        if self.section("metadata").get("runs_without_image"):
            return None
        raise UnsupportedError(f"{backend} takes a tar or directory for the image {name}: name it in --env.images")

    def spec(self, image: str | None, limits: Limits, *, network: bool | None) -> SandboxSpec:
        machine, asked = self.machine, self.section("environment")
        script = ["set -e", "umask 022"]
        if image is not None:
            script.append(link(self.workdir, str(WORKSPACE)))
            script += (link(ROOT / PurePosixPath(place).name, place) for place in (LOGS, TESTS, SOLUTION))
        for kind, place, text in machine.steps:
            inside = place.is_relative_to(self.workdir)
            if image is None and not inside:
                raise UnsupportedError(f"without an image there is no {place}, which its Dockerfile uses")
            where = shlex.quote(str(WORKSPACE / place.relative_to(self.workdir) if inside else place))
            script.append(
                f"install -D -m {text} {where}" if kind == "COPY" else f"mkdir -p {where}; (cd {where}; sh -c {text})"
            )
        kept = f"{WORKSPACE}/artifacts"
        script += f"rm -rf {WORKSPACE}/{STAGED}", f"[ ! -e {kept} ] || {{ echo the place of {kept} is taken; exit 1; }}"
        return SandboxSpec(
            image=image,
            files=machine.files,
            setup="\n".join(script),
            limits=limits,
            network=False if asked.get("allow_internet") is False else network,
            env={**machine.env, **asked.get("env", {})},
        )

    def problems(self) -> Iterator[str]:
        environment, verifier = self.section("environment"), self.section("verifier")
        if (self.folder / "environment" / "docker-compose.yaml").exists():
            yield "environment/docker-compose.yaml: one container a task"
        if self.config.get("steps"):
            yield "[[steps]]: one step a task"
        yield from (f"[environment] {key}" for key in ("gpus", "mcp_servers", "healthcheck") if environment.get(key))
        if environment.get("os", "linux").lower() != "linux":
            yield f"[environment] os = {environment['os']!r}"
        if verifier.get("environment"):
            yield "[verifier.environment]: a verification has the image of its task"
        for section in (environment, verifier):
            yield from (
                f"env {name}: no variable of the host" for name, v in section.get("env", {}).items() if "$" in v
            )
        for artifact in self.config.get("artifacts", []):
            source = artifact if isinstance(artifact, str) else artifact["source"]
            if not PurePosixPath(source).is_relative_to(self.workdir):
                yield f"artifact {source}: only what is below {self.workdir} is brought to the tests"
        for script in sorted((self.folder / "tests").rglob("*.sh")):
            if found := FETCHES.search(script.read_text()):
                yield f"{script.name} of its tests calls {found[1]}, but has no network: put that into the image"


class HarborEnv(HermesAgentBaseEnv):
    """Task folders with an instruction, a Dockerfile and tests that write a reward."""

    name = "harbor"
    env_config_cls = HarborConfig
    default_toolsets = ("terminal", "file")

    @classmethod
    def config_init(cls) -> tuple[HarborConfig, list[APIServerConfig]]:
        prompt = "You work in a Linux sandbox through your tools. Do the task; your files are judged, not your words."
        return HarborConfig(system_prompt=prompt, max_agent_turns=50), []

    async def setup(self) -> None:
        config, backend = self.config, await tried_backend(self.config)
        if not backend.capabilities.isolates_files:
            raise ConfigError(f"the backend {backend.name} is not a sandbox, which harbor's tasks need; choose another")
        tasks = load_tasks(Path(config.dataset_name or OUR_TASKS), config.tasks)
        self.specs: dict[str, SandboxSpec] = {}
        problems: list[str] = []
        for task in tasks:
            try:
                problems += (f"{task.name}: {problem}" for problem in task.problems())
                image = task.image_for(backend.name, config.images)
                limits = self._limits(task, backend.capabilities.limits)
                self.specs[task.name] = task.spec(image, limits, network=config.sandbox_network)
                resolve_spec(self.specs[task.name], backend.name, backend.capabilities)
            except (UnsupportedError, ConfigError) as error:
                problems.append(f"{task.name}: {error}")
        if problems:
            raise ConfigError(
                "some tasks need unsupported features (docs/environments/harbor.md); change them, or choose others "
                "with --env.tasks:\n" + "\n".join(problems)
            )
        self.tasks = {task.name: task for task in tasks}
        if config.rollout_deadline is None:
            asked = max(float(task.section("agent").get("timeout_sec") or 0) for task in tasks)
            judging = max(self._verifier_timeout(task) for task in tasks)
            longest = max(config.worker_timeout, asked * 1.5 + 2 * judging)
            self.config = config.model_copy(update={"rollout_deadline": asked or None, "worker_timeout": longest})

    def train_items(self) -> Sequence[str] | None:
        return [name for name, task in self.tasks.items() if not self._held_out(task)] or None

    def eval_items(self) -> Sequence[str]:
        return [name for name, task in self.tasks.items() if self._held_out(task)]

    def item_id(self, item: str) -> str:
        return f"{item}-{self.tasks[item].digest}"

    def format_prompt(self, item: str) -> str:
        return (self.tasks[item].folder / "instruction.md").read_text()

    def sandbox_spec(self, item: str) -> SandboxSpec:
        return self.specs[item]

    async def compute_reward(self, item: str, result: AgentResult, ctx: ToolContext) -> Reward:
        task = self.tasks[item]
        tests, run = task.folder / "tests", task.folder / "tests" / "run"
        timeout = self._verifier_timeout(task)
        exports = [
            f"export {name}={shlex.quote(value)}" for name, value in task.section("verifier").get("env", {}).items()
        ]
        files: dict[str, bytes | str | Path] = dict(below(tests, TESTS))
        if not (run / "run.sh").exists():
            command = "\n".join([AS_LEFT, *exports, JUDGE])
            return reward_of(ctx.verify(command, files=files, artifacts=["."], timeout=timeout))
        command = f"{AS_LEFT}bash {RUN}/run.sh; exit 0"
        ran = ctx.verify(command, files=dict(below(run, RUN)), artifacts=["."], timeout=timeout)
        if ran.artifact_error or ran.exit_code == NOT_AS_LEFT:
            return Reward(0.0)
        command = "\n".join([*exports, f"export RUN_OUTPUT={OUTPUT}", JUDGE])
        return reward_of(ctx.verify(command, files={**files, OUTPUT: ran.stdout}, artifacts=[], timeout=timeout))

    def oracle(self, item: str) -> Sequence[Step] | None:
        solution = self.tasks[item].folder / "solution"
        if not (solution / "solve.sh").exists():
            return None
        unpacked = [
            f"mkdir -p $(dirname {place}); echo {base64.b64encode(path.read_bytes()).decode()} | base64 -d > {place}"
            for place, path in below(solution, SOLUTION)
        ]
        command = "\n".join([*unpacked, f"bash {SOLUTION}/solve.sh"])
        return [("terminal", {"command": command}), "Done."]

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

    def _limits(self, task: Task, held: Collection[str]) -> Limits:
        """What the task asks for, where the backend holds it, unless the configuration says otherwise."""
        config, asked = self.config, task.section("environment")
        return Limits(
            memory_mb=config.sandbox_memory_mb or (asked.get("memory_mb") if "memory_mb" in held else None),
            cpus=config.sandbox_cpus or (asked.get("cpus") if "cpus" in held else None),
            processes=config.sandbox_processes,
            disk_mb=config.sandbox_disk_mb,
        )

    def _verifier_timeout(self, task: Task) -> float:
        return float(task.section("verifier").get("timeout_sec", 600.0))


async def tried_backend(config: HermesAgentEnvConfig) -> Backend:
    """What the sandboxes will be made with. Asked apart from the tools, which `sandbox prepare` does not open."""
    backends = await open_backends(config.terminal_backend, config.sandbox_settings)
    for backend in backends:
        await backend.close()
    return backends[0]


def load_tasks(folder: Path, names: Sequence[str] | None) -> list[Task]:
    """The tasks of a folder, or the folder itself as one; ConfigError when there is none or one is not there."""
    found = [folder] if (folder / "task.toml").exists() else sorted(path.parent for path in folder.rglob("task.toml"))
    tasks = {path.name: Task(path) for path in found}
    if len(tasks) < len(found):
        raise ConfigError(f"--env.dataset_name {folder}: two tasks have the same folder name; rename one")
    missing = [name for name in names or () if name not in tasks]
    if not tasks or missing:
        what = f"no task {', '.join(missing)}" if missing else "no folder with a task.toml"
        raise ConfigError(f"--env.dataset_name {folder}: {what}; there is: {', '.join(tasks) or 'nothing'}")
    return [tasks[name] for name in names or tasks]


def machine_of(dockerfile: Path) -> Machine:
    """What the common part of a Dockerfile says; UnsupportedError with the line of anything else."""
    machine = Machine()
    for line, word, rest in instructions(dockerfile):
        try:
            take(machine, dockerfile.parent, word, rest)
        except UnsupportedError as error:
            raise UnsupportedError(f"line {line} of environment/Dockerfile, {word}: {error}") from None
    if not machine.directories:
        machine.cwd = DEFAULT_WORKDIR
    return machine


def instructions(dockerfile: Path) -> Iterator[tuple[int, str, str]]:
    if not dockerfile.exists():
        raise UnsupportedError("neither environment/Dockerfile nor [environment] docker_image")
    began, text = 0, ""
    for number, line in enumerate(dockerfile.read_text().splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        began = began if text else number
        text += line.rstrip().removesuffix("\\")
        if not line.rstrip().endswith("\\"):
            word, _, rest = text.strip().partition(" ")
            yield began, word.upper(), rest.strip()
            text = ""


def take(machine: Machine, context: Path, word: str, rest: str) -> None:
    if word in {"RUN", "COPY", "FROM"} and rest.startswith("--"):
        raise UnsupportedError(f"no options as {rest.split(maxsplit=1)[0]}")
    if word in {"RUN", "COPY"} and re.search(r"<<-?[\"']?\w", rest):
        raise UnsupportedError("no here-documents")
    match word:
        case "FROM":
            if machine.image or "$" in rest:
                raise UnsupportedError("one stage, and no variables")
            machine.image = rest.split(maxsplit=1)[0]
        case "WORKDIR":
            machine.cwd = machine.cwd / rest.strip("\"'")
            machine.directories.add(machine.cwd)
        case "ENV":
            machine.env |= variables(rest)
        case "RUN":
            words = json.loads(rest) if rest.startswith("[") else None
            machine.steps.append((word, machine.cwd, shlex.quote(shlex.join(words) if words else rest)))
        case "COPY":
            for source, place in copied(machine, context, json.loads(rest) if rest.startswith("[") else rest.split()):
                staged = f"{STAGED}/{len(machine.files)}"
                machine.files[staged] = source
                mode = "755" if source.stat().st_mode & 0o100 else "644"
                machine.steps.append((word, place, f"{mode} {WORKSPACE}/{staged}"))
        case _ if word not in WITHOUT_EFFECT:
            raise UnsupportedError("only FROM, WORKDIR, COPY, RUN and ENV are done")


def variables(text: str) -> dict[str, str]:
    words = shlex.split(text)
    single = {words[0]: " ".join(words[1:])}
    pairs = {name: value for name, _, value in (word.partition("=") for word in words)} if "=" in words[0] else single
    if any("$" in value for value in pairs.values()):
        raise UnsupportedError("no variables in values")
    return pairs


def copied(machine: Machine, context: Path, words: list[str]) -> Iterator[tuple[Path, PurePosixPath]]:
    *patterns, target = words
    place = PurePosixPath(machine.cwd, target)
    names = [str(PurePosixPath(pattern.lstrip("/"))) for pattern in patterns]
    sources = [path for name in names for path in ([context] if name == "." else sorted(context.glob(name)))]
    if not sources or ".." in PurePosixPath(*words).parts:
        raise UnsupportedError(f"there is no {' '.join(patterns)} in environment/")
    into = len(sources) > 1 or target.endswith(("/", ".")) or place in machine.directories
    for source in sources:
        if source.is_dir():
            yield from ((path, place / path.relative_to(source)) for path in files_below(source))
        else:
            yield source, place / source.name if into else place


def link(place: PurePosixPath, target: str) -> str:
    """The step that puts a link where an image has, or should have, a directory; what is in it moves along."""
    if str(place) == target:
        return "true"
    parents = " ".join(shlex.quote(str(parent)) for parent in place.parents)
    at = shlex.quote(str(place))
    moved = f"cp -a {at}/. {target}; " if target == str(WORKSPACE) else ""
    return f"mkdir -p {at}; chmod a+x {parents}; {moved}rm -rf {at}; ln -s {target} {at}"


def reward_of(verdict: Verdict) -> Reward:
    """The number in reward.txt, or those in reward.json; VerifierError when the tests left neither."""
    if verdict.artifact_error or verdict.exit_code == NOT_AS_LEFT:
        return Reward(0.0)
    try:
        reward = json.loads(verdict.stdout)
    except ValueError:
        how = "ran out of time" if verdict.timed_out else "wrote no reward"
        said = f"{verdict.stdout[-300:]}{verdict.stderr[-1000:]}"
        raise VerifierError("no_reward", f"tests/test.sh {how} (exit code {verdict.exit_code}): {said}") from None
    if not isinstance(reward, dict):
        return Reward(reward)
    only = next(iter(reward.values())) if len(reward) == 1 else math.nan
    return Reward(reward.get("reward", only), reward)


def below(folder: Path, place: str) -> Iterator[tuple[str, Path]]:
    """The files of a folder by their places in a sandbox."""
    return ((str(PurePosixPath(place, *path.relative_to(folder).parts)), path) for path in files_below(folder))


def files_below(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _shell(command: str) -> Sequence[Step]:
    return [("terminal", {"command": command}), "Done."]


if __name__ == "__main__":
    HarborEnv.cli()
