"""Why no rollout called a tool: the most common reason for a score of 0.

It compares the size of the prompt, as the endpoint counts it, with the size of the tool descriptions. No I/O.
"""

from dataclasses import dataclass

from hermes_rl.core import fast_json
from hermes_rl.core.messages import content_text
from hermes_rl.core.trajectory import Group

# Fewer rollouts may have needed no tool by chance.
MIN_ROLLOUTS = 4
# A token of JSON has fewer characters than this, so the estimated size of the descriptions is a lower bound.
CHARACTERS_PER_TOKEN = 6
SEE = 'see "0 tool calls" in docs/faq.md'


@dataclass
class OfferedTools:
    """What is known of the rollouts that had tools, until one of them calls one."""

    rollouts: int = 0
    schema_characters: int = 0
    prompt_tokens: float | None = None
    """The smallest prompt, as the endpoint counts it."""
    named_by_author: bool = False
    """Whether the author's prompt mentions a tool by name."""

    def add(self, group: Group) -> None:
        if not group.tool_schemas:
            return
        self.rollouts += len(group.rollouts)
        self.schema_characters = len(fast_json.dumps(list(group.tool_schemas)))
        for rollout in group.rollouts:
            prompt = rollout.messages[: rollout.metadata.get("prompt_length", 1)]
            text = " ".join(content_text(message.get("content")) for message in prompt)
            self.named_by_author |= any(name in text for name in group.tools)
            if rollout.turns_used and rollout.usage.prompt_tokens is not None:
                size = rollout.usage.prompt_tokens / rollout.turns_used
                self.prompt_tokens = size if self.prompt_tokens is None else min(self.prompt_tokens, size)

    def diagnose(self, *, unparsed: int) -> str | None:
        """Why none of them called a tool, with the next step; None while they are too few.

        `unparsed` counts the rollouts that ended with a tool call that could not be parsed.
        """
        if self.rollouts < MIN_ROLLOUTS:
            return None
        described, size = self.schema_characters // CHARACTERS_PER_TOKEN, self.prompt_tokens
        if unparsed:
            why = f"{unparsed} replies contain one in another format; set --env.tool_call_parser to the model's"
        elif size is None:
            why = "the endpoint does not report how long the prompt is, so it may describe no tools"
        elif size < described and not self.named_by_author:
            why = (
                f"the prompt contains no tool description ({size:.0f} tokens; the descriptions alone take more than "
                f"{described})"
            )
        else:
            why = f"the prompt describes the tools ({size:.0f} tokens), but the model uses none"
        return f"0 tool calls in {self.rollouts} rollouts: {why}; {SEE}"
