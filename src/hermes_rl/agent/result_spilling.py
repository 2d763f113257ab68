"""Spills tool results that are too long for the conversation: the full text goes to a sandbox file, a preview stays.

`choose_spilled`, a pure function, decides which results are spilled, the largest first.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from hermes_rl.agent.limits import ResultBudget
from hermes_rl.tools.session import ToolOutcome, ToolSession

READERS = {"read_file", "terminal"}


@dataclass(frozen=True, slots=True)
class ToolResult:
    """One tool result of a turn."""

    tool: str
    outcome: ToolOutcome


def choose_spilled(results: Sequence[tuple[str, int]], spent: int, budget: ResultBudget) -> list[int]:
    """Indices of the turn's (tool, characters) to write to files, given the characters used by earlier turns."""
    spilled = {
        index
        for index, (tool, size) in enumerate(results)
        if (limit := budget.limit_of(tool)) is not None and size > limit
    }
    room = budget.per_turn
    if budget.per_context is not None:
        room = min(room, max(budget.per_context - spent, 0))
    remaining = sum(size for index, (_, size) in enumerate(results) if index not in spilled)
    for index in sorted(range(len(results)), key=lambda index: -results[index][1]):
        if remaining <= room:
            break
        if index not in spilled and results[index][1] > budget.preview:
            spilled.add(index)
            remaining -= results[index][1]
    return sorted(spilled)


async def fit_to_budget(
    results: Sequence[ToolResult],
    *,
    spent: int,
    budget: ResultBudget,
    session: ToolSession | None,
    tools: set[str],
    turn: int,
) -> list[ToolOutcome]:
    """The turn's outcomes as shown to the model."""
    shown = [result.outcome for result in results]
    sizes = [(result.tool, len(result.outcome.text)) for result in results]
    for index in choose_spilled(sizes, spent, budget):
        outcome = results[index].outcome
        # The text of a file is not written to another file; the preview asks the model to read less at a time.
        readable = session is not None and bool(tools & READERS) and results[index].tool != "read_file"
        path = await _write_result(session, f"{turn}-{index}", outcome.text) if readable and session else None
        shown[index] = ToolOutcome(_preview(outcome.text, budget.preview, path), outcome.error)
    return shown


async def _write_result(session: ToolSession, name: str, text: str) -> str | None:
    """Write a result where the agent can read it. The file name is ours, since a call's id is text of the model.

    None when the file cannot be written: the policy can fill the disk or put a file in its place, and must not escape
    its score that way.
    """
    sandbox = await session.sandbox()
    path = f"{sandbox.scratch}/hermes-results/{name}.txt"
    try:
        await sandbox.write(path, text.encode("utf-8", "replace"))
    except OSError:
        return None
    return path


def _preview(text: str, length: int, path: str | None) -> str:
    head, tail = text[: length * 2 // 3], text[-(length // 3) :]
    where = f"The whole is in {path}" if path else "Ask for less at a time"
    return (
        f"<persisted-output>\nThis result has {len(text)} characters. {where}.\n"
        f"Its beginning and end:\n{head}\n…\n{tail}\n</persisted-output>"
    )
