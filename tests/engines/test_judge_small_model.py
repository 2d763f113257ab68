"""A real small model judges: llama.cpp holds it to the schema, so even 135M parameters give a verdict we can read."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hermes_rl.core.errors import JudgeError
from hermes_rl.inference.config import APIServerConfig
from hermes_rl.rewards.judge import Judge
from tests.engines.conftest import READY_DEADLINE_S, SCRIPT, Endpoint, first_line

# scripts/small_model.py lets the model write its own text, which switches structured output off; here it is on.
STRUCTURED = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("small_model", sys.argv[1])
small_model = sys.modules["small_model"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(small_model)
plain = small_model.parameters
def structured(*given):
    params = plain(*given)
    params.force_pure_content_parser = False
    return params
small_model.parameters = structured
sys.exit(small_model.main(["--port", "0", "--parallel", "1"]))
"""


@pytest.fixture(scope="module")
def structured_model() -> Iterator[Endpoint]:
    process = subprocess.Popen(
        [sys.executable, "-c", STRUCTURED, str(SCRIPT)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert process.stdout is not None
    with process.stdout:
        try:
            line = first_line(process.stdout, READY_DEADLINE_S)
            assert line.startswith("ready: "), line
            url, name = line.removeprefix("ready: ").split(" model=")
            yield Endpoint(url, name.strip())
        finally:
            process.kill()
            process.wait(10)


def judge_on(model: Endpoint, cache: Path) -> Judge:
    endpoint = APIServerConfig(base_url=model.base_url, model_name=model.model_name, timeout=100)
    rubric = "1 when the answer names Paris, else 0. Keep the reasons to one short sentence."
    return Judge(endpoint, rubric, levels=(0, 1), cache=cache, max_tokens=400)


async def test_a_small_model_gives_reasons_then_a_verdict_and_is_asked_once(
    structured_model: Endpoint, tmp_path: Path
) -> None:
    async with judge_on(structured_model, tmp_path) as judge:
        given = await judge.assess("What is the capital of France?", "It is Paris.")
        again = await judge.assess("What is the capital of France?", "It is Paris.")
    assert given.score in {0.0, 1.0}
    assert given.method == "model"
    assert given.reasons
    assert (again.cached, again.score, again.reasons) == (True, given.score, given.reasons)


async def test_an_engine_that_ignores_the_schema_gives_a_failure_and_no_score(
    small_model: Endpoint, tmp_path: Path
) -> None:
    async with judge_on(small_model, tmp_path) as judge:
        with pytest.raises(JudgeError) as failure:
            await judge.assess("What is the capital of France?", "It is Paris.")
    assert failure.value.cause == "unreadable"
