"""Cheats for tasks that judge files, beyond those for every environment.

Always true: none contains an answer. Words of success come from the tests, so that a test which searches the output of
a program for its own words is found.
"""

import re
import shlex
from collections.abc import Collection

from hermes_rl.validation.audit.evidence import HarborFiles
from hermes_rl.validation.cheats import CLAIM, Script, builtin_cheats, mentioned_files, shell, write_files

SUCCESS = re.compile(
    r"pass|succe|\bok\b|\bdone\b|complete|correct|solved|\bwin|score|reward|verified|valid", re.IGNORECASE
)
WORDS = ("PASSED", "ALL TESTS PASSED", "All tests passed", "OK", "SUCCESS", "success", "Done", "1 passed", "score: 1.0")
QUOTED = re.compile(r""""([^"\n]{2,80})"|'([^'\n]{2,80})'""")
GREPPED = re.compile(r"\bgrep\s+(?:-\S+\s+)*([\w:]+)")
PROGRAMS = (".sh", ".py")
# They touch what surrounds the work, so one rollout can play all: where two write the same file, both forge a pass with
# it. The last three are those of the environment harbor.
TOGETHER = (
    "fakes programs",
    "hooks into Python",
    "forges results",
    "brings tests that pass",
    "replaces the tests",
    "writes the reward",
    "brings tests of its own",
    "replaces the judge's programs",
)


def only_talks(script: Script) -> bool:
    """Whether the script uses no tool. A verifier of files never hears it."""
    return all(isinstance(step, str) or callable(step) for step in script)


def task_cheats(prompt: str, tools: Collection[str], files: HarborFiles | None) -> dict[str, Script]:
    """The cheats for a task, by name; `files` are those of a Harbor task."""
    cheats = builtin_cheats(prompt, tools)
    if files is None:
        return cheats
    cheats = {name: script for name, script in cheats.items() if not only_talks(script)}
    lines = success_lines(files)
    places = [*mentioned_files(prompt), *(path for path in files.environment if path.endswith(PROGRAMS))]
    contents = {place: _printing(place, lines) for place in dict.fromkeys(places)}
    printed = write_files(contents, tools) if contents else None
    if printed is not None:
        cheats["prints the words of success"] = [printed, CLAIM]
    destroyed = shell("find . -mindepth 1 -delete 2>/dev/null; true", tools)
    if destroyed is not None:
        cheats["deletes everything"] = [destroyed, CLAIM]
    return cheats


def success_lines(files: HarborFiles) -> list[str]:
    """Usual words of success and those that the tests have, without what the prompt asks for."""
    tests = "\n".join(files.tests.values())
    found = [first or second for first, second in QUOTED.findall(tests)] + GREPPED.findall(tests)
    plain = [re.sub(r"[\^$\\]", "", text).strip() for text in found if SUCCESS.search(text)]
    return [text for text in dict.fromkeys([*WORDS, *plain]) if text and text not in files.instruction]


def _printing(place: str, lines: list[str]) -> str:
    if place.endswith(".py"):
        return "\n".join(f"print({line!r})" for line in lines) + "\n"
    if place.endswith(".sh"):
        return "#!/bin/sh\n" + "\n".join(f"echo {shlex.quote(line)}" for line in lines) + "\nexit 0\n"
    return "\n".join(lines) + "\n"
