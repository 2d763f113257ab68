"""An environment of ours as a real BaseEnv, in atroposlib's own `serve`, against its own API and against ours."""

from pathlib import Path

import pytest

from tests.engines.atropos.programs import ADAPTER, running
from tests.engines.atropos.trainer import registered_trainer, rollouts_of
from tests.engines.atropos.word_model import WordModel, is_exact

pytestmark = [pytest.mark.long, pytest.mark.slow, pytest.mark.parts, pytest.mark.timeout(600)]

SERVE = [*ADAPTER, "terminal_test", "serve", "--env.group_size", "4", "--env.terminal_backend", "bubblewrap"]


async def test_serve_sends_groups_with_the_tokens_and_logprobs_that_were_sampled(
    atropos_python: Path, either_api: str, word_model: WordModel, tmp_path: Path
) -> None:
    command = [*SERVE, "--env.rollout_server_url", either_api, *word_model.flags]
    log = tmp_path / "serve.log"
    async with (
        registered_trainer(either_api, batch_size=8) as trainer,
        running(atropos_python, *command, folder=tmp_path / "run", log=log) as served,
    ):
        try:
            batches = await trainer.batches(2)
        except TimeoutError:
            pytest.fail(f"no batches; exit status {served.returncode}; serve said: {log.read_text()[-3000:]}")
        served.terminate()
        # Told to end it closes its sandboxes, and ends as one that was interrupted.
        assert await served.wait() == 130, log.read_text()[-3000:]
    for batch in batches:
        rollouts = rollouts_of(batch)
        assert len(rollouts) == 8
        assert all(is_exact(*rollout) for rollout in rollouts)
        assert all(set(group["scores"]) == {0.0, 1.0} for group in batch)
