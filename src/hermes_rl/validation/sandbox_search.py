"""Search a whole sandbox, from inside, for the answers: texts of the items' answer fields, and the environment's files.

Always true: the search reads files of the sandbox that the agent could read, the smallest first, and ends after its
time. The report says how much it read.
"""

import asyncio
import re
import shlex
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import resources
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from hermes_rl.agent.result import AgentResult
from hermes_rl.core.errors import EnvironmentCodeError
from hermes_rl.environment.base import HermesAgentBaseEnv
from hermes_rl.environment.scripted_policy import run_script
from hermes_rl.rewards.tool_context import ToolContext
from hermes_rl.rollout.environment_protocol import Environment
from hermes_rl.rollout.own_files import data_files
from hermes_rl.rollout.rollout import spec_for
from hermes_rl.sandbox.spec import SandboxSpec
from hermes_rl.validation.item_checks import CheckedItem
from hermes_rl.validation.leaks import ANSWERS, READERS, item_leaves, prompt_of
from hermes_rl.validation.report import Severity, ValidationFinding, join_names

SEARCH_SECONDS = 20
MAX_TEXTS, MAX_FILES = 60, 60
# An answer of this length does not occur elsewhere by chance. For a shorter one, look for the text of its item.
MIN_ANSWER_LENGTH, MIN_QUESTION_LENGTH, MAX_TEXT_LENGTH = 20, 40, 80
FILE_PROBE_LENGTH, MIN_FILE_LENGTH, MIN_DIFFERENT_BYTES = 48, 64, 8

_SEARCH = resources.files("hermes_rl.validation").joinpath("search.pl").read_text()
# Characters that look the same in JSON, CSV, YAML and Python source.
_PLAIN = re.compile(rb"[ !#-&(-\[\]-~]+")
_END = "end-of-searched-bytes"
# For the start of the sandbox's shell and the end of a file that is being read.
_GRACE = 30


@dataclass(frozen=True, slots=True)
class Clue:
    """A file that contains all `probes` shows what `label` says."""

    label: str
    probes: tuple[bytes, ...]


@dataclass(slots=True)
class SearchResult:
    """The files with answers by path, and how much of the sandboxes was read."""

    places: dict[str, str] = field(default_factory=dict)
    sandboxes: int = 0
    read: list[int] = field(default_factory=lambda: [0, 0, 0, 0])

    def add(self, clues: Sequence[Clue], output: str) -> None:
        for numbers, path in re.findall(r"^hit ([\d,]+) (\S+)$", output, re.MULTILINE):
            found, first = set(map(int, numbers.split(","))), 0
            for clue in clues:
                if found.issuperset(range(first, first + len(clue.probes))):
                    self.places.setdefault(unquote(path), clue.label)
                first += len(clue.probes)
        counts = re.search(r"^searched (\d+) (\d+) (\d+) (\d+)$", output, re.MULTILINE)
        if counts:
            self.sandboxes += 1
            self.read = [total + int(count) for total, count in zip(self.read, counts.groups(), strict=True)]

    @property
    def findings(self) -> list[ValidationFinding]:
        if not self.places:
            return []
        where = join_names([f"{path} ({label})" for path, label in self.places.items()])
        return [
            ValidationFinding(
                Severity.WARNING,
                "answer_file_in_sandbox",
                f"a sandbox shows files with answers: {where}",
                "move them out of the image and of folders that a sandbox shows (/usr on bubblewrap), or name them in "
                "sandbox_spec(hidden=…). Ignore this if the task is to find them there",
            )
        ]

    @property
    def coverage(self) -> str:
        """How far the search came; empty if there was none."""
        files, size, all_files, all_size = self.read
        where = "the sandbox" if self.sandboxes == 1 else f"{self.sandboxes} sandboxes"
        part = f"{files} of {all_files} files, {size / 1e9:.2g} of {all_size / 1e9:.2g} GB"
        return f"searched {where} for answers, smallest files first: {part}" if self.sandboxes else ""


async def search_sandboxes(
    env: HermesAgentBaseEnv, items: Sequence[CheckedItem], tools: Collection[str], seconds: int
) -> SearchResult:
    """Search a fresh sandbox of each distinct spec of the items; they share the time."""
    result = SearchResult()
    if seconds <= 0 or not READERS & set(tools):
        return result
    specs = []
    distinct: dict[tuple[str, ...], CheckedItem] = {}
    for item in items:
        # A sandbox_spec that fails is a finding of its own.
        with suppress(EnvironmentCodeError):
            specs.append(spec := spec_for(env, item.value))
            distinct.setdefault((spec.digest, *map(str, spec.folders.items())), item)
    clues = await asyncio.to_thread(find_clues, env, items, specs)
    if clues:
        for item in distinct.values():
            result.add(clues, await _search(env, item, clues, max(seconds // len(distinct), 1)))
    return result


def find_clues(env: HermesAgentBaseEnv, items: Iterable[CheckedItem], specs: Sequence[SandboxSpec]) -> list[Clue]:
    """What to search for, without what the sandboxes contain on purpose."""
    given = [spec.content(name) for spec in specs for name in spec.files]
    given += [(spec.setup or "").encode() for spec in specs]
    folders = [folder.resolve() for spec in specs for folder in spec.folders.values()]
    texts = [clue for item in items for clue in _item_clues(item)]
    paths = data_files(type(env), env.config)
    files = (_file_clue(path) for path in paths if not any(map(path.is_relative_to, folders)))
    chosen = [*texts[:MAX_TEXTS], *islice((clue for clue in files if clue is not None), MAX_FILES)]
    return [clue for clue in chosen if not any(probe in content for probe in clue.probes for content in given)]


async def _search(env: HermesAgentBaseEnv, item: CheckedItem, clues: Sequence[Clue], seconds: int) -> str:
    probes = "\n".join(probe.hex() for clue in clues for probe in clue.probes)
    command = f"perl -e {shlex.quote(_SEARCH)} {seconds} <<'{_END}'\n{probes}\n{_END}"
    output = ""

    async def search(_env: Environment, _item: Any, _result: AgentResult, ctx: ToolContext) -> float:
        nonlocal output
        output = ctx.terminal(command, timeout=seconds + _GRACE)["output"]
        return 0.0

    await run_script(env, item.value, [""], split=item.split, scoring=search)
    return output


def _item_clues(item: CheckedItem) -> Iterator[Clue]:
    prompt = prompt_of(item).encode()
    short = False
    for name, value in item_leaves(item.value):
        if not ANSWERS.search(name):
            continue
        text = _longest_plain(value.encode("utf-8", "replace"))
        if len(text) >= MIN_ANSWER_LENGTH and text not in prompt:
            yield Clue(f"{name} of item {item.id}", (text,))
        else:
            short = True
    if short:
        others = [value for name, value in item_leaves(item.value) if not ANSWERS.search(name)]
        text = max((_longest_plain(value.encode("utf-8", "replace")) for value in others), key=len, default=b"")
        if len(text) >= MIN_QUESTION_LENGTH:
            yield Clue(f"item {item.id}", (text,))


def _longest_plain(value: bytes) -> bytes:
    return max((run.strip() for run in _PLAIN.findall(value)), key=len, default=b"")[:MAX_TEXT_LENGTH]


def _file_clue(path: Path) -> Clue | None:
    """Three pieces of a file; None for a file that is too short or too uniform to be recognized."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            pieces = []
            for quarter in (1, 2, 3):
                file.seek(size * quarter // 4)
                pieces.append(file.read(FILE_PROBE_LENGTH))
    except OSError:
        return None
    if size < MIN_FILE_LENGTH or any(len(set(piece)) < MIN_DIFFERENT_BYTES for piece in pieces):
        return None
    return Clue(f"the same as {path.name}", tuple(pieces))
