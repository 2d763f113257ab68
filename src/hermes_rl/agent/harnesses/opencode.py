"""opencode, unmodified: `opencode run` on the prompt, with every tool allowed, since it is in our sandbox.

It is one binary from npm, so the sandbox needs no Node.js. It asks the model once more, for a title of the session.
To use your own opencode.json, add it in sandbox_spec and set OPENCODE_CONFIG in agent_env to its path.
"""

from hermes_rl.agent.harnesses.harness import Agent, npm_lock, pins

COMMAND = r"""
set -eu
case $CONTEXT_TOKENS in '' | *[!0-9]*) CONTEXT_TOKENS=65536 ;; esac
if [ ! -e "$OPENCODE_CONFIG" ]; then
    mkdir -p "$(dirname "$OPENCODE_CONFIG")"
    cat > "$OPENCODE_CONFIG" <<END
{
  "model": "rollout/policy",
  "small_model": "rollout/policy",
  "permission": "allow",
  "share": "disabled",
  "autoupdate": false,
  "provider": {
    "rollout": {
      "npm": "@ai-sdk/openai-compatible",
      "options": {"baseURL": "{env:OPENAI_BASE_URL}", "apiKey": "{env:OPENAI_API_KEY}"},
      "models": {
        "policy": {
          "id": "{env:OPENCODE_MODEL}",
          "limit": {"context": $CONTEXT_TOKENS, "output": $((CONTEXT_TOKENS / 4))}
        }
      }
    }
  }
}
END
fi
export XDG_DATA_HOME=$OPENCODE_HOME/data XDG_CACHE_HOME=$OPENCODE_HOME/cache XDG_STATE_HOME=$OPENCODE_HOME/state
export XDG_CONFIG_HOME=$OPENCODE_HOME/config
set -- /agent/node_modules/opencode-linux-*/bin/opencode
exec "$1" run < "$PROMPT_FILE"
"""

AGENT = Agent(
    name="opencode",
    version="1.18.33",
    about="an open coding agent for the terminal",
    licence="MIT",
    dialect="OpenAI chat",
    command=COMMAND,
    env={
        "OPENAI_BASE_URL": "{base_url}",
        "OPENAI_API_KEY": "{key}",
        "OPENCODE_MODEL": "{model}",
        "OPENCODE_HOME": "/tmp/opencode-home",  # noqa: S108 - in the sandbox
        "OPENCODE_CONFIG": "/tmp/opencode-home/opencode.json",  # noqa: S108
        "OPENCODE_DISABLE_MODELS_FETCH": "1",
        "OPENCODE_DISABLE_AUTOUPDATE": "1",
        "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
        "CONTEXT_TOKENS": "{context_tokens}",
        "PROMPT_FILE": "{prompt_file}",
    },
    pip=pins("opencode"),
    npm=npm_lock("opencode"),
)
