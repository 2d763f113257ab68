"""The official client over streamable HTTP, and those who are not let in."""

import asyncio
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


async def test_two_clients_with_sessions_have_a_draft_each() -> None:
    async with (
        http_server() as url,
        over_http(url, mode="legacy") as first,
        over_http(url, mode="legacy") as second,
    ):
        assert "draft" not in await said(first, "rl_select_environment", name="plain_text")
        assert "error" in await said(second, "rl_get_current_config")
        assert "error" not in await said(first, "rl_get_current_config")


async def test_a_client_without_a_session_is_told_the_name_of_its_draft() -> None:
    async with http_server() as url, over_http(url) as client:
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
    async with http_server("--token", "env:OUR_TOKEN") as url:
        async with httpx.AsyncClient() as other:
            assert (await other.post(url, json=PING, headers=ACCEPTED)).status_code == 401
        async with over_http(url, "open-sesame") as client:
            assert "runs" in await said(client, "rl_list_runs")


@pytest.mark.parametrize(
    "headers", [{"Origin": "http://evil.example"}, {"Host": "evil.example"}, {"Sec-Fetch-Site": "cross-site"}]
)
async def test_a_page_of_another_site_is_not_let_in(headers: dict[str, str]) -> None:
    async with http_server() as url, httpx.AsyncClient() as browser:
        assert (await browser.post(url, json=PING, headers={**ACCEPTED, **headers})).status_code == 403


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
    async with asyncio.timeout(60), http_server() as url, over_http(url, mode="legacy") as client:
        await said(client, "rl_list_runs")
