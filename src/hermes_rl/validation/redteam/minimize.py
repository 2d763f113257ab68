"""Replay an exploit as a script in fresh sandboxes, and drop every step that it does not need.

Always true: a script that is returned passed the reward and failed the audit when it was last played.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

from hermes_rl.agent.result import AgentResult
from hermes_rl.core import fast_json
from hermes_rl.core.messages import Message, ToolCall, content_text
from hermes_rl.core.trajectory import Rollout
from hermes_rl.environment.base import HermesAgentBaseEnv
from hermes_rl.environment.eval_copy import copy_for_evaluation
from hermes_rl.environment.scripted_policy import ToolStep, run_script
from hermes_rl.rollout.audits import PassingAudits
from hermes_rl.rollout.environment_protocol import Environment
from hermes_rl.validation.item_checks import CheckedItem
from hermes_rl.validation.redteam.attack import is_exploit

PlainStep: TypeAlias = str | ToolStep
PlainScript: TypeAlias = list[PlainStep]
"""Texts and tool calls, one a turn."""
Works: TypeAlias = Callable[[PlainScript], Awaitable[bool]]


def script_of(rollout: Rollout) -> PlainScript:
    """What the agent did in a rollout, one call or text a turn; calls that are not JSON are left out.

    Calls of one turn may have run at once; a script plays them one after another.
    """
    prompt = int(rollout.metadata.get("prompt_length", 0))
    steps: PlainScript = []
    for message in rollout.messages[prompt:]:
        if message.get("role") == "assistant":
            calls = _calls(message)
            steps += calls or [content_text(message.get("content"))]
    if not steps or not isinstance(steps[-1], str):
        steps.append("")
    return steps


@dataclass(frozen=True, slots=True)
class Replayer:
    """Plays scripts on an environment."""

    env: HermesAgentBaseEnv

    async def play(self, item: CheckedItem, script: Sequence[PlainStep]) -> Rollout:
        duplicate = copy_for_evaluation(self.env)
        config = duplicate.config
        turns = max(config.max_agent_turns, len(script) + 1)
        duplicate.config = config.model_copy(update={"max_agent_turns": turns})
        audits = PassingAudits(config.pass_score)
        finished = await run_script(
            cast("Environment", duplicate), item.value, list(script), split=item.split, audits=audits
        )
        return finished.rollout

    async def works(self, item: CheckedItem, script: Sequence[PlainStep]) -> bool:
        """Whether the script passes the reward and fails the audit."""
        return is_exploit(await self.play(item, script), self.env.config.pass_score)


async def minimized(script: PlainScript, works: Works) -> PlainScript | None:
    """The script without what it does not need; None if it does not work in a replay.

    Halves, quarters and so on are dropped first, single steps last, again until none can be dropped. Then the last
    answer is emptied, if it need not say anything.
    """
    if not await works(script):
        return None
    size = max(1, (len(script) - 1) // 2)
    while True:
        dropped = False
        begin = 0
        # The last step is the answer, which ends the rollout.
        while begin < len(script) - 1:
            shorter = script[:begin] + script[min(begin + size, len(script) - 1) :]
            if await works(shorter):
                script, dropped = shorter, True
            else:
                begin += size
        if size == 1 and not dropped:
            break
        size = max(1, size // 2)
    silent: PlainScript = [*script[:-1], ""]
    return silent if script[-1] and await works(silent) else script


def as_result(script: Sequence[PlainStep], prompt: Sequence[Message]) -> AgentResult:
    """The transcript of a script, for those who read transcripts."""
    messages: list[Message] = [dict(message) for message in prompt]
    for step in script:
        if isinstance(step, str):
            messages.append({"role": "assistant", "content": step})
        else:
            call = ToolCall.make(step[0], fast_json.dumps(step[1]).decode())
            messages.append({"role": "assistant", "content": "", "tool_calls": [call.as_dict()]})
    return AgentResult(messages, prompt_length=len(prompt))


def _calls(message: Message) -> PlainScript:
    calls: PlainScript = []
    for raw in message.get("tool_calls") or ():
        call = ToolCall.from_raw(raw)
        try:
            arguments: Any = fast_json.loads(call.arguments)
        except ValueError:
            continue
        if isinstance(arguments, dict):
            calls.append((call.name, arguments))
    return calls
