"""A virtual environment with a stand-in for verifiers v0, for faults that a real package cannot produce on demand."""

import sys
import venv

from hermes_rl.interop.verifiers import packages

MODULES = {
    "verifiers/__init__.py": """
import importlib


def load_environment(name, **arguments):
    return importlib.import_module(name).load_environment(**arguments)
""",
    "verifiers/legacy.py": "",
    "verifiers/types.py": """
class Fields:
    def __init__(self, **fields):
        self.__dict__.update(fields)

    def model_dump(self, **_):
        return dict(self.__dict__)


ClientConfig = ToolCall = ResponseMessage = Response = Fields
""",
    "verifiers/utils/__init__.py": "",
    "verifiers/utils/message_utils.py": """
from verifiers.types import Fields


def normalize_messages(messages, field_name):
    return [one if isinstance(one, Fields) else Fields(**one) for one in messages]
""",
    "verifiers/envs/__init__.py": "",
    "verifiers/envs/multiturn_env.py": """
class MultiTurnEnv:
    tool_defs = None
    max_turns = 8
    timeout_seconds = None
    message_type = "chat"
    max_total_completion_tokens = -1

    def __init__(self, rows, rubric):
        self.rows, self.rubric = rows, rubric

    def build_dataset(self):
        return self.rows

    def build_eval_dataset(self):
        return None

    def get_dataset(self):
        return self.rows

    async def init_state(self, item, client, model, sampling):
        from verifiers.utils.message_utils import normalize_messages

        return {"prompt": normalize_messages(item["prompt"], ""), "answer": item["answer"], "said": [], "error": None}

    async def setup_state(self, state):
        return state

    async def get_prompt_messages(self, state):
        return [*state["seen"], *await self.env_response(state["seen"], state)]

    async def get_model_response(self, state):
        raise AssertionError

    async def env_response(self, messages, state):
        raise NotImplementedError

    async def add_model_response(self, state, prompt, response):
        state["said"].append(response.message.content)
        state["seen"] = [*prompt, response.message]

    async def is_completed(self, state):
        return state["said"][-1:] == ["stop"]

    async def cleanup(self, state):
        pass

    async def _teardown(self):
        pass
""",
    "verifiers/envs/tool_env.py": """
from verifiers.envs.multiturn_env import MultiTurnEnv


class ToolEnv(MultiTurnEnv):
    pass
""",
    "verifiers/envs/singleturn_env.py": """
from verifiers.envs.multiturn_env import MultiTurnEnv


class SingleTurnEnv(MultiTurnEnv):
    pass
""",
    "faulty.py": """
import logging
import os
import sys
import time

from verifiers.envs.multiturn_env import MultiTurnEnv


class Rubric:
    has_group_rewards = has_advantages = False

    async def score_rollout(self, state):
        state["metrics"] = {"turns": len(state["said"])}
        state["reward"] = 1.0
        if "log" in state["said"]:
            logging.getLogger("verifiers.rubrics").error("Error calling reward function f: boom")
            state["reward"] = 0.0
        if "nan" in state["said"]:
            state["reward"] = float("nan")
        if "raise" in state["said"]:
            raise ValueError("boom")

    async def cleanup(self, state):
        pass


class Faulty(MultiTurnEnv):
    async def env_response(self, messages, state):
        said = state["said"][-1]
        if said == "die":
            sys.stderr.write("a last word\\n")
            os._exit(3)
        if said == "hang":
            time.sleep(600)
        if said == "garbage":
            os.write(answers(), b"not json\\n")
        if said == "print":
            print("noise on standard output")
        if said == "tool":
            return [{"role": "tool", "content": "x", "tool_call_id": "1"}]
        return [{"role": "user", "content": f"you said {said}"}]


def answers():
    import gc

    import __main__

    return next(one for one in gc.get_objects() if isinstance(one, __main__.Host))._answers.fileno()


def load_environment(**arguments):
    if arguments.get("broken"):
        raise RuntimeError("no dataset")
    rows = [{"prompt": [{"role": "user", "content": f"item {n}"}], "answer": str(n)} for n in range(10)]
    return Faulty(rows, Rubric())
""",
}


def install_stub() -> None:
    """Install the package `faulty` below HERMES_HOME."""
    home = packages.venv_of("faulty")
    venv.create(home, with_pip=False, symlinks=True)
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    site = home / "lib" / version / "site-packages"
    for name, text in MODULES.items():
        path = site / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    metadata = site / "verifiers-0.3.1.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text("Metadata-Version: 2.1\nName: verifiers\nVersion: 0.3.1\n")
    packages.record("faulty", "faulty", {"kind": "v0", "verifiers": "0.3.1"})
