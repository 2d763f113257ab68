"""Claude Code session logs (`~/.claude/projects/*/*.jsonl`): one line per event, linked by `parentUuid` to a tree.

Always true: a trace is the path to the last event of its tree. The lines of one answer are one message, and the results
of its calls follow it, also where parallel calls put them on another branch.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from hermes_rl.core.messages import Message
from hermes_rl.core.trajectory import Usage
from hermes_rl.interop.traces.anthropic_messages import read_message, read_usage
from hermes_rl.interop.traces.trace import Event, Place, Trace, mapping, text

_TYPES = frozenset(
    "user assistant system summary attachment queue-operation last-prompt file-history-snapshot progress".split()
)
_FIELDS = {"sessionId": "session_id", "cwd": "cwd", "gitBranch": "git_branch", "version": "version", "agentId": "agent"}


class ClaudeCode:
    name = "claude-code"
    about = "Claude Code session logs"

    def matches(self, record: Mapping[str, Any]) -> bool:
        kind = record.get("type")
        return (
            isinstance(kind, str)
            and kind in _TYPES
            and bool(record.keys() & {"sessionId", "leafUuid", "parentUuid", "snapshot"})
        )

    def events(self, record: Mapping[str, Any], place: Place) -> Iterable[Event]:
        if not isinstance(uuid := record.get("uuid"), str):
            return []
        session = text(record.get("sessionId")) or place.path.stem
        content: dict[str, Any] = {
            "uuid": uuid,
            "parent": record.get("parentUuid"),
            "fields": {name: record[key] for key, name in _FIELDS.items() if record.get(key)}
            | {"sidechain": bool(record.get("isSidechain"))},
            "time": text(record.get("timestamp")),
            "messages": [],
        }
        if str(record.get("type")) in {"user", "assistant"} and not record.get("isApiErrorMessage"):
            message = mapping(record.get("message"))
            content |= {
                "answer_id": message.get("id") if record["type"] == "assistant" else None,
                "messages": read_message(record["type"], message.get("content")),
                "model": text(message.get("model")),
                "finish": text(message.get("stop_reason")),
                "usage": read_usage(message.get("usage")),
            }
        return [Event(f"{session}/{text(record.get('agentId'))}", "", content)]

    def traces(self, contents: Sequence[dict[str, Any]]) -> Iterator[Trace]:
        nodes = {content["uuid"]: content for content in contents}
        leaves: dict[str, str] = {}
        for uuid, node in nodes.items():
            if node["messages"]:
                leaves[_path(nodes, uuid)[0]["uuid"]] = uuid
        answers: dict[str, list[dict[str, Any]]] = {}
        results: dict[str, Message] = {}
        for node in nodes.values():
            if node.get("answer_id"):
                answers.setdefault(node["answer_id"], []).append(node)
            results |= {one["tool_call_id"]: one for one in node["messages"] if one["role"] == "tool"}
        for leaf in leaves.values():
            trace = _trace(_path(nodes, leaf), answers, results)
            if any(message["role"] == "assistant" for message in trace.messages):
                yield trace


def _path(nodes: Mapping[str, dict[str, Any]], uuid: str) -> list[dict[str, Any]]:
    """The events from the root to this one."""
    path: list[dict[str, Any]] = []
    seen: set[str] = set()
    at = uuid
    while at in nodes and at not in seen:
        seen.add(at)
        path.append(nodes[at])
        at = text(nodes[at]["parent"])
    return path[::-1]


def _trace(
    path: Sequence[dict[str, Any]], answers: Mapping[str, list[dict[str, Any]]], results: Mapping[str, Message]
) -> Trace:
    messages: list[Message] = []
    written: set[str] = set()
    usage = Usage()
    last = path[-1]
    for node in path:
        answer_id = node.get("answer_id")
        if answer_id is None:
            messages += [one for one in node["messages"] if one["role"] != "tool" or one["tool_call_id"] not in written]
        elif answer_id not in written:
            written.add(answer_id)
            lines = answers[answer_id]
            answer = _merged([line["messages"][0] for line in lines])
            calls = [call["id"] for call in answer.get("tool_calls", ())]
            messages += [answer, *(results[call] for call in calls if call in results)]
            written.update(calls)
            # Each line repeats the usage of the whole answer.
            usage += Usage(*lines[-1]["usage"])
            last = lines[-1]
    return Trace(
        messages, [], last.get("model", ""), path[0]["time"], last.get("finish", ""), usage, path[0]["fields"]
    )  # fmt: skip


def _merged(lines: Sequence[Message]) -> Message:
    merged: Message = {"role": "assistant", "content": "".join(line["content"] for line in lines)}
    if reasoning := "".join(line.get("reasoning_content", "") for line in lines):
        merged["reasoning_content"] = reasoning
    if calls := [call for line in lines for call in line.get("tool_calls", ())]:
        merged["tool_calls"] = calls
    return merged
