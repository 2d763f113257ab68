"""Tool results that are too long for the conversation: the whole goes to a file in the sandbox, a preview stays.

Which results go is decided by `to_spill`, a pure function; the largest go first.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from hermes_rl.agent.limits import ResultBudget
from hermes_rl.tools.session import ToolOutcome, ToolSession

READERS = {"read_file", "terminal"}


@dataclass(frozen=True, slots=True)
class Result:
    """One tool result of a turn."""

    tool: str
    outcome: ToolOutcome


def to_spill(results: Sequence[tuple[str, int]], spent: int, budget: ResultBudget) -> list[int]:
    """Which of a turn's (tool, characters) go to a file, given the characters that earlier turns spent."""
    gone = {
        place
        for place, (tool, size) in enumerate(results)
        if (limit := budget.limit_of(tool)) is not None and size > limit
    }
    room = budget.per_turn
    if budget.per_context is not None:
        room = min(room, max(budget.per_context - spent, 0))
    kept = sum(size for place, (_, size) in enumerate(results) if place not in gone)
    for place in sorted(range(len(results)), key=lambda place: -results[place][1]):
        if kept <= room:
            break
        if place not in gone and results[place][1] > budget.preview:
            gone.add(place)
            kept -= results[place][1]
    return sorted(gone)


async def within_budget(
    results: Sequence[Result],
    *,
    spent: int,
    budget: ResultBudget,
    session: ToolSession | None,
    tools: set[str],
    turn: int,
) -> list[ToolOutcome]:
    """The turn's outcomes as the model is shown them."""
    shown = [result.outcome for result in results]
    sizes = [(result.tool, len(result.outcome.text)) for result in results]
    for place in to_spill(sizes, spent, budget):
        outcome = results[place].outcome
        # What was read back from a file is not written to another: the model is told to read less at a time.
        readable = session is not None and bool(tools & READERS) and results[place].tool != "read_file"
        path = await _keep(session, f"{turn}-{place}", outcome.text) if readable and session else None
        shown[place] = ToolOutcome(_preview(outcome.text, budget.preview, path), outcome.error)
    return shown


async def _keep(session: ToolSession, name: str, text: str) -> str | None:
    """Write a result where the agent can read it. The name is ours: a call's id is the model's text.

    None when the place cannot be written: the policy can fill it or put a file in its way, and must not escape its
    score by that.
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
