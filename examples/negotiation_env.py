"""negotiation: a buyer and a seller of one policy agree on a price; each is scored by its share of the gain."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from hermes_rl import (
    AgentResult,
    APIServerConfig,
    EpisodeContext,
    HermesAgentEnvConfig,
    HermesMultiAgentEnv,
    SeatAnswer,
    Step,
)

Item = dict[str, int]


@dataclass
class Deal:
    offers: dict[str, int] = field(default_factory=dict)
    """The last offer of each seat."""
    price: int | None = None


class NegotiationEnv(HermesMultiAgentEnv[Item]):
    """Buy or sell a bicycle; scored by the share of what it is worth more to the buyer than to the seller."""

    name = "negotiation"
    seats = ("buyer", "seller")

    @classmethod
    def config_init(cls) -> tuple[HermesAgentEnvConfig, list[APIServerConfig]]:
        # Six turns for each.
        return cls.env_config_cls(max_agent_turns=6, max_token_length=120), []

    def train_items(self) -> list[Item]:
        return [{"cost": cost, "worth": cost + gain} for cost in range(40, 100, 5) for gain in (20, 40, 80)]

    def eval_items(self) -> list[Item]:
        return [{"cost": cost, "worth": cost + 60} for cost in range(42, 100, 5)]

    def initial_state(self, item: Item) -> Deal:
        return Deal()

    def seat_prompt(self, item: Item, seat: str) -> str:
        goals = {
            "buyer": f"You want to buy a bicycle. It is worth {item['worth']} to you; pay as little as you can.",
            "seller": f"You want to sell a bicycle. It is worth {item['cost']} to you; get as much as you can.",
        }
        return f"{goals[seat]} Write OFFER and a whole number, or ACCEPT to take the other's last offer."

    def next_seat(self, item: Item, state: Deal, last: SeatAnswer | None) -> str | None:
        following = super().next_seat(item, state, last)
        if last is not None and following is not None:
            if "ACCEPT" in last.text:
                state.price = state.offers.get(following)
                return None
            if offer := re.search(r"OFFER (\d{1,6})", last.text):
                state.offers[last.seat] = int(offer[1])
        return following

    async def compute_seat_rewards(
        self, item: Item, results: Mapping[str, AgentResult], ctx: EpisodeContext
    ) -> dict[str, float]:
        if ctx.state.price is None:
            return {"buyer": 0.0, "seller": 0.0}
        share = (ctx.state.price - item["cost"]) / (item["worth"] - item["cost"])
        return {"buyer": min(max(1 - share, 0.0), 1.0), "seller": min(max(share, 0.0), 1.0)}

    def seat_oracle(self, item: Item, seat: str) -> dict[str, list[Step]]:
        price = item["cost"] if seat == "buyer" else item["worth"]
        return {"buyer": [f"OFFER {price}"], "seller": ["ACCEPT"]}


if __name__ == "__main__":
    NegotiationEnv.cli()
