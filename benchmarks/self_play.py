"""A random model of 0.2 million parameters learns tic-tac-toe on a CPU: random legal games first, then self-play.

Measures illegal moves and the win rate against a player of random legal moves, on held-out openings, before self-play
and at each checkpoint. Stop and start it as you like: it resumes. It needs torch and TRL: run it with the Python of
`scripts/interop_environment trainers`.

    $(scripts/interop_environment trainers)/bin/python benchmarks/self_play.py --out self_play
"""

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

sys.path[:0] = [str(Path(__file__).resolve().parents[1])]

from benchmarks.tiny_policy import Talk, Task, run  # noqa: E402
from examples.tic_tac_toe_env import Board, Item, TicTacToeEnv  # noqa: E402
from hermes_rl import SeatAnswer  # noqa: E402
from hermes_rl.core.trajectory import Rollout  # noqa: E402
from hermes_rl.rollout.seats import with_observation  # noqa: E402
from hermes_rl.tools.session import ToolSession  # noqa: E402

POSITIONS, MOST_MOVES = 4096, 4


class PositionsEnv(TicTacToeEnv):
    """Self-play from the middle of games: rollouts of a group differ in few moves, so scores tell the good ones.

    Its items are the training openings, continued by up to four random legal moves.
    """

    name = "tic_tac_toe_positions"

    async def setup(self) -> None:
        await super().setup()
        random, openings = Random(1), super().train_items()
        self.positions: list[Item] = []
        while len(self.positions) < POSITIONS:
            item = {**random.choice(openings), "moves": ""}
            board = self.initial_state(item)
            for _ in range(random.randint(0, MOST_MOVES)):
                move = random.choice(board.free())
                board.play(mover(item["moves"]), move)
                item["moves"] += move
            if not board.over():
                self.positions.append(item)

    def train_items(self) -> list[Item]:
        return self.positions

    def initial_state(self, item: Item) -> Board:
        board = super().initial_state(item)
        for at, move in enumerate(item["moves"]):
            board.play(mover(item["moves"][:at]), move)
        return board

    def next_seat(self, item: Item, state: Board, last: SeatAnswer | None) -> str | None:
        return mover(item["moves"]) if last is None else super().next_seat(item, state, last)


def mover(moves: str) -> str:
    """Whose turn it is after these moves."""
    return "XO"[len(moves) % 2]


@dataclass
class RandomPlayersBoard(Board):
    _random: Random = field(default_factory=Random)


class VersusRandom(TicTacToeEnv):
    """The policy plays one seat, random legal moves the other, by the rollout's seed."""

    name = "versus_random"

    def eval_items(self) -> list[Item]:
        return [{**item, "player": seat} for item in super().eval_items() for seat in self.seats]

    def initial_state(self, item: Item, session: ToolSession | None = None) -> Board:
        board = super().initial_state(item)
        return board if session is None else RandomPlayersBoard(board.squares, _random=session.rng)

    def next_seat(self, item: Item, state: RandomPlayersBoard, last: SeatAnswer | None) -> str | None:  # type: ignore[override]
        following = super().next_seat(item, state, last)
        if following in (None, item["player"]):
            return following
        state.play(following, state._random.choice(state.free()))  # noqa: SLF001 (underscore: not recorded)
        return None if state.over() else item["player"]


def openings() -> TicTacToeEnv:
    """The environment with its items, not open: nothing is asked."""
    env = object.__new__(TicTacToeEnv)
    asyncio.run(env.setup())
    return env


def random_game(env: TicTacToeEnv, random: Random) -> list[Talk]:
    """The conversations of both seats in a game of random legal moves, from an opening or a later position."""
    item = random.choice(env.train_items())
    board, seats = env.initial_state(item), list(env.seats)
    talks: dict[str, Talk] = {seat: [] for seat in seats}
    skipped = random.randint(0, MOST_MOVES)
    while not board.over():
        seat, move = seats[0], random.choice(board.free())
        if skipped <= 0:
            prompt = talks[seat] or [{"role": "user", "content": env.seat_prompt(item, seat)}]
            told = [{"role": "user", "content": str(board)}]
            talks[seat] = [*prompt, *told] if talks[seat] else with_observation(prompt, str(board))
            talks[seat].append({"role": "assistant", "content": move})
        skipped -= 1
        board.play(seat, move)
        seats.reverse()
    return [talk for talk in talks.values() if talk]


def measure(rollouts: Sequence[Rollout]) -> dict[str, float]:
    # An illegal move ends its game, and so does an answer of more than one token.
    illegal = sum(
        rollout.stop_reason == "length" or rollout.states[-1].value["illegal"] == rollout.seat for rollout in rollouts
    )
    return {
        "illegal_moves": illegal / sum(rollout.turns_used for rollout in rollouts),
        "wins": sum(rollout.score == 1.0 for rollout in rollouts) / len(rollouts),
        "mean_score": sum(rollout.score or 0.0 for rollout in rollouts) / len(rollouts),
    }


if __name__ == "__main__":
    env = openings()
    texts = [env.seat_prompt(env.train_items()[0], seat) for seat in env.seats]
    task = Task(PositionsEnv, VersusRandom, lambda random: random_game(env, random), texts, measure)
    run(task, __doc__, imitation_steps=300, steps=600, games=16)
