"""`validate` searches all that an agent can read in its sandbox for answers, within its time."""

import gzip
import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hermes_rl import AgentResult, APIServerConfig, HermesAgentBaseEnv, HermesAgentEnvConfig, ToolContext
from hermes_rl.environment.prebuild import NO_MODEL
from hermes_rl.environment.scripted_policy import Step
from hermes_rl.sandbox.spec import SandboxSpec
from hermes_rl.validation.item_checks import take_inventory
from hermes_rl.validation.sandbox_search import SearchResult, search_sandboxes
from hermes_rl.validation.validate import validate_environment
from tests.sandbox.small_root import make_small_root

QUESTION = "Which of the four lighthouses on the northern shore was rebuilt after the storm?"
LONG = {"question": QUESTION, "answer": "the lighthouse at Kullorsuaq, in the spring of 1931"}
SHORT = {"question": QUESTION, "answer": "42"}


class Lighthouses(HermesAgentBaseEnv):
    """Items with an answer that the sandbox must not show."""

    item: Any = LONG
    spec = SandboxSpec()

    @classmethod
    def config_init(cls) -> tuple[HermesAgentEnvConfig, list[APIServerConfig]]:
        return cls.env_config_cls(enabled_toolsets=["terminal"]), []

    def train_items(self) -> Sequence[Any]:
        return [self.item]

    def format_prompt(self, item: Any) -> str:
        return str(item["question"])

    def sandbox_spec(self, item: Any) -> SandboxSpec:
        return replace(self.spec, limits=super().sandbox_spec(item).limits)

    async def compute_reward(self, item: Any, result: AgentResult, ctx: ToolContext) -> float:
        return float(result.final_response == item["answer"])

    def oracle(self, item: Any) -> Sequence[Step]:
        return [item["answer"]]


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that the users of root's sandboxes can enter."""
    with tempfile.TemporaryDirectory(prefix="hermes-rl-test-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture
def image(place: Path) -> Path:
    return make_small_root(place / "root")


def put(file: Path, content: bytes | str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content if isinstance(content, bytes) else content.encode())


async def searched(spec: SandboxSpec, item: Any = LONG, seconds: int = 60) -> SearchResult:
    config, _ = Lighthouses.config_init()
    env = Lighthouses(config, [NO_MODEL])
    env.item, env.spec = item, spec
    async with env.opened():
        items = (await take_inventory(env)).chosen(1)
        return await search_sandboxes(env, items, {"terminal"}, seconds)


async def test_answers_are_found_in_every_folder_of_an_image(image: Path) -> None:
    places = ["/usr/share/doc/a.json", "/etc/ssl/b.json", "/var/lib/c.json", "/usr/lib/python3/site-packages/d.json"]
    places += ["/opt/.hidden/e.json", "/root/f.json", "/a name.json"]
    for name in places:
        put(image / name.lstrip("/"), json.dumps(LONG))
    (image / "root").chmod(0o700)
    result = await searched(SandboxSpec(image=str(image)))
    assert set(result.places) == {*places} - ({"/root/f.json"} if os.geteuid() == 0 else set())
    (finding,) = result.findings
    assert "/etc/ssl/b.json (answer of item" in finding.seen
    assert result.coverage.startswith("searched the sandbox for answers, smallest files first: ")


@pytest.mark.parametrize("target", ["/tmp/mount", "/run/mount", "/dev/shm/mount", "/mnt/deep/mount"])
async def test_answers_are_found_in_mounted_folders(image: Path, place: Path, target: str) -> None:
    put(place / "given" / "notes.txt", f"- {LONG['answer']}\n")
    result = await searched(SandboxSpec(image=str(image), folders={target: place / "given"}))
    assert set(result.places) == {f"{target}/notes.txt"}


async def test_a_short_answer_is_found_by_the_text_of_its_item(image: Path) -> None:
    put(image / "var/questions.csv", f'id,question,answer\n1,"{QUESTION}",42\n')
    assert set((await searched(SandboxSpec(image=str(image)), SHORT)).places) == {"/var/questions.csv"}


async def test_an_answer_across_the_pieces_of_a_large_file_is_found(image: Path) -> None:
    put(image / "var/large", b"x" * (2**20 - 10) + LONG["answer"].encode() + b"x" * 1000)
    assert set((await searched(SandboxSpec(image=str(image)))).places) == {"/var/large"}


async def test_a_copy_of_the_environments_data_is_found_though_compressed(image: Path, place: Path) -> None:
    data = gzip.compress("".join(f"{number * number}\n" for number in range(500)).encode())
    put(place / "tasks" / "data.gz", data)
    put(image / "srv/copied", data)
    put(image / "srv/other", gzip.compress(b"another file of the image"))

    class Configured(Lighthouses):
        @classmethod
        def config_init(cls) -> tuple[HermesAgentEnvConfig, list[APIServerConfig]]:
            return cls.env_config_cls(enabled_toolsets=["terminal"], dataset_name=str(place / "tasks")), []

        spec = SandboxSpec(image=str(image))

    config, _ = Configured.config_init()
    env = Configured(config, [NO_MODEL])
    async with env.opened():
        result = await search_sandboxes(env, (await take_inventory(env)).chosen(1), {"terminal"}, 60)
    assert result.places == {"/srv/copied": "the same as data.gz"}


async def test_what_a_spec_contains_on_purpose_is_no_finding(image: Path) -> None:
    spec = SandboxSpec(image=str(image), files={"notes": LONG["answer"]})
    assert (await searched(spec)).findings == []


async def test_the_search_ends_with_its_time_and_says_what_it_read(image: Path) -> None:
    with (image / "var-large").open("wb") as large:
        large.truncate(40 * 2**30)
    result = await searched(SandboxSpec(image=str(image)), seconds=2)
    files, _, all_files, all_size = result.read
    assert files < all_files
    assert all_size > 40 * 2**30
    assert "of 43 GB" in result.coverage


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can write below /usr")
def test_validate_finds_an_answer_file_below_usr_of_this_machine() -> None:
    with tempfile.TemporaryDirectory(prefix="hermes-rl-test-", dir="/usr/local/share") as name:
        Path(name).chmod(0o755)
        put(Path(name) / "answers.jsonl", json.dumps(LONG))
        report = validate_environment(Lighthouses, items=1, search_seconds=20)
    seen = next(finding.seen for finding in report.findings if finding.code == "answer_file_in_sandbox")
    assert f"{name}/answers.jsonl (answer of item" in seen
    assert "searched the sandbox" in report.search
