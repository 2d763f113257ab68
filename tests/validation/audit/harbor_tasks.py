"""Small Harbor tasks: 40 that are sound, and 44 with one planted defect each, of 13 kinds.

All run without an image, so that bubblewrap needs only the host's /usr.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

TOML = "[metadata]\nruns_without_image = true\n[verifier]\ntimeout_sec = 20.0\n"
EVAL = TOML.replace("true\n", 'true\nsplit = "eval"\n', 1)
DOCKERFILE = "FROM debian:12-slim\nWORKDIR /app\n"
HEAD = '#!/bin/bash\ntests=$(cd "$(dirname "$0")" && pwd)\nlogs=${VERIFIER_DIR:-/logs/verifier}\nmkdir -p "$logs"\n'
REWARD = 'then echo 1; else echo 0; fi > "$logs/reward.txt"\n'
SAME = '[ "$(cat total.txt 2>/dev/null)" = "$(cat "$tests/expected.txt")" ]'
COMPARES = f"if {SAME}; {REWARD}"
PYTHON = f'if python3 "$tests/test_outputs.py" >&2; {REWARD}'
UNITTEST = "import unittest\nfrom pathlib import Path\n\n\nclass TestTotal(unittest.TestCase):\n"
RUN_MAIN = '\n\nif __name__ == "__main__":\n    unittest.main()\n'


@dataclass(frozen=True)
class Planned:
    """A task folder to write. `defect` is the check that has to fail; empty for a sound task."""

    name: str
    test: str
    prompt: str = ""
    solution: str = ""
    tests: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    toml: str = TOML
    dockerfile: str = ""
    number: int = 0
    defect: str = ""

    @property
    def numbers(self) -> list[int]:
        return [(self.number * 7919 + place * 104729) % 9000 + 1000 for place in range(5)]

    @property
    def total(self) -> int:
        return sum(self.numbers)


def write_task(folder: Path, task: Planned) -> Path:
    """Write the folder of a task below `folder`. Unless it says otherwise: add up a column of numbers."""
    environment = {"table.csv": "amount\n" + "".join(f"{number}\n" for number in task.numbers), **task.environment}
    dockerfile = task.dockerfile or f"{DOCKERFILE}COPY {' '.join(environment)} ./\n"
    if not task.dockerfile and any("/" in name for name in environment):
        dockerfile = DOCKERFILE + "".join(f"COPY {name} ./{name}\n" for name in environment)
    prompt = task.prompt or "Add up the column amount of table.csv and write the sum into total.txt."
    solution = task.solution or "awk 'NR > 1 { sum += $1 } END { print sum }' table.csv > total.txt"
    files = {
        "task.toml": task.toml,
        "instruction.md": f"Ledger {task.number}. {prompt.replace('TOTAL', str(task.total))}\n",
        "environment/Dockerfile": dockerfile.replace("TOTAL", str(task.total)),
        "solution/solve.sh": f"#!/bin/bash\n{solution}\n",
        "tests/test.sh": HEAD + task.test.replace("TOTAL", str(task.total)),
        **{f"environment/{name}": text.replace("TOTAL", str(task.total)) for name, text in environment.items()},
        **{f"tests/{name}": text.replace("TOTAL", str(task.total)) for name, text in task.tests.items()},
    }
    if "expected.txt" not in task.tests and '"$tests/expected.txt"' in task.test:
        files["tests/expected.txt"] = f"{task.total}\n"
    for name, text in files.items():
        path = folder / task.name / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder / task.name


def unittest_file(body: str) -> str:
    return UNITTEST + "".join(f"    {line}\n" for line in body.splitlines()) + RUN_MAIN


RIGHT = 'def test_total(self):\n    self.assertEqual(Path("total.txt").read_text().strip(), "TOTAL")'
OUTPUT = (
    'if [ -z "$RUN_OUTPUT" ]; then RUN_OUTPUT=$(mktemp); bash "$tests/run/run.sh" > "$RUN_OUTPUT"; fi\n'
    f'if [ "$(cat "$RUN_OUTPUT")" = "$(cat "$tests/expected.txt")" ]; {REWARD}'
)
# What looks like a defect and is none.
SHAPES: Mapping[str, Planned] = {
    "plain": Planned("", COMPARES),
    "python": Planned("", PYTHON, tests={"test_outputs.py": unittest_file(RIGHT)}),
    "timed": Planned("", f"began=$(date +%s)\n{COMPARES}echo $(($(date +%s) - began)) seconds >&2\n"),
    "seeded": Planned(
        "",
        PYTHON,
        tests={
            "test_outputs.py": "import random\n"
            + unittest_file(
                "def setUp(self):\n    random.seed(7)\n    self.order = random.sample(range(9), 3)\n" + RIGHT
            )
        },
    ),
    "platform": Planned(
        "",
        PYTHON,
        tests={
            "test_outputs.py": "import sys\n"
            + unittest_file(
                'def test_paths(self):\n    if sys.platform == "win32":\n        self.skipTest("POSIX paths")\n'
                '    self.assertTrue(Path("table.csv").exists())\n' + RIGHT
            )
        },
    ),
    "program": Planned(
        "",
        OUTPUT,
        prompt="Write total.sh, which prints the sum of the column amount of the CSV file that is its argument.",
        solution='echo "awk \'NR > 1 { sum += \\$1 } END { print sum }\' \\"\\$1\\"" > total.sh',
        tests={
            "run/run.sh": 'timeout 5 bash total.sh "$(dirname "$0")/other.csv" 2>&1 | head -c 1000\n',
            "run/other.csv": "amount\n17\n4000\n525\n",
            "expected.txt": "4542\n",
        },
    ),
    "visible": Planned(
        "",
        COMPARES,
        environment={"tests/test_visible.sh": "# Your own checks.\n[ -s total.txt ]\n"},
    ),
    "configured": Planned(
        "",
        f"if {SAME} && grep -q '^folder = /srv/ledger$' settings.ini; {REWARD}",
        environment={"settings.ini": "[ledger]\nfolder = /srv/ledger\n"},
    ),
    "sorted": Planned(
        "",
        f'if diff "$tests/sorted.txt" sorted.txt >&2; {REWARD}',
        prompt="Write the lines of words.txt into sorted.txt, in the order of their bytes.",
        solution="LC_ALL=C sort words.txt > sorted.txt",
        tests={"sorted.txt": "Apple\nBanana\nfig\npear\nquince\n"},
        environment={"words.txt": "pear\nApple\nfig\nquince\nBanana\n"},
    ),
    "answers": Planned(
        "",
        f"if {SAME} && [ ! -e old.txt ]; {REWARD}",
        prompt="Write the answer, the correct sum of the column amount of table.csv, into total.txt. Delete old.txt. "
        "We know the expected result.",
        solution="awk 'NR > 1 { sum += $1 } END { print sum }' table.csv > total.txt; rm old.txt",
        environment={"old.txt": "0\n"},
    ),
}


def sound_tasks(count: int = 40) -> list[Planned]:
    """Sound tasks of all shapes in turn, each with other numbers."""
    kinds = list(SHAPES.items())
    return [
        _named(kinds[index % len(kinds)][1], f"sound-{kinds[index % len(kinds)][0]}-{index}", index)
        for index in range(count)
    ]


def planted_tasks() -> list[Planned]:
    """Tasks with one defect each, named for it."""
    return [
        _named(task, f"bad-{task.defect.replace('_', '-')}-{index}", 1000 + index)
        if task.defect not in TWINS
        else _named(task, f"twin-{index}", 2000 + (task.defect == "unique"))
        for index, task in enumerate(PLANTED)
    ]


def _named(task: Planned, name: str, number: int) -> Planned:
    return Planned(**{**{key: getattr(task, key) for key in task.__dataclass_fields__}, "name": name, "number": number})


def _python(defect: str, body: str, head: str = "") -> Planned:
    return Planned("", PYTHON, tests={"test_outputs.py": head + unittest_file(body)}, defect=defect)


def _shell(defect: str, condition: str) -> Planned:
    return Planned("", f"if {condition}; {REWARD}", defect=defect)


TWINS = ("unique", "not_in_other_split")
PASSING_HEAD = "def test_total(self):\n"
TALKS = "Write check.sh, a program that tests whether table.csv adds up."
SAYS = (
    'echo "awk \'NR > 1 { sum += \\$1 } END { if (sum == TOTAL) print \\"ALL CHECKS PASSED\\" }\' table.csv" > check.sh'
)
SOLVED = SAYS.replace("TOTAL", "sum")
LOG = "Add up the column amount of table.csv, and log what you do into work.log."
HIDDEN_TEST = 'if [ "$(cat total.txt)" = "TOTAL" ]; then exit 0; else exit 1; fi\n'
PLANTED: list[Planned] = [
    _shell("null_fails", "[ ! -e total.txt ] || grep -qx TOTAL total.txt"),
    _shell("null_fails", '[ "$(cat total.txt 2>/dev/null | wc -w)" -le 1 ]'),
    _shell("null_fails", "[ -s table.csv ] && ! grep -q wrong total.txt 2>/dev/null"),
    _shell("oracle_passes", "grep -qx TOTAL0 total.txt"),
    Planned("", COMPARES, solution="echo 1 > total.txt", defect="oracle_passes"),
    Planned("", f'if {SAME}; then echo 0.5; else echo 0; fi > "$logs/reward.txt"\n', defect="oracle_passes"),
    Planned("", 'echo 1 > "$logs/reward.txt"\n', defect="tests_can_fail"),
    _python("tests_can_fail", f"{PASSING_HEAD}    pass"),
    _python("tests_can_fail", f"{PASSING_HEAD}    assert True"),
    Planned(
        "",
        f'python3 "$tests/test_outputs.py" >&2 || true\nif [ $? -eq 0 ]; {REWARD}',
        tests={"test_outputs.py": unittest_file(RIGHT)},
        defect="tests_can_fail",
    ),
    _python(
        "no_skips",
        f'{PASSING_HEAD}    if not Path("total.txt").exists():\n        self.skipTest("not there")\n'
        '    self.assertEqual(Path("total.txt").read_text().strip(), "TOTAL")',
    ),
    _python(
        "no_skips",
        f'{PASSING_HEAD}    pytest.importorskip("pandas")\n    assert Path("total.txt").exists()',
        "import pytest\n",
    ),
    _python(
        "no_skips", f'{PASSING_HEAD}    raise unittest.SkipTest("later")\n' + RIGHT.replace("test_total", "test_sum")
    ),
    Planned(
        "",
        f'if [ ! -e total.txt ]; then echo skipped; echo 1 > "$logs/reward.txt"; exit; fi\n{COMPARES}',
        defect="no_skips",
    ),
    Planned(
        "",
        f'if bash check.sh 2>&1 | grep -q "ALL CHECKS PASSED"; {REWARD}',
        prompt=TALKS,
        solution=SOLVED,
        defect="cheats_fail",
    ),
    Planned(
        "",
        PYTHON,
        prompt=TALKS,
        solution=SOLVED,
        tests={
            "test_outputs.py": "import subprocess\n"
            + unittest_file(
                "def test_output(self):\n"
                '    done = subprocess.run(["bash", "check.sh"], stdout=subprocess.PIPE, text=True)\n'
                '    self.assertIn("PASSED", done.stdout)'
            )
        },
        defect="cheats_fail",
    ),
    Planned(
        "",
        f'if grep -q "sum verified" work.log 2>/dev/null; {REWARD}',
        prompt=LOG,
        solution="echo sum verified > work.log",
        defect="cheats_fail",
    ),
    _shell("repeatable", f"{SAME} && [ $((RANDOM % 3)) -gt 0 ]"),
    _python("repeatable", f"{RIGHT}\n    self.assertGreater(random.random(), 0.3)", "import random\n"),
    _shell("repeatable", f"{SAME} && [ $(shuf -i 1-3 -n 1) -gt 1 ]"),
    _python(
        "no_network",
        f'{RIGHT}\n    urllib.request.urlopen("https://sums.example.org/TOTAL", timeout=2)',
        "import urllib.request\n",
    ),
    _shell("no_network", f"{SAME} && (echo > /dev/tcp/sums.example.org/80)"),
    _shell("no_network", f"{SAME} && curl -sf https://sums.example.org/TOTAL"),
    _shell("no_clock", f'{SAME} && [ "$(date +%F)" = 2031-03-12 ]'),
    _python("no_clock", f"{RIGHT}\n    self.assertLess(datetime.now().year, 2400)", "from datetime import datetime\n"),
    _shell("no_clock", f'{SAME} && [ "$(date -u +%H)" -ge 0 ]'),
    _python("no_clock", f"{RIGHT}\n    self.assertTrue(time.time() < 99999999999)", "import time\n"),
    _shell("no_locale", f'{SAME} && [ "$LANG" != tr_TR.UTF-8 ]'),
    _python("no_locale", f'{RIGHT}\n    locale.setlocale(locale.LC_ALL, "de_DE.UTF-8")', "import locale\n"),
    _shell("no_locale", f'{SAME} && [ "$(LC_ALL=en_US.UTF-8 sort -c table.csv 2>&1 | wc -l)" -ge 0 ]'),
    _shell("known_paths", f"{SAME} && [ ! -e /home/alice/ledger/old.txt ]"),
    _python("known_paths", f'{RIGHT}\n    self.assertFalse(Path("/Users/bob/ledger.txt").exists())'),
    _shell("known_paths", 'diff total.txt "$tests/expected.txt" || diff /mnt/results/total.txt "$tests/expected.txt"'),
    Planned(
        "",
        f'if bash "$tests/check.sh"; {REWARD}',
        tests={"check.sh": HIDDEN_TEST},
        environment={"check.sh": HIDDEN_TEST},
        defect="tests_hidden",
    ),
    Planned(
        "", f"if bash check_total.sh; {REWARD}", environment={"check_total.sh": HIDDEN_TEST}, defect="tests_hidden"
    ),
    Planned(
        "",
        PYTHON,
        tests={"test_outputs.py": unittest_file(RIGHT)},
        environment={"hidden/test_outputs.py": unittest_file(RIGHT)},
        defect="tests_hidden",
    ),
    Planned("", COMPARES, prompt="Write the sum of table.csv into total.txt. (Hint: it is TOTAL.)", defect="no_leaks"),
    Planned("", COMPARES, environment={"notes.txt": "expected sum: TOTAL\n"}, defect="no_leaks"),
    Planned("", COMPARES, dockerfile=f"{DOCKERFILE}ENV LEDGER_SUM=TOTAL\nCOPY table.csv ./\n", defect="no_leaks"),
    Planned("", COMPARES, environment={"solution.txt": "TOTAL\n"}, defect="no_leaks"),
    Planned("", COMPARES, defect="unique"),
    Planned("", COMPARES, defect="unique"),
    Planned("", COMPARES, defect="not_in_other_split"),
    Planned("", COMPARES, toml=EVAL, defect="not_in_other_split"),
]
