"""Pages of a conversation: messages with truncated texts, and chunks of a full text.

Always true: a page has a bounded number of messages and characters; a truncated text comes with its full length.
"""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

from hermes_rl.viewer.lenient_json import as_int, as_list, as_mapping, as_str, to_text
from hermes_rl.viewer.responses.rollout import step_rewards
from hermes_rl.viewer.summaries import REASONING_FIELDS, prompt_length, rollout_messages

MAX_TEXT = 20_000
PAGE_CHARACTERS = 300_000
MAX_MESSAGES = 200
MAX_CALLS = 100
MAX_STATES = 2_000
CHUNK_CHARS = 200_000
MAX_WORD = 200


def messages_page(rollout: Mapping[str, Any], first: int, limit: int) -> dict[str, Any]:
    messages = rollout_messages(rollout)
    failed = _failed_calls(rollout)
    prompt = prompt_length(rollout) or 0
    turns = _turns(rollout, messages, prompt)
    states = _states(rollout)
    rewards = step_rewards(rollout)
    rows: list[dict[str, Any]] = []
    room = PAGE_CHARACTERS
    number = first
    for number in range(first, min(len(messages), first + limit)):
        if room <= 0:
            break
        row, size = _message(messages[number], number, prompt, failed)
        turn = turns[number]
        if number + 1 == len(messages) or turns[number + 1] != turn:
            row["state"] = states.get(turn)
            row["rewards"] = [reward for reward in rewards if reward["turn"] == turn]
        rows.append(row | {"turn": turn})
        room -= size + len(row["state"]["text"] if row["state"] else "")
    end = first + len(rows)
    return {"rows": rows, "next": end if end < len(messages) else None, "total": len(messages)}


def text_chunk(rollout: Mapping[str, Any], message: int, part: str, first: int) -> dict[str, Any] | None:
    """A chunk of one text; None when the message has no such part."""
    messages = rollout_messages(rollout)
    if not 0 <= message < len(messages):
        return None
    fields = as_mapping(messages[message])
    whole_text: str | None = None
    if part == "content":
        whole_text = _content(fields.get("content")) if fields else to_text(messages[message])
    elif part == "reasoning":
        whole_text = _reasoning(fields)
    elif part.startswith("call:") and part[5:].isdecimal() and len(part) < 12:
        calls = as_list(fields.get("tool_calls"))
        index = int(part[5:])
        whole_text = _arguments(calls[index]) if index < len(calls) else None
    if whole_text is None:
        return None
    end = first + CHUNK_CHARS
    return {
        "text": whole_text[first:end],
        "chars": len(whole_text),
        "next": end if end < len(whole_text) else None,
    }


def _message(value: Any, number: int, prompt: int, failed: set[str]) -> tuple[dict[str, Any], int]:
    fields = as_mapping(value)
    role = as_str(fields.get("role")) or "?"
    content = _content(fields.get("content")) if fields else to_text(value)
    call_id = as_str(fields.get("tool_call_id"))
    reasoning = _truncate(_reasoning(fields))
    calls: list[dict[str, Any]] = [
        {
            "id": _short_text(as_mapping(call).get("id")),
            "name": _short_text(as_mapping(as_mapping(call).get("function")).get("name")) or "?",
            "arguments": _truncate(_arguments(call)),
        }
        for call in as_list(fields.get("tool_calls"))[:MAX_CALLS]
    ]
    row: dict[str, Any] = {
        "n": number,
        "role": role[:MAX_WORD],
        "reasoning": reasoning,
        "content": _truncate(content),
        "tool_calls": calls,
        "tool_call_id": _short_text(call_id),
        "name": _short_text(fields.get("name")),
        "error": role == "tool" and call_id in failed,
        "sampled": role == "assistant" and number >= prompt,
        "state": None,
        "rewards": [],
    }
    texts = [row["content"], reasoning, *(call["arguments"] for call in calls)]
    return row, 200 + sum(len(text["text"]) for text in texts if text)


def _turns(rollout: Mapping[str, Any], messages: Sequence[Any], prompt: int) -> list[int]:
    """The turn of each message: that of the last answer before it, counted from 1; 0 for the prompt.

    A conversation that was compacted on the way has lost its first answers.
    """
    answers = [as_mapping(message).get("role") == "assistant" and at >= prompt for at, message in enumerate(messages)]
    lost = max(0, (as_int(rollout.get("turns_used")) or 0) - sum(answers))
    return [count + lost if count else 0 for count in accumulate(map(int, answers))]


def _states(rollout: Mapping[str, Any]) -> dict[int, dict[str, Any]]:
    """The state of the environment by the turn after which it was recorded, with the names that changed in it."""
    found: dict[int, dict[str, Any]] = {}
    before: Any = None
    for one in map(as_mapping, as_list(rollout.get("states"))[:MAX_STATES]):
        number, value = as_int(one.get("turn")), one.get("value")
        if number is None:
            continue
        old, new = as_mapping(before), as_mapping(value)
        changed = [name for name in new if found and old.get(name) != new[name]][:MAX_CALLS]
        found[number] = {**(_truncate(to_text(value)) or {}), "changed": changed}
        before = value
    return found


def _failed_calls(rollout: Mapping[str, Any]) -> set[str]:
    uses = (as_mapping(use) for use in as_list(rollout.get("tool_uses")))
    return {str(use.get("call_id")) for use in uses if use.get("error") is not None}


def _content(content: Any) -> str | None:
    if content is None or isinstance(content, str):
        return content
    if not isinstance(content, list):
        return to_text(content)
    parts = [as_str(as_mapping(one).get("text")) or f"[{as_mapping(one).get('type', 'part')}]" for one in content]
    return "\n".join(parts)


def _reasoning(fields: Mapping[str, Any]) -> str | None:
    return next((reasoning for name in REASONING_FIELDS if (reasoning := as_str(fields.get(name)))), None)


def _arguments(call: Any) -> str:
    return to_text(as_mapping(as_mapping(call).get("function")).get("arguments", ""))


def _truncate(value: str | None) -> dict[str, Any] | None:
    if value is None:
        return None
    return {"text": value[:MAX_TEXT], "chars": len(value), "cut": len(value) > MAX_TEXT}


def _short_text(value: Any) -> str | None:
    return None if value is None else to_text(value)[:MAX_WORD]
