"""What an agent could read that it should not: answers in its sandbox or its prompt, secrets in its variables."""

import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from hermes_rl.agent.result import AgentResult
from hermes_rl.environment.base import HermesAgentBaseEnv
from hermes_rl.environment.contract import Environment
from hermes_rl.environment.steps import Reply, Step, run_script
from hermes_rl.environment.validation.inventory import Item
from hermes_rl.environment.validation.report import Finding, Severity, listed, shown
from hermes_rl.rewards.tool_context import ToolContext

READERS = {"terminal", "execute_code", "read_file", "search_files"}
# Fields of an item that by their names hold what the agent is to find out.
ANSWERS = re.compile(
    r"answer|solution|expected|gold|target|label|truth|secret|hidden|patch|reference|tests?\b", re.IGNORECASE
)
SECRETS = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL", re.IGNORECASE)
LEAST_VALUE, LEAST_SECRET = 4, 8
MOST_VALUES = 60
END = "end-of-what-is-looked-for"
PLACES = ". /tmp /logs /tests /solution /app /home /root /srv /opt /data"
# The names of files with the values that they hold, then the variables of the agent's processes.
LOOK = f"""\
grep -rnoIsF -f - -- {PLACES} <<'{END}' | head -c 20000
%s
{END}
echo; echo {END}
env -0 | tr '\\n\\0' ' \\n'"""


def leaked_answer(oracle: Sequence[Step | Reply], item: Item) -> Finding | None:
    """A warning when the words the oracle ends with stand in the prompt, and nothing else is needed."""
    last = oracle[-1] if oracle else None
    if not isinstance(last, str) or len(oracle) > 1 or len(last.strip()) < LEAST_VALUE - 1:
        return None
    said = last.strip()
    if not re.search(rf"(?<!\w){re.escape(said)}(?!\w)", _text(item), re.IGNORECASE):
        return None
    return Finding(
        Severity.WARNING,
        "answer_in_prompt",
        f"the oracle's answer to item {item.id} stands in its prompt: {shown(said)!r}",
        "take it out of the prompt, unless finding it there is the task, or the choices are listed",
    )


async def sandbox_leaks(env: HermesAgentBaseEnv, item: Item, tools: Collection[str]) -> list[Finding]:
    """What a fresh sandbox of the item shows an agent with these tools."""
    if not READERS & set(tools):
        return []
    values = hidden_values(item)
    output = ""

    async def look(_env: Environment, _item: Any, _result: AgentResult, ctx: ToolContext) -> float:
        nonlocal output
        output = ctx.terminal(LOOK % "\n".join(values or [END]))["output"]
        return 0.0

    await run_script(env, item.value, [""], split=item.split, scoring=look)
    found, _, variables = output.partition(f"\n{END}\n")
    return [*_answers(item, values, found), *_secrets(item, variables)]


def hidden_values(item: Item) -> dict[str, str]:
    """Texts of the item that only its answers hold, by text, with the field each is of."""
    text = _text(item)
    found: dict[str, str] = {}
    for field, value in _leaves(item.value):
        lines = [line.strip() for line in value.splitlines() if line.strip()]
        longest = max(lines, key=len, default="")
        if ANSWERS.search(field) and len(longest) >= LEAST_VALUE and longest not in text:
            found.setdefault(longest, field)
    return dict(list(found.items())[:MOST_VALUES])


def _answers(item: Item, values: Mapping[str, str], found: str) -> Iterator[Finding]:
    places: dict[str, str] = {}
    for line in found.splitlines():
        place, _, rest = line.partition(":")
        value = rest.partition(":")[2]
        field = values.get(value)
        if field is not None and not _laid_out(field, place):
            places.setdefault(field, place)
    if places:
        where = listed([f"{field} in {place}" for field, place in places.items()])
        yield Finding(
            Severity.WARNING,
            "answer_in_sandbox",
            f"the agent of item {item.id} can read in its sandbox what its prompt does not tell: {where}",
            "keep answers and tests out of sandbox_spec; give them to ctx.verify(files=…), which brings them when the "
            "agent is gone. If finding it there is the task, this is as it should be",
        )


def _laid_out(field: str, place: str) -> bool:
    """Whether the field is named as the file it was found in, as in an item that holds its files: it is there to be."""
    name = field.partition(".")[2]
    return bool(name) and place.endswith(name)


def _secrets(item: Item, variables: str) -> Iterator[Finding]:
    pairs = [line.partition("=")[::2] for line in variables.splitlines() if "=" in line]
    ours = {value for name, value in os.environ.items() if SECRETS.search(name) and len(value) >= LEAST_SECRET}
    names = [name for name, value in pairs if value and (SECRETS.search(name) or value in ours)]
    if names:
        yield Finding(
            Severity.ERROR,
            "secret_in_sandbox",
            f"the agent of item {item.id} can read variables that look like secrets: {listed(names)}",
            "take them out of sandbox_spec(env=…); a tool of your own that needs a key runs outside the sandbox",
        )


def _leaves(value: Any, field: str = "") -> Iterator[tuple[str, str]]:
    """The texts and numbers of an item with the path of each."""
    if isinstance(value, Mapping):
        for name, part in value.items():
            yield from _leaves(part, f"{field}.{name}" if field else str(name))
    elif isinstance(value, list | tuple | set):
        for part in value:
            yield from _leaves(part, field)
    elif isinstance(value, str | int | float) and not isinstance(value, bool):
        yield field, str(value)


def _text(item: Item) -> str:
    return "\n".join(str(message.get("content") or "") for message in item.messages)
