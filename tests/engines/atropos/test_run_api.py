"""`hermes-rl serve` through the unmodified run-api of atroposlib, to a trainer of Atropos' kind."""

import sys
from pathlib import Path

import pytest

from tests.engines.atropos.programs import running
from tests.engines.atropos.trainer import registered_trainer, rollouts_of
from tests.engines.atropos.word_model import WordModel, is_exact

pytestmark = [pytest.mark.slow, pytest.mark.parts, pytest.mark.timeout(600)]


async def test_terminal_test_reaches_a_trainer_behind_run_api_as_it_was_sampled(
    run_api: str, word_model: WordModel, tmp_path: Path
) -> None:
    flags = ["--env.group_size", "4", "--env.terminal_backend", "bubblewrap", "--env.rollout_server_url", run_api]
    command = ["-m", "hermes_rl", "serve", "terminal_test", *flags, *word_model.flags]
    log = tmp_path / "serve.log"
    async with (
        registered_trainer(run_api, batch_size=8) as trainer,
        running(Path(sys.executable), *command, folder=tmp_path / "run", log=log) as served,
    ):
        try:
            batches = await trainer.batches(3)
        except TimeoutError:
            pytest.fail(f"no batches; exit status {served.returncode}; serve said: {log.read_text()[-3000:]}")
        served.terminate()
        assert await served.wait() == 0, log.read_text()[-3000:]
    for batch in batches:
        rollouts = rollouts_of(batch)
        assert len(rollouts) == 8
        assert all(is_exact(*rollout) for rollout in rollouts)
