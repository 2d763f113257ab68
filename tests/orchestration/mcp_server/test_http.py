"""The official client over streamable HTTP, and those who are not let in."""

import asyncio
import os
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from hermes_rl.cli.main import hermes_rl
from hermes_rl.console.run_command import run_click
from hermes_rl.orchestration.mcp_server.transport import DRAFT_TTL, delete_old_drafts
from hermes_rl.orchestration.run_paths import drafts_home
from tests.support.rl_mcp import http_server, over_http, said

pytestmark = pytest.mark.timeout(180)
PING = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
ACCEPTED = {"Accept": "application/json, text/event-stream"}


@dataclass(frozen=True)
class Evil:
    """An environment's file in a folder that the operator did not name; it writes `marker` when it is run."""

    file: Path
    marker: Path
    known: Path


@pytest.fixture
def evil(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Evil:
    folder = tmp_path_factory.mktemp("downloads") / "inner"
    folder.mkdir()
    marker = folder.parent / "ran"
    source = (home / "rl" / "environments" / "plain_text_env.py").read_text()
    source = source.replace("PlainTextEnv", "Evil").replace('"plain_text"', '"evil"')
    (folder / "evil_env.py").write_text(f"open({str(marker)!r}, 'w').close()\n{source}")
    return Evil(folder / "evil_env.py", marker, home / "rl" / "environments")


async def test_two_clients_with_sessions_have_a_draft_each() -> None:
    async with (
        http_server() as address,
        over_http(address, mode="legacy") as first,
        over_http(address, mode="legacy") as second,
    ):
        assert "draft" not in await said(first, "rl_select_environment", name="plain_text")
        assert "error" in await said(second, "rl_get_current_config")
        assert "error" not in await said(first, "rl_get_current_config")


async def test_a_client_without_a_session_is_told_the_name_of_its_draft() -> None:
    async with http_server() as address, over_http(address) as client:
        chosen = await said(client, "rl_select_environment", name="plain_text")
        assert f"draft='{chosen['draft']}'" in chosen["next"]
        refused = await said(client, "rl_get_current_config")
        assert "draft" in refused["next"]
        assert "error" not in await said(client, "rl_get_current_config", draft=chosen["draft"])
        properties = next(
            tool.input_schema["properties"]
            for tool in (await client.list_tools()).tools
            if tool.name == "rl_edit_config"
        )
        assert "draft" in properties


async def test_with_a_token_only_those_who_send_it_come_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUR_TOKEN", "open-sesame")
    async with http_server("--token", "env:OUR_TOKEN") as address:
        assert address.token is None
        async with over_http(address._replace(token="open-sesame")) as client:
            assert "runs" in await said(client, "rl_list_runs")


async def test_without_a_token_it_makes_one_and_refuses_everyone_who_does_not_send_it() -> None:
    async with http_server() as address, httpx.AsyncClient(headers=ACCEPTED) as other:
        assert address.token is not None
        assert len(address.token) >= 32
        for header in ({}, {"Authorization": "Bearer wrong"}, {"Host": "evil.example"}):
            assert (await other.post(address.url, json=PING, headers=header)).status_code == 401
        async with over_http(address) as client:
            assert "runs" in await said(client, "rl_list_runs")


async def test_a_file_outside_the_known_folders_is_never_run(evil: Evil) -> None:
    """By its path, from a known folder with `..`, by a link, as a module, and as a component of an environment."""
    link = evil.file.parent.with_name("link.py")
    link.symlink_to(evil.file)
    (evil.known / "linked_env.py").symlink_to(evil.file)
    upward = os.path.relpath(evil.file, evil.known)
    paths = [str(evil.file), str(link), f"{evil.known}/{upward}", f"{evil.known}/linked_env.py", f"{evil.file}:Evil"]
    async with http_server() as address, over_http(address) as client:
        for path in paths:
            refused = await said(client, "rl_select_environment", name=path)
            assert "--allow-path" in refused["error"], path
        chosen = await said(client, "rl_select_environment", name="plain_text")
        for field, value in (
            ("environments", ["plain_text", str(evil.file)]),
            ("tool_call_parser", f"{evil.file}:Parser"),
            ("enabled_toolsets", f"terminal, {evil.file}:TOOLS"),
            ("agent_command", f"agent:{evil.file}:AGENT"),
        ):
            refused = await said(client, "rl_edit_config", field=field, value=value, draft=chosen["draft"])
            assert "--allow-path" in refused.get("error", ""), (field, refused)
    assert not evil.marker.exists()


async def test_a_module_of_the_working_directory_is_not_a_known_file(
    evil: Evil, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(evil.file.parent)
    async with http_server() as address, over_http(address) as client:
        assert "--allow-path" in (await said(client, "rl_select_environment", name="evil_env:Evil"))["error"]
        chosen = await said(client, "rl_select_environment", name="plain_text")
        edit = {"field": "tool_call_parser", "value": "evil_env:Parser", "draft": chosen["draft"]}
        assert "--allow-path" in (await said(client, "rl_edit_config", **edit))["error"]
    assert not evil.marker.exists()


async def test_a_path_is_selected_after_the_operator_allowed_it(evil: Evil) -> None:
    other = evil.file.parent.with_name("elsewhere")
    options = ("--allow-path", str(other), "--allow-path", str(evil.file.parent))
    async with http_server(*options) as address, over_http(address) as client:
        assert "error" not in await said(client, "rl_select_environment", name=str(evil.file))
    assert evil.marker.exists()


def test_elsewhere_than_on_this_machine_it_asks_for_a_token(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_click(hermes_rl, ["mcp", "--http", "--host", "0.0.0.0", "--port", "0"], "hermes-rl") == 2
    assert "--token" in capsys.readouterr().err


def test_a_token_without_http_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_click(hermes_rl, ["mcp", "--token", "env:X"], "hermes-rl") == 2
    assert "--http" in capsys.readouterr().err


def test_drafts_that_no_client_came_back_to_are_forgotten(home: Path) -> None:
    drafts_home().mkdir(parents=True)
    for name in ("mcp-old.json", "default.json"):
        (drafts_home() / name).write_text("{}")
    delete_old_drafts((drafts_home() / "mcp-old.json").stat().st_mtime + DRAFT_TTL + 1)
    assert [path.name for path in drafts_home().iterdir()] == ["default.json"]


async def test_it_ends_with_a_client_still_connected() -> None:
    async with asyncio.timeout(60), http_server() as address, over_http(address, mode="legacy") as client:
        await said(client, "rl_list_runs")
