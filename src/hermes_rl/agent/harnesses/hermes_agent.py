"""hermes-agent 0.19.0, unmodified: its one-shot mode with the tools that work in a sandbox without a network.

It keeps its own system prompt, subagents and compaction. `HERMES_TOOLSETS` selects other toolsets. To use your own
config.yaml, SOUL.md, skills or memories, add them in sandbox_spec and set HERMES_HOME in agent_env to their folder.
"""

from hermes_rl.agent.harnesses.harness import Agent, pins

# It refuses a context below 64,000 tokens, and subtracts max_tokens from the context. So the configured context is the
# model's plus max_tokens, which makes it compact at 85 % of the model's context; max_tokens is large enough not to cut
# an answer, whose length the run limits. Its limits for a large context, 20 messages that compaction never touches and
# 50,000 bytes of a command's output, are scaled down in proportion.
COMMAND = r"""
set -eu
mkdir -p "$HERMES_HOME"
case $CONTEXT_TOKENS in '' | *[!0-9]*) CONTEXT_TOKENS=65536 ;; esac
kept=$((CONTEXT_TOKENS < 64000 - 32768 ? 64000 - CONTEXT_TOKENS : 32768))
window=$((CONTEXT_TOKENS + kept))
share=$((CONTEXT_TOKENS < 64000 ? CONTEXT_TOKENS : 64000))
if [ ! -e "$HERMES_HOME/config.yaml" ]; then
    cat > "$HERMES_HOME/config.yaml" <<END
model:
  provider: custom
  default: "\${HERMES_MODEL}"
  base_url: "\${OPENAI_BASE_URL}"
  api_key: "\${OPENAI_API_KEY}"
  context_length: $window
  max_tokens: $kept
compression:
  protect_last_n: $((share * 20 / 64000 > 4 ? share * 20 / 64000 : 4))
tool_output:
  max_bytes: $((share * 50000 / 64000))
auxiliary:
  compression:
    context_length: $window
security:
  allow_lazy_installs: false
  tirith_enabled: false
END
fi
exec /agent/bin/python /agent/bin/hermes --toolsets "$HERMES_TOOLSETS" --oneshot="$(cat "$PROMPT_FILE")"
"""

AGENT = Agent(
    name="hermes-agent",
    version="0.19.0",
    about="the agent of Nous Research, with its subagents and its compaction",
    licence="MIT",
    dialect="OpenAI chat",
    command=COMMAND,
    # Its tools do not pass OPENAI_API_KEY to the commands that the policy runs.
    env={
        "OPENAI_BASE_URL": "{base_url}",
        "OPENAI_API_KEY": "{key}",
        "HERMES_MODEL": "{model}",
        "HERMES_HOME": "/tmp/hermes-home",  # noqa: S108 - in the sandbox
        "HERMES_TOOLSETS": "terminal,file,code_execution,delegation,todo",
        "CONTEXT_TOKENS": "{context_tokens}",
        "PROMPT_FILE": "{prompt_file}",
    },
    pip=pins("hermes-agent"),
    python=((3, 11), (3, 14)),
)
