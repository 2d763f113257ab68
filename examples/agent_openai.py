"""An agent in 30 lines on the official openai package: a loop with one tool, the terminal.

Train it as it is: `hermes-rl agent install sdk`, then `--env.agent_command agent:sdk` and
`--env.agent_files '{"agent.py": "examples/agent_openai.py"}'` on any environment.
"""

import json
import os
from pathlib import Path
from subprocess import PIPE, STDOUT, run
from typing import Any

from openai import OpenAI

COMMAND = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}
TERMINAL: Any = {"name": "terminal", "description": "Run a bash command and read its output.", "parameters": COMMAND}

client = OpenAI()  # OPENAI_BASE_URL and OPENAI_API_KEY lead to the gateway
messages: list[Any] = json.loads(Path(os.environ["MESSAGES_FILE"]).read_text())
while True:
    answer = client.chat.completions.create(
        model=os.environ["MODEL"], messages=messages, tools=[{"type": "function", "function": TERMINAL}]
    )
    message: Any = answer.choices[0].message
    messages.append(message.model_dump(exclude_none=True))
    for call in message.tool_calls or []:
        try:
            words = ["timeout", "120", "bash", "-c", json.loads(call.function.arguments)["command"]]
            done = run(words, stdout=PIPE, stderr=STDOUT, text=True, errors="replace", check=False)
            output = f"{done.stdout}[exit status {done.returncode}]"
        except (ValueError, KeyError, TypeError) as error:
            output = f"the call could not be read: {error}"
        messages.append({"role": "tool", "tool_call_id": call.id, "content": output})
    if not message.tool_calls:
        break
print(message.content)
