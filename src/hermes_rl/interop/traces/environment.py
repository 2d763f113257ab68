"""Writes an environment from traces: their tasks as items, the best recorded answer as oracle, and a draft reward.

Always true: a task without a usable answer is left out and counted; both splits have a task, or nothing is written.
"""

import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hermes_rl.core import fast_json
from hermes_rl.core.errors import ConfigError
from hermes_rl.core.messages import ToolCall, content_text, final_response
from hermes_rl.core.trajectory import Group, Rollout, StopReason
from hermes_rl.extensions import TOOLSETS
from hermes_rl.interop.traces.importer import ImportOptions, import_groups
from hermes_rl.interop.traces.trace import text
from hermes_rl.store.records import READABLE, read_groups
from hermes_rl.tools.registry import get_toolset

EVAL_SHARE = 0.2
# Toolsets that act in the sandbox alone, so that a recorded call can be repeated.
_IN_SANDBOX = ("terminal", "file")
_SOURCE = '''"""NAME: tasks of recorded traces. A draft reward compares the answer with the best recorded one."""

import json
import re
from pathlib import Path
from typing import Any

from hermes_rl import AgentResult, HermesAgentBaseEnv, Step, ToolContext

TASKS = Path(__file__).with_name("NAME_tasks.jsonl")


class CLASSEnv(HermesAgentBaseEnv):
    """Tasks of recorded traces."""

    name = "NAME"TOOLSETS

    def train_items(self) -> list[dict[str, Any]]:
        return tasks("train")

    def eval_items(self) -> list[dict[str, Any]]:
        return tasks("eval")

    def item_id(self, item: dict[str, Any]) -> str:
        return str(item["item_id"])

    def initial_messages(self, item: dict[str, Any]) -> list[dict[str, Any]]:
        return list(item["messages"])

    def format_prompt(self, item: dict[str, Any]) -> str:
        return str(item["prompt"])

    async def compute_reward(self, item: dict[str, Any], result: AgentResult, ctx: ToolContext) -> float:
        # Too strict for free text, and blind to files. Replace it with a check of what the task asks for.
        return 1.0 if words(result.final_response) == words(item["answer"]) else 0.0

    def oracle(self, item: dict[str, Any]) -> list[Step]:
        calls = [[(name, arguments) for name, arguments in turn] for turn in item["turns"]]
        return [*calls, item["answer"]]


def tasks(split: str) -> list[dict[str, Any]]:
    with TASKS.open(encoding="utf-8") as lines:
        return [task for task in map(json.loads, lines) if task["split"] == split]


def words(text: str) -> list[str]:
    return re.findall(r"\\w+", text.casefold())
'''
_TEST = """from hermes_rl.validation.validate import check_environment

from NAME_env import CLASSEnv


def test_a_solution_scores_and_neither_idling_nor_cheating_does() -> None:
    check_environment(CLASSEnv)
"""


@dataclass(slots=True)
class TracedTasks:
    """The tasks, the toolsets they need, and why others were left out."""

    tasks: list[dict[str, Any]] = field(default_factory=list)
    toolsets: tuple[str, ...] = ()
    unknown_tools: Counter[str] = field(default_factory=Counter)
    left_out: Counter[str] = field(default_factory=Counter)


def read_tasks(path: Path) -> TracedTasks:
    """The tasks of a file of groups, or of traces. ConfigError if there are fewer than two."""
    with tempfile.TemporaryDirectory(prefix="hermes-rl-init-") as folder:
        if not _is_groups(path):
            imported = Path(folder) / "groups.jsonl"
            import_groups([path], imported, ImportOptions(eval_share=EVAL_SHARE))
            path = imported
        found = _collect(read_groups(path))
    if len(found.tasks) < 2:
        reasons = ", ".join(f"{count} {reason}" for reason, count in found.left_out.items())
        raise ConfigError(
            f"an environment needs a task to train on and one to evaluate; {len(found.tasks)} can be used"
            f"{f' (left out: {reasons})' if reasons else ''}; add traces, or group them with hermes-rl import"
        )
    for split in ("train", "eval"):
        if all(task["split"] != split for task in found.tasks):
            found.tasks[0]["split"] = split
    return found


def environment_files(name: str, found: TracedTasks) -> dict[str, str]:
    """The contents of the environment, its tasks and its test, by file name."""
    names = [f'"{toolset}"' for toolset in found.toolsets]
    class_name = "".join(word.capitalize() for word in name.split("_"))
    toolsets = f"\n    default_toolsets = ({', '.join(names)},)" if names else ""
    source = _SOURCE.replace("TOOLSETS", toolsets).replace("CLASS", class_name).replace("NAME", name)
    return {
        f"{name}_env.py": source,
        f"{name}_tasks.jsonl": "".join(f"{fast_json.dumps(task).decode()}\n" for task in found.tasks),
        f"test_{name}_env.py": _TEST.replace("CLASS", class_name).replace("NAME", name),
    }


def _is_groups(path: Path) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        begin = file.read(200)
        return any(name.encode() in begin for name in READABLE)


def _collect(groups: Iterable[Group]) -> TracedTasks:
    found = TracedTasks()
    owners = {tool.name: name for name in _IN_SANDBOX if name in TOOLSETS.builtin for tool in get_toolset(name).tools}
    used: Counter[str] = Counter()
    for group in groups:
        best = _best(group)
        prompt = [message for message in _prompt(group) if message.get("role") in {"system", "user"}]
        said = next((content_text(one.get("content")) for one in reversed(prompt) if one["role"] == "user"), "")
        if best is None or not said:
            found.left_out["without a successful answer" if said else "without a prompt of a user"] += 1
            continue
        used.update(name for rollout in group.rollouts for name in _tools(rollout))
        repeatable = all(name in owners for name in _tools(best))
        found.tasks.append(
            {
                "item_id": f"{group.item_id}-{len(found.tasks)}",
                "split": group.split,
                "prompt": said,
                "messages": prompt,
                "answer": final_response(best.messages),
                "turns": list(_turns(best)) if repeatable else [],
            }
        )
    found.unknown_tools.update({name: count for name, count in used.items() if name not in owners})
    known = {owners[name] for name in used if name in owners}
    # What an unknown tool did may be possible in a terminal.
    found.toolsets = tuple(name for name in _IN_SANDBOX if name in known) or (("terminal",) if used else ())
    return found


def _best(group: Group) -> Rollout | None:
    """The rollout with the highest positive score; of unscored ones, the first that ended with an answer."""
    answered = [one for one in group.rollouts if _ended_with_an_answer(one)]
    scored = [(one.score, -index, one) for index, one in enumerate(answered) if one.score is not None]
    if any(one.score is not None for one in group.rollouts):
        return max(scored)[2] if scored and max(scored)[0] > 0 else None
    return next(iter(answered), None)


def _ended_with_an_answer(rollout: Rollout) -> bool:
    last = rollout.messages[-1] if rollout.messages else {}
    said = last.get("role") == "assistant" and content_text(last.get("content")).strip()
    return bool(said) and rollout.stop_reason is StopReason.NATURAL


def _prompt(group: Group) -> list[dict[str, Any]]:
    first = group.rollouts[0]
    return first.messages[: int(first.metadata.get("prompt_length", 0))]


def _tools(rollout: Rollout) -> list[str]:
    return [use.name for use in rollout.tool_uses]


def _turns(rollout: Rollout) -> Iterator[list[tuple[str, Mapping[str, Any]]]]:
    """The calls of each turn; one whose arguments are no object failed, and is left out."""
    for message in rollout.messages:
        calls: list[tuple[str, Mapping[str, Any]]] = []
        for call in map(ToolCall.from_raw, message.get("tool_calls") or ()):
            try:
                arguments = fast_json.loads(text(call.arguments))
            except ValueError:
                continue
            if isinstance(arguments, dict):
                calls.append((call.name, arguments))
        if calls:
            yield calls
