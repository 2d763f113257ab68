"""Traces of real commands, received over OTLP by a collector that reads the protobuf: every span, and all joined."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.engines.conftest import Endpoint
from tests.support.trace_collector import TraceCollector


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_collector_gets_every_span_of_a_process_command_and_all_are_joined(
    small_model: Endpoint, tmp_path: Path
) -> None:
    with TraceCollector() as collector:
        words = ["process", "terminal_test", "--trace", collector.url, "--json"]
        words += ["--env.total_steps", "2", "--env.group_size", "2"]
        words += ["--openai.base_url", small_model.base_url, "--openai.model_name", small_model.model_name]
        done = subprocess.run(
            [sys.executable, "-m", "hermes_rl", *words],
            cwd=tmp_path,
            env={**os.environ, "HERMES_HOME": str(tmp_path / "home")},
            capture_output=True,
            text=True,
            timeout=280,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert ([root.name for root in collector.roots], collector.orphans) == (["process"], [])
    names = collector.names()
    chat, rollout = f"chat {small_model.model_name}", "invoke_agent terminal_test"
    assert (names["group"], names[rollout], names["compute_reward"]) == (2, 4, 4)
    assert names[chat] == names["turn"] >= 4
    tools = [span for span in collector.spans if span.attributes.get("gen_ai.operation.name") == "execute_tool"]
    assert len(tools) == summary["tool_calls"] - unknown_tools(tmp_path / summary["path"])
    tokens = sum(span.attributes["gen_ai.usage.output_tokens"] for span in collector.named(chat))
    assert tokens == summary["completion_tokens"]
    assert "did not reach" not in done.stderr


def unknown_tools(path: Path) -> int:
    """Calls of tools that there are not: nothing is executed for them."""
    groups = [json.loads(line) for line in path.read_text().splitlines()]
    uses = [use for group in groups for rollout in group["rollouts"] for use in rollout["tool_uses"]]
    return sum((use.get("error") or "").startswith(("unknown tool", "the arguments")) for use in uses)
