"""Qwen Code, unmodified: `qwen` on the prompt, with every tool allowed, since it is in our sandbox.

It runs on the Node.js of its own folder. To use your own settings.json, add it in sandbox_spec and set QWEN_HOME in
agent_env to its folder.
"""

from hermes_rl.agent.harnesses.harness import NODE, Agent, npm_lock, pins

COMMAND = rf"""
set -eu
set -- /agent/{NODE}
exec "$1" /agent/node_modules/@qwen-code/qwen-code/cli.js --auth-type openai --approval-mode yolo \
    --model "$QWEN_MODEL" --prompt '' < "$PROMPT_FILE"
"""

AGENT = Agent(
    name="qwen-code",
    version="0.24.4",
    about="the coding agent of the Qwen models",
    licence="Apache-2.0",
    dialect="OpenAI chat",
    command=COMMAND,
    env={
        "OPENAI_BASE_URL": "{base_url}",
        "OPENAI_API_KEY": "{key}",
        "QWEN_MODEL": "{model}",
        "QWEN_HOME": "/tmp/qwen-home",  # noqa: S108 - in the sandbox
        "QWEN_SANDBOX": "false",
        "QWEN_TELEMETRY_ENABLED": "false",
        "PROMPT_FILE": "{prompt_file}",
    },
    pip=pins("qwen-code"),
    npm=npm_lock("qwen-code"),
)
