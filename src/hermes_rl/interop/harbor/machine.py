"""The machines of a task: the agent's, and the one in which its tests run, as scripts that make them of a base image.

A build happens at the paths that the task names, as root and with a network. What it leaves is then arranged: the
working directory becomes our workspace, and other directories that the task names become links into it, since a
sandbox's root is read-only. So everything that the agent changes there is brought to the tests.
"""

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any

from hermes_rl.interop.harbor.dockerfile import ROOT, Build, BuildStep, UnsupportedError
from hermes_rl.interop.harbor.task import Task, TaskStep, files_below
from hermes_rl.sandbox.spec import SandboxSpec

WORKSPACE = PurePosixPath("/workspace")
STAGED = ".build"
# Directories outside the working directory live here.
OUTSIDE = WORKSPACE / ".machine"
# What a build puts where a sandbox has a fresh directory. Never in a directory that the agent can write to.
KEPT = "/usr/lib/hermes-rl"
LOGS, TESTS, SOLUTION = "/tmp/logs", "/tmp/tests", "/tmp/solution"  # noqa: S108 - in the sandbox
# The same at the installation and at the judgement: uv and pip write absolute paths.
HOME = "/tmp/home"  # noqa: S108 - in the sandbox
# Larger directories stay where they are, read-only: a sandbox's workspace is in memory.
MAX_MOVED_MB = 200
REHEARSAL_SECONDS = 540
# During the installation, what an image already has is not fetched again, so that it needs no mirror.
_ALREADY_THERE = r"""
mkdir -p /tmp/there
cat > /tmp/there/apt-get <<'END'
#!/bin/sh
real=/usr/bin/apt-get; install=; missing=
has() { PATH=${PATH#/tmp/there:} command -v "$1" >/dev/null; }
for word; do case $word in
    update) exit 0 ;;
    install) install=1 ;;
    -*) ;;
    *) [ -z "$install" ] || dpkg -s "$word" >/dev/null 2>&1 || has "$word" || missing=1 ;;
esac; done
[ -n "$install" ] && [ -z "$missing" ] && exit 0
[ -z "$install" ] || $real update -q
exec $real "$@"
END
cat > /tmp/there/curl <<'END'
#!/bin/sh
case "$*" in *astral.sh/uv/*) ! command -v uvx >/dev/null || exit 0 ;; esac
PATH=${PATH#/tmp/there:} exec curl "$@"
END
chmod +x /tmp/there/*
"""
_CLEAN = f"rm -rf {WORKSPACE}/{STAGED}"
OFFLINE = (
    "could not resolve|name resolution|failed to fetch|unable to fetch|unable to locate package|no installation "
    "candidate|connection refused|failed to connect|network is unreachable|no matching distribution|error sending "
    "request|no module named .?pytest|(uv|uvx|pip3?|pytest|curl|wget|apt-get): (command )?not found"
)


@dataclass(frozen=True)
class Recipe:
    """How a machine is made: `build` on the base image, with a network, then `finish` without one."""

    image: str | None
    build: Sequence[str] = ()
    finish: Sequence[str] = ()
    files: Mapping[str, bytes | str | Path] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)

    def in_one(self) -> SandboxSpec:
        """Both scripts as one setup, for backends that keep what root does in a container."""
        script = "\n".join(["set -e", "umask 022", *self.build, *self.finish])
        return SandboxSpec(image=self.image, files=self.files, setup=script, env=self.env)

    def first(self, env: Mapping[str, str]) -> SandboxSpec:
        """The build alone."""
        script = "\n".join(["set -e", "umask 022", *self.build])
        return SandboxSpec(image=self.image, files=self.files, setup=script, env={**self.env, **env})

    def second(self, image: str) -> SandboxSpec:
        """What is left to do on the built image."""
        return SandboxSpec(image=image, setup="\n".join(["set -e", "umask 022", *self.finish]), env=self.env)


def agent_machine(task: Task, image: str | None) -> Recipe:
    """The agent's machine on an image, or on the host's programs for a task that needs no image."""
    build, workdir = task.build, task.workdir
    env = {**build.env, **task.env(task.environment)}
    health = health_check(task.environment.get("healthcheck"))
    steps = [*build.steps, *_workdir_steps(task.steps[0], workdir)]
    files: dict[str, bytes | str | Path] = {}
    if image is None:
        return Recipe(None, _script(steps, files, workdir), [*_cleared(), *health], files, env)
    script = _script(steps, files, None)
    places = [_link(ROOT / PurePosixPath(place).name, place) for place in (TESTS, SOLUTION)]
    finish = [*_restored(), *_logs(), *places, *_finished(workdir, task.outside), *health]
    return Recipe(image, [*script, *(_kept() if script else [])], finish, files, env)


def verifier_machine(task: Task, step: TaskStep, build: Build, section: Mapping[str, Any], image: str) -> Recipe:
    """The machine of the tests' own: /tests is as its image has it."""
    files: dict[str, bytes | str | Path] = {}
    script = _script(build.steps, files, None)
    workdir = task.workdir_of(build, section) if section or build.directories else task.workdir
    parents = {PurePosixPath(one.source).parent for one in task.artifacts(step)}
    inner = sorted(
        path for path in parents if path.parts[1:2] not in {(), ("logs",)} and not path.is_relative_to(workdir)
    )
    finish = [*_restored(), *_logs(), *_finished(workdir, inner)]
    health = health_check(section.get("healthcheck"))
    env = {**build.env, **task.env(section)}
    return Recipe(image, [*script, *_kept()] if script else [], [*finish, *health], files, env)


def with_dependencies(recipe: Recipe, task: Task, step: TaskStep, *, has_tests: bool) -> Recipe:
    """The machine after one run of the tests on the untouched image, which leaves what they install.

    With `has_tests` its /tests is used and stays; else the task's tests are there for this run alone.
    """
    files: dict[str, bytes | str | Path] = dict(recipe.files)
    for name, path in () if has_tests else task.tests(step).items():
        files[f"{STAGED}/tests/{name}"] = path
    workdir, env = shlex.quote(str(task.workdir)), {**task.env(task.verifier), **task.env(step.verifier)}
    exports = "".join(f"export {name}={shlex.quote(value)}; " for name, value in env.items())
    rehearsal = f"""{_ALREADY_THERE}
mkdir -p {KEPT} {HOME} /logs/verifier {workdir}
{"" if has_tests else f"rm -rf /tests && cp -a {WORKSPACE}/{STAGED}/tests /tests"}
chmod -R u+x /tests
(cd {workdir}; export PATH=/tmp/there:$PATH HOME={HOME} VERIFIER_DIR=/logs/verifier; {exports}
    timeout {REHEARSAL_SECONDS} bash /tests/test.sh) > /tmp/said </dev/null 2>&1 || true
if grep -iE {shlex.quote(OFFLINE)} /tmp/said > /tmp/missing; then
    echo "what tests/test.sh installs could not be had:"; head -c 1500 /tmp/missing; exit 1
fi
rm -rf {KEPT}/home /logs {"" if has_tests else "/tests"} && cp -a {HOME} {KEPT}/home
"""
    build = [*(line for line in recipe.build if line != _CLEAN), rehearsal, _CLEAN]
    return replace(recipe, build=build, files=files)


def health_check(asked: Mapping[str, Any] | None) -> list[str]:
    """Commands that fail unless the machine becomes ready as [environment.healthcheck] says."""
    if not asked:
        return []
    command, limit = shlex.quote(asked["command"]), float(asked.get("timeout_sec", 30))
    pause, start = float(asked.get("interval_sec", 5)), float(asked.get("start_period_sec", 0))
    early, retries = float(asked.get("start_interval_sec", 5)), int(asked.get("retries", 3))
    return [
        f"""(
began=$(date +%s); failed=0
until timeout {limit:g} sh -c {command} </dev/null; do
    if [ $(( $(date +%s) - began )) -lt {start:.0f} ]; then sleep {early:g}; continue; fi
    failed=$((failed + 1))
    if [ $failed -ge {retries} ]; then echo "the health check failed {retries} times: "{command}; exit 1; fi
    sleep {pause:g}
done )"""
    ]


def _workdir_steps(step: TaskStep, workdir: PurePosixPath) -> list[BuildStep]:
    """The workdir/ of a task's first step, laid into the working directory; its setup.sh runs there."""
    folder = step.folder / "workdir"
    if not step.name or not folder.is_dir():
        return []
    copies = [BuildStep(workdir / path.relative_to(folder), source=path) for path in files_below(folder)]
    setup = [BuildStep(workdir, command="bash ./setup.sh")] if (folder / "setup.sh").exists() else []
    return [*copies, *setup]


def _script(
    steps: Iterable[BuildStep], files: dict[str, bytes | str | Path], workdir: PurePosixPath | None
) -> list[str]:
    """The commands of a build, with its files staged. Without an image they can only use the working directory."""
    script = []
    for step in steps:
        place = step.place
        if workdir is not None:
            if not place.is_relative_to(workdir):
                raise UnsupportedError(f"without an image there is no {place}, which its Dockerfile uses")
            place = WORKSPACE / place.relative_to(workdir)
        elif step.source is not None and place.is_relative_to("/tmp"):  # noqa: S108 - in the sandbox
            raise UnsupportedError(f"COPY to {place}: files in /tmp do not stay")
        where = shlex.quote(str(place))
        if step.source is None:
            script.append(f"mkdir -p {where}; (cd {where}; {step.command})")
        else:
            staged = f"{STAGED}/{len(files)}"
            files[staged] = step.source
            script.append(f"install -D -m {step.mode} {WORKSPACE}/{staged} {where}")
    return script


def _kept() -> list[str]:
    """Moves what is in a directory that will be fresh to where it stays."""
    found = f"$(find {WORKSPACE} -mindepth 1 ! -path '{WORKSPACE}/{STAGED}*' -print -quit)"
    kept = f"{KEPT}/workspace"
    copied = f"mkdir -p {kept}; cp -a {WORKSPACE}/. {kept}; rm -rf {kept}/{STAGED}"
    return [f'if [ -n "{found}" ]; then {copied}; fi', _CLEAN]


def _logs() -> list[str]:
    """/logs, whose rewards are never below the workspace, which the agent's copy replaces."""
    script = ["mkdir -p /logs; chmod a+x /logs; rm -rf /logs/agent /logs/artifacts /logs/verifier"]
    for name, target in (("agent", OUTSIDE / "agent"), ("artifacts", OUTSIDE / "artifacts")):
        script.append(f"mkdir -p {target}; ln -s {target} /logs/{name}")
    return [*script, f"ln -s {LOGS}/verifier /logs/verifier"]


def _restored() -> list[str]:
    return [f"[ ! -d {KEPT}/workspace ] || cp -a {KEPT}/workspace/. {WORKSPACE}"]


def _finished(workdir: PurePosixPath, outside: Sequence[PurePosixPath]) -> list[str]:
    """What arranges a built machine: links from the working directory and the others into the workspace."""
    script = [] if workdir == WORKSPACE else [_link(workdir, str(WORKSPACE))]
    for place in outside:
        # Programs stay read-only: the tests may run them, so an agent that changes them would judge itself.
        target = OUTSIDE / str(place).strip("/").replace("/", "-")
        at = shlex.quote(str(place))
        programs = f"find {at} -name bin -o -name site-packages -o -name dist-packages 2>/dev/null | head -n 1"
        size = f"(du -sm {at} 2>/dev/null || echo 0) | cut -f1"
        script.append(
            f'if [ ! -L {at} ] && [ "$( {size} )" -le {MAX_MOVED_MB} ] && [ -z "$( {programs} )" ]; then '
            f"mkdir -p {target}; {_link(place, str(target), moved=True)}; fi"
        )
    return [*script, *_cleared()]


def _cleared() -> list[str]:
    kept = f"{WORKSPACE}/artifacts"
    return [_CLEAN, f"[ ! -e {kept} ] || {{ echo the place of {kept} is taken; exit 1; }}"]


def _link(place: PurePosixPath, target: str, *, moved: bool | None = None) -> str:
    """Puts a link where an image has, or should have, a directory; what is in it moves along."""
    if str(place) == target:
        return "true"
    parents = " ".join(shlex.quote(str(parent)) for parent in place.parents)
    at = shlex.quote(str(place))
    move = f"cp -a {at}/. {target}; " if moved or target == str(WORKSPACE) else ""
    return f"mkdir -p {at}; chmod a+x {parents}; {move}rm -rf {at}; ln -s {target} {at}"
