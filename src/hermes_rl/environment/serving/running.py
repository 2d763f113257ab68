"""`serve`: groups are made as the API grants them, and delivered to it.

Always true: whatever ended a run, a second one takes up what is left, loses no finished group and delivers no draw
twice. One process serves an environment, or a shard of it, to one API.
"""

from hermes_rl.api.client.connection import Connection
from hermes_rl.api.client.delivery import Delivery
from hermes_rl.api.client.spool import Spool
from hermes_rl.environment.budget import Budget
from hermes_rl.environment.contract import Environment
from hermes_rl.environment.metrics import Tally
from hermes_rl.environment.serve_display import Board, showing
from hermes_rl.environment.serving.course import Course, Served
from hermes_rl.environment.serving.joining import join
from hermes_rl.environment.serving.kept_files import kept_files
from hermes_rl.environment.serving.place import Place
from hermes_rl.environment.slots import training_width
from hermes_rl.secrets import resolved_key
from hermes_rl.stopping import Stop, Stopped


def board_for(env: Environment) -> Board:
    """The dashboard of a run that has not begun."""
    config = env.config
    return Board(
        environment=env.display_name(),
        api=config.rollout_server_url,
        model=", ".join(sorted({f"{one.model_name} at {one.base_url}" for one in env.server.configs})),
        total_steps=config.total_steps,
        tally=Tally(budget=Budget.of(config, env.server.configs), pass_score=config.pass_score),
        most=training_width(env.config, len(env.server.configs)).fixed,
        group_size=config.group_size,
    )


async def serve(env: Environment, stop: Stop, board: Board) -> Served:
    """Serve an open environment.

    An error that is no rollout's own ends the run; the groups in flight are finished and delivered before it is raised.
    """
    token = env.config.rollout_server_token
    key = resolved_key(token, "--env.rollout_server_token") if token else None
    async with (
        Spool(kept_files(env).spool) as spool,
        Connection(env.config.rollout_server_url, token=key) as connection,
        showing(board),
    ):
        with stop.heeded():
            try:
                destination, standing = await stop.unless(join(connection, env, board))
            except Stopped:
                return Served(str(stop.reason), board.tally, spool.directory, len(spool))
            place = Place(standing, spool.draws)
            async with Delivery(destination, spool) as delivery:
                return await Course(env, destination, delivery, spool, place, board, stop).run()
