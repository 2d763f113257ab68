"""SkyRL's own faults, each shown by leaving out the fix for it: should one pass, the fix is no longer needed."""

import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from tinker.proto.request_conv import forward_backward_request_to_proto
from tinker.types import ForwardBackwardInput, ForwardBackwardRequest

from tests.engines.skyrl.bare_engine import BareEngine
from tests.engines.skyrl.tiny_training import DATA, TinyTraining
from tests.support.skyrl_engine import SkyrlEngine, skyrl_environment

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

Bare = Callable[[str], BareEngine]


@pytest.fixture
def without(tiny_model: Path, tmp_path: Path) -> Iterator[Bare]:
    started: list[BareEngine] = []

    def start(fix: str) -> BareEngine:
        started.append(BareEngine(tiny_model, tmp_path, fix))
        return started[-1]

    yield start
    for engine in started:
        engine.__exit__(None, None, None)


def test_a_typed_dict_of_python_3_11_ends_it_at_once(without: Bare) -> None:
    python = skyrl_environment() / "bin" / "python"
    newer = subprocess.run([python, "-c", "import sys; sys.exit(sys.version_info >= (3, 12))"], check=False).returncode
    if newer:
        pytest.skip("needs an engine on Python 3.11: newer ones do not have this fault")
    engine = without("typeddict")
    assert engine.process.wait(120) != 0
    assert "typing_extensions.TypedDict" in engine.log


def test_it_asks_for_the_uv_that_started_it(without: Bare) -> None:
    engine = without("command")
    assert engine.process.wait(120) != 0
    assert "Unable to parse tinker API server startup command" in engine.log


def passes(url: str) -> int:
    """How what the SDK sends for a training pass is answered; no model of that name is needed to be read."""
    request = ForwardBackwardRequest(
        forward_backward_input=ForwardBackwardInput(data=DATA, loss_fn="importance_sampling"), model_id="none", seq_id=1
    )
    body = forward_backward_request_to_proto(request).SerializeToString()
    post = urllib.request.Request(
        f"{url}/api/v1/forward_backward", body, {"Content-Type": "application/x-protobuf", "Accept": "application/json"}
    )
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.build_opener(urllib.request.ProxyHandler({})).open(post, timeout=30)
    refused.value.close()
    return refused.value.code


def test_it_cannot_read_what_the_sdk_sends(without: Bare) -> None:
    engine = without("wire")
    engine.await_answer("get_server_capabilities")
    assert passes(engine.url) in {422, 500}


def test_with_the_fix_what_the_sdk_sends_is_read(skyrl_engine: SkyrlEngine) -> None:
    # Read, and no such model found.
    assert passes(skyrl_engine.url) == 404


def test_sampling_from_an_older_version_undoes_the_training_since(without: Bare, training: TinyTraining) -> None:
    engine = without("slots")
    engine.await_answer("healthz")
    theirs = TinyTraining.begun(engine.url, engine.model)
    older, before = theirs.save_sampler(), theirs.logprobs()
    theirs.step()
    after = theirs.logprobs()
    assert np.abs(after - before).max() > 0.1
    theirs.sampler_logprobs(older)
    assert np.abs(theirs.logprobs() - before).max() < 1e-4
    theirs.close()
    # Until then a step is the same with the fix.
    training.step()
    assert np.abs(training.logprobs() - after).max() < 1e-4
