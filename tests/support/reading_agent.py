"""An agent that knows nothing of hermes-rl: it reads what the tools say of themselves and the JSON they answer with.

Where an answer is an error, it makes the call that stands under `next`, with a value from the choices beside it.
"""

import difflib
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

Answer = dict[str, Any]
Call = Callable[[str, dict[str, Any]], Awaitable[Answer]]
CALL = re.compile(r"(rl_\w+)\(([^()]*)\)")
ARGUMENT = re.compile(r"(\w+)=('[^']*'|\"[^\"]*\"|[\w.-]+)")
MOST_CALLS = 60


class LostError(Exception):
    """What the tools said was not enough to go on."""


@dataclass(frozen=True)
class ReadTool:
    """All that a client shows of a tool."""

    name: str
    description: str
    schema: Mapping[str, Any]

    @property
    def required(self) -> list[str]:
        return list(self.schema.get("required", ()))


@dataclass
class ReadingAgent:
    tools: list[ReadTool]
    call: Call
    said: list[tuple[str, dict[str, Any], Answer]] = field(default_factory=list)

    def tool(self, words: str) -> str:
        """The tool whose description has these words."""
        found = [tool.name for tool in self.tools if words.lower() in tool.description.lower()]
        if len(found) != 1:
            raise LostError(f"{words!r} is in the description of {found or 'none'}")
        return found[0]

    async def do(self, name: str, /, **arguments: Any) -> Answer:
        if len(self.said) >= MOST_CALLS:
            raise LostError("going round in circles")
        answer = await self.call(name, arguments)
        self.said.append((name, arguments, answer))
        return answer

    async def wrong(self, name: str, /, **arguments: Any) -> Answer:
        """A call that is expected to be refused, in the form that every refusal has."""
        answer = await self.do(name, **arguments)
        if not isinstance(answer.get("error"), str) or not isinstance(answer.get("next"), str):
            raise LostError(f"{name}({arguments}) was not refused with error and next: {answer}")
        return answer

    async def well(self, name: str, /, **arguments: Any) -> Answer:
        answer = await self.do(name, **arguments)
        if "error" in answer:
            raise LostError(f"{name}({arguments}): {answer}")
        return answer

    def named_calls(self, answer: Answer) -> list[tuple[str, dict[str, Any]]]:
        """The calls that stand under `next`."""
        known = {tool.name for tool in self.tools}
        return [
            (name, {key: _value(text) for key, text in ARGUMENT.findall(inside)})
            for name, inside in CALL.findall(answer["next"])
            if name in known
        ]

    async def follow(self, answer: Answer, wanted: str | None = None, /, **filled: Any) -> Answer:
        """Make the first call under `next`, or the one of the wanted tool; values in capitals are filled in."""
        calls = [call for call in self.named_calls(answer) if wanted in (None, call[0])]
        if not calls:
            raise LostError(f"no call of {wanted or 'any tool'} under next: {answer['next']}")
        name, arguments = calls[0]
        open_ones = [key for key, value in arguments.items() if isinstance(value, str) and value.isupper()]
        if missing := [key for key in open_ones if key not in filled]:
            raise LostError(f"nothing to fill in for {missing}: {answer}")
        return await self.well(name, **{**arguments, **{key: filled[key] for key in open_ones}})

    def nearest(self, wish: str, choices: list[str]) -> str:
        found = difflib.get_close_matches(wish, choices, n=1, cutoff=0.3)
        if not found:
            raise LostError(f"nothing like {wish!r} among {choices}")
        return found[0]


def _value(text: str) -> Any:
    if text[0] in "'\"":
        return text[1:-1]
    if text in {"true", "false"}:
        return text == "true"
    return int(text) if text.lstrip("-").isdigit() else text
