"""A customer-service desk with five tools, in verifiers 0.4."""

import verifiers.v1 as vf

ORDERS = {
    "o1": {"customer": "Ada", "status": "open", "address": "1 Hill St"},
    "o2": {"customer": "Ada", "status": "delivered", "address": "1 Hill St"},
    "o3": {"customer": "Ben", "status": "open", "address": "2 Bay Rd"},
}
TASKS = [
    {"prompt": "Ada wants to cancel her open order.", "changed": {"o1": {"status": "cancelled"}}},
    {"prompt": "Ada's delivered order was broken: refund it.", "changed": {"o2": {"status": "refunded"}}},
    {"prompt": "Send Ben's order to 9 Lake Rd instead.", "changed": {"o3": {"address": "9 Lake Rd"}}},
]


class DeskState(vf.State):
    orders: dict[str, dict[str, str]] = ORDERS

    def change(self, order, wanted, **fields):
        if order not in self.orders or self.orders[order]["status"] != wanted:
            raise ValueError(f"{order} is not a {wanted} order")
        self.orders[order].update(fields)
        return self.orders[order]


class DeskTools(vf.Toolset[vf.ToolsetConfig, DeskState]):
    @vf.tool
    async def find_orders(self, customer: str):
        """List the orders of a customer."""
        return [order for order, fields in self.state.orders.items() if fields["customer"] == customer]

    @vf.tool
    async def show_order(self, order: str):
        """Show an order."""
        return self.state.orders.get(order, "no such order")

    @vf.tool
    async def cancel_order(self, order: str):
        """Cancel an open order."""
        return self.state.change(order, "open", status="cancelled")

    @vf.tool
    async def refund_order(self, order: str):
        """Refund a delivered order."""
        return self.state.change(order, "delivered", status="refunded")

    @vf.tool
    async def change_address(self, order: str, address: str):
        """Change the address of an open order."""
        return self.state.change(order, "open", address=address)


class DeskData(vf.TaskData):
    changed: dict[str, dict[str, str]]


class DeskTask(vf.Task[DeskData, DeskState]):
    @classmethod
    def toolsets(cls, config):
        return [DeskTools(vf.ToolsetConfig())]

    @vf.reward
    async def solved(self, task, trace) -> float:
        return float(trace.state.orders == {name: old | task.changed.get(name, {}) for name, old in ORDERS.items()})


class DeskTaskset(vf.Taskset[DeskTask]):
    def load(self):
        for task in TASKS:
            yield DeskTask(DeskData(**task), self.config.task)


__all__ = ["DeskTaskset"]

if __name__ == "__main__":
    DeskTools.run()
