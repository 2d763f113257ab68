import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hermes_rl.core.errors import ConfigError
from hermes_rl.tracing import tracer as tracer_module
from hermes_rl.tracing.setup import Tracing, traced
from hermes_rl.tracing.span import span
from hermes_rl.tracing.tracer import ExportConfig, Tracer
from tests.support.trace_collector import TraceCollector

SECOND = 1_000_000_000


def record(number: int) -> tuple[object, ...]:
    return (f"{1:032x}", number + 1, 0, "turn", SECOND, 2 * SECOND, (number,), None)


def exporting(url: str) -> ExportConfig:
    return ExportConfig(f"{url}/v1/traces", "hermes-rl", {"hermes_rl.part": "test"}, timeout=1.0)


def until_dead(pid: int) -> None:
    end = time.monotonic() + 30
    while (state := Path(f"/proc/{pid}/stat")).exists() and state.read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < end
        time.sleep(0.01)


def test_every_span_is_delivered_before_the_end() -> None:
    said: list[str] = []
    with TraceCollector() as collector:
        with Tracer(exporting(collector.url), report=said.append) as tracer:
            for number in range(1500):
                tracer.put(record(number))
        assert {one.attributes["hermes_rl.turn"] for one in collector.spans} == set(range(1500))
    assert (tracer.delivered, tracer.dropped, said) == (1500, 0, [])


def test_an_exporter_that_starts_late_still_delivers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracer_module, "FLUSH_SECONDS", 0.2)
    monkeypatch.setattr(tracer_module, "COMMAND", ("sh", "-c", 'sleep 1; exec "$@"', "sh", *tracer_module.COMMAND))
    with TraceCollector() as collector:
        with Tracer(exporting(collector.url)) as tracer:
            tracer.put(record(1))
        assert (tracer.delivered, len(collector.spans)) == (1, 1)


def test_a_collector_that_is_away_costs_nothing_but_spans() -> None:
    said: list[str] = []
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        began = time.monotonic()
        with Tracer(exporting(f"http://127.0.0.1:{taken.getsockname()[1]}"), report=said.append) as tracer:
            tracer.put(record(1))
            assert time.monotonic() - began < 5
    assert time.monotonic() - began < 20
    assert any("1 of 1 spans did not reach" in text for text in said)


def test_a_collector_that_refuses_is_told_of() -> None:
    said: list[str] = []
    with TraceCollector(status=400) as collector, Tracer(exporting(collector.url), report=said.append) as tracer:
        tracer.put(record(1))
    assert any("400" in text for text in said)


def test_what_an_exporter_that_hangs_does_not_take_is_dropped_and_counted() -> None:
    with TraceCollector() as collector, Tracer(exporting(collector.url), max_queued=1000) as tracer:
        assert tracer.exporter is not None
        os.kill(tracer.exporter, signal.SIGSTOP)
        end = time.monotonic() + 60
        number = 0
        while not tracer.dropped and time.monotonic() < end:
            for _ in range(5000):
                number += 1
                tracer.put(record(number))
            time.sleep(0.05)
        assert tracer.dropped
        os.kill(tracer.exporter, signal.SIGCONT)


def test_an_exporter_that_dies_ends_nothing_else() -> None:
    said: list[str] = []
    with TraceCollector() as collector, Tracer(exporting(collector.url), report=said.append) as tracer:
        assert tracer.exporter is not None
        os.kill(tracer.exporter, signal.SIGKILL)
        until_dead(tracer.exporter)
        for number in range(100):
            tracer.put(record(number))
    assert any("100 of 100 spans" in text for text in said)


def test_a_process_joins_the_trace_of_the_one_that_started_it() -> None:
    parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    with TraceCollector() as collector:
        tracing = Tracing.from_option(collector.url, {"TRACEPARENT": parent})
        with traced(tracing, "serve", {"environment": "words"}), span("group"):
            pass
        assert {one.trace for one in collector.spans} == {"4bf92f3577b34da6a3ce929d0e0e4736"}
        assert [one.parent for one in collector.named("serve")] == ["00f067aa0ba902b7"]


def test_without_the_flag_nothing_is_switched_on() -> None:
    variables = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://localhost:4318"}
    assert Tracing.from_option(None, variables) is None


def test_the_variables_of_opentelemetry_are_heeded() -> None:
    told = Tracing.from_option(
        "http://localhost:4318/",
        {
            "OTEL_TRACES_SAMPLER_ARG": "0.25",
            "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT": "true",
            "OTEL_SERVICE_NAME": "mine",
        },
    )
    assert told == Tracing("http://localhost:4318/v1/traces", 0.25, content=True, service="mine")


@pytest.mark.parametrize(
    ("trace", "variables"),
    [("localhost:4318", {}), ("http://localhost:4318", {"OTEL_TRACES_SAMPLER_ARG": "all"})],
)
def test_what_cannot_be_is_refused_before_anything_starts(trace: str, variables: dict[str, str]) -> None:
    with pytest.raises(ConfigError):
        Tracing.from_option(trace, variables)


def test_the_process_that_makes_spans_never_imports_opentelemetry() -> None:
    code = (
        "import sys\n"
        "import hermes_rl.environment.command\n"
        "from hermes_rl.tracing import Tracing, span, traced\n"
        "with traced(Tracing.from_option('http://127.0.0.1:9'), 'process', {}), span('group'):\n"
        "    pass\n"
        "print(any(name.partition('.')[0] == 'opentelemetry' for name in sys.modules))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "False"
