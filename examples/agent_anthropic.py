"""An agent in 30 lines on the official anthropic package: a loop with one tool, the terminal.

Train it as it is: `hermes-rl agent install sdk`, then `--env.agent_command agent:sdk` and
`--env.agent_files '{"agent.py": "examples/agent_anthropic.py"}'` on any environment.
"""

import os
from pathlib import Path
from subprocess import PIPE, STDOUT, run
from typing import Any

from anthropic import Anthropic

COMMAND = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}
TERMINAL: Any = {"name": "terminal", "description": "Run a bash command and read its output.", "input_schema": COMMAND}

client = Anthropic()  # ANTHROPIC_BASE_URL and ANTHROPIC_API_KEY lead to the gateway
messages: list[Any] = [{"role": "user", "content": Path(os.environ["PROMPT_FILE"]).read_text()}]
while True:
    asked: Any = {"model": os.environ["MODEL"], "max_tokens": 4096, "messages": messages, "tools": [TERMINAL]}
    with client.messages.stream(**asked) as stream:
        answer: Any = stream.get_final_message()
    messages.append({"role": "assistant", "content": answer.content})
    results = []
    for call in (block for block in answer.content if block.type == "tool_use"):
        try:
            words = ["timeout", "120", "bash", "-c", call.input["command"]]
            done = run(words, stdout=PIPE, stderr=STDOUT, text=True, errors="replace", check=False)
            output = f"{done.stdout}[exit status {done.returncode}]"
        except (KeyError, TypeError) as error:
            output = f"the call could not be read: {error}"
        results.append({"type": "tool_result", "tool_use_id": call.id, "content": output})
    if not results:
        break
    messages.append({"role": "user", "content": results})
print("".join(block.text for block in answer.content if block.type == "text"))
