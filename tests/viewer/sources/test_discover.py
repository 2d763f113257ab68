"""What a name stands for: a run, a file, a folder, an evaluation, a database; and all that a home holds."""

import asyncio
import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from hermes_rl.core.errors import ConfigError
from hermes_rl.store.database.store import open_store
from hermes_rl.store.records import RecordWriter
from hermes_rl.viewer.sources.discover import find_sources, resolve_target
from hermes_rl.viewer.sources.source import RunAccess, SourceKind, database_source, no_runs
from tests.viewer.recording import group, write_lines


def known_runs(folder: Path, *names: str) -> RunAccess:
    rows = [{"run_id": name, "name": f"run {name}", "status": "running"} for name in names]
    return RunAccess(lambda: rows, lambda run_id: folder / run_id, lambda run_id: {}, lambda run_id: None)


def make_evaluation(folder: Path) -> Path:
    folder.mkdir(parents=True)
    write_lines(folder / "groups.jsonl", group())
    (folder / "metrics.json").write_text("{}")
    return folder


def make_store(path: Path) -> Path:
    async def make() -> None:
        async with open_store(path) as store:
            await store.register_environment("e")

    asyncio.run(make())
    return path


def test_a_file_of_groups(tmp_path: Path) -> None:
    [source] = resolve_target(str(write_lines(tmp_path / "out.jsonl", group())), no_runs())
    assert (source.kind, source.name) == (SourceKind.GROUPS, "out.jsonl")


@pytest.mark.parametrize("name", ["", "groups.jsonl", "metrics.json"])
def test_an_evaluation_by_its_folder_or_a_file_in_it(tmp_path: Path, name: str) -> None:
    folder = make_evaluation(tmp_path / "warm")
    [source] = resolve_target(str(folder / name), no_runs())
    assert (source.kind, source.name, source.file) == (SourceKind.EVALUATION, "warm", folder / "groups.jsonl")


def test_an_evaluation_of_an_author_s_own_has_its_samples(tmp_path: Path) -> None:
    (tmp_path / "metrics.json").write_text("{}")
    write_lines(tmp_path / "samples.jsonl", {"prompt": "a", "response": "b", "reward": 1.0})
    [source] = resolve_target(str(tmp_path), no_runs())
    assert source.file == tmp_path / "samples.jsonl"


def test_a_database_by_its_content(tmp_path: Path) -> None:
    [source] = resolve_target(str(make_store(tmp_path / "any.name")), no_runs())
    assert source.kind is SourceKind.DATABASE


def test_looking_at_a_database_does_not_make_it_newer(tmp_path: Path) -> None:
    path = make_store(tmp_path / "trajectories.db")
    os.utime(path, (1_000_000, 1_000_000))
    Path(f"{path}-wal").touch()
    assert database_source(str(path)).updated_at == 1_000_000


def test_a_run_by_its_id_with_its_evaluations(tmp_path: Path) -> None:
    make_evaluation(tmp_path / "r1" / "parts" / "env" / "evals" / "words-1")
    make_evaluation(tmp_path / "r1" / "parts" / "env" / "serve" / "evals" / "words-2")
    found = resolve_target("r1", known_runs(tmp_path, "r1", "r2"))
    assert [source.kind for source in found] == [SourceKind.RUN, SourceKind.EVALUATION, SourceKind.EVALUATION]
    assert found[0].id == "run-r1"


def test_a_folder_is_looked_through(tmp_path: Path) -> None:
    make_evaluation(tmp_path / "deep" / "warm")
    write_lines(tmp_path / "out.jsonl", group())
    write_lines(tmp_path / "out.metrics.jsonl", b"{}\n")
    write_lines(tmp_path / "lineage.jsonl", b"{}\n")
    with closing(sqlite3.connect(tmp_path / "other.txt")):
        make_store(tmp_path / "t.db")
    found = find_sources([str(tmp_path)], no_runs())
    assert sorted(source.kind for source in found) == [SourceKind.DATABASE, SourceKind.EVALUATION, SourceKind.GROUPS]


def test_a_link_in_a_folder_does_not_lead_in_circles(tmp_path: Path) -> None:
    write_lines(tmp_path / "out.jsonl", group())
    (tmp_path / "again").symlink_to(tmp_path)
    assert len(find_sources([str(tmp_path)], no_runs())) == 1


def test_a_home_has_runs_evaluations_and_the_database_of_the_api(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HERMES_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    make_evaluation(tmp_path / "rl" / "evals" / "words-1")
    make_store(tmp_path / "rl" / "trajectories.db")
    found = find_sources([], known_runs(tmp_path / "rl" / "runs", "r1"))
    assert [source.kind for source in found] == [SourceKind.RUN, SourceKind.EVALUATION, SourceKind.DATABASE]


def test_an_empty_home_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HERMES_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert find_sources([], no_runs()) == []


def test_without_targets_evaluations_and_groups_of_the_working_directory_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HERMES_HOME", str(tmp_path / "home"))
    here = tmp_path / "here"
    make_evaluation(here / "warm")
    for name in (".hidden", "node_modules"):
        make_evaluation(here / name)
    (here / "data").mkdir()
    with RecordWriter(here / "data" / "words.jsonl") as writer:
        writer.write(group())
    write_lines(here / "data" / "other.jsonl", b'{"messages": []}\n')
    monkeypatch.chdir(here)
    found = {(source.kind, source.name) for source in find_sources([], no_runs())}
    assert found == {(SourceKind.EVALUATION, "warm"), (SourceKind.GROUPS, "words.jsonl")}


def test_a_name_of_nothing_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="hermes-rl run list"):
        resolve_target("nothing-of-this-name", no_runs())


def test_a_folder_without_groups_says_what_to_name(tmp_path: Path) -> None:
    write_lines(tmp_path / "metrics.jsonl", b'{"step": 1}\n')
    with pytest.raises(ConfigError, match=r"contains no groups.*; pass a file or folder that does, or the id of a run"):
        resolve_target(str(tmp_path), no_runs())


def test_the_name_of_a_database_holds_no_password() -> None:
    source = database_source("postgresql://user:hunter2@db.example/name?sslmode=require")
    assert source.name == "postgresql://db.example/name"
    assert "hunter2" not in source.id + source.name


def test_the_same_thing_has_the_same_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_lines(tmp_path / "out.jsonl", group())
    monkeypatch.chdir(tmp_path)
    assert resolve_target(str(path), no_runs())[0].id == resolve_target("out.jsonl", no_runs())[0].id
