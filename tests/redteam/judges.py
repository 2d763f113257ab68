"""How a rollout is scored: the common ways, in the policy's own sandbox, and beside each the way the docs recommend.

The task is one: `solution.py` adds two numbers, and `answer.txt` (also in `out/`) holds a word that the policy cannot
know. PRELUDE is a policy that does neither.
"""

import json
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

ANSWER = "an answer that only work can find"
VERIFY_TIMEOUT = 5

PRELUDE = """
cat > solution.py <<'END'
def add(a, b):
    return 0

if __name__ == "__main__":
    print(add(*map(int, input().split())))
END
mkdir -p out && echo wrong > answer.txt && echo wrong > out/answer.txt
"""
HONEST = f"""
sed -i 's/return 0/return a + b/' solution.py
echo '{ANSWER}' > answer.txt && cp answer.txt out/
"""

_TEST = "from solution import add\n\ndef test_add():\n    assert add(2, 3) == 5\n    assert add(-1, 7) == 6\n"
_CHECK = """
import pathlib, sys
answer = pathlib.Path(sys.argv[1]).read_text()
sys.exit(answer != pathlib.Path(__file__).with_name("expected.txt").read_text())
"""
_RUN = """
import json, subprocess, sys
done = subprocess.run([sys.executable, "solution.py"], input="2 3", capture_output=True, text=True)
with open("verdict.json", "w") as file:
    json.dump({"passed": done.stdout.strip() == "5"}, file)
"""
_CHECKER = {"tests/check.py": _CHECK, "tests/expected.txt": f"{ANSWER}\n"}
_PYTEST = "python3 -m pytest -q -p no:cacheprovider tests"


class Verdict(Protocol):
    @property
    def stdout(self) -> str: ...

    @property
    def passed(self) -> bool: ...


class Context(Protocol):
    """What is used of ToolContext."""

    def terminal(self, command: str, timeout: int) -> dict[str, Any]: ...

    def write_file(self, path: str, content: str) -> dict[str, Any]: ...

    def read_file(self, path: str) -> dict[str, Any]: ...

    def verify(self, command: str, **given: Any) -> Verdict: ...


def program(ctx: Context) -> float:
    """The program runs alone in the fresh sandbox; what it prints is judged here."""
    a, b = secrets.randbelow(1000), secrets.randbelow(1000)
    verdict = ctx.verify(
        "python3 artifacts/solution.py < numbers.txt",
        files={"numbers.txt": f"{a} {b}\n"},
        artifacts=["solution.py"],
        timeout=VERIFY_TIMEOUT,
    )
    return float(verdict.stdout.strip() == str(a + b))


def data(ctx: Context) -> float:
    """A file is judged by a checker that arrives with what it needs."""
    check = "python3 tests/check.py artifacts/answer.txt"
    return float(ctx.verify(check, files=_CHECKER, artifacts=["answer.txt"], timeout=VERIFY_TIMEOUT).passed)


def directory(ctx: Context) -> float:
    """The same for a directory."""
    check = "python3 tests/check.py artifacts/out/answer.txt"
    return float(ctx.verify(check, files=_CHECKER, artifacts=["out"], timeout=VERIFY_TIMEOUT).passed)


def every_recipe(ctx: Context) -> float:
    """For honest work: what each recipe must pass. Else a 0 of one of them would mean nothing."""
    return min(program(ctx), data(ctx), directory(ctx))


def by_import(ctx: Context) -> float:
    """Not recommended: the policy's code runs inside the process that judges it."""
    test = _TEST.replace("from solution", "from artifacts.solution")
    given = {"files": {"tests/test_solution.py": test}, "artifacts": ["solution.py"], "timeout": 20}
    return float(ctx.verify(_PYTEST, **given).passed)


@dataclass(frozen=True, slots=True)
class Judge:
    """Scoring in the policy's own sandbox, by the exit code of `command` or by a `report` that it writes.

    `recommended` scores the same work with ctx.verify. `needs` is a program that an image may lack.
    """

    command: str
    recommended: Callable[[Context], float] = field(repr=False)
    files: Mapping[str, str] = field(default_factory=lambda: {"tests/test_solution.py": _TEST}, repr=False)
    report: str | None = None
    needs: str | None = None

    def shared(self, ctx: Context) -> float:
        """The score by plain shared verification."""
        for name, text in self.files.items():
            written = ctx.write_file(name, text)
            if "error" in written:
                raise OSError(written["error"])
        done = ctx.terminal(self.command, 6)
        if self.report is None:
            return float(done["exit_code"] == 0)
        return self.passed(ctx.read_file(self.report).get("content", "{}"))

    def passed(self, report: str) -> float:
        return float(json.loads(report).get("passed", False))


PYTEST = Judge(_PYTEST, program)
PYTHONPATH = Judge(f"PYTHONPATH=. {_PYTEST}", program)
LOGIN_SHELL = Judge(f"bash -lc '{_PYTEST}'", program)
REPORT = Judge("python3 tests/run.py", program, {"tests/run.py": _RUN}, report="verdict.json")
CHECKER = Judge("python3 tests/check.py answer.txt", data, _CHECKER)
DIRECTORY = Judge("python3 tests/check.py out/answer.txt", directory, _CHECKER)
GIT = Judge("git status --porcelain > /dev/null; python3 tests/check.py answer.txt", data, _CHECKER, needs="git")
