"""What hermes-rl writes can be read by its owner only, whatever the umask, which it does not change."""

import ast
import asyncio
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hermes_rl.core.private_files import create_private, open_private, private_folder, write_private
from hermes_rl.store.database.store import open_store
from hermes_rl.store.records import RecordWriter, write_document
from tests.support.api_process import ApiProcess
from tests.support.scripted_model import ScriptedModel, Text

SOURCE = Path(__file__).parents[2] / "src" / "hermes_rl"
# Modules that make files with the umask, and why.
WITH_UMASK = {
    "cli/board.py": "`board`: a page for others",
    "cli/init.py": "a new environment's source",
    "viewer/report/page.py": "`report`; the page of `process` is private",
    "cli/export_atif.py": "`export`",
    "core/replace_file.py": "`redteam`: source of cheats",
    "store/records.py": "`export`; all else is private",
    "training/local_model": "files of a public model, in a private folder",
    "training/weights": "exported weights, and weights for a model server, in the run's private folder",
    "training/weight_sync.py": "the same",
    "training/engines/skyrl/inside": "runs in the engine's environment, in its private folder",
    "training/engines/skyrl/virtualenv.py": "a lock in a private folder",
    "sandbox": "the contents of sandboxes and images, which other users run",
    "agent/harnesses/installer.py": "programs that sandbox users run",
    "agent/harnesses/interpreters.py": "programs that sandbox users run",
    "orchestration/inference_test/runner.py": "in a temporary folder",
    "orchestration/rl_tools/fork_tool.py": "in a temporary folder",
    "interop/trainers/verifiers_export.py": "a package for other programs",
    "tools/files.py": "writes inside a sandbox",
    "core/key_file.py": "opens a private descriptor",
    "core/private_files.py": "the helper itself",
}


@pytest.fixture(autouse=True)
def open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    assert os.umask(before) == 0


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def readable_by_others(folder: Path) -> dict[str, str]:
    """Everything below the folder that others may enter, read or write."""
    found = {str(path.relative_to(folder)): mode(path) for path in folder.rglob("*") if not path.is_symlink()}
    return {name: oct(bits) for name, bits in found.items() if bits & 0o077}


def test_every_folder_that_is_made_is_private(tmp_path: Path) -> None:
    private_folder(tmp_path / "a" / "b")
    assert [mode(tmp_path / name) for name in ("a", "a/b")] == [0o700, 0o700]


def test_a_folder_that_exists_keeps_its_mode(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir(0o775)
    private_folder(tmp_path / "shared")
    assert mode(tmp_path / "shared") == 0o775


def test_the_homes_can_be_entered_for_the_images_in_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HERMES_HOME", str(tmp_path / "home"))
    private_folder(tmp_path / "home" / "rl" / "runs")
    assert [mode(tmp_path / "home" / name) for name in ("", "rl", "rl/runs")] == [0o711, 0o711, 0o700]


def test_files_are_private(tmp_path: Path) -> None:
    os.close(open_private(tmp_path / "a", os.O_WRONLY | os.O_CREAT))
    create_private(tmp_path / "b")
    write_private(tmp_path / "c", b"c")
    write_document(tmp_path / "d", {})
    RecordWriter(tmp_path / "e").close()
    assert readable_by_others(tmp_path) == {}


def test_a_file_that_was_shared_on_purpose_stays_shared(tmp_path: Path) -> None:
    path = tmp_path / "groups.jsonl"
    path.touch(0o644)
    RecordWriter(path).close()
    assert mode(path) == 0o644


def test_an_export_follows_the_umask(tmp_path: Path) -> None:
    RecordWriter(tmp_path / "sft.jsonl", exported=True).close()
    assert mode(tmp_path / "sft.jsonl") == 0o666


async def test_a_database_and_its_log_are_private(tmp_path: Path) -> None:
    async with open_store(str(tmp_path / "new" / "store.db")) as store:
        await store.version()
        assert (tmp_path / "new" / "store.db-wal").exists()
        assert readable_by_others(tmp_path) == {}


def test_the_api_writes_nothing_that_others_can_read(tmp_path: Path) -> None:
    with ApiProcess(str(tmp_path / "api" / "store.db")):
        assert readable_by_others(tmp_path) == {}


async def test_process_and_evaluate_write_nothing_that_others_can_read(tmp_path: Path) -> None:
    home = tmp_path / "home"
    async with ScriptedModel(lambda _: Text("No.")) as model:
        for command in ("process", "evaluate"):
            options = f"--openai.base_url {model.base_url} --env.total_steps 1 --env.group_size 2 --env.eval_size 2"
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "hermes_rl", command, "terminal_test", *options.split()),
                cwd=tmp_path,
                env={**os.environ, "HERMES_HOME": str(home), "WANDB_MODE": "disabled"},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
            )
            _, errors = await process.communicate()
            assert b"Traceback" not in errors, errors
    assert list((tmp_path / "data").glob("*.jsonl")) and list((home / "rl" / "evals").iterdir())
    shared = readable_by_others(tmp_path)
    assert {shared.pop("home"), shared.pop("home/rl")} == {"0o711"}
    assert shared == {}


def _writes_with_umask(node: ast.AST) -> bool:
    """Whether this is a call that creates a file or folder with the umask."""
    if not isinstance(node, ast.Call):
        return False
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    texts = [argument.value for argument in node.args if isinstance(argument, ast.Constant)]
    if name == "mkdir":
        return not node.args and all(keyword.arg != "mode" for keyword in node.keywords)
    if name == "open" and any(isinstance(text, str) and text[:1] in {"w", "a", "x"} for text in texts):
        return all(keyword.arg != "opener" for keyword in node.keywords)
    return name in {"write_text", "write_bytes", "makedirs"} or (name == "touch" and not node.args)


def test_everything_is_written_with_the_helper() -> None:
    files = {str(path.relative_to(SOURCE)): path for path in SOURCE.rglob("*.py")}
    bypassing = [
        f"{name}:{getattr(node, 'lineno', 0)}"
        for name, path in files.items()
        if not name.startswith(tuple(WITH_UMASK))
        for node in ast.walk(ast.parse(path.read_text()))
        if _writes_with_umask(node)
    ]
    assert bypassing == []
