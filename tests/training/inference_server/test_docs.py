"""The commands of docs/inference-server.md, as they stand there."""

import asyncio
import json
import re
from pathlib import Path

import pytest

from tests.support.inference import inference, saying

PAGE = Path(__file__).parents[3] / "docs" / "inference-server.md"
COMMANDS = re.findall(r"```bash\n(.*?)```", PAGE.read_text(), re.DOTALL)
ADDRESS = "http://127.0.0.1:8001"


@pytest.mark.parametrize("command", COMMANDS)
async def test_a_command_of_the_page_is_answered(command: str) -> None:
    async with inference(saying("Yes.")) as server:
        program = command.replace("curl ", "curl --silent --fail-with-body ").replace(ADDRESS, server.url)
        process = await asyncio.create_subprocess_shell(program, stdout=asyncio.subprocess.PIPE)
        async with asyncio.timeout(30):
            said, _ = await process.communicate()
    assert process.returncode == 0, said
    if "/metrics" not in command:
        assert "error" not in json.loads(said)
    if "/health" in command:
        assert f"```json\n{json.dumps(json.loads(said))}\n```" in PAGE.read_text()


def test_the_page_has_a_command_for_every_route() -> None:
    routes = {re.search(rf"{ADDRESS}(\S+)", command)[1] for command in COMMANDS}  # type: ignore[index]
    chat = {"/v1/chat/completions", "/v1/completions", "/v1/policy/hold"}
    assert routes == chat | {"/health", "/inference/v1/generate", "/generate", "/logprobs", "/metrics"}
