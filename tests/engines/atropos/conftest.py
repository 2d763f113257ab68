"""The real atroposlib 0.4.0, in an environment of its own that is made when there is none."""

import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.engines.atropos.say_number_model import SayNumberModel
from tests.engines.atropos.word_model import WordModel
from tests.support.api_process import ApiProcess
from tests.support.run_api import RunApi

SCRIPT = Path(__file__).parents[3] / "scripts" / "engine_environment"
# It takes two minutes the first time, and waits for whoever makes it already.
DEADLINE_S = 2200.0


@pytest.fixture(scope="session")
def atropos_python() -> Path:
    made = subprocess.run([SCRIPT, "atropos"], stdout=subprocess.PIPE, text=True, check=False, timeout=DEADLINE_S)
    if made.returncode != 0:
        pytest.fail(f"{SCRIPT.name} atropos ended with {made.returncode}; what it said is above")
    return Path(made.stdout.strip()) / "bin" / "python"


@pytest.fixture
async def word_model(tmp_path: Path) -> AsyncIterator[WordModel]:
    async with WordModel(tmp_path / "tokenizer") as model:
        yield model


@pytest.fixture
async def say_number_model(tmp_path: Path) -> AsyncIterator[SayNumberModel]:
    async with SayNumberModel(tmp_path / "tokenizer") as model:
        yield model


@pytest.fixture
def run_api(atropos_python: Path, tmp_path: Path) -> Iterator[str]:
    """The URL of the unmodified run-api."""
    with RunApi(atropos_python, tmp_path / "run-api.log") as api:
        yield api.url


@pytest.fixture
def our_api(tmp_path: Path) -> Iterator[str]:
    """The URL of `hermes-rl api`."""
    with ApiProcess(str(tmp_path / "api.db")) as api:
        yield api.url
        assert api.stop() == 0


@pytest.fixture(params=["run_api", "our_api"])
def either_api(request: pytest.FixtureRequest) -> str:
    """An API that speaks Atropos' protocol: theirs, then ours."""
    url: str = request.getfixturevalue(request.param)
    return url
