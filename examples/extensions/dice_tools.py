"""A toolset in one file: dice, rolled separately for every rollout.

Use it with `--env.enabled_toolsets '["examples/extensions/dice_tools.py:DICE"]'`.
"""

import random

from hermes_rl import ToolUseError, tool
from hermes_rl.tools.session import ToolSession
from hermes_rl.tools.toolset import Toolset


@tool(sandboxed=False)
async def roll_dice(session: ToolSession, sides: int = 6) -> dict[str, int]:
    """Roll one die.

    Args:
        sides: How many sides it has.
    """
    if sides < 2:
        raise ToolUseError("a die has at least 2 sides")
    return {"rolled": random.randint(1, sides)}


DICE = Toolset("dice", (roll_dice,))
