"""Google's Gemini CLI, unmodified: `gemini` on the prompt, with every tool allowed, since it is in our sandbox.

It runs on the Node.js of its own folder. To use your own settings.json or GEMINI.md, add them in sandbox_spec and set
GEMINI_CLI_HOME in agent_env to the folder that has them in `.gemini`.
"""

from hermes_rl.agent.harnesses.harness import NODE, Agent, npm_lock, pins

COMMAND = rf"""
set -eu
settings=$GEMINI_CLI_HOME/.gemini/settings.json
if [ ! -e "$settings" ]; then
    mkdir -p "$GEMINI_CLI_HOME/.gemini"
    cat > "$settings" <<END
{{
  "security": {{"auth": {{"selectedType": "gemini-api-key"}}}},
  "general": {{"disableAutoUpdate": true, "enableAutoUpdate": false}},
  "privacy": {{"usageStatisticsEnabled": false}},
  "telemetry": {{"enabled": false}}
}}
END
fi
set -- /agent/{NODE}
exec "$1" /agent/node_modules/@google/gemini-cli/bundle/gemini.js --approval-mode yolo --model "$GEMINI_MODEL_NAME" \
    --prompt '' < "$PROMPT_FILE"
"""

AGENT = Agent(
    name="gemini-cli",
    version="0.61.0",
    about="Google's coding agent for the terminal",
    licence="Apache-2.0",
    dialect="Google Gemini",
    command=COMMAND,
    env={
        "GOOGLE_GEMINI_BASE_URL": "{origin}",
        "GEMINI_API_KEY": "{key}",
        # A name that it knows: it looks for a model's abilities by its name. The gateway serves any.
        "GEMINI_MODEL_NAME": "gemini-2.5-flash",
        "GEMINI_CLI_HOME": "/tmp/gemini-home",  # noqa: S108 - in the sandbox
        "GEMINI_CLI_TRUST_WORKSPACE": "true",
        "PROMPT_FILE": "{prompt_file}",
    },
    pip=pins("gemini-cli"),
    npm=npm_lock("gemini-cli"),
)
