"""An environment that knows atroposlib only, in its own `serve`, through our API: by Atropos' batches and by leases."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from hermes_rl.api.client.connection import ApiConnection
from hermes_rl.api.client.trainer import TrainerClient
from tests.engines.atropos.programs import running
from tests.engines.atropos.say_number_model import SayNumberModel, is_exact
from tests.engines.atropos.trainer import registered_trainer, rollouts_of

pytestmark = [pytest.mark.slow, pytest.mark.parts, pytest.mark.timeout(600)]

ENVIRONMENT = Path(__file__).parent / "fixtures" / "say_number_env.py"


@asynccontextmanager
async def serving(python: Path, api: str, model: SayNumberModel, folder: Path) -> AsyncIterator[None]:
    flags = ["--env.rollout_server_url", api, "--env.wandb_name", "say_number", "--env.use_wandb", "false"]
    log = folder / "serve.log"
    command = [str(ENVIRONMENT), "serve", *flags, *model.flags]
    async with running(python, *command, folder=folder / "run", log=log) as served:
        try:
            yield
        except TimeoutError:
            pytest.fail(f"no batches; exit status {served.returncode}; serve said: {log.read_text()[-3000:]}")


async def test_its_groups_come_out_of_batch_as_they_were_sampled(
    atropos_python: Path, our_api: str, say_number_model: SayNumberModel, tmp_path: Path
) -> None:
    async with (
        registered_trainer(our_api, batch_size=8) as trainer,
        serving(atropos_python, our_api, say_number_model, tmp_path),
    ):
        batches = await trainer.batches(3)
    for batch in batches:
        assert len(batch) == 2
        assert all(is_exact(*rollout) for rollout in rollouts_of(batch))


async def test_its_groups_come_by_lease_as_they_were_sampled(
    atropos_python: Path, our_api: str, say_number_model: SayNumberModel, tmp_path: Path
) -> None:
    async with ApiConnection(our_api) as connection, serving(atropos_python, our_api, say_number_model, tmp_path):
        trainer = TrainerClient(connection, "trainer")
        # Atropos' environments do not say which version of the policy sampled a token.
        await trainer.register(8, needs=["logprobs"])
        for _ in range(3):
            batch = await trainer.lease(wait=60.0)
            assert batch is not None
            groups = [group async for group in trainer.decoded(batch)]
            await trainer.acknowledge(batch)
            assert [len(group.rollouts) for group in groups] == [4, 4]
            for rollout in (rollout for group in groups for rollout in group.rollouts):
                [sequence] = rollout.sequences
                assert rollout.score is not None
                columns = sequence.tokens, sequence.atropos_mask(), sequence.atropos_logprobs()
                assert is_exact(*columns, rollout.score)
