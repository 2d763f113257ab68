"""Counts the rollouts that an error in the environment's own tools or turns ended, and says when the run must stop.

Such a rollout has no score, so a policy could avoid its score with arguments that raise; beyond a few it is a bug that
the author must see.
"""

import traceback
from dataclasses import dataclass

from hermes_rl.core.errors import Failure, FailureSource, HermesRLError

# A tool, or what gives several agents their turns.
CAUSES = ("tool", "seat", "game")
MAX_SHARE = 0.05
MIN_FAULTS = 3


class BrokenToolError(HermesRLError):
    """Too many rollouts ended with an error in the environment's own tools."""


@dataclass(slots=True)
class ToolFaults:
    rollouts: int = 0
    faults: int = 0
    first: str = ""
    """The traceback of the first."""

    def add(self, error: BaseException | None) -> None:
        """Count a rollout that ended, with its error if it failed with one."""
        self.rollouts += 1
        if error is not None and is_tool_fault(getattr(error, "failure", None)):
            self.faults += 1
            self.first = self.first or "".join(traceback.format_exception(error.__cause__ or error))

    def check(self) -> None:
        if self.faults >= MIN_FAULTS and self.faults > MAX_SHARE * self.rollouts:
            raise BrokenToolError(
                f"{self.faults} of {self.rollouts} rollouts ended with an error in the environment's own tools or "
                f"turns (limit: {MAX_SHARE:.0%}). Fix it; a tool raises ToolUseError where the model should be told. "
                f"The first error:\n{self.first}"
            )


def is_tool_fault(failure: Failure | None) -> bool:
    return failure is not None and failure.whose is FailureSource.ENVIRONMENT and failure.cause in CAUSES
