"""mini-swe-agent, unmodified: `mini` on the prompt. Its only tool is bash.

To use your own configuration, add it in sandbox_spec and set MSWEA_MINI_CONFIG_PATH in agent_env to its path.
"""

from hermes_rl.agent.harnesses.harness import Agent, pins

# It asks for more input after a task unless told to exit.
COMMAND = r"""
set -eu
exec /agent/bin/python -m minisweagent.run.mini --model "openai/$MSWEA_MODEL" --task "$(cat "$PROMPT_FILE")" \
    --yolo --exit-immediately
"""

AGENT = Agent(
    name="mini-swe-agent",
    version="2.4.6",
    about="an agent of 100 lines whose only tool is bash",
    licence="MIT",
    dialect="OpenAI chat",
    command=COMMAND,
    env={
        "OPENAI_API_BASE": "{base_url}",
        "OPENAI_API_KEY": "{key}",
        "MSWEA_MODEL": "{model}",
        "MSWEA_CONFIGURED": "true",
        "MSWEA_SILENT_STARTUP": "1",
        "MSWEA_GLOBAL_CONFIG_DIR": "/tmp/mini-swe-agent",  # noqa: S108 - in the sandbox
        # It has no price for the model.
        "MSWEA_COST_TRACKING": "ignore_errors",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "PROMPT_FILE": "{prompt_file}",
    },
    pip=pins("mini-swe-agent"),
)
