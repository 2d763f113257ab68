"""OpenHands, unmodified: its CLI without a screen, with every action approved, since it is in our sandbox.

It needs Python 3.12. To use your own settings, add them in sandbox_spec and set OPENHANDS_HOME in agent_env to the
folder that has them in `.openhands`; the model's address and name come from the gateway all the same.
"""

from hermes_rl.agent.harnesses.harness import Agent, pins

COMMAND = r"""
set -eu
export HOME=$OPENHANDS_HOME
mkdir -p "$HOME"
exec /agent/bin/python /agent/bin/openhands --headless --override-with-envs --always-approve --file "$PROMPT_FILE"
"""

AGENT = Agent(
    name="openhands",
    version="1.16.0",
    about="an open coding agent, with a terminal, an editor and a task list",
    licence="MIT",
    dialect="OpenAI chat",
    command=COMMAND,
    env={
        "LLM_BASE_URL": "{base_url}",
        "LLM_API_KEY": "{key}",
        "LLM_MODEL": "openai/{model}",
        "OPENHANDS_HOME": "/tmp/openhands-home",  # noqa: S108 - in the sandbox
        "OPENHANDS_SUPPRESS_BANNER": "1",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "PROMPT_FILE": "{prompt_file}",
    },
    pip=pins("openhands"),
    python=((3, 12), (3, 13)),
)
