"""A Harbor task folder, format 1.4: task.toml, instruction, environment, tests, solution.

Every key of task.toml has an effect here or is refused by name (`problems`); the table is in
docs/environments/harbor.md. Nothing is read from the host's environment: `${NAME}` takes its value from `variables`.
"""

import hashlib
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

from hermes_rl.interop.harbor.dockerfile import Build, UnsupportedError, read_dockerfile

DEFAULT_WORKDIR = PurePosixPath("/app")
VERIFIER_TIMEOUT = 600.0
FETCHES = re.compile(
    r"^(?!.*(?:localhost|127\.0\.0\.1))[^#\n]*?"
    r"\b(apt-get|apt|apk|curl|wget|uvx|uv|pip3? install|git clone|npm install)\b",
    re.MULTILINE,
)
_HOST_VARIABLE = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}")
_ABSOLUTE = re.compile(r"(?<![\w.$/}~:-])/((?:home/)?[A-Za-z][\w.-]*)")
_OURS = {"app", "tests", "logs", "solution", "tmp", "workspace"}
_SYSTEM = set("bin boot dev etc lib lib32 lib64 libx32 opt proc run sbin sys usr var".split())
_MEGABYTES = {"": 1, "K": 1 / 1024, "M": 1, "G": 1024, "T": 1024 * 1024}


@dataclass(frozen=True, slots=True)
class Artifact:
    """What the tests get of the agent's machine, without the names in `exclude`."""

    source: str
    exclude: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TaskStep:
    """One part of a task with [[steps]]; a task without them has one, whose folder is the task's."""

    name: str
    folder: Path
    config: Mapping[str, Any]

    @property
    def minimum(self) -> Mapping[str, float]:
        """The rewards that are needed to go on."""
        asked = self.config.get("min_reward")
        return asked if isinstance(asked, dict) else {} if asked is None else {"reward": float(asked)}

    @property
    def verifier(self) -> Mapping[str, Any]:
        return dict(self.config.get("verifier", {}))


@dataclass(frozen=True)
class Task:
    """One folder with a task.toml. `variables` are the values of `${NAME}` in it."""

    folder: Path
    variables: Mapping[str, str]

    @property
    def name(self) -> str:
        return self.folder.name

    @cached_property
    def config(self) -> dict[str, Any]:
        try:
            return tomllib.loads((self.folder / "task.toml").read_text())
        except ValueError as error:
            raise UnsupportedError(f"task.toml cannot be read: {error}") from None

    @cached_property
    def digest(self) -> str:
        """A hash of every file of the task."""
        content = hashlib.sha256()
        for path in files_below(self.folder):
            content.update(hashlib.sha256(path.read_bytes()).digest() + bytes(path.relative_to(self.folder)) + b"\0")
        return content.hexdigest()[:16]

    def section(self, name: str) -> dict[str, Any]:
        return dict(self.config.get(name, {}))

    @property
    def environment(self) -> dict[str, Any]:
        return self.section("environment")

    @property
    def verifier(self) -> dict[str, Any]:
        return self.section("verifier")

    @cached_property
    def steps(self) -> list[TaskStep]:
        """The steps; one for a task without [[steps]]."""
        asked = self.config.get("steps", [])
        if not asked:
            return [TaskStep("", self.folder, {})]
        return [TaskStep(one["name"], self.folder / "steps" / one["name"], one) for one in asked]

    @cached_property
    def build(self) -> Build:
        """The agent's machine."""
        return _build(self.folder / "environment", self.environment.get("docker_image"))

    @cached_property
    def workdir(self) -> PurePosixPath:
        return self.workdir_of(self.build, self.environment)

    @staticmethod
    def workdir_of(build: Build, environment: Mapping[str, Any]) -> PurePosixPath:
        """The directory in which a machine's commands start."""
        asked = environment.get("workdir")
        return PurePosixPath(asked) if asked else build.cwd if build.directories else DEFAULT_WORKDIR

    def separate(self, step: TaskStep) -> bool:
        """Whether a step is judged in a machine of the tests' own."""
        merged = {**self.verifier, **step.verifier}
        return str(merged.get("environment_mode", "separate" if "environment" in merged else "shared")) == "separate"

    def verifier_build(self, step: TaskStep) -> tuple[Build, Mapping[str, Any]] | None:
        """The image of the tests' own and its section; None when a separate verifier has the agent's image."""
        for settings, tests in ((step.verifier, step.folder / "tests"), (self.verifier, self.folder / "tests")):
            section = dict(settings.get("environment", {}))
            if section.get("docker_image") or (tests / "Dockerfile").exists():
                return _build(tests, section.get("docker_image")), section
        return None

    def tests(self, step: TaskStep) -> dict[str, Path]:
        """The files of the tests by their path below /tests: the task's, and over them the step's."""
        folders = [self.folder / "tests", step.folder / "tests"]
        return {str(path.relative_to(folder)): path for folder in folders for path in files_below(folder)}

    def instruction(self, step: TaskStep) -> str:
        """The prompt of a step, with the place of the task's skills."""
        text = (step.folder / "instruction.md").read_text()
        skills = self.environment.get("skills_dir")
        return f"{text}\n\nSkills for this task are described in {skills}/*/SKILL.md." if skills else text

    def artifacts(self, step: TaskStep) -> list[Artifact]:
        """What is brought to a separate verifier."""
        asked = [*self.config.get("artifacts", []), *step.config.get("artifacts", []), "/logs/artifacts"]
        return [
            Artifact(one) if isinstance(one, str) else Artifact(one["source"], tuple(one.get("exclude", ())))
            for one in asked
        ]

    def env(self, section: Mapping[str, Any]) -> dict[str, str]:
        """The variables of a section."""
        return {name: self._resolved(name, str(value)) for name, value in section.get("env", {}).items()}

    def _resolved(self, name: str, text: str) -> str:
        def value(match: re.Match[str]) -> str:
            found = self.variables.get(match[1], match[2])
            if found is None:
                raise UnsupportedError(f"env {name}: ${{{match[1]}}} has no value: set it in --env.variables")
            return found

        return _HOST_VARIABLE.sub(value, text)

    @property
    def network(self) -> bool:
        """Whether the task allows its agent a network."""
        asked = self.section("agent").get("network_mode") or self.environment.get("network_mode")
        return bool(asked == "public" if asked else self.environment.get("allow_internet", True))

    def fetches(self, step: TaskStep) -> str | None:
        """The command by which the tests fetch something, if they do."""
        for name, path in self.tests(step).items():
            if name.endswith(".sh") and (found := FETCHES.search(path.read_text(errors="replace"))):
                return found[1]
        return None

    @cached_property
    def outside(self) -> list[PurePosixPath]:
        """Directories outside the working directory that the task's own texts name, apart from the system's."""
        texts = [path for path in files_below(self.folder) if path.name != "README.md" and path.suffix != ".json"]
        found = {
            PurePosixPath("/", name.rstrip("."))
            for path in texts
            if path.stat().st_size < 1_000_000
            for name in _ABSOLUTE.findall(path.read_text(errors="ignore"))
            if path.parent.name != "environment" or path.name == "Dockerfile"
        }
        top = {self.workdir, *self.workdir.parents}
        return sorted(
            path
            for path in found
            if path not in top and path.parts[1] not in _OURS | _SYSTEM and path != PurePosixPath("/home")
        )

    def megabytes(self, name: str) -> int | None:
        """`memory_mb` or `storage_mb`, or the old `memory = "2G"`."""
        section = self.environment
        if section.get(name) is not None:
            return int(section[name])
        old = section.get(name.removesuffix("_mb"))
        match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)i?B?", str(old or ""), re.IGNORECASE)
        if old and not match:
            raise UnsupportedError(f"[environment] {name.removesuffix('_mb')} = {old!r} is not a size such as 2G")
        return int(float(match[1]) * _MEGABYTES[match[2].upper()]) if match else None

    def problems(self) -> Iterator[str]:
        """What the task asks for that cannot be done here."""
        environment, verifier = self.environment, self.verifier
        for place in ("environment", "tests"):
            for name in ("docker-compose.yaml", "docker-compose.yml"):
                if (self.folder / place / name).exists():
                    yield f"{place}/{name}: a task has one container"
        if (self.folder / "trajectory.json").exists():
            yield "trajectory.json: a conversation before the task is not seeded"
        for where, section in (("environment", environment), ("verifier.environment", verifier.get("environment", {}))):
            yield from (f"[{where}] {key}" for key in ("gpus", "gpu_types", "tpu", "mcp_servers") if section.get(key))
            if section.get("os", "linux").lower() != "linux":
                yield f"[{where}] os = {section['os']!r}"
        if verifier.get("environment") and verifier.get("environment_mode") == "shared":
            yield "[verifier] environment_mode = 'shared' with [verifier.environment]: Harbor refuses it too"
        if not (self.config.get("steps") or (self.folder / "instruction.md").exists()):
            yield "there is no instruction.md"
        yield from self._network_problems()
        yield from self._place_problems()
        for step in self.steps:
            yield from self._step_problems(step)

    def _place_problems(self) -> Iterator[str]:
        if self.workdir.is_relative_to("/tmp") or self.workdir.parts[1:2] in {(), *((name,) for name in _SYSTEM)}:  # noqa: S108
            yield f"the working directory {self.workdir}: it must be a directory of its own, outside /tmp"
        own = [step.config.get("verifier", {}) for step in self.steps]
        for section in (self.verifier, self.verifier.get("environment", {}), self.section("solution"), *own):
            try:
                self.env(section)
            except UnsupportedError as error:
                yield str(error)

    def _network_problems(self) -> Iterator[str]:
        sections = {"environment": self.environment, "agent": self.section("agent"), "verifier": self.verifier}
        for where, section in sections.items():
            mode = section.get("network_mode", "public")
            if mode == "allowlist" or section.get("allowed_hosts"):
                yield f"[{where}] network_mode = 'allowlist': a sandbox has a network or none"
            elif mode not in {"public", "no-network"}:
                yield f"[{where}] network_mode = {mode!r}"

    def _step_problems(self, step: TaskStep) -> Iterator[str]:
        at = f"step {step.name}: " if step.name else ""
        if step.name and not (step.folder / "instruction.md").exists():
            yield f"{at}there is no steps/{step.name}/instruction.md"
        if step.verifier.get("network_mode") == "allowlist" or step.config.get("agent", {}).get("network_mode"):
            yield f"{at}network_mode: one network setting for all steps"
        for one in [*self.config.get("artifacts", []), *step.config.get("artifacts", [])]:
            source = one if isinstance(one, str) else one["source"]
            if not isinstance(one, str) and one.get("service", "main") != "main":
                yield f"{at}artifact {source}: service {one['service']!r}: a task has one container"
            if ".." in PurePosixPath(source).parts:
                yield f"{at}artifact {source}: '..' is refused, as by Harbor"
        for command in [*self.verifier.get("collect", []), *step.verifier.get("collect", [])]:
            if command.get("service", "main") != "main":
                yield f"{at}[[verifier.collect]] service {command['service']!r}: a task has one container"
        try:
            own = self.verifier_build(step) if self.separate(step) else None
        except UnsupportedError as error:
            yield f"{at}{error}"
            return
        inside = own is not None and any(str(one.place).startswith("/tests") for one in own[0].steps)
        docker_image = own is not None and not own[0].steps
        if "test.sh" not in self.tests(step) and not inside and not docker_image:
            yield f"{at}there is no tests/test.sh"


def _build(folder: Path, docker_image: str | None) -> Build:
    if docker_image:
        return Build(docker_image)
    if not (folder / "Dockerfile").exists():
        raise UnsupportedError("neither environment/Dockerfile nor [environment] docker_image")
    return read_dockerfile(folder / "Dockerfile")


def files_below(folder: Path) -> list[Path]:
    """The regular files below a folder, in order."""
    return sorted(path for path in folder.rglob("*") if path.is_file() and ".git" not in path.parts)
