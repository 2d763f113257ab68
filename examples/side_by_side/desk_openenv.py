"""A customer-service desk with five tools, in OpenEnv 0.10: the server, without the client and the agent."""

from copy import deepcopy

from fastmcp import FastMCP
from openenv.core.env_server.http_server import create_app
from openenv.core.env_server.mcp_environment import MCPEnvironment
from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation
from openenv.core.env_server.types import Observation, State

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


class Desk(MCPEnvironment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self):
        server = FastMCP("desk")
        for tool in (self.find_orders, self.show_order, self.cancel_order, self.refund_order, self.change_address):
            server.tool(tool)
        super().__init__(server)

    def reset(self, seed=None, episode_id=None, **kwargs):
        self.task, self.orders, self.turns = TASKS[(seed or 0) % len(TASKS)], deepcopy(ORDERS), 0
        return Observation(reward=0.0, metadata={"prompt": self.task["request"]})

    async def step_async(self, action, timeout_s=None, **kwargs):
        observation = await super().step_async(action, timeout_s=timeout_s, **kwargs)
        self.turns += 1
        solved = self.orders == {name: old | self.task["changed"].get(name, {}) for name, old in ORDERS.items()}
        observation.reward, observation.done = float(solved), solved or self.turns == 10
        return observation

    def _step_impl(self, action, timeout_s=None, **kwargs):
        return Observation(metadata={"error": f"unknown action {action}"})

    @property
    def state(self):
        return State(step_count=self.turns)

    def change(self, order, wanted, **fields):
        if order not in self.orders or self.orders[order]["status"] != wanted:
            raise ValueError(f"{order} is not a {wanted} order")
        self.orders[order].update(fields)
        return self.orders[order]

    def find_orders(self, customer: str) -> list[str]:
        """List the orders of a customer."""
        return [order for order, fields in self.orders.items() if fields["customer"] == customer]

    def show_order(self, order: str) -> dict | str:
        """Show an order."""
        return self.orders.get(order, "no such order")

    def cancel_order(self, order: str) -> dict:
        """Cancel an open order."""
        return self.change(order, "open", status="cancelled")

    def refund_order(self, order: str) -> dict:
        """Refund a delivered order."""
        return self.change(order, "delivered", status="refunded")

    def change_address(self, order: str, address: str) -> dict:
        """Change the address of an open order."""
        return self.change(order, "open", address=address)


app = create_app(Desk, CallToolAction, CallToolObservation, max_concurrent_envs=64)
