"""The tool `rl_fork`, for clients of the MCP server: a recorded rollout, continued from one of its turns.

Always true: the environment's code runs in a process of its own, `hermes-rl fork`, which ends with the caller. A caller
whose files are restricted can fork records of runs, and those in folders that the operator allowed.
"""

import asyncio
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import Field

from hermes_rl.core import fast_json
from hermes_rl.core.child_python import python_command
from hermes_rl.core.process_guard import guard_argv
from hermes_rl.environment.last_output import named_path
from hermes_rl.orchestration.discovery.allowed_files import AllowedFiles
from hermes_rl.orchestration.discovery.lookup import find_environment
from hermes_rl.orchestration.inference_test.candidates import CandidateModel, parse_candidates
from hermes_rl.orchestration.inference_test.runner import TOOL_KEYS, last_error
from hermes_rl.orchestration.keys import key_variables, referenced_keys
from hermes_rl.orchestration.rl_tools.context import CallerContext
from hermes_rl.orchestration.rl_tools.errors import RefusalError
from hermes_rl.orchestration.run_paths import inference_tests_home, runs_home
from hermes_rl.tools.tool import tool

SECONDS = 1800.0
# The command exits with it when no fork has a score, and has still printed its answer.
NOT_SCORED = 1
# An argument of a program has at most 128 KiB, and a character up to four bytes.
MAX_EDIT = 32_000
INTERRUPT_GRACE = 10.0
RETRY = "rl_fork with another turn, rollout, group or file"


@tool(sandboxed=False)
async def rl_fork(
    session: CallerContext,
    file: str,
    turn: Annotated[int, Field(ge=1)],
    model: Any,
    group: str = "1",
    rollout: Annotated[int, Field(ge=0)] = 0,
    count: Annotated[int, Field(ge=1, le=64)] = 1,
    edit: Annotated[str, Field(max_length=MAX_EDIT)] | None = None,
    environment: str | None = None,
) -> dict[str, Any]:
    """Go back to one turn of a recorded rollout, and let a model go on from there: what would have happened instead?

    The recorded tool calls before the turn are executed again in a fresh sandbox. If a result differs from the record,
    nothing is forked and the first difference is returned. It takes as long as rollouts do. The answer compares the
    scores with the recorded one; the new rollouts are in the file under path.

    Args:
        file: The file of recorded groups, written by `hermes-rl process` or a run; last is the newest.
        turn: The model answers again from this turn on, counted from 1.
        model: Who goes on: an object {"model", "base_url", "api_key": "env:NAME"} for any OpenAI-compatible endpoint,
            or a text, which is an OpenRouter model and needs OPENROUTER_API_KEY.
        group: The group in the file, by number from 1 or by id.
        rollout: The rollout in the group, counted from 0.
        count: How many forks to make.
        edit: Replace the message before the turn, such as a tool result or what the user said, with this text.
        environment: A name from rl_list_environments or a file; default is the environment that recorded the file.
    """
    records = await asyncio.to_thread(_records, file, session.allowed_files)
    [candidate] = parse_candidates([model])
    if (problem := candidate.missing_key()) is not None:
        raise RefusalError(problem, "rl_fork again, once the key is set or with another model")
    arguments = [f"--group={group}", f"--rollout={rollout}", f"--turn={turn}", f"--count={count}"]
    if edit is not None:
        arguments.append(f"--edit={edit}")
    if environment is not None:
        found = await asyncio.to_thread(find_environment, environment, allowed=session.allowed_files)
        arguments.append(f"--env={found.reference}")
    await session.progress(0, 1, f"forking rollout {rollout} of group {group} at turn {turn}")
    answer = await _run(records, arguments, candidate)
    await session.progress(1, 1, f"{len(answer['scores'])} forks")
    return _with_advice(answer)


def _records(file: str, allowed: AllowedFiles | None) -> Path:
    path = named_path(file, "groups").expanduser()
    own = (runs_home(), inference_tests_home())
    if allowed is not None and not any(path.resolve().is_relative_to(folder.resolve()) for folder in own):
        path = allowed.require(path)
    if not path.is_file():
        raise RefusalError(f"no file {file}", "rl_fork with a file of groups that `hermes-rl process` or a run wrote")
    return path


async def _run(records: Path, arguments: Sequence[str], candidate: CandidateModel) -> dict[str, Any]:
    """The JSON answer of `hermes-rl fork`; RefusalError when it has none."""
    sections: Mapping[str, Any] = {"openai": dict(candidate.endpoint)}
    variables = {**os.environ, **key_variables((*referenced_keys(sections), *TOOL_KEYS))}
    with tempfile.TemporaryDirectory(prefix="hermes-rl-fork-") as private:
        config, said, log = (Path(private) / name for name in ("config.yaml", "said", "log"))
        config.write_text(yaml.safe_dump(sections, allow_unicode=True))
        command = python_command("-m", "hermes_rl", "fork", str(records), *arguments, "--config", str(config), "--json")
        with said.open("wb") as output, log.open("wb") as errors:
            process = await asyncio.create_subprocess_exec(
                *guard_argv(command, grace=INTERRUPT_GRACE),
                stdin=asyncio.subprocess.PIPE,
                stdout=output,
                stderr=errors,
                env=variables,
                start_new_session=True,
            )
        try:
            async with asyncio.timeout(SECONDS):
                code = await process.wait()
        except TimeoutError:
            raise RefusalError(f"the forks took longer than {SECONDS:g} s", "rl_fork with a smaller count") from None
        finally:
            # The guard ends the command, and all that it started, when this is closed.
            if process.stdin is not None:
                process.stdin.close()
            await asyncio.shield(process.wait())
        lines = said.read_bytes().splitlines()
        if code not in (0, NOT_SCORED) or not lines:
            raise RefusalError(last_error(log), RETRY)
    answer: dict[str, Any] = fast_json.loads(lines[-1])
    return answer


def _with_advice(answer: Mapping[str, Any]) -> dict[str, Any]:
    if any(score is not None for score in answer["scores"]):
        return {**answer, "next": "read the rollouts in path; rl_fork again with another turn, model or edit"}
    first = next(iter(answer["failures"]), "no fork has a score")
    return {**answer, "error": first, "next": RETRY}
