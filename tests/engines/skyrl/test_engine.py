"""The engine as users have it: what was saved stays as it was, and nobody's step touches another's weights."""

import io
import json
import os
import re
import signal
import sqlite3
import tarfile
import time
import urllib.error
import urllib.request
from contextlib import closing
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
import tinker
from tinker import types

from tests.engines.skyrl.tiny_training import DATA, LENGTH, PROMPT, TinyTraining, post
from tests.support.skyrl_engine import SkyrlEngine

# The first test waits for the engine, and all of them for what is not compiled yet.
pytestmark = pytest.mark.timeout(600)

NOISE = 1e-5


def test_an_older_sampler_keeps_its_own_weights_and_leaves_those_in_training_alone(training: TinyTraining) -> None:
    older, before = training.save_sampler(), training.logprobs()
    training.step()
    after = training.logprobs()
    assert np.abs(after - before).max() > 0.1
    assert np.abs(training.sampler_logprobs(older) - before).max() < NOISE
    assert np.array_equal(training.logprobs(), after)


def test_a_sampler_has_the_weights_it_was_saved_with(training: TinyTraining) -> None:
    training.step()
    assert np.abs(training.sampler_logprobs(training.save_sampler()) - training.logprobs()).max() < NOISE


def test_samplers_beyond_the_slots_are_read_back_from_disk(training: TinyTraining) -> None:
    # Eight slots, of which the base and this model have one each.
    saved = []
    for _ in range(8):
        training.step()
        saved.append((training.save_sampler(), training.logprobs()))
    for path, expected in saved:
        assert np.abs(training.sampler_logprobs(path) - expected).max() < NOISE


def test_a_sampler_outlives_its_model(skyrl_engine: SkyrlEngine, training: TinyTraining) -> None:
    training.step()
    path, expected = training.save_sampler(), training.logprobs()
    training.close()
    other = TinyTraining.begun(skyrl_engine.url, skyrl_engine.model)
    assert np.abs(other.sampler_logprobs(path) - expected).max() < NOISE
    other.close()


def test_recorded_logprobs_are_those_of_the_trainer(training: TinyTraining) -> None:
    training.step()
    sampler = training.service.create_sampling_client(model_path=training.save_sampler())
    drawn = sampler.sample(
        prompt=types.ModelInput.from_ints(PROMPT),
        num_samples=3,
        sampling_params=types.SamplingParams(max_tokens=8, seed=0),
    ).result()
    for sequence in drawn.sequences:
        scored = sampler.compute_logprobs(types.ModelInput.from_ints([*PROMPT, *sequence.tokens])).result()
        assert np.allclose(np.array(scored[len(PROMPT) :], float), np.array(sequence.logprobs), atol=NOISE)


def test_requests_that_arrive_together_are_sampled_together(skyrl_engine: SkyrlEngine, training: TinyTraining) -> None:
    sampler = training.service.create_sampling_client(model_path=training.save_sampler())
    size = skyrl_engine.log.stat().st_size
    first = types.ModelInput.from_ints(PROMPT * 4)
    # It compiles for this length, which takes seconds; so the engine waits a little before the next batch.
    sampler.sample(first, 1, types.SamplingParams(max_tokens=40, seed=0)).result()
    drawn = [sampler.sample(first, 1, types.SamplingParams(max_tokens=40, seed=seed)) for seed in range(4)]
    assert all(each.result().sequences for each in drawn)
    log = skyrl_engine.log.read_bytes()[size:].decode()
    assert re.findall(r"process_batch_requests\(sample, n=(\d+)\)", log) == ["1", "4"]


def test_a_restored_state_goes_on_exactly_where_it_was_saved(training: TinyTraining) -> None:
    training.step()
    training.step()
    restored = training.from_state(training.save_state())
    assert np.array_equal(restored.logprobs(), training.logprobs())
    training.step()
    restored.step()
    assert np.array_equal(restored.logprobs(), training.logprobs())


def test_gradients_of_a_client_that_left_do_not_reach_the_next_one(skyrl_engine: SkyrlEngine) -> None:
    first = TinyTraining.begun(skyrl_engine.url, skyrl_engine.model)
    first.step()
    expected = first.logprobs()
    first.backward().result()
    first.close()
    second = TinyTraining.begun(skyrl_engine.url, skyrl_engine.model)
    second.step()
    assert np.array_equal(second.logprobs(), expected)
    second.close()


def test_weight_decay_takes_from_nobody_else(skyrl_engine: SkyrlEngine, training: TinyTraining) -> None:
    other = TinyTraining.begun(skyrl_engine.url, skyrl_engine.model, seed=2)
    other.step()
    before = other.logprobs()
    training.step(weight_decay=0.5)
    assert np.array_equal(other.logprobs(), before)
    other.close()


def test_the_gradient_is_a_sum_over_all_sequences_and_tokens(training: TinyTraining) -> None:
    """SkyRL alone divides by the number of sequences and by the length of each with its prompt."""

    def norm(data: list[types.Datum]) -> float:
        gradients = training.client.forward_backward(data, "importance_sampling")
        step = training.client.optim_step(types.AdamParams(learning_rate=0.0))
        gradients.result()
        [value] = [value for name, value in step.result().metrics.items() if "grad_norm" in name]
        return float(value)

    once = norm(DATA)
    assert norm([*DATA, *DATA]) == pytest.approx(2 * once, rel=1e-5)
    # The prompt's tokens have no advantage: whether they have a weight must not matter.
    weights = types.TensorData.from_numpy(np.array([0.0] * (len(PROMPT) - 1) + [1.0] * LENGTH, np.float32))
    weighted = [
        types.Datum(model_input=each.model_input, loss_fn_inputs={**each.loss_fn_inputs, "weights": weights})
        for each in DATA
    ]
    assert norm(weighted) == pytest.approx(once, rel=1e-5)


def test_gradients_are_clipped_when_asked(skyrl_engine: SkyrlEngine, training: TinyTraining) -> None:
    before = training.logprobs()
    # So large an epsilon leaves the step in proportion to the gradients.
    training.step(eps=1.0, grad_clip_norm=1e-6)
    clipped = np.abs(training.logprobs() - before).max()
    training.step(eps=1.0)
    assert np.abs(training.logprobs() - before).max() > 100 * clipped


def test_a_step_that_is_sent_again_is_done_once(skyrl_engine: SkyrlEngine, training: TinyTraining) -> None:
    body = {"model_id": training.model_id, "adam_params": {"learning_rate": 0.0}, "seq_id": 77}
    sent = [post(f"{skyrl_engine.url}/api/v1/optim_step", body)["request_id"] for _ in range(2)]
    assert sent[0] == sent[1]


def test_a_checkpoint_is_deleted_by_its_path(skyrl_engine: SkyrlEngine, training: TinyTraining) -> None:
    sampler, state = training.save_sampler(), training.save_state()
    for path in (sampler, state, state):
        training.rest.delete_checkpoint_from_tinker_path(path).result()
    assert training.rest.list_checkpoints(training.model_id).result().checkpoints == []
    assert not [
        path for path in skyrl_engine.log.parent.glob(f"checkpoints/{training.model_id}/**/*") if path.is_file()
    ]


def test_a_sampler_can_be_downloaded_as_a_peft_adapter(skyrl_engine: SkyrlEngine, training: TinyTraining) -> None:
    name = training.save_sampler().rpartition("/")[2]
    address = f"{skyrl_engine.url}/api/v1/training_runs/{training.model_id}/checkpoints/{name}/archive"
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(address, timeout=30) as response:
        content = io.BytesIO(response.read())
    with tarfile.open(fileobj=content) as archive:
        names = {member.name.rpartition("/")[2] for member in archive if member.isfile()}
    assert {"adapter_config.json", "adapter_model.safetensors"} <= names


def test_a_model_that_is_not_served_is_refused(skyrl_engine: SkyrlEngine) -> None:
    session = post(f"{skyrl_engine.url}/api/v1/create_session", {"tags": [], "sdk_version": "0.36.0"})["session_id"]
    with pytest.raises(urllib.error.HTTPError) as refused:
        post(
            f"{skyrl_engine.url}/api/v1/create_model",
            {"session_id": session, "base_model": "Qwen/Qwen3-8B", "lora_config": {"rank": 4}},
        )
    assert skyrl_engine.model in json.load(refused.value)["detail"]


def abandoned(engine: SkyrlEngine, seconds_ago: int) -> str:
    """The model of a client that was killed so long ago, before its first heartbeat."""
    session = post(f"{engine.url}/api/v1/create_session", {"tags": [], "sdk_version": "0.36.0"})["session_id"]
    asked = {"session_id": session, "base_model": engine.model, "lora_config": {"rank": 4}}
    created = post(f"{engine.url}/api/v1/create_model", asked)
    post(f"{engine.url}/api/v1/retrieve_future", {"request_id": created["request_id"]})
    then = (datetime.now(UTC) - timedelta(seconds=seconds_ago)).strftime("%Y-%m-%d %H:%M:%S.%f")
    with closing(sqlite3.connect(engine.log.with_name("tinker.db"), timeout=30)) as database, database:
        database.execute(
            "UPDATE sessions SET created_at = ?, last_heartbeat_at = NULL WHERE session_id = ?", (then, session)
        )
    return str(created["model_id"])


def loaded(engine: SkyrlEngine, model_id: str) -> bool:
    return bool(post(f"{engine.url}/api/v1/get_info", {"model_id": model_id})["status"] != "unloaded")


def test_the_model_of_a_client_that_was_killed_is_unloaded(skyrl_engine: SkyrlEngine) -> None:
    model = abandoned(skyrl_engine, 120)
    deadline = time.monotonic() + 30
    while loaded(skyrl_engine, model) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not loaded(skyrl_engine, model)


def test_models_of_clients_that_were_killed_make_room_for_a_new_one(skyrl_engine: SkyrlEngine) -> None:
    # Eight slots: the base, five models, and two that are left for samplers.
    models = [abandoned(skyrl_engine, 30) for _ in range(5)]
    assert all(loaded(skyrl_engine, model) for model in models)
    TinyTraining.begun(skyrl_engine.url, skyrl_engine.model).close()
    assert not any(loaded(skyrl_engine, model) for model in models)


def test_samples_of_a_client_that_was_killed_are_not_drawn(skyrl_engine: SkyrlEngine) -> None:
    asked = {
        "base_model": skyrl_engine.model,
        "prompt": {"chunks": [{"type": "encoded_text", "tokens": PROMPT}]},
        "sampling_params": {"max_tokens": 8},
    }
    os.kill(skyrl_engine.worker, signal.SIGSTOP)
    try:
        number = post(f"{skyrl_engine.url}/api/v1/asample", asked)["request_id"]
        with pytest.raises(TimeoutError):
            post(f"{skyrl_engine.url}/api/v1/retrieve_future", {"request_id": number}, seconds=1.0)
        time.sleep(8)
        answer = post(f"{skyrl_engine.url}/api/v1/retrieve_future", {"request_id": number})
    finally:
        os.kill(skyrl_engine.worker, signal.SIGCONT)
    assert answer["error"] == "no client waits for this request"


def test_a_request_that_failed_says_why(skyrl_engine: SkyrlEngine, training: TinyTraining) -> None:
    with pytest.raises(tinker.RequestFailedError, match="LoRA rank 16 must be between 1 and 8"):
        training.service.create_lora_training_client(base_model=skyrl_engine.model, rank=16)


def test_what_was_trained_on_does_not_stay_in_the_database(skyrl_engine: SkyrlEngine, training: TinyTraining) -> None:
    training.step()
    with closing(sqlite3.connect(skyrl_engine.log.with_name("tinker.db"))) as database:
        kept = database.execute("SELECT request_data FROM futures WHERE request_type = 'FORWARD_BACKWARD'").fetchall()
    assert {row[0] for row in kept} == {"{}"}
