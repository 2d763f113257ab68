"""Rollouts of programs: an environment whose agent is the small one, or a few lines of shell or Python."""

import json
from pathlib import Path
from typing import Any

from hermes_rl.core.trajectory import Group, Rollout
from hermes_rl.rollout.group import run_group
from tests.support.environments import FileEnv, opened
from tests.support.scripted_model import Calls, ScriptedModel, Text

ITEM = {"number": 7}
SMALL_AGENT = Path(__file__).with_name("small_agent.py")
SMALL: dict[str, Any] = {
    "agent_command": "python3 agent.py",
    "agent_env": {"PROMPT_FILE": "{prompt_file}"},
    "agent_files": {"agent.py": str(SMALL_AGENT)},
}
# Asks the model once, with whatever the last user said, and prints the answer.
ASK = """
import json, os, urllib.request
def ask(text, base=os.environ["OPENAI_BASE_URL"], key=os.environ["OPENAI_API_KEY"]):
    body = json.dumps({"model": "any", "messages": [{"role": "user", "content": text}]}).encode()
    headers = {"Authorization": "Bearer " + key, "Content-Type": "application/json"}
    request = urllib.request.Request(base + "/chat/completions", body, headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)["choices"][0]["message"]["content"]
"""


def writes_the_number(request: dict[str, Any]) -> Calls | Text:
    """A model that does as it is told in one call of the small agent's tool, then says so."""
    if request["messages"][-1]["role"] == "tool":
        return Text("done")
    number = request["messages"][-1]["content"].split()[-1]
    return Calls([("bash", json.dumps({"command": f"echo {number} > answer"}))])


async def group_of(script: Any, size: int = 1, environment: type[FileEnv] = FileEnv, **config: Any) -> Group:
    async with ScriptedModel(script) as model, opened(environment, model, **{"rollout_retries": 0, **config}) as env:
        return await run_group(env, ITEM, size=size)


async def rollout_of(script: Any, environment: type[FileEnv] = FileEnv, **config: Any) -> Rollout:
    (rollout,) = (await group_of(script, 1, environment, **config)).rollouts
    return rollout


def python(program: str) -> list[str]:
    """The command that runs a few lines, with `ask` at hand."""
    return ["python3", "-c", ASK + program]
