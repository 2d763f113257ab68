from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hermes_rl.core.errors import ConfigError, SandboxError
from hermes_rl.environment.prebuild import (
    MAX_CONCURRENT,
    NO_MODEL,
    distinct_specs,
    open_for_prebuild,
    prebuild_specs,
    training_specs_unknown,
)
from hermes_rl.sandbox.backends.local import LocalBackend
from hermes_rl.sandbox.spec import SandboxSpec
from tests.support.environments import FileEnv


class ByItem(FileEnv):
    def sandbox_spec(self, item: Any) -> SandboxSpec:
        return SandboxSpec(files={"number": str(item["number"] % 3)})


class WithTraining(ByItem):
    def train_items(self) -> list[dict[str, int]]:
        return [{"number": 1}, {"number": 4}, {"number": 2}]


async def made(environment: type[FileEnv], **config: Any) -> FileEnv:
    env = environment(environment.env_config_cls(terminal_backend="local", **config), [NO_MODEL])
    await env.setup()
    return env


class Counting(LocalBackend):
    """Counts how many are prepared, and how many at once."""

    def __init__(self) -> None:
        super().__init__()
        self.specs: list[SandboxSpec] = []
        self.now = self.most = 0

    async def prepare(self, spec: SandboxSpec, report: Callable[[str], object]) -> None:
        self.now += 1
        self.most = max(self.most, self.now)
        report("baking")
        await super().prepare(spec, report)
        self.specs.append(spec)
        self.now -= 1


async def test_an_environment_with_one_machine_for_all_has_one_spec() -> None:
    env = await made(FileEnv, sandbox_image="some-image")
    assert [spec.image for spec in distinct_specs(env)] == ["some-image"]
    assert not training_specs_unknown(env)


async def test_specs_of_equal_content_are_one() -> None:
    specs = distinct_specs(await made(ByItem))
    assert sorted(spec.files["number"] for spec in specs) == ["0", "1", "2"]


async def test_the_items_of_training_and_of_evaluation_are_asked_for() -> None:
    env = await made(WithTraining)
    assert sorted(spec.files["number"] for spec in distinct_specs(env)) == ["0", "1", "2"]
    assert not training_specs_unknown(env)
    assert training_specs_unknown(await made(ByItem))


async def test_machines_by_item_without_an_item_say_what_to_define() -> None:
    env = await made(ByItem)
    env._eval_items = []
    with pytest.raises(ConfigError, match="train_items"):
        distinct_specs(env)


async def test_a_file_that_cannot_be_read_is_a_config_error(tmp_path: Path) -> None:
    class Missing(FileEnv):
        def sandbox_spec(self, item: Any) -> SandboxSpec:
            return SandboxSpec(files={"data": tmp_path / "missing"})

    with pytest.raises(ConfigError, match="missing"):
        distinct_specs(await made(Missing))


async def test_a_few_are_prepared_at_a_time_on_every_backend() -> None:
    backends = [Counting(), Counting()]
    specs = [SandboxSpec(files={"number": str(number)}) for number in range(10)]
    said: list[str] = []
    advanced: list[int] = []
    prepared = await prebuild_specs(specs, backends, said.append, lambda: advanced.append(1))
    assert (prepared.specs, prepared.backends, prepared.failed) == (10, 2, [])
    assert [len(backend.specs) for backend in backends] == [10, 10]
    assert len(advanced) == 20
    assert sum(backend.most for backend in backends) <= 2 * MAX_CONCURRENT
    assert said[0] == "the default image with 1 files: baking"


async def test_one_that_fails_does_not_stop_the_others() -> None:
    class Failing(Counting):
        async def prepare(self, spec: SandboxSpec, report: Callable[[str], object]) -> None:
            if spec.image == "gone":
                raise SandboxError("start", "there is no such image")
            await super().prepare(spec, report)

    backend = Failing()
    specs = [SandboxSpec(image="gone"), SandboxSpec()]
    prepared = await prebuild_specs(specs, [backend], lambda _: None, lambda: None)
    assert prepared.failed == [("gone", "there is no such image")]
    assert backend.specs == [SandboxSpec()]


async def test_preparing_needs_no_model_and_closes_what_it_opened() -> None:
    env = FileEnv(FileEnv.env_config_cls(terminal_backend="local"), [NO_MODEL])
    async with open_for_prebuild(env) as (backend,):
        assert env.eval_items()
        sandbox = await backend.start()
    assert not await sandbox.alive()
