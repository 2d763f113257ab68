"""Others' clients against the trainer's inference server: atroposlib's own, and the official openai package."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.engines.atropos.programs import run
from tests.engines.atropos.word_model import sampled_exactly
from tests.support.inference import CHATML, ids, inference, saying

pytestmark = [pytest.mark.long, pytest.mark.slow, pytest.mark.parts, pytest.mark.timeout(600)]

CALL = '<tool_call>\n{"name": "terminal", "arguments": {"command": "mkdir hello"}}\n</tool_call>'
SAMPLING = Path(__file__).with_name("managed_sampling.py")


@pytest.fixture
async def heard(atropos_python: Path, tmp_path: Path) -> dict[str, Any]:
    """What they made of a model that calls a tool."""
    folder = CHATML.save(tmp_path / "tokenizer")
    async with inference(saying(CALL)) as server:
        status, said = await run(atropos_python, str(SAMPLING), server.url, str(folder), folder=tmp_path / "run")
    assert status == 0, said
    found: dict[str, Any] = json.loads(said.splitlines()[-1])
    return found


async def test_others_clients_read_what_was_sampled(heard: dict[str, Any]) -> None:
    managed, official = heard["managed"], heard["official"]
    assert managed["finish_reasons"] == ["stop"] * 4
    assert all("mkdir hello" in content for content in managed["contents"])
    assert [sampled_exactly(*node) for node in managed["nodes"]] == [list(ids(CALL))] * 4

    [choice] = official["whole"]["choices"]
    [call] = choice["message"]["tool_calls"]
    assert (choice["finish_reason"], call["function"]["name"]) == ("tool_calls", "terminal")
    assert len(choice["logprobs"]["content"]) == official["whole"]["usage"]["completion_tokens"] == len(ids(CALL))
    [chunk] = official["chunks"]
    [delta] = chunk["choices"]
    assert delta["delta"]["tool_calls"][0]["function"] == call["function"]
    assert official["text"]["choices"][0]["text"] == CALL
    assert official["models"] == ["policy"]
    assert official["refused"] == {"param": "temperature", "type": "invalid_request_error"}
