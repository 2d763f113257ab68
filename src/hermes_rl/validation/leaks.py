"""Find leaks to the agent: answers in its sandbox or prompt, secrets in its environment variables."""

import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from hermes_rl.agent.result import AgentResult
from hermes_rl.core.keys import SECRET_NAMES
from hermes_rl.environment.base import HermesAgentBaseEnv
from hermes_rl.environment.scripted_policy import Step, run_script
from hermes_rl.rewards.tool_context import ToolContext
from hermes_rl.rollout.environment_protocol import Environment
from hermes_rl.validation.item_checks import CheckedItem
from hermes_rl.validation.report import Severity, ValidationFinding, join_names, shorten

READERS = {"terminal", "execute_code", "read_file", "search_files"}
# Names of item fields that contain the answer.
ANSWERS = re.compile(
    r"answer|solution|expected|gold|target|label|truth|secret|hidden|patch|reference|tests?\b", re.IGNORECASE
)
MIN_VALUE_LENGTH, MIN_SECRET_LENGTH = 4, 8
MAX_VALUES = 60
END = "end-of-searched-values"
SEARCHED_FOLDERS = ". /tmp /logs /tests /solution /app /home /root /srv /opt /data"
# Prints the files that contain a value, then the agent's environment variables.
SEARCH_SCRIPT = f"""\
grep -rnoIsF -f - -- {SEARCHED_FOLDERS} <<'{END}' | head -c 20000
%s
{END}
echo; echo {END}
env -0 | tr '\\n\\0' ' \\n'"""


def leaked_answer(oracle: Sequence[Step], item: CheckedItem) -> ValidationFinding | None:
    """A warning when the oracle's only step is a reply that is in the prompt."""
    last = oracle[-1] if oracle else None
    if not isinstance(last, str) or len(oracle) > 1 or len(last.strip()) < MIN_VALUE_LENGTH - 1:
        return None
    answer = last.strip()
    if not re.search(rf"(?<!\w){re.escape(answer)}(?!\w)", prompt_of(item), re.IGNORECASE):
        return None
    return ValidationFinding(
        Severity.WARNING,
        "answer_in_prompt",
        f"the oracle's answer to item {item.id} is in its prompt: {shorten(answer)!r}",
        "remove it from the prompt, unless the task is to find it there, or the prompt lists the choices",
    )


async def sandbox_leaks(env: HermesAgentBaseEnv, item: CheckedItem, tools: Collection[str]) -> list[ValidationFinding]:
    """What an agent with these tools can read in a fresh sandbox of the item."""
    if not READERS & set(tools):
        return []
    values = hidden_values(item)
    output = ""

    async def search(_env: Environment, _item: Any, _result: AgentResult, ctx: ToolContext) -> float:
        nonlocal output
        output = ctx.terminal(SEARCH_SCRIPT % "\n".join(values or [END]))["output"]
        return 0.0

    await run_script(env, item.value, [""], split=item.split, scoring=search)
    found, _, variables = output.partition(f"\n{END}\n")
    return [*_answers(item, values, found), *_secrets(item, variables)]


def hidden_values(item: CheckedItem) -> dict[str, str]:
    """Values of the item's answer fields that are not in its prompt, with their field."""
    text = prompt_of(item)
    found: dict[str, str] = {}
    for field, value in item_leaves(item.value):
        lines = [line.strip() for line in value.splitlines() if line.strip()]
        longest = max(lines, key=len, default="")
        if ANSWERS.search(field) and len(longest) >= MIN_VALUE_LENGTH and longest not in text:
            found.setdefault(longest, field)
    return dict(list(found.items())[:MAX_VALUES])


def _answers(item: CheckedItem, values: Mapping[str, str], found: str) -> Iterator[ValidationFinding]:
    files: dict[str, str] = {}
    for line in found.splitlines():
        file, _, rest = line.partition(":")
        value = rest.partition(":")[2]
        field = values.get(value)
        if field is not None and not _is_named_like_file(field, file):
            files.setdefault(field, file)
    if files:
        where = join_names([f"{field} in {file}" for field, file in files.items()])
        yield ValidationFinding(
            Severity.WARNING,
            "answer_in_sandbox",
            f"the agent of item {item.id} can read answers in its sandbox: {where}",
            "keep answers and tests out of sandbox_spec; pass them to ctx.verify(files=…), which adds them after the "
            "agent has ended. Ignore this if the task is to find them there",
        )


def _is_named_like_file(field: str, file: str) -> bool:
    """Whether the field has the file's name, as in an item that contains its files: then it belongs there."""
    name = field.partition(".")[2]
    return bool(name) and file.endswith(name)


def _secrets(item: CheckedItem, variables: str) -> Iterator[ValidationFinding]:
    pairs = [line.partition("=")[::2] for line in variables.splitlines() if "=" in line]
    secrets = {value for name, value in os.environ.items() if SECRET_NAMES.search(name)}
    ours = {value for value in secrets if len(value) >= MIN_SECRET_LENGTH}
    names = [name for name, value in pairs if value and (SECRET_NAMES.search(name) or value in ours)]
    if names:
        yield ValidationFinding(
            Severity.ERROR,
            "secret_in_sandbox",
            f"the agent of item {item.id} can read variables that look like secrets: {join_names(names)}",
            "remove them from sandbox_spec(env=…); a custom tool that needs a key runs outside the sandbox",
        )


def item_leaves(value: Any, field: str = "") -> Iterator[tuple[str, str]]:
    """The strings and numbers of an item with their paths."""
    if isinstance(value, Mapping):
        for name, part in value.items():
            yield from item_leaves(part, f"{field}.{name}" if field else str(name))
    elif isinstance(value, list | tuple | set):
        for part in value:
            yield from item_leaves(part, field)
    elif isinstance(value, str | int | float) and not isinstance(value, bool):
        yield field, str(value)


def prompt_of(item: CheckedItem) -> str:
    return "\n".join(str(message.get("content") or "") for message in item.messages)
