"""A customer-service desk with five tools, in Gymnasium 1.4: an action is a call as JSON; no schemas, no model."""

import json
from copy import deepcopy

import gymnasium
from gymnasium.spaces import Text

ORDERS = {
    "o1": {"customer": "Ada", "status": "open", "address": "1 Hill St"},
    "o2": {"customer": "Ada", "status": "delivered", "address": "1 Hill St"},
    "o3": {"customer": "Ben", "status": "open", "address": "2 Bay Rd"},
}
TASKS = [
    {"request": "Ada wants to cancel her open order.", "changed": {"o1": {"status": "cancelled"}}},
    {"request": "Ada's delivered order was broken: refund it.", "changed": {"o2": {"status": "refunded"}}},
    {"request": "Send Ben's order to 9 Lake Rd instead.", "changed": {"o3": {"address": "9 Lake Rd"}}},
]
TOOLS = ("find_orders", "show_order", "cancel_order", "refund_order", "change_address")


class Desk(gymnasium.Env):
    action_space = Text(1000)
    observation_space = Text(1000)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.task, self.orders, self.turns = TASKS[self.np_random.integers(len(TASKS))], deepcopy(ORDERS), 0
        return self.task["request"], {}

    def step(self, action):
        self.turns += 1
        try:
            call = json.loads(action)
            if call["tool"] not in TOOLS:
                raise ValueError(f"unknown tool; the tools are {TOOLS}")
            observation = json.dumps(getattr(self, call["tool"])(**call["arguments"]))
        except (ValueError, TypeError, KeyError) as error:
            observation = f"error: {error}"
        solved = self.orders == {name: old | self.task["changed"].get(name, {}) for name, old in ORDERS.items()}
        return observation, float(solved), solved, self.turns == 10, {}

    def change(self, order, wanted, **fields):
        if order not in self.orders or self.orders[order]["status"] != wanted:
            raise ValueError(f"{order} is not a {wanted} order")
        self.orders[order].update(fields)
        return self.orders[order]

    def find_orders(self, customer):
        """List the orders of a customer."""
        return [order for order, fields in self.orders.items() if fields["customer"] == customer]

    def show_order(self, order):
        """Show an order."""
        return self.orders.get(order, "no such order")

    def cancel_order(self, order):
        """Cancel an open order."""
        return self.change(order, "open", status="cancelled")

    def refund_order(self, order):
        """Refund a delivered order."""
        return self.change(order, "delivered", status="refunded")

    def change_address(self, order, address):
        """Change the address of an open order."""
        return self.change(order, "open", address=address)
