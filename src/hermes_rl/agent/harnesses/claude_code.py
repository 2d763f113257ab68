"""Anthropic's Claude Code, unmodified: `claude --print` on the prompt. Every tool is allowed: it is in our sandbox.

It is one static binary from npm, so the sandbox needs no Node.js. It compacts its conversation for the model's context.
For your own settings.json, CLAUDE.md or skills, add them in sandbox_spec and set CLAUDE_CONFIG_DIR to their folder.
"""

from hermes_rl.agent.harnesses.harness import Agent, npm_lock, pins

COMMAND = r"""
set -eu
case $CONTEXT_TOKENS in '' | *[!0-9]*) ;; *) export CLAUDE_CODE_MAX_CONTEXT_TOKENS=$CONTEXT_TOKENS ;; esac
set -- /agent/node_modules/@anthropic-ai/claude-code-linux-*/claude
exec "$1" --print --dangerously-skip-permissions --model "$CLAUDE_MODEL" < "$PROMPT_FILE"
"""

AGENT = Agent(
    name="claude-code",
    version="2.1.327",
    about="Anthropic's coding agent for the terminal",
    licence="Anthropic's own",
    dialect="Anthropic messages",
    command=COMMAND,
    env={
        "ANTHROPIC_BASE_URL": "{origin}",
        "ANTHROPIC_API_KEY": "{key}",
        "CLAUDE_MODEL": "{model}",
        "CLAUDE_CONFIG_DIR": "/tmp/claude-home",  # noqa: S108 - in the sandbox
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_AUTOUPDATER": "1",
        # It refuses to work without asking as root, unless told that it is in a sandbox.
        "IS_SANDBOX": "1",
        "CONTEXT_TOKENS": "{context_tokens}",
        "PROMPT_FILE": "{prompt_file}",
    },
    pip=pins("claude-code"),
    npm=npm_lock("claude-code"),
)
