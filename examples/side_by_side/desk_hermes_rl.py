"""A customer-service desk with five tools, in hermes-rl."""

from copy import deepcopy

from hermes_rl import HermesAgentBaseEnv, ToolUseError, tool

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


def change(orders, order, wanted, **fields):
    if order not in orders or orders[order]["status"] != wanted:
        raise ToolUseError(f"{order} is not a {wanted} order")
    orders[order].update(fields)
    return orders[order]


class DeskEnv(HermesAgentBaseEnv):
    def train_items(self):
        return TASKS

    def format_prompt(self, item):
        return item["request"]

    def initial_state(self, item):
        return deepcopy(ORDERS)

    @tool(sandboxed=False)
    async def find_orders(self, session, customer: str):
        """List the orders of a customer."""
        return [order for order, fields in session.state.items() if fields["customer"] == customer]

    @tool(sandboxed=False)
    async def show_order(self, session, order: str):
        """Show an order."""
        return session.state.get(order, "no such order")

    @tool(sandboxed=False)
    async def cancel_order(self, session, order: str):
        """Cancel an open order."""
        return change(session.state, order, "open", status="cancelled")

    @tool(sandboxed=False)
    async def refund_order(self, session, order: str):
        """Refund a delivered order."""
        return change(session.state, order, "delivered", status="refunded")

    @tool(sandboxed=False)
    async def change_address(self, session, order: str, address: str):
        """Change the address of an open order."""
        return change(session.state, order, "open", address=address)

    async def compute_reward(self, item, result, ctx):
        return float(ctx.state == {name: old | item["changed"].get(name, {}) for name, old in ORDERS.items()})
