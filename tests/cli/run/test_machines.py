"""From how many places a run is served, and where, by the options of `run start` and `train`."""

import importlib.util
from importlib.machinery import ModuleSpec

import pytest

from hermes_rl.cli.run.live import component_states
from hermes_rl.cli.run.start_options import add_replicas
from hermes_rl.core.errors import ConfigError
from hermes_rl.orchestration.run_file import EnvironmentEntry, ReplicasEntry, RunFile

RUN = RunFile(
    run_id="r1", name="one", preset="laptop", environments=(EnvironmentEntry(name="words", reference="words.py"),)
)


def has_ray(monkeypatch: pytest.MonkeyPatch, *, there: bool) -> None:
    real = importlib.util.find_spec
    found = ModuleSpec("ray", None) if there else None
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: found if name == "ray" else real(name))


def test_a_run_is_one_process_for_each_environment_unless_more_are_asked_for() -> None:
    assert add_replicas(RUN) == RUN
    assert add_replicas(RUN, replicas=3).replicas == ReplicasEntry(count=3)


def test_a_run_on_ray_has_replicas_without_being_told_how_many(monkeypatch: pytest.MonkeyPatch) -> None:
    has_ray(monkeypatch, there=True)
    assert add_replicas(RUN, on="ray").replicas == ReplicasEntry(count=2, on="ray")


def test_a_run_on_ray_names_the_extra_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    has_ray(monkeypatch, there=False)
    with pytest.raises(ConfigError, match=r"pip install 'hermes-rl\[ray\]'"):
        add_replicas(RUN, on="ray")


def test_shards_without_replicas_are_refused() -> None:
    with pytest.raises(ConfigError, match="--replicas N"):
        add_replicas(RUN, shards=4)


def test_a_run_that_others_reach_needs_a_key_and_gives_it_to_its_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HERMES_RL_RUN_TOKEN", raising=False)
    with pytest.raises(ConfigError, match="config set HERMES_RL_RUN_TOKEN"):
        add_replicas(RUN, reach="10.0.0.1")
    monkeypatch.setenv("HERMES_RL_RUN_TOKEN", "long-and-random")
    made = add_replicas(RUN, reach="10.0.0.1")
    assert (made.reach, made.keys) == ("10.0.0.1", ("HERMES_RL_RUN_TOKEN",))
    assert "long-and-random" not in made.as_yaml()


def test_the_status_of_a_part_says_how_many_of_its_replicas_are_open() -> None:
    replicas = {"wanted": 3, "replicas": {"replica-1": {"state": "open"}, "replica-2": {"state": "opening"}}}
    told = {"processes": {"env": {"status": "running", "replicas": replicas}, "api": {"status": "running"}}}
    assert component_states(told) == {"env": "running, 1 of 3 replicas", "api": "running"}
