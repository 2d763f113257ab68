"""Records for the viewer to show, and a viewer over them without a browser."""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from starlette.testclient import TestClient

from hermes_rl.store.records import FORMAT
from hermes_rl.viewer.app import create_app
from hermes_rl.viewer.service import ViewerService
from hermes_rl.viewer.sources.source import RunAccess, no_runs

TOKEN = "a-token-of-the-test"
PORT = 8123
HOSTS = frozenset({"127.0.0.1", "localhost"})


def rollout(index: int = 0, score: float | None = 0.5, text: str = "hello", **fields: Any) -> dict[str, Any]:
    failure = None if score is not None else {"whose": "sandbox", "cause": "died", "message": "it is gone"}
    return {
        "item_id": "item",
        "index": index,
        "seed": index,
        "score": score,
        "stop_reason": None if failure else "natural",
        "failure": failure,
        "components": {"tests": 1.0},
        "turn_scores": [],
        "turns_used": 2,
        "messages": [
            {"role": "user", "content": "the question"},
            {
                "role": "assistant",
                "content": text,
                "reasoning_content": "let me think",
                "tool_calls": [{"id": "c1", "function": {"name": "terminal", "arguments": '{"command": "ls"}'}}],
            },
            {"role": "tool", "tool_call_id": "c1", "content": "a file"},
        ],
        "tool_uses": [
            {"turn": 0, "call_id": "c1", "name": "terminal", "arguments": "{}", "result": "a file", "error": "exit 1"}
        ],
        "usage": {"prompt_tokens": 10, "completion_tokens": 5},
        "timings": [{"span": "model", "name": "m", "start": 0.0, "seconds": 1.5}],
        "seconds": 2.5,
        "sequences": [
            {
                "tokens": [5, 6, 7],
                "mask": [0, 1, 1],
                "logprobs": [None, -0.5, -0.25],
                "versions": [None, 3, 4],
                "sampling": {"temperature": 1.0},
            }
        ],
        "withheld": None,
        "metadata": {"prompt_length": 1},
        **fields,
    }


def group(number: int = 0, *rollouts: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "id": f"group-{number}",
        "draw": number,
        "item_id": f"item-{number}",
        "item": {"question": f"question {number}"},
        "split": "train",
        "created_at": "2026-11-16T00:00:00+00:00",
        "tools": ["terminal"],
        "tool_schemas": [],
        "withheld": None,
        "provenance": {"environment": "words", "model": "m", "environment_hash": "h", "versions": {}},
        "rollouts": list(rollouts) or [rollout(0, 0.0), rollout(1, 1.0)],
        "scores": [],
        "messages": [],
        **fields,
    }


def write_lines(path: Path, *records: dict[str, Any] | bytes) -> Path:
    """Append them; bytes as they are."""
    with path.open("ab") as file:
        for record in records:
            file.write(record if isinstance(record, bytes) else json.dumps(record).encode() + b"\n")
    return path


class Asking:
    """Questions to a viewer with its token, and answers as values."""

    def __init__(self, client: TestClient) -> None:
        self.client = client

    def __call__(self, path: str, status: int = 200) -> Any:
        response = self.client.get(path)
        assert response.status_code == status, response.text
        return response.json()

    def source(self) -> str:
        [source] = self("/api/home")["sources"]
        return str(source["id"])

    def whole(self) -> str:
        """The id of the only source, once it is indexed."""
        name = self.source()
        until(lambda: self(f"/api/s/{name}")["indexing"] is None)
        return name


def write_evaluation(folder: Path, scores: Sequence[float]) -> None:
    folder.mkdir()
    write_lines(folder / "groups.jsonl", *(group(n, rollout(0, score)) for n, score in enumerate(scores)))
    mean = sum(scores) / len(scores)
    metrics = {"eval/mean_reward": mean, "eval/mean_reward/low": 0.1, "eval/mean_reward/high": 1.0, "eval/items": 3}
    report = {
        "format": "hermes-rl/evaluation/1",
        "task": "words",
        "model": "m",
        "metrics": metrics,
        "samples": len(scores),
        "seconds": 12.5,
        "finished_at": "2026-11-16T00:00:00+00:00",
        "generation_parameters": {"temperature": 1},
        "provenance": {},
    }
    (folder / "metrics.json").write_text(json.dumps(report))


@contextmanager
def viewing(*targets: str | Path, runs: RunAccess | None = None, static: Path | None = None) -> Iterator[Asking]:
    service = ViewerService([str(target) for target in targets], runs or no_runs())
    try:
        files = {} if static is None else {"static": static}
        app = create_app(service, token=TOKEN, hosts=HOSTS, port=PORT, **files)
        headers = {"Authorization": f"Bearer {TOKEN}"}
        with TestClient(app, f"http://127.0.0.1:{PORT}", headers=headers, follow_redirects=False) as client:
            yield Asking(client)
    finally:
        service.close()


def until(true: Callable[[], object], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.05)
