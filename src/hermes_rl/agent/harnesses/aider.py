"""aider, unmodified: one message of the prompt. It has no tools: the model writes its edits as text.

It edits the files that AIDER_FILE names, or that the prompt mentions. Without git in the workspace it works without.
"""

from hermes_rl.agent.harnesses.harness import Agent, pins

COMMAND = r"""
set -eu
export HOME=$AIDER_HOME
mkdir -p "$HOME"
exec /agent/bin/python -m aider --model "openai/$AIDER_POLICY" --message-file "$PROMPT_FILE" --yes-always \
    --no-check-update --no-analytics --no-show-model-warnings --no-show-release-notes --no-git --no-stream \
    --no-pretty --no-detect-urls --input-history-file "$HOME/input" --chat-history-file "$HOME/chat"
"""

AGENT = Agent(
    name="aider",
    version="0.86.2",
    about="pair programming in the terminal; edits as text, without tools",
    licence="Apache-2.0",
    dialect="OpenAI chat",
    command=COMMAND,
    env={
        "OPENAI_API_BASE": "{base_url}",
        "OPENAI_API_KEY": "{key}",
        "AIDER_POLICY": "{model}",
        "AIDER_HOME": "/tmp/aider-home",  # noqa: S108 - in the sandbox
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "PROMPT_FILE": "{prompt_file}",
    },
    pip=pins("aider"),
    python=((3, 11), (3, 13)),
)
