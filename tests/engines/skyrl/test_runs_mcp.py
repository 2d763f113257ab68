"""The whole workflow by the official MCP client, which starts the command and knows nothing else."""

import asyncio
import base64
import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from mcp_types import BlobResourceContents, TextResourceContents

from tests.support.rl_mcp import over_stdio, said
from tests.support.tiny_runs import (
    RUN_SECONDS,
    STEPS,
    await_nothing_left,
    home_of_runs,
    tell_first_step,
    tiny_changes,
    trained_tensors,
)

pytestmark = [pytest.mark.long, pytest.mark.timeout(2 * RUN_SECONDS)]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with home_of_runs(tmp_path, monkeypatch) as folder:
        yield folder


async def test_a_client_goes_from_the_list_to_the_results_and_may_leave_in_between(home: Path) -> None:
    heard: list[str | None] = []

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        heard.append(message)

    async with over_stdio() as client:
        listed = await said(client, "rl_list_environments")
        assert "plain_text" in [one["name"] for one in listed["environments"]]
        await said(client, "rl_select_environment", name="plain_text", preset="laptop")
        for field, value in tiny_changes().items():
            assert "error" not in await said(client, "rl_edit_config", field=field, value=value)
        assert not (await said(client, "rl_get_current_config"))["missing"]
        began = time.time()
        result = await client.call_tool("rl_start_training", {}, progress_callback=hear)
        assert result.structured_content is not None and not result.is_error
        run_id = result.structured_content["run_id"]
    assert heard

    # Another client, tomorrow: the run went on.
    async with over_stdio() as client, asyncio.timeout(RUN_SECONDS):
        while not (told := await said(client, "rl_check_status", run_id=run_id))["ended"]:
            await asyncio.sleep(1)
        assert told["status"] == "finished", told
        results = await said(client, "rl_get_results", run_id=run_id)
        assert [one["run_id"] for one in (await said(client, "rl_list_runs"))["runs"]] == [run_id]
        [curve] = (await client.read_resource(f"hermes-rl://runs/{run_id}/curve")).contents
        [log] = (await client.read_resource(f"hermes-rl://runs/{run_id}/log/trainer")).contents
        [runs] = (await client.read_resource("hermes-rl://runs")).contents
    assert results["metrics"]["step"] == STEPS
    assert trained_tensors(results["weights_path"])
    assert isinstance(curve, BlobResourceContents) and base64.b64decode(curve.blob).startswith(b"\x89PNG")
    assert isinstance(log, TextResourceContents) and "step 2 of 2" in log.text
    assert isinstance(runs, TextResourceContents) and json.loads(runs.text)["runs"][0]["run_id"] == run_id
    tell_first_step(run_id, began)
    await_nothing_left(home)
