"""Two agents bargain over a price, in verifiers 0.4."""

import re

import verifiers.v1 as vf

TASKS = [{"buyer": buyer, "seller": seller} for buyer in (80, 100, 120) for seller in (30, 50)]
RULES = (
    "You are the {} of a bicycle that is worth ${} to you. Bargain: say OFFER and a price, or ACCEPT the last offer."
)


class NegotiationData(vf.TaskData):
    buyer: int
    seller: int


class NegotiationTask(vf.Task[NegotiationData]):
    pass


class NegotiationTaskset(vf.Taskset[NegotiationTask]):
    def load(self):
        for task in TASKS:
            yield NegotiationTask(NegotiationData(prompt=None, **task), self.config.task)


class NegotiationEnvConfig(vf.EnvConfig):
    buyer: vf.AgentConfig = vf.AgentConfig()
    seller: vf.AgentConfig = vf.AgentConfig()


class NegotiationEnv(vf.Env[NegotiationEnvConfig]):
    async def run(self, task, agents):
        data, text, offer, price = task.data, "", None, None
        async with agents.buyer.interaction(task) as buyer, agents.seller.interaction(task) as seller:
            for turn in range(8):
                seat, player = (("buyer", buyer), ("seller", seller))[turn % 2]
                rules = RULES.format(seat, getattr(data, seat)) if turn < 2 else ""
                segment = await player.turn(f"{rules}\n\n{text}".strip())
                text = segment.last_reply
                if "ACCEPT" in text:
                    price = offer
                if segment.terminated or "ACCEPT" in text:
                    break
                found = re.search(r"OFFER \$?(\d+)", text)
                offer = found and int(found[1])
        pie = data.buyer - data.seller
        buyer.trace.record_reward("surplus", 0.0 if price is None else (data.buyer - price) / pie)
        seller.trace.record_reward("surplus", 0.0 if price is None else (price - data.seller) / pie)


__all__ = ["NegotiationEnv", "NegotiationTaskset"]
