"""Spans of several processes in one trace: servers, and the parts of a run."""

import os
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import pytest

from hermes_rl.api.client.connection import ApiConnection
from hermes_rl.inference.config import APIServerConfig, ServerType
from hermes_rl.inference.server_manager import ServerManager
from hermes_rl.orchestration.run_paths import RunPaths
from hermes_rl.orchestration.supervision.desired_state import DesiredState
from hermes_rl.orchestration.supervision.run_plan import ComponentPlan, Role, RunPlan
from hermes_rl.orchestration.supervision.supervisor import Supervisor
from hermes_rl.store.database.store import open_store
from hermes_rl.tracing.setup import TRACEPARENT, new_traceparent
from hermes_rl.tracing.span import span, use_span
from tests.support.inference import USER, inference, saying
from tests.support.trace_collector import TraceCollector
from tests.support.trajectory_api import served
from tests.tracing.keeping import Kept, attributes


async def test_a_request_to_the_trajectory_api_is_inside_the_span_of_its_caller(tmp_path: Path) -> None:
    kept = Kept()
    async with open_store(str(tmp_path / "trajectories.db")) as store:
        with kept.root():
            async with served(store) as url, ApiConnection(url) as connection:
                with span("deliver") as deliver:
                    await connection.request("GET", "/v1/status")
                await connection.request("GET", "/v1/status")
    requests = [record for record in kept.records if record[3] == "request"]
    assert deliver.on and [record[2] for record in requests] == [deliver.id]
    told = attributes(kept.by_name()["GET /v1/status"])
    assert (told["http.route"], told["http.response.status_code"]) == ("/v1/status", 200)


async def test_a_server_that_does_not_trace_takes_no_notice(tmp_path: Path) -> None:
    kept = Kept()
    async with open_store(str(tmp_path / "trajectories.db")) as store, served(store) as url:
        with kept.root():
            async with aiohttp.ClientSession() as session:
                with span("deliver") as deliver:
                    assert deliver.on
                    async with session.get(f"{url}/v1/status", headers={"traceparent": deliver.traceparent}) as answer:
                        assert answer.status == 200
    assert [record[3] for record in kept.records] == ["deliver", "process"]


async def test_inference_answers_inside_the_model_call() -> None:
    kept = Kept()
    with kept.root():
        async with inference(saying("Yes.")) as server:
            config = APIServerConfig(base_url=f"{server.url}/v1", model_name="policy", server_type=ServerType.VLLM)
            async with ServerManager([config]) as manager:
                await manager.chat_completion([USER])
    chat, request = kept.by_name()["chat policy"], kept.by_name()["POST /v1/chat/completions"]
    assert chat.context and request.parent and request.parent.span_id == chat.context.span_id
    assert attributes(chat)["gen_ai.usage.output_tokens"] > 0


async def test_a_model_call_tells_the_endpoint_that_answered() -> None:
    kept = Kept()
    with kept.root():
        async with inference(saying("Yes.")) as server:
            away = APIServerConfig(base_url="http://127.0.0.1:1/v1", model_name="policy")
            async with ServerManager([away, APIServerConfig(base_url=f"{server.url}/v1", model_name="policy")]) as both:
                await both.chat_completion([USER])
    assert attributes(kept.by_name()["chat policy"])["server.port"] == urlsplit(server.url).port


async def test_what_goes_wrong_in_tracing_is_no_request_less(tmp_path: Path) -> None:
    kept = Kept()
    async with open_store(str(tmp_path / "trajectories.db")) as store:
        with kept.root():
            async with served(store) as url, aiohttp.ClientSession() as session:
                for header in ("", "nonsense", "00-" + "f" * 5000, "\u00e9"):
                    async with session.get(f"{url}/health", headers={"traceparent": header}) as answer:
                        assert answer.status == 200
    assert [record[3] for record in kept.records] == ["process"]


def test_a_run_has_a_span_that_its_parts_are_inside_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HERMES_HOME", str(tmp_path))
    with TraceCollector() as collector:
        traceparent = new_traceparent()
        places = RunPaths("r1")
        places.folder.mkdir(parents=True)
        parts = (ComponentPlan("api", Role.API, ("true",)),)
        RunPlan(parts, folder="/", trace=collector.url, traceparent=traceparent).write(places.plan)
        # As one that a keeper started has it.
        monkeypatch.setenv(TRACEPARENT, traceparent)
        supervisor = Supervisor(places, None, DesiredState())
        assert supervisor._processes._trace_environment() == {TRACEPARENT: traceparent}
        supervisor._trace()
        supervisor._processes.close()
        supervisor._record.close()
        [run] = collector.spans
    assert f"00-{run.trace}-{run.id}-01" == traceparent
    assert (run.name, run.parent, run.attributes["hermes_rl.run"]) == ("run", "", "r1")


def test_a_run_that_is_started_by_a_traced_program_joins_its_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, TRACEPARENT, "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
    assert new_traceparent().startswith("00-4bf92f3577b34da6a3ce929d0e0e4736-")


def test_nothing_is_current_again_after_a_block() -> None:
    with use_span(None), span("turn") as begun:
        assert not begun.on
