"""An agent harness in one file: one question to the model, asked from the sandbox with the standard library.

Use it with `--env.agent_command agent:examples/extensions/curl_agent.py:AGENT`. An agent with packages names them in
`pip`, and is installed once with `hermes-rl agent install`.
"""

from hermes_rl.agent.harnesses.harness import Agent

PROGRAM = """
import json, os, urllib.request
body = {"model": os.environ["MODEL"], "messages": json.load(open(os.environ["MESSAGES_FILE"]))}
request = urllib.request.Request(
    os.environ["OPENAI_BASE_URL"] + "/chat/completions",
    json.dumps(body).encode(),
    {"Content-Type": "application/json", "Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]},
)
answer = json.load(urllib.request.urlopen(request))["choices"][0]["message"]["content"]
open("answer.txt", "w").write(answer)
"""
AGENT = Agent(
    name="curl",
    version="1",
    about="one question, asked with the standard library",
    licence="MIT",
    dialect="chat",
    command=f"exec python3 - <<'PROGRAM'\n{PROGRAM}\nPROGRAM",
    env={
        "OPENAI_BASE_URL": "{base_url}",
        "OPENAI_API_KEY": "{key}",
        "MODEL": "{model}",
        "MESSAGES_FILE": "{messages_file}",
    },
)
