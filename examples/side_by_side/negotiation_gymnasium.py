"""Two agents bargain over a price, in Gymnasium 1.4: `info` says who is next; no prompts kept, no models or records."""

import re

import gymnasium
from gymnasium.spaces import Text

TASKS = [{"buyer": buyer, "seller": seller} for buyer in (80, 100, 120) for seller in (30, 50)]
RULES = (
    "You are the {} of a bicycle that is worth ${} to you. Bargain: say OFFER and a price, or ACCEPT the last offer."
)
SEATS = ("buyer", "seller")


class Negotiation(gymnasium.Env):
    action_space = Text(1000)
    observation_space = Text(1000)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.task, self.turns, self.offer = TASKS[self.np_random.integers(len(TASKS))], 0, None
        return RULES.format("buyer", self.task["buyer"]), {"seat": "buyer"}

    def step(self, text):
        self.turns += 1
        accepted, seat, rewards = "ACCEPT" in text, SEATS[self.turns % 2], dict.fromkeys(SEATS, 0.0)
        if accepted and self.offer is not None:
            buyer, seller = self.task["buyer"], self.task["seller"]
            rewards = {"buyer": (buyer - self.offer) / (buyer - seller)}
            rewards["seller"] = 1 - rewards["buyer"]
        found = re.search(r"OFFER \$?(\d+)", text)
        self.offer = found and int(found[1])
        observation = f"{RULES.format(seat, self.task[seat])}\n\n{text}" if self.turns == 1 else text
        mine = rewards[SEATS[(self.turns - 1) % 2]]
        return observation, mine, accepted, self.turns == 8, {"seat": seat, "rewards": rewards}
