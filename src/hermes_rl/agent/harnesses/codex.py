"""OpenAI's codex, unmodified: `codex exec` on the prompt, with its own sandbox off, since it runs in our sandbox.

It comes from the package that OpenAI publishes on PyPI for its Python SDK: the same as on npm, without Node. It is one
static binary, so it runs in every image. Features that need an account, images or non-function tools are off. To use
your own config.toml, add it in sandbox_spec and set CODEX_HOME in agent_env to its folder.
"""

from hermes_rl.agent.harnesses.harness import Agent, pins

COMMAND = r"""
set -eu
mkdir -p "$CODEX_HOME"
case $CONTEXT_TOKENS in '' | *[!0-9]*) CONTEXT_TOKENS=65536 ;; esac
if [ ! -e "$CODEX_HOME/config.toml" ]; then
    cat > "$CODEX_HOME/config.toml" <<END
model_provider = "rollout"
model_context_window = $CONTEXT_TOKENS
web_search = "disabled"
check_for_update_on_startup = false
[model_providers.rollout]
name = "rollout"
base_url = "$OPENAI_BASE_URL"
env_key = "OPENAI_API_KEY"
wire_api = "responses"
[features]
apps = false
enable_request_compression = false
goals = false
multi_agent = false
plugins = false
unbounded_connection_retries = false
view_image = false
[analytics]
enabled = false
END
fi
exec /agent/lib/python3*/site-packages/codex_cli_bin/bin/codex exec --skip-git-repo-check \
    --dangerously-bypass-approvals-and-sandbox --model "$CODEX_MODEL" - < "$PROMPT_FILE"
"""

AGENT = Agent(
    name="codex",
    version="0.163.0",
    about="OpenAI's coding agent for the terminal",
    licence="Apache-2.0",
    dialect="OpenAI responses",
    command=COMMAND,
    env={
        "OPENAI_BASE_URL": "{base_url}",
        "OPENAI_API_KEY": "{key}",
        "CODEX_MODEL": "{model}",
        # Not below /tmp, where codex would not install the helpers that its prompt mentions.
        "CODEX_HOME": "/run/codex",
        "CONTEXT_TOKENS": "{context_tokens}",
        "PROMPT_FILE": "{prompt_file}",
    },
    pip=pins("codex"),
    python=((3, 10), (4, 0)),
)
