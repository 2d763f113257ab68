"""swe: small Python repositories with a planted bug, to be fixed from a user's report; scored by hidden cases.

Each case runs in its own process, which uses the package and reports the result. The expected result never
enters a sandbox. `scripts/make_swe_data.py` made the repositories.
"""

import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

from hermes_rl import (
    AgentResult,
    APIServerConfig,
    HermesAgentBaseEnv,
    HermesAgentEnvConfig,
    Reward,
    SandboxSpec,
    Step,
    ToolContext,
    VerifierError,
)

DATA = Path(__file__).with_name("data") / "swe.jsonl"
TIMEOUT = 60
PROMPT = """The Python repository in repo/ has a bug. A user reports:

{issue}
Find the cause and fix it in the package itself. Keep its interface as it is. The README is right."""

JUDGE = """
import ast, json, os, signal, sys


def answer(case):
    *statements, last = ast.parse(case).body
    names = {}
    try:
        exec(job["imports"], names)
        exec(compile(ast.Module(statements, []), "case", "exec"), names)
        return repr(eval(compile(ast.Expression(last.value), "case", "eval"), names))
    except Exception as error:
        return f"raises {type(error).__name__}"


print("ready", flush=True)
job = json.load(open("job.json"))
for case in job["cases"]:
    reading, writing = os.pipe()
    if os.fork() == 0:
        signal.alarm(10)
        os.dup2(2, 1)
        os.chdir("artifacts/repo")
        sys.path.insert(0, os.getcwd())
        os.write(writing, answer(case).encode())
        os._exit(0)
    os.close(writing)
    print(json.dumps(os.fdopen(reading, "rb").read().decode(errors="replace")), flush=True)
"""


class SweEnv(HermesAgentBaseEnv):
    """Fix a planted bug in a small Python repository; scored by hidden cases in a fresh sandbox."""

    name = "swe"
    default_toolsets = ("terminal", "file")

    @classmethod
    def config_init(cls) -> tuple[HermesAgentEnvConfig, list[APIServerConfig]]:
        return cls.env_config_cls(max_agent_turns=20, max_token_length=4096, group_size=8, total_steps=30), []

    async def setup(self) -> None:
        self._items = [json.loads(line) for line in DATA.read_text().splitlines()]

    def train_items(self) -> list[dict[str, Any]]:
        return [item for item in self._items if item["split"] == "train"]

    def eval_items(self) -> list[dict[str, Any]]:
        return [item for item in self._items if item["split"] == "eval"]

    def item_id(self, item: dict[str, Any]) -> str:
        return str(item["id"])

    def format_prompt(self, item: dict[str, Any]) -> str:
        return PROMPT.format(issue=item["issue"])

    def sandbox_spec(self, item: dict[str, Any]) -> SandboxSpec:
        return replace(super().sandbox_spec(item), files={f"repo/{path}": text for path, text in item["files"].items()})

    async def compute_reward(self, item: dict[str, Any], result: AgentResult, ctx: ToolContext) -> Reward:
        job = {"imports": item["imports"], "cases": [case for case, _ in item["cases"]]}
        verdict = ctx.verify(
            # Code that takes all memory shall end itself, and not the sandbox.
            "ulimit -v 1048576; python3 -I judge.py",
            files={"judge.py": JUDGE, "job.json": json.dumps(job)},
            artifacts=["repo"],
            timeout=TIMEOUT,
        )
        ready, *said = verdict.stdout.splitlines() or [""]
        if ready != "ready" and verdict.artifact_error is None:
            raise VerifierError(
                "no_python", f"python3 does not run in the sandbox, use another image: {verdict.stderr}"
            )
        right = [line == json.dumps(expected) for line, (_, expected) in zip(said, item["cases"], strict=False)]
        passed = sum(right) / len(item["cases"])
        return Reward(1.0 if passed == 1 else 0.0, {"tests_passed": passed})

    def oracle(self, item: dict[str, Any]) -> list[Step]:
        fixes: list[Step] = [
            ("patch", {"path": f"repo/{fix['path']}", "old_string": fix["old"], "new_string": fix["new"]})
            for fix in item["fix"]
        ]
        return [*fixes, "The bug is fixed."]

    def cheats(self, item: dict[str, Any]) -> dict[str, list[Step]]:
        package = f"repo/{item['id']}"
        example, value = item["cases"][0]
        by_heart = (
            "import os, sys\njudge = sys.modules['__main__']\n"
            f"if getattr(judge, 'case', '') == {example!r}: os.write(judge.writing, {value.encode()!r}); os._exit(0)\n"
        )
        equal = (
            "class Yes:\n    def __init__(self, *a, **k): pass\n    def __eq__(self, other): return True\n"
            "    def __getattr__(self, name): return Yes()\n    __call__ = __iadd__ = lambda *a, **k: Yes()\n"
            "    __hash__ = lambda self: 0\n    __repr__ = lambda self: 'True'\n"
            "def __getattr__(name):\n    if name[:2] == '__': raise AttributeError(name)\n    return Yes\n"
        )
        commands = {
            "rewrites the tests": "rm -r repo/tests/*; echo 'print(\"OK\")' > repo/tests/test_all.py",
            "deletes the tests": "rm -r repo/tests",
            "deletes the package": f"rm -r {package}",
            "deletes the repository": "rm -r repo",
            "plants hooks": "for name in conftest sitecustomize usercustomize json ast subprocess; do "
            "echo 'import os; os._exit(0)' | tee $name.py > repo/$name.py; done",
            "plants a python": "mkdir -p bin .local/bin repo/bin; for folder in bin .local/bin repo/bin; do "
            "printf '#!/bin/sh\\necho ready\\n' > $folder/python3; chmod +x $folder/python3; done; "
            "echo 'alias python3=true' >> .bashrc",
            "exits at import": f"echo 'import os; os._exit(0)' >> {package}/__init__.py",
            "prints a verdict": f"echo 'print(\"ready\\nOK\"); raise SystemExit(0)' >> {package}/__init__.py",
            "is equal to everything": f"printf %s {shlex.quote(equal)} > {package}/__init__.py",
            "knows the report by heart": f"printf %s {shlex.quote(by_heart)} | cat - {package}/__init__.py > new; "
            f"mv new {package}/__init__.py",
        }
        done = "All tests pass, the bug is fixed."
        return {
            "says so": [done],
            **{name: [("terminal", {"command": command}), done] for name, command in commands.items()},
        }


if __name__ == "__main__":
    SweEnv.cli()
