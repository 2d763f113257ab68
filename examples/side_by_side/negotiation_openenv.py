"""Two agents bargain over a price, in OpenEnv 0.10: the server, without the client and the agents."""

import re

from openenv.core.env_server.http_server import create_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State
from pydantic import Field

TASKS = [{"buyer": buyer, "seller": seller} for buyer in (80, 100, 120) for seller in (30, 50)]
RULES = (
    "You are the {} of a bicycle that is worth ${} to you. Bargain: say OFFER and a price, or ACCEPT the last offer."
)
SEATS = ("buyer", "seller")


class Say(Action):
    text: str


class Told(Observation):
    seat: str
    message: str
    rewards: dict[str, float] = Field(default_factory=dict)


class Negotiation(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed=None, episode_id=None, **kwargs):
        self.task, self.turns, self.offer = TASKS[(seed or 0) % len(TASKS)], 0, None
        return Told(seat="buyer", message=RULES.format("buyer", self.task["buyer"]), reward=0.0)

    def step(self, action, timeout_s=None, **kwargs):
        self.turns += 1
        text, seat, rewards = action.text, SEATS[self.turns % 2], dict.fromkeys(SEATS, 0.0)
        if "ACCEPT" in text and self.offer is not None:
            buyer, seller = self.task["buyer"], self.task["seller"]
            rewards = {"buyer": (buyer - self.offer) / (buyer - seller)}
            rewards["seller"] = 1 - rewards["buyer"]
        found = re.search(r"OFFER \$?(\d+)", text)
        self.offer = found and int(found[1])
        message = f"{RULES.format(seat, self.task[seat])}\n\n{text}" if self.turns == 1 else text
        done, mine = "ACCEPT" in text or self.turns == 8, rewards[SEATS[(self.turns - 1) % 2]]
        return Told(seat=seat, message=message, rewards=rewards, reward=mine, done=done)

    @property
    def state(self):
        return State(step_count=self.turns)


app = create_app(Negotiation, Say, Told, max_concurrent_envs=64)
