from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hermes_rl.environment.preparation import (
    AT_ONCE,
    NO_MODEL,
    leaves_training_out,
    opened_for_preparation,
    prepare_environment,
    specs_to_prepare,
)
from hermes_rl.errors import ConfigError, SandboxError
from hermes_rl.sandbox.local import LocalBackend
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

    async def prepare(self, spec: SandboxSpec, say: Callable[[str], object]) -> None:
        self.now += 1
        self.most = max(self.most, self.now)
        say("baking")
        await super().prepare(spec, say)
        self.specs.append(spec)
        self.now -= 1


async def test_an_environment_with_one_machine_for_all_has_one_spec() -> None:
    env = await made(FileEnv, sandbox_image="some-image")
    assert [spec.image for spec in specs_to_prepare(env)] == ["some-image"]
    assert not leaves_training_out(env)


async def test_specs_of_equal_content_are_one() -> None:
    specs = specs_to_prepare(await made(ByItem))
    assert sorted(spec.files["number"] for spec in specs) == ["0", "1", "2"]


async def test_the_items_of_training_and_of_evaluation_are_asked_for() -> None:
    env = await made(WithTraining)
    assert sorted(spec.files["number"] for spec in specs_to_prepare(env)) == ["0", "1", "2"]
    assert not leaves_training_out(env)
    assert leaves_training_out(await made(ByItem))


async def test_machines_by_item_without_an_item_say_what_to_define() -> None:
    env = await made(ByItem)
    env._eval_items = []
    with pytest.raises(ConfigError, match="train_items"):
        specs_to_prepare(env)


async def test_a_file_that_cannot_be_read_is_a_config_error(tmp_path: Path) -> None:
    class Missing(FileEnv):
        def sandbox_spec(self, item: Any) -> SandboxSpec:
            return SandboxSpec(files={"data": tmp_path / "missing"})

    with pytest.raises(ConfigError, match="missing"):
        specs_to_prepare(await made(Missing))


async def test_a_few_are_prepared_at_a_time_on_every_backend() -> None:
    backends = [Counting(), Counting()]
    specs = [SandboxSpec(files={"number": str(number)}) for number in range(10)]
    said: list[str] = []
    advanced: list[int] = []
    prepared = await prepare_environment(specs, backends, said.append, lambda: advanced.append(1))
    assert (prepared.specs, prepared.backends, prepared.failed) == (10, 2, [])
    assert [len(backend.specs) for backend in backends] == [10, 10]
    assert len(advanced) == 20
    assert sum(backend.most for backend in backends) <= 2 * AT_ONCE
    assert said[0] == "the default image with 1 files: baking"


async def test_one_that_fails_does_not_stop_the_others() -> None:
    class Failing(Counting):
        async def prepare(self, spec: SandboxSpec, say: Callable[[str], object]) -> None:
            if spec.image == "gone":
                raise SandboxError("start", "there is no such image")
            await super().prepare(spec, say)

    backend = Failing()
    specs = [SandboxSpec(image="gone"), SandboxSpec()]
    prepared = await prepare_environment(specs, [backend], lambda _: None, lambda: None)
    assert prepared.failed == [("gone", "there is no such image")]
    assert backend.specs == [SandboxSpec()]


async def test_preparing_needs_no_model_and_closes_what_it_opened() -> None:
    env = FileEnv(FileEnv.env_config_cls(terminal_backend="local"), [NO_MODEL])
    async with opened_for_preparation(env) as (backend,):
        assert env.eval_items()
        sandbox = await backend.start()
    assert not await sandbox.alive()
