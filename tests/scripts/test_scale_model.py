"""scripts/scale_model.py: arithmetic that adds up, a simulation that queues as queues do, figures not made up."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from scripts.scale_model import breaks, tables
from scripts.scale_needs import SOURCES, Measured, Run, environment_machines, needs, p99_ms, waits

SCRIPT = Path(__file__).parents[2] / "scripts" / "scale_model.py"
LEVEL: dict[str, Any] = {
    "in_flight": 10_000,
    "delay": 30.0,
    "replicas": 1,
    "cpu_ms_per_turn": 0.5,
    "kb_per_rollout": 40.0,
}
LEVEL |= {"peak_mb_a_process": 460.0, "bends": [], "gap_p99_ms": 20.0, "cpu_share_of_a_core": 0.2}
FIGURES: dict[str, dict[str, Any]] = {
    "in_flight": {"a": LEVEL, "b": {**LEVEL, "in_flight": 16_000, "bends": ["the loop's lag"]}},
    "trajectory_api": {"ladder": {"8192": {"postgres": 100.0, "mb": 1.2, "batch_s": 0.05, "batch_mb": 9.6}}},
    "gateway": {"512": {"chat": {"cpu_ms_per_call": 0.4}, "tokens": {"cpu_ms_per_call": 1.3}}},
    "sandbox": {"bubblewrap_starts": {"sandboxes": 200, "ours_s": 4.0}, "bubblewrap_commands": {"ours_ms": 3.0}},
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, figures in FIGURES.items():
        (tmp_path / f"{name}.json").write_text(json.dumps({"figures": figures}))
    return tmp_path


def test_a_run_ends_as_many_rollouts_as_begin() -> None:
    run = Run(rollouts=60_000, minutes=10, turns=20, group_size=10)
    assert run.ended_per_second == 100
    assert run.turns_per_second == 2_000
    assert run.groups_per_second == 10


def test_the_most_in_flight_is_the_largest_level_that_did_not_bend(folder: Path) -> None:
    assert Measured.read(folder).in_flight_a_process == 10_000


def test_exact_tokens_cost_what_the_gateway_needs_more_for_them(folder: Path) -> None:
    assert Measured.read(folder).tokens_cpu_ms == pytest.approx(0.9)


@pytest.mark.parametrize("name", SOURCES)
def test_a_missing_result_is_named_with_the_command_that_makes_it(folder: Path, name: str) -> None:
    (folder / f"{name}.json").unlink()
    with pytest.raises(SystemExit, match=SOURCES[name].split(" |")[0]):
        Measured.read(folder)


def test_a_turn_waits_for_nobody_in_an_idle_replica() -> None:
    assert p99_ms(waits(1, 1.0, 0.0, 0.001)) == pytest.approx(1.0)


def test_a_turn_waits_longer_the_fuller_the_core_is() -> None:
    found = [p99_ms(waits(rollouts, 1.0, 0.8, 0.001)) for rollouts in (100, 600, 900, 1_500)]
    assert found == sorted(found)
    assert found[-1] > 100


def test_the_simulation_repeats() -> None:
    assert waits(50, 1.0, 0.8, 0.001) == waits(50, 1.0, 0.8, 0.001)


def test_twice_the_database_breaks_at_twice_the_rollouts(folder: Path) -> None:
    measured = Measured.read(folder)
    limits = [
        next(one.limit for one in needs(Run(), each) if one.part == "trajectory API: database")
        for each in (measured, replace(measured, postgres_groups=2 * measured.postgres_groups))
    ]
    assert limits[0] is not None
    assert limits[1] == pytest.approx(2 * limits[0])


def test_what_breaks_stands_in_the_order_in_which_it_does(folder: Path) -> None:
    lines = [line.split(" | ") for line in breaks(Run(), Measured.read(folder)).splitlines() if line[:3] > "| 0"]
    limits = [int(line[2].replace(",", "")) for line in lines if line[0][2:].isdigit()]
    assert len(limits) >= 3
    assert limits == sorted(limits)


def test_a_run_of_half_the_size_needs_no_more_machines(folder: Path) -> None:
    measured = Measured.read(folder)
    assert environment_machines(Run(rollouts=50_000), measured) <= environment_machines(Run(), measured)


def test_every_need_says_where_its_figure_comes_from(folder: Path) -> None:
    assert all(one.rests_on and one.origin for one in needs(Run(), Measured.read(folder)))


def test_the_command_prints_what_the_functions_give(folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, SCRIPT, "--results", folder, "--rollouts", "1000"],
        capture_output=True,
        check=True,
        text=True,
        timeout=100,
    )
    rows = FIGURES["in_flight"].values()
    assert done.stdout.strip() == tables(Run(rollouts=1000), Measured.read(folder), rows)
