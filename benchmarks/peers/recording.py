"""Makes recorded.json anew: a repair of the bundled swe environment's first repository, its commands run for real.

The model's texts and commands are written here; what each command printed is what it printed in a copy of that
repository. Always true: a command runs once, so its result is found by the command alone.
"""

import json
import subprocess
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ITEM = "bitset"
FINAL = "The difference of two sets now holds members of the first one only; all tests pass, and one covers the case."
TEST = """
class Difference(unittest.TestCase):
    def test_members_of_the_second_set_alone_are_not_in_it(self):
        self.assertEqual(list(BitSet([1, 2]) - BitSet([2, 3])), [1])
"""
TURNS = (
    ("I look at the repository first.", "ls -R . | grep -v pyc"),
    ("The README says how it is used.", "cat README.md"),
    ("Now the sets, which the issue is about.", "cat -n bitset/sets.py"),
    ("And who uses them.", "cat -n bitset/roles.py"),
    ("Which tests are there?", "cat tests/*.py"),
    ("They pass so far, I suppose.", "python3 -m unittest discover -v tests 2>&1 | sed 's/ in .*s$//'"),
    (
        "I reproduce the issue.",
        "python3 -c 'from bitset import BitSet; print(sorted(BitSet([1, 2]) - BitSet([2, 3])))'",
    ),
    ("The difference is computed with ^. I look for other uses of it.", "grep -n '\\^' -r bitset"),
    (
        "Only __sub__ is wrong; __xor__ has it rightly.",
        "sed -i '/__sub__/,/__xor__/s/\\^ other/\\& ~other/' bitset/sets.py",
    ),
    ("Is the result as I want it?", "sed -n '/__sub__/,/__xor__/p' bitset/sets.py"),
    (
        "It is. A test for it:",
        f"cat >>tests/test_difference.py <<'END'\nimport unittest\n\nfrom bitset import BitSet\n{TEST}END",
    ),
    ("All tests once more.", "python3 -m unittest discover -v tests 2>&1 | sed 's/ in .*s$// #'"),
)


def main() -> None:
    lines = (HERE.parents[1] / "environments" / "data" / "swe.jsonl").read_text().splitlines()
    item = next(one for one in map(json.loads, lines) if one["id"] == ITEM)
    turns = []
    with tempfile.TemporaryDirectory() as folder:
        for name, text in item["files"].items():
            path = Path(folder) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        for text, command in TURNS:
            done = subprocess.run(["bash", "-c", command], cwd=folder, capture_output=True, text=True, check=True)
            turns.append({"text": text, "command": command, "result": done.stdout + done.stderr})
    recorded = {"task": f"Repair this repository.\n\n{item['issue']}", "turns": turns, "final": FINAL}
    (HERE / "recorded.json").write_text(json.dumps(recorded, indent=1) + "\n")


if __name__ == "__main__":
    main()
