"""A whole agent with the standard library alone, as somebody else would write it: one tool, asked for until it is done.

It runs in the sandbox, as `python3 agent.py`, and is never imported.
"""

import json
import os
import subprocess
import urllib.request
from pathlib import Path

TOOL = {"type": "function", "function": {"name": "bash", "parameters": {"properties": {"command": {"type": "string"}}}}}
messages = [
    {"role": "system", "content": "You are small."},
    {"role": "user", "content": Path(os.environ["PROMPT_FILE"]).read_text()},
]
while True:
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        json.dumps({"model": "any", "messages": messages, "tools": [TOOL], "temperature": 0}).encode(),
        {"Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}", "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request) as answer:
        said = json.load(answer)["choices"][0]["message"]
    messages.append(said)
    if not said.get("tool_calls"):
        break
    for call in said["tool_calls"]:
        command = json.loads(call["function"]["arguments"])["command"]
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": done.stdout + done.stderr})
print(said["content"])
