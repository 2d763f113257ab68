"""Judges one step of a task in a sandbox that the agent never touched, without a network.

A shared verification gets the whole working directory and, over it, the tests; a separate one only the artifacts, in
an image that has the tests. The reward comes from reward.json, else reward.txt. A judgement that leaves neither raises
VerifierError: there is no score.
"""

import json
import math
import shlex
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from hermes_rl.core.errors import VerifierError
from hermes_rl.interop.harbor.machine import HOME, KEPT, LOGS, TESTS, WORKSPACE
from hermes_rl.interop.harbor.task import VERIFIER_TIMEOUT, Artifact, Task, TaskStep
from hermes_rl.rewards.verification import Verdict, verify
from hermes_rl.sandbox.spec import SandboxSpec
from hermes_rl.tools.session import ToolSession

RUN, OUTPUT, BROUGHT = "/tmp/run", "/tmp/output", "/tmp/brought"  # noqa: S108 - in the sandbox
# Exit code of a tree that cannot be laid out again: the agent's doing.
NOT_AS_LEFT = 70
COLLECT_TIMEOUT = 60.0
_JSON, _TEXT = "reward.json", "reward.txt"
# The workspace as the agent left it. Home is elsewhere, since Python and others look there for things to run.
_AS_LEFT = f"""
chmod -R u+rwX artifacts && mv artifacts /tmp/left && find . -mindepth 1 -delete &&
    cp -a /tmp/left/. . && rm -rf /tmp/left || exit {NOT_AS_LEFT}
"""
_HOME = f"if [ -d {KEPT}/home ]; then cp -a {KEPT}/home {HOME}; else mkdir -p {HOME}; fi; export HOME={HOME}\n"
# Installers end at once: what they install is there. Requests to this machine pass.
_OFFLINE = """
mkdir -p /tmp/offline
for name in apt-get apt apk curl wget; do
    program=$(command -v $name || echo true)
    printf '#!/bin/sh\\ncase "$*" in *localhost*|*127.0.0.1*) exec %s "$@";; esac\\nexit 0\\n' "$program" \
        > /tmp/offline/$name
done
chmod +x /tmp/offline/*
export PATH=/tmp/offline:$PATH UV_OFFLINE=1 PIP_NO_INDEX=1 PIP_DISABLE_PIP_VERSION_CHECK=1
"""
_REWARD = f"""
for name in {_JSON} {_TEXT}; do
    if [ -e "$VERIFIER_DIR/$name" ]; then echo $name; cat "$VERIFIER_DIR/$name"; break; fi
done
"""


@dataclass(frozen=True, slots=True)
class Judgement:
    """The rewards of a step, by name. `artifact_error` says why the agent's files could not be judged."""

    rewards: Mapping[str, float]
    artifact_error: str | None = None


async def judge(task: Task, step: TaskStep, session: ToolSession, spec: SandboxSpec, *, timeout: float) -> Judgement:
    """Run the tests of a step on what the agent left; VerifierError when they leave no reward."""
    run = task.folder / "tests" / "run"
    exports = _exports({**task.env(task.verifier), **task.env(step.verifier)})
    files: dict[str, bytes | str | Path] = {f"{TESTS}/{name}": path for name, path in task.tests(step).items()}
    offline = _OFFLINE if task.fetches(step) else ""
    if task.separate(step):
        has_tests = task.verifier_build(step) is not None
        script = "/tests/test.sh" if has_tests else f"{TESTS}/test.sh"
        sources = await _existing(session, task.artifacts(step))
        # Away from the working directory, which may itself be an artifact.
        moved = f"[ ! -d artifacts ] || mv artifacts {BROUGHT}\n"
        placed = moved + "".join(_placed(artifact) for artifact in sources)
        command = "\n".join([_HOME, offline, exports, placed, _judged(script)])
        names = [one.source for one in sources]
        return _judgement(await _verify(session, spec, command, {} if has_tests else files, names, timeout))
    if step.name or not (run / "run.sh").exists():
        command = "\n".join([_AS_LEFT, _HOME, offline, exports, _judged(f"{TESTS}/test.sh")])
        return _judgement(await _verify(session, spec, command, files, ["."], timeout))
    ours: dict[str, bytes | str | Path] = {f"{RUN}/{path.name}": path for path in run.rglob("*") if path.is_file()}
    command = f"{_AS_LEFT}{_HOME}bash {RUN}/run.sh; exit 0"
    ran = await _verify(session, spec, command, ours, ["."], timeout)
    if ran.artifact_error or ran.exit_code == NOT_AS_LEFT:
        return Judgement({"reward": 0.0}, ran.artifact_error or "the working directory cannot be copied")
    command = "\n".join([_HOME, offline, exports, f"export RUN_OUTPUT={OUTPUT}", _judged(f"{TESTS}/test.sh")])
    return _judgement(await _verify(session, spec, command, {**files, OUTPUT: ran.stdout}, [], timeout))


async def collect(task: Task, step: TaskStep, session: ToolSession) -> None:
    """Run [[verifier.collect]] in the agent's sandbox; a command that fails is not an error, as in Harbor."""
    sandbox = await session.sandbox()
    await sandbox.end_processes()
    for command in [*task.verifier.get("collect", []), *step.verifier.get("collect", [])]:
        seconds = float(command.get("timeout_sec", COLLECT_TIMEOUT))
        await sandbox.exec(command["command"], timeout=seconds, merge_stderr=True)


def verifier_timeout(task: Task, step: TaskStep) -> float:
    """Seconds for the tests of a step."""
    return float(step.verifier.get("timeout_sec", task.verifier.get("timeout_sec", VERIFIER_TIMEOUT)))


def parse_reward(name: str, text: str) -> dict[str, float]:
    """The rewards in a reward file, as Harbor reads it; ValueError for what is not finite numbers."""
    found: Any = json.loads(text) if name == _JSON else float(text)
    rewards = found if isinstance(found, dict) else {"reward": found}
    for key, value in rewards.items():
        if not isinstance(value, int | float) or not math.isfinite(value):
            raise ValueError(f"{key} = {value!r} is not a finite number")
    return {key: float(value) for key, value in rewards.items()}


async def _verify(
    session: ToolSession,
    spec: SandboxSpec,
    command: str,
    files: Mapping[str, bytes | str | Path],
    artifacts: list[str],
    timeout: float,
) -> Verdict:
    await session.sandbox()
    # The same sandbox, while the policy goes on afterwards if the task has more steps.
    judging, began = replace(session, spec=spec), time.monotonic()
    try:
        return await verify(judging, command, files=files, artifacts=artifacts, image=None, timeout=timeout)
    finally:
        session.reward_seconds = judging.reward_seconds + time.monotonic() - began


async def _existing(session: ToolSession, artifacts: list[Artifact]) -> list[Artifact]:
    """The artifacts that the agent's machine has: a missing one is not an error."""
    sandbox = await session.sandbox()
    await sandbox.end_processes()
    found = []
    for artifact in artifacts:
        at = shlex.quote(artifact.source)
        result = await sandbox.exec(f"[ -f {at} ] || [ -d {at} ]", timeout=COLLECT_TIMEOUT)
        if result.exit_code == 0:
            found.append(artifact)
    return found


def _placed(artifact: Artifact) -> str:
    """Puts an artifact at its own path in the machine of the tests; a directory is emptied first."""
    source = PurePosixPath(artifact.source)
    inside = source.relative_to(WORKSPACE) if source.is_relative_to(WORKSPACE) else str(source).lstrip("/")
    brought = shlex.quote(f"{BROUGHT}/{inside}")
    at, parent = shlex.quote(artifact.source), shlex.quote(str(PurePosixPath(artifact.source).parent))
    left_out = "".join(f"find {at} -name {shlex.quote(name)} -prune -exec rm -rf {{}} +; " for name in artifact.exclude)
    return (
        f"mkdir -p {parent}; if [ -d {brought} ]; then mkdir -p {at}; find {at}/ -mindepth 1 -delete; "
        f"cp -a {brought}/. {at}/; else rm -f {at}; cp {brought} {at}; fi; {left_out}\n"
    )


def _judged(script: str) -> str:
    return (
        f'export VERIFIER_DIR={LOGS}/verifier\nmkdir -p "$VERIFIER_DIR"\nchmod -R u+x {PurePosixPath(script).parent} '
        f"2>/dev/null\nbash {script} >&2 </dev/null{_REWARD}"
    )


def _exports(env: Mapping[str, str]) -> str:
    return "\n".join(f"export {name}={shlex.quote(value)}" for name, value in env.items())


def _judgement(verdict: Verdict) -> Judgement:
    if verdict.artifact_error or verdict.exit_code == NOT_AS_LEFT:
        return Judgement({"reward": 0.0}, verdict.artifact_error or "the working directory cannot be copied")
    name, _, text = verdict.stdout.partition("\n")
    try:
        if name in {_JSON, _TEXT}:
            return Judgement(parse_reward(name, text))
        how = "ran out of time" if verdict.timed_out else "wrote no reward"
    except ValueError as error:
        how = f"wrote a {name} that cannot be used ({error})"
    said = f"{verdict.stdout[-300:]}{verdict.stderr[-1000:]}"
    raise VerifierError("no_reward", f"tests/test.sh {how} (exit code {verdict.exit_code}): {said}")
