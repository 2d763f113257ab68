"""retail_desk: the service desk of a shop, in the style of tau-bench: a policy, tools over a database, and a customer.

Always true: the database is the rollout's state, and no sandbox is needed; a score is 1 when the database ends as the
customer's request and the policy demand and the customer was told what it asked for, else 0.
"""

import re
from collections.abc import Callable, Sequence
from copy import deepcopy
from datetime import date, timedelta
from random import Random
from typing import Any, ClassVar, Literal

from hermes_rl import (
    AgentResult,
    APIServerConfig,
    HermesAgentBaseEnv,
    HermesAgentEnvConfig,
    Reward,
    SimulatedUser,
    Step,
    ToolContext,
    ToolSession,
    ToolUseError,
    tool,
)

TODAY = date(2026, 11, 19)
RETURN_DAYS = 30
POLICY = f"""\
You work at the service desk of a shop and talk to one customer. Today is {TODAY}. The rules:
- First ask for e-mail address and postcode and identify the customer with find_customer. Help only with the orders of
  that customer, and tell nothing about others.
- Before you change an order, say what you are going to do and wait for a yes.
- An order can be cancelled only while it is pending, as a whole. Reasons: no longer needed, ordered by mistake.
- Articles of a delivered order can be returned for {RETURN_DAYS} days, counted from the day of delivery. The tool does
  not check this; you do. Nothing else can be returned or exchanged.
- Refunds are the prices that were paid. After a change, tell the customer the total refund. Write amounts as 12.50
  and dates as {TODAY}.
- What these rules do not cover goes to a human, with transfer_to_human. Do not transfer what you can do or must refuse.
"""
CUSTOMER = """\
You are {name}. Your e-mail address is {email} and your postcode is {postcode}. You contact the service desk of a shop.
{goal}
You say yes when you are asked to confirm what you want. You know no order numbers and no prices."""

FIRST = "Ada Ben Cleo Dan Eva Finn Gia Hugo Ida Jon Kira Leo".split()
LAST = "Berg Costa Dahl Egger Frey Gruber Hale Ito Jansen Kahn Lund Moser".split()
ARTICLES = "desk lamp|kettle|backpack|wall clock|blanket|bread knife|headphones|plant pot|umbrella|toaster".split("|")

Item = dict[str, Any]
Database = dict[str, Any]
"""`orders` by number, and `identified`: the e-mail addresses that were checked."""


# --- the database ---


def order_of(database: Database, number: str) -> dict[str, Any]:
    if number not in database["orders"]:
        raise ToolUseError(f"there is no order {number!r}; find_customer lists the numbers of a customer's orders")
    order: dict[str, Any] = database["orders"][number]
    return order


def identify(database: Database, email: str, postcode: str) -> dict[str, Any]:
    own = [order for order in database["orders"].values() if (order["email"], order["postcode"]) == (email, postcode)]
    if not own:
        raise ToolUseError("no customer has this e-mail address and postcode; ask for both again")
    if email not in database["identified"]:
        database["identified"].append(email)
    return {"name": own[0]["name"], "orders": [order["number"] for order in own]}


def cancel(database: Database, number: str, reason: str) -> dict[str, Any]:
    order = order_of(database, number)
    if order["status"] != "pending":
        raise ToolUseError(f"order {number} is {order['status']}; only a pending order can be cancelled")
    order.update(status="cancelled", reason=reason)
    return {"refund": amount(sum(order["articles"].values()))}


def give_back(database: Database, number: str, articles: list[str]) -> dict[str, Any]:
    order = order_of(database, number)
    if order["status"] != "delivered":
        raise ToolUseError(f"order {number} is {order['status']}; only articles of a delivered order can be returned")
    wrong = [name for name in articles if name not in order["articles"] or name in order["returned"]]
    if wrong or not articles:
        left = ", ".join(name for name in order["articles"] if name not in order["returned"])
        raise ToolUseError(f"order {number} has no {', '.join(wrong) or 'article named'} to return; it has: {left}")
    order["returned"] = sorted({*order["returned"], *articles})
    return {"refund": amount(sum(order["articles"][name] for name in set(articles)))}


def amount(cents: int) -> str:
    return f"{cents / 100:.2f}"


CHANGES: dict[str, Callable[..., Any]] = {
    "find_customer": identify,
    "cancel_order": cancel,
    "return_articles": give_back,
}


# --- the tools ---


@tool(sandboxed=False)
async def find_customer(session: ToolSession[Database], email: str, postcode: str) -> dict[str, Any]:
    """Identify a customer; returns the name and the numbers of the customer's orders."""
    return identify(session.state, email, postcode)


@tool(sandboxed=False)
async def get_order(session: ToolSession[Database], number: str) -> dict[str, Any]:
    """Read an order: status, day of delivery, and the articles with the prices that were paid."""
    order = order_of(session.state, number)
    return {**order, "articles": {name: amount(price) for name, price in order["articles"].items()}}


@tool(sandboxed=False)
async def cancel_order(
    session: ToolSession[Database], number: str, reason: Literal["no longer needed", "ordered by mistake"]
) -> dict[str, Any]:
    """Cancel a pending order; returns the refund."""
    return cancel(session.state, number, reason)


@tool(sandboxed=False)
async def return_articles(session: ToolSession[Database], number: str, articles: list[str]) -> dict[str, Any]:
    """Return articles of a delivered order; returns the refund."""
    return give_back(session.state, number, articles)


@tool(sandboxed=False)
async def transfer_to_human(session: ToolSession[Database], summary: str) -> str:
    """Hand the conversation over to a human; this ends it."""
    session.end("transferred")
    return "transferred"


# --- the items ---


def make_item(number: int) -> Item:
    """One customer with three orders and a request; a second customer stands in the same database."""
    random = Random(f"retail_desk/{number}")
    name = f"{FIRST[number % len(FIRST)]} {LAST[number // len(FIRST) % len(LAST)]}"
    other = f"{random.choice(FIRST)} Zeller"
    days = {"pending": None, "new": random.randint(2, RETURN_DAYS - 2), "old": random.randint(RETURN_DAYS + 5, 200)}
    articles = random.sample(ARTICLES, 8)
    orders = [
        _order(random, who, articles[2 * place : 2 * place + 2], days[age])
        for place, (who, age) in enumerate([(name, "pending"), (name, "new"), (name, "old"), (other, "new")])
    ]
    pending, new, old, _ = orders
    request = (_cancel, _return, _too_late, _cancel_delivered, _both)[number % 5](random, pending, new, old)
    who = {"name": name, "email": pending["email"], "postcode": pending["postcode"]}
    identified = ("find_customer", {"email": who["email"], "postcode": who["postcode"]})
    database = {"orders": {order["number"]: order for order in orders}, "identified": []}
    return {**who, "database": database, **request, "calls": [identified, *request["calls"]]}


def _order(random: Random, name: str, articles: Sequence[str], days_ago: int | None) -> dict[str, Any]:
    first, _, last = name.lower().partition(" ")
    return {
        "number": f"R{random.randint(10_000, 99_999)}",
        "name": name,
        "email": f"{first}.{last}@example.org",
        "postcode": f"{sum(map(ord, name)) * 37 % 9000 + 1000}",
        "status": "pending" if days_ago is None else "delivered",
        "delivered": None if days_ago is None else str(TODAY - timedelta(days=days_ago)),
        "articles": {article: random.randint(800, 9_900) for article in articles},
        "returned": [],
    }


def _cancel(random: Random, pending: Item, new: Item, old: Item) -> Item:
    article = random.choice(list(pending["articles"]))
    goal = f"You ordered a {article} that has not come yet. You no longer need that order and want to cancel it."
    calls = [("cancel_order", {"number": pending["number"], "reason": "no longer needed"})]
    return {"goal": f"{goal} You want to know the refund.", "calls": calls, "told": [_total(pending)]}


def _return(random: Random, pending: Item, new: Item, old: Item) -> Item:
    article = random.choice(list(new["articles"]))
    goal = f"You want to return the {article} that came a few days ago, and nothing else."
    calls = [("return_articles", {"number": new["number"], "articles": [article]})]
    return {"goal": f"{goal} You want to know the refund.", "calls": calls, "told": [amount(new["articles"][article])]}


def _too_late(random: Random, pending: Item, new: Item, old: Item) -> Item:
    article = random.choice(list(old["articles"]))
    goal = (
        f"You want to return the {article} that came a long time ago. Insist once. If it cannot be returned, you want "
    )
    return {"goal": f"{goal}to know on which day it was delivered.", "calls": [], "told": [old["delivered"]]}


def _cancel_delivered(random: Random, pending: Item, new: Item, old: Item) -> Item:
    first, second = new["articles"]
    goal = f"You want to cancel the order with the {first} and the {second}. If it cannot be cancelled, you want to "
    calls = [("return_articles", {"number": new["number"], "articles": [first, second]})]
    return {"goal": f"{goal}return both, and to know the refund.", "calls": calls, "told": [_total(new)]}


def _both(random: Random, pending: Item, new: Item, old: Item) -> Item:
    article, coming = random.choice(list(new["articles"])), random.choice(list(pending["articles"]))
    goal = (
        f"You ordered a {coming} by mistake, it has not come yet: you want to cancel that order. Then you also want to "
    )
    calls = [
        ("cancel_order", {"number": pending["number"], "reason": "ordered by mistake"}),
        ("return_articles", {"number": new["number"], "articles": [article]}),
    ]
    told = [_total(pending), amount(new["articles"][article])]
    return {
        "goal": f"{goal}return the {article} that came a few days ago. You want to know both refunds.",
        "calls": calls,
        "told": told,
    }


def _total(order: Item) -> str:
    return amount(sum(order["articles"].values()))


# --- the environment ---


class RetailDeskEnv(HermesAgentBaseEnv[Item, HermesAgentEnvConfig]):
    """Help a customer of a shop by its policy; scored by the database and what the customer was told."""

    name = "retail_desk"
    own_tools = (find_customer, get_order, cancel_order, return_articles, transfer_to_human)
    user: ClassVar[Any] = SimulatedUser(CUSTOMER)

    @classmethod
    def config_init(cls) -> tuple[HermesAgentEnvConfig, list[APIServerConfig]]:
        return cls.env_config_cls(system_prompt=POLICY, max_agent_turns=24, max_token_length=512, eval_samples=4), []

    async def setup(self) -> None:
        self.items = [make_item(number) for number in range(120)]

    def train_items(self) -> list[Item]:
        return self.items[:100]

    def eval_items(self) -> list[Item]:
        return self.items[100:]

    def initial_state(self, item: Item) -> Database:
        database: Database = deepcopy(item["database"])
        return database

    def format_prompt(self, item: Item) -> str:
        return f"Hello, my name is {item['name']}. I have a question about something I ordered."

    async def compute_reward(self, item: Item, result: AgentResult, ctx: ToolContext) -> Reward:
        right = float(ctx.state == wanted(item))
        told = float(all(was_told(text, result) for text in item["told"]))
        return Reward(right * told, {"database": right, "told": told})

    def oracle(self, item: Item) -> list[Step]:
        return [*item["calls"], f"That is done. {' and '.join(item['told'])}."]

    def cheats(self, item: Item) -> dict[str, list[Step]]:
        identified, *changes = item["calls"]
        orders = item["database"]["orders"].values()
        everything = [
            ("cancel_order", {"number": order["number"], "reason": "no longer needed"})
            if order["status"] == "pending"
            else ("return_articles", {"number": order["number"], "articles": list(order["articles"])})
            for order in orders
        ]
        facts = " ".join(
            f"{_total(order)} {order['delivered']} {' '.join(map(amount, order['articles'].values()))}"
            for order in orders
        )
        return {
            "cancels and returns everything": [identified, *everything, facts],
            "says everything, does nothing": [facts],
            "does not identify the customer": [*changes, facts],
            "does not tell": [identified, *changes, "Done."],
            "hands over": [identified, ("transfer_to_human", {"summary": facts}), facts],
        }


def wanted(item: Item) -> Database:
    """The database as the item's calls leave it."""
    database: Database = deepcopy(item["database"])
    for name, arguments in item["calls"]:
        CHANGES[name](database, **arguments)
    return database


def was_told(text: str, result: AgentResult) -> bool:
    """Whether an answer that the customer heard has the amount or date."""
    said = [message for message in result.messages[result.prompt_length :] if message["role"] == "assistant"]
    pattern = rf"(?<![\d.,-]){re.escape(text)}(?!\d)"
    return any(re.search(pattern, str(message["content"])) for message in said if not message.get("tool_calls"))


if __name__ == "__main__":
    RetailDeskEnv.cli()
