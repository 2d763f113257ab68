"""A conversation by pages: messages with their long texts cut, and the rest of a text by pieces.

Always true: a page holds a bounded number of messages and characters; where a text is cut, its whole length is told.
"""

from collections.abc import Mapping
from typing import Any

from hermes_rl.viewer.described import REASONING, messages_of, prompt_length
from hermes_rl.viewer.lenient import mapping, sequence, shown, text

TEXT = 20_000
PAGE_CHARACTERS = 300_000
MOST_MESSAGES = 200
CALLS = 100
PIECE = 200_000
WORD = 200


def messages_page(rollout: Mapping[str, Any], first: int, limit: int) -> dict[str, Any]:
    messages = messages_of(rollout)
    failed = _failed_calls(rollout)
    prompt = prompt_length(rollout) or 0
    rows: list[dict[str, Any]] = []
    room = PAGE_CHARACTERS
    number = first
    for number in range(first, min(len(messages), first + limit)):
        if room <= 0:
            break
        row, size = _message(messages[number], number, prompt, failed)
        rows.append(row)
        room -= size
    end = first + len(rows)
    return {"rows": rows, "next": end if end < len(messages) else None, "total": len(messages)}


def text_piece(rollout: Mapping[str, Any], message: int, part: str, first: int) -> dict[str, Any] | None:
    """A piece of one text; None when the message has no such part."""
    messages = messages_of(rollout)
    if not 0 <= message < len(messages):
        return None
    said = mapping(messages[message])
    whole_text: str | None = None
    if part == "content":
        whole_text = _content(said.get("content")) if said else shown(messages[message])
    elif part == "reasoning":
        whole_text = _reasoning(said)
    elif part.startswith("call:") and part[5:].isdecimal() and len(part) < 12:
        calls = sequence(said.get("tool_calls"))
        place = int(part[5:])
        whole_text = _arguments(calls[place]) if place < len(calls) else None
    if whole_text is None:
        return None
    end = first + PIECE
    following = end if end < len(whole_text) else None
    return {"text": whole_text[first:end], "chars": len(whole_text), "next": following}


def _message(value: Any, number: int, prompt: int, failed: set[str]) -> tuple[dict[str, Any], int]:
    said = mapping(value)
    role = text(said.get("role")) or "?"
    content = _content(said.get("content")) if said else shown(value)
    call_id = text(said.get("tool_call_id"))
    reasoning = _cut(_reasoning(said))
    calls: list[dict[str, Any]] = [
        {
            "id": _word(mapping(call).get("id")),
            "name": _word(mapping(mapping(call).get("function")).get("name")) or "?",
            "arguments": _cut(_arguments(call)),
        }
        for call in sequence(said.get("tool_calls"))[:CALLS]
    ]
    row: dict[str, Any] = {
        "n": number,
        "role": role[:WORD],
        "reasoning": reasoning,
        "content": _cut(content),
        "tool_calls": calls,
        "tool_call_id": _word(call_id),
        "name": _word(said.get("name")),
        "error": role == "tool" and call_id in failed,
        "sampled": role == "assistant" and number >= prompt,
    }
    texts = [row["content"], reasoning, *(call["arguments"] for call in calls)]
    return row, 200 + sum(len(one["text"]) for one in texts if one)


def _failed_calls(rollout: Mapping[str, Any]) -> set[str]:
    uses = (mapping(use) for use in sequence(rollout.get("tool_uses")))
    return {str(use.get("call_id")) for use in uses if use.get("error") is not None}


def _content(content: Any) -> str | None:
    if content is None or isinstance(content, str):
        return content
    if not isinstance(content, list):
        return shown(content)
    parts = [text(mapping(one).get("text")) or f"[{mapping(one).get('type', 'part')}]" for one in content]
    return "\n".join(parts)


def _reasoning(said: Mapping[str, Any]) -> str | None:
    return next((told for name in REASONING if (told := text(said.get(name)))), None)


def _arguments(call: Any) -> str:
    return shown(mapping(mapping(call).get("function")).get("arguments", ""))


def _cut(value: str | None) -> dict[str, Any] | None:
    if value is None:
        return None
    return {"text": value[:TEXT], "chars": len(value), "cut": len(value) > TEXT}


def _word(value: Any) -> str | None:
    return None if value is None else shown(value)[:WORD]
