"""Own tools are called with arguments of their schema, so that an author sees their bugs before a run."""

from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, Field

from hermes_rl import AgentResult, HermesAgentBaseEnv, Step, ToolContext, ToolSession, ToolUseError, tool
from hermes_rl.validation.report import Severity
from hermes_rl.validation.tool_checks import sample_arguments
from hermes_rl.validation.validate import validate_environment


class Side(StrEnum):
    LEFT = "left"
    RIGHT = "right"


class Place(BaseModel):
    row: int
    name: str | None = None


@tool
async def move(
    side: Side,
    steps: Annotated[int, Field(ge=1, le=3)],
    share: Annotated[float, Field(gt=0, lt=1)] = 0.5,
    places: list[Place] | None = None,
    kind: Literal["walk", "run"] = "walk",
    quiet: bool = False,
) -> str:
    """Move."""
    return f"{side} {steps} {share} {places} {kind} {quiet}"


def drawn(name: str) -> list[Any]:
    return [arguments[name] for arguments in sample_arguments(move.parameters) if name in arguments]


def test_arguments_stay_within_the_schema() -> None:
    sampled = sample_arguments(move.parameters)
    assert all(move.check(arguments) for arguments in sampled)
    assert sampled == sample_arguments(move.parameters)
    assert {"side": "left", "steps": 1} in sampled


def test_each_choice_end_and_kind_of_value_is_drawn() -> None:
    assert {*drawn("side")} == {"left", "right"}
    assert {*drawn("steps")} == {1, 2, 3}
    assert {*drawn("kind")} == {"walk", "run"}
    assert {*drawn("quiet")} == {True, False}
    assert drawn("share")
    assert None in drawn("places")
    assert [{"row": 0, "name": "a"}] in drawn("places")


def test_values_of_the_item_are_tried_where_they_fit() -> None:
    @tool
    async def go(place: str, steps: int) -> str:
        """Go."""
        return f"{place} {steps}"

    sampled = sample_arguments(go.parameters, ["9"])
    assert {"place": "9", "steps": 0} in sampled
    assert {"place": "a", "steps": 9} in sampled


class Shelf(HermesAgentBaseEnv[int]):
    """Take books from a shelf of three."""

    books: ClassVar[tuple[str, ...]] = ("a", "b", "c")

    def initial_state(self, item: int) -> list[str]:
        return list(self.books)

    def train_items(self) -> Sequence[int]:
        return [1, 2]

    def eval_items(self) -> Sequence[int]:
        return [3]

    def format_prompt(self, item: int) -> str:
        return f"take book {item}"

    @tool(sandboxed=False)
    async def take(self, session: ToolSession[list[str]], number: int) -> str:
        """Take a book."""
        if number < 0:
            raise ToolUseError("books are numbered from 0")
        return session.state.pop(number)

    def oracle(self, item: int) -> Sequence[Step]:
        return [("take", {"number": 0}), "done"]

    async def compute_reward(self, item: int, result: AgentResult, ctx: ToolContext) -> float:
        return 1.0 if len(ctx.state) == 2 else 0.0


class Sorted(Shelf):
    """The same without the bug."""

    @tool(sandboxed=False)
    async def take(self, session: ToolSession[list[str]], number: int) -> str:
        """Take a book."""
        if not 0 <= number < len(session.state):
            raise ToolUseError(f"books are numbered from 0 to {len(session.state) - 1}")
        return session.state.pop(number)


def test_an_exception_of_a_tool_is_an_error_with_its_line_and_arguments() -> None:
    # Without settings, ssh has no machine: nothing here needs one.
    report = validate_environment(Shelf, items=1, terminal_backend="ssh")
    [found] = [finding for finding in report.findings if finding.code == "tool_raised"]
    assert found.severity is Severity.ERROR
    assert "the tool take raised IndexError at test_tool_checks.py:" in found.seen
    assert '{"number":1000000}' in found.seen
    assert "ToolUseError" in found.fix


def test_a_tool_that_refuses_everything_drawn_is_noted() -> None:
    class Closed(Sorted):
        @tool(sandboxed=False)
        async def take(self, session: ToolSession[list[str]], number: int) -> str:
            """Take a book."""
            raise ToolUseError("the shelf is closed")

    report = validate_environment(Closed, items=1, terminal_backend="ssh")
    [found] = [finding for finding in report.findings if finding.code == "tool_not_tried"]
    assert found.severity is Severity.NOTE
    assert "the shelf is closed" in found.seen


def test_a_tool_without_the_bug_is_no_finding_and_needs_no_sandbox() -> None:
    report = validate_environment(Sorted, items=1, terminal_backend="ssh")
    assert report.ok, str(report)
