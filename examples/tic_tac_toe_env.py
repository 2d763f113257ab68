"""tic_tac_toe: one policy plays both sides; a move is the number of a free square. No tools, no sandbox.

Each item is an opening: the squares that X and O have taken already. An illegal move loses.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

from hermes_rl import (
    AgentResult,
    APIServerConfig,
    EpisodeContext,
    HermesAgentEnvConfig,
    HermesMultiAgentEnv,
    SeatAnswer,
    Step,
    StopReason,
)

Item = dict[str, str]
LINES = ("123", "456", "789", "147", "258", "369", "159", "357")


@dataclass
class Board:
    squares: list[str] = field(default_factory=lambda: list("123456789"))
    illegal: str | None = None

    def play(self, seat: str, move: str) -> None:
        if move in self.free():
            self.squares[int(move) - 1] = seat
        else:
            self.illegal = seat

    def free(self) -> list[str]:
        return [square for square in self.squares if square.isdigit()]

    def winner(self) -> str | None:
        lines = ({self.squares[int(square) - 1] for square in line} for line in LINES)
        return next((line.pop() for line in lines if len(line) == 1), None)

    def over(self) -> bool:
        return bool(self.illegal or self.winner() or not self.free())

    def __str__(self) -> str:
        return "\n".join(" ".join(self.squares[row : row + 3]) for row in (0, 3, 6))


class TicTacToeEnv(HermesMultiAgentEnv[Item]):
    """Tic-tac-toe against oneself; a win scores 1, a draw 0.5."""

    name = "tic_tac_toe"
    seats = ("X", "O")

    @classmethod
    def config_init(cls) -> tuple[HermesAgentEnvConfig, list[APIServerConfig]]:
        return cls.env_config_cls(max_token_length=4, group_size=8, batch_size=64, eval_size=16), []

    async def setup(self) -> None:
        self.openings = [{"X": x, "O": o} for x in "123456789" for o in "123456789" if x != o]
        Random(0).shuffle(self.openings)

    def train_items(self) -> list[Item]:
        return self.openings[16:]

    def eval_items(self) -> list[Item]:
        return self.openings[:16]

    def initial_state(self, item: Item) -> Board:
        board = Board()
        for seat in self.seats:
            board.play(seat, item[seat])
        return board

    def seat_prompt(self, item: Item, seat: str) -> str:
        return f"You play {seat}. Answer with the number of a free square."

    def next_seat(self, item: Item, state: Board, last: SeatAnswer | None) -> str | None:
        if last is not None:
            state.play(last.seat, last.text.strip())
        return None if state.over() else super().next_seat(item, state, last)

    def observation(self, item: Item, seat: str, state: Board, heard: Sequence[SeatAnswer]) -> str:
        return str(state)

    async def compute_seat_rewards(
        self, item: Item, results: Mapping[str, AgentResult], ctx: EpisodeContext
    ) -> dict[str, float]:
        # An answer that was cut off is no move either.
        cut_off = (seat for seat, result in results.items() if result.stop_reason is StopReason.LENGTH)
        loser = ctx.state.illegal or next(cut_off, None)
        winner = ctx.state.winner()
        if loser is not None:
            return {seat: float(seat != loser) for seat in self.seats}
        return {seat: 0.5 if winner is None else float(seat == winner) for seat in self.seats}

    def seat_oracle(self, item: Item, seat: str) -> dict[str, list[Step]] | None:
        """A line that the seat completes while the other fills squares outside of it."""
        other = "XO".replace(seat, "")
        for line in LINES:
            own = [square for square in line if square != item[seat]]
            rest = [square for square in "123456789" if square not in {*line, *item.values()}]
            lost = {item[other], *rest[:2]} in map(set, LINES)
            if item[seat] in line and item[other] not in line and not lost:
                return {seat: [*own], other: [*rest]}
        return None


if __name__ == "__main__":
    TicTacToeEnv.cli()
