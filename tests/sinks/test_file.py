"""Metrics reach the local file always, whatever else there is."""

import time
from decimal import Decimal
from pathlib import Path

import numpy as np

from hermes_rl.sinks.run_sinks import open_sinks
from hermes_rl.sinks.selection import SinkConfig
from tests.sinks.parts import lines, run


async def test_without_other_sinks_every_line_is_in_the_file(tmp_path: Path) -> None:
    async with open_sinks(run(tmp_path / "data"), SinkConfig()) as sinks:
        sinks.log({"train/mean_score": 0.5, "train/tool_error_details": "two\nlines"})
        sinks.rollouts([("text", 1.0)])
        sinks.log({"eval/mean_reward": 1}, step=7)
        assert sinks.active == []
    first, second = lines(tmp_path / "data" / "metrics.jsonl")
    assert (first["step"], first["train/mean_score"], first["train/tool_error_details"]) == (0, 0.5, "two\nlines")
    assert (second["step"], second["eval/mean_reward"]) == (7, 1)
    assert first["time"] <= second["time"] <= time.time()


async def test_nested_metrics_are_flat_and_what_is_no_number_is_null(tmp_path: Path) -> None:
    metrics = {
        "train": {"failures": {"endpoint/http_500": 2, 7: 1}, "empty": {}},
        "nan": float("nan"), "inf": float("-inf"), "none": None, "flag": True, "list": [1, 2],
        "float32": np.float32(0.5), "int64": np.int64(3), "bool": np.bool_(True),
        "array": np.array([1.0, 2.0]), "scalar": np.array(4), "decimal": Decimal("0.25"),
    }  # fmt: skip
    async with open_sinks(run(tmp_path), SinkConfig()) as sinks:
        sinks.log(metrics)
    (line,) = lines(tmp_path / "metrics.jsonl")
    del line["time"], line["step"]
    assert line == {
        "train/failures/endpoint/http_500": 2, "train/failures/7": 1,
        "nan": None, "inf": None, "none": None, "flag": True, "list": [1, 2],
        "float32": 0.5, "int64": 3, "bool": True, "array": [1.0, 2.0], "scalar": 4, "decimal": 0.25,
    }  # fmt: skip


async def test_a_run_taken_up_again_goes_on_after_its_last_step(tmp_path: Path) -> None:
    async with open_sinks(run(tmp_path, file="m.jsonl"), SinkConfig()) as sinks:
        sinks.log({"a": 1}, step=41)
    with (tmp_path / "m.jsonl").open("ab") as file:
        file.write(b'{"step": 99, "torn')
    async with open_sinks(run(tmp_path, file="m.jsonl"), SinkConfig()) as sinks:
        sinks.log({"a": 2})
    assert [(line["step"], line["a"]) for line in lines(tmp_path / "m.jsonl")] == [(41, 1), (42, 2)]
