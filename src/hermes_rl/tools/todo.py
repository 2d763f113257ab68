"""The `todo` toolset: a task list for the agent, one per rollout."""

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field

from hermes_rl.tools.session import ToolSession
from hermes_rl.tools.tool import ToolUseError, tool
from hermes_rl.tools.toolset import Toolset

Status = Literal["pending", "in_progress", "completed", "cancelled"]
MAX_TASKS = 200


class TodoItem(BaseModel):
    model_config = ConfigDict(extra="forbid")

    id: str = Field(min_length=1, max_length=100, description="A name for the task, unique in the list.")
    content: str = Field(min_length=1, max_length=2_000, description="What is to be done.")
    status: Status = Field(description="How far it is.")


@tool(sandboxed=False)
async def todo(
    session: ToolSession,
    todos: Annotated[list[TodoItem], Field(max_length=MAX_TASKS)] | None = None,
    merge: bool = False,
) -> dict[str, Any]:
    """Keep a list of tasks for work of several steps. Without todos it is only read; the answer is the whole list.

    Args:
        todos: The tasks to write, in the order of their importance.
        merge: Change the tasks of the same id and add the others; without it the whole list is replaced.
    """
    tasks = await session.resource("todo", _empty_list)
    if todos is not None:
        repeated = [name for name, times in Counter(item.id for item in todos).items() if times > 1]
        if repeated:
            raise ToolUseError(f"each id may occur once in todos; repeated: {', '.join(repeated)}")
        written = (tasks if merge else {}) | {item.id: item for item in todos}
        if len(written) > MAX_TASKS:
            raise ToolUseError(f"the list would hold {len(written)} tasks; {MAX_TASKS} at most")
        tasks.clear()
        tasks.update(written)
    counts = Counter(item.status for item in tasks.values())
    return {
        "todos": [item.model_dump() for item in tasks.values()],
        "summary": {"total": len(tasks), **{status: counts[status] for status in get_args(Status)}},
    }


TODO = Toolset("todo", (todo,))


@asynccontextmanager
async def _empty_list() -> AsyncIterator[dict[str, TodoItem]]:
    yield {}
