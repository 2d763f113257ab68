"""The driver of a fleet."""

from collections.abc import Mapping

import pytest

from hermes_rl.core.errors import ConfigError
from hermes_rl.orchestration.replicas.controller import FleetTask, run_fleet
from hermes_rl.orchestration.replicas.hosts import LocalHosts
from hermes_rl.orchestration.replicas.types import FleetTimeouts, ReplicaFacts
from hermes_rl.orchestration.replicas.worker_spec import WorkerSpec


class FaultyHosts(LocalHosts):
    """Its polls raise these errors, one after another."""

    def __init__(self, *errors: Exception) -> None:
        super().__init__(WorkerSpec("env.py", (), 1))
        self._errors = list(errors)

    def poll(self) -> Mapping[str, ReplicaFacts]:
        raise self._errors.pop(0)


def test_a_fleet_outlives_a_failed_tick_but_not_a_wrong_configuration() -> None:
    reports: list[str] = []
    hosts = FaultyHosts(RuntimeError("no answer"), ConfigError("another driver"))
    with pytest.raises(ConfigError, match="another driver"):
        run_fleet(FleetTask("faulty", "numbers", 0, 1, "here", FleetTimeouts()), lambda: hosts, reports.append)
    assert reports == ["a control step failed and is retried: RuntimeError('no answer')"]
