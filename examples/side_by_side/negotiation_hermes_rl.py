"""Two agents bargain over a price, in hermes-rl."""

import re

from hermes_rl import HermesMultiAgentEnv

TASKS = [{"buyer": buyer, "seller": seller} for buyer in (80, 100, 120) for seller in (30, 50)]
RULES = (
    "You are the {} of a bicycle that is worth ${} to you. Bargain: say OFFER and a price, or ACCEPT the last offer."
)


class NegotiationEnv(HermesMultiAgentEnv):
    seats = ("buyer", "seller")

    def train_items(self):
        return TASKS

    def initial_state(self, item):
        return {"turns": 0, "offer": None, "price": None}

    def seat_prompt(self, item, seat):
        return RULES.format(seat, item[seat])

    def next_seat(self, item, state, last):
        if last is None:
            return "buyer"
        if "ACCEPT" in last.text:
            state["price"] = state["offer"]
            return None
        found = re.search(r"OFFER \$?(\d+)", last.text)
        state.update(turns=state["turns"] + 1, offer=found and int(found[1]))
        return None if state["turns"] == 8 else super().next_seat(item, state, last)

    async def compute_seat_rewards(self, item, results, ctx):
        price, pie = ctx.state["price"], item["buyer"] - item["seller"]
        if price is None:
            return dict.fromkeys(self.seats, 0.0)
        return {"buyer": (item["buyer"] - price) / pie, "seller": (price - item["seller"]) / pie}
