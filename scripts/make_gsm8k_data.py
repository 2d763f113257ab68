"""Make environments/data/gsm8k.jsonl: 200 word problems in the form of GSM8K, out of 20 templates of our own.

The same file every time. Each line of a solution shows one calculation as GSM8K does (`<<6*7=42>>`); no question states
its own answer, and no two of one template have the same numbers. The last 40, two of each template, are held out.
"""

import json
import re
from collections.abc import Callable
from random import Random
from typing import TypeAlias

from environments.gsm8k_env import DATA

SEED = 8
EACH, HELD_OUT = 10, 2
NAMES = (
    "Ada Amir Anneke Bashir Bela Carmen Chidi Dalia Emeka Enzo Farida Goran Hana Ines Ivo Jamal Kaito Leila Lucas Mei "
    "Milan Nadia Noor Olga Pablo Priya Quinn Rosa Samir Tove Uma Viktor Wren Yara Zoltan"
).split()


class Solution:
    """Worked lines, one calculation in each; `step` gives its result."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.value = 0

    def step(self, text: str, left: int, sign: str, right: int) -> int:
        results = {"+": left + right, "-": left - right, "*": left * right, "/": left // right if right else 0}
        self.value = results[sign]
        if self.value < 1 or (sign == "/" and left % right):
            raise ValueError(f"{left} {sign} {right} is no calculation for a word problem")
        term = f"{left}{sign}{right}"
        self.lines.append(text.format(f"{left} {sign} {right} = <<{term}={self.value}>>{self.value}"))
        return self.value

    def __str__(self) -> str:
        return "\n".join([*self.lines, f"#### {self.value}"])


Template: TypeAlias = Callable[[Random, Solution, list[str]], str]


def loaves(random: Random, work: Solution, names: list[str]) -> str:
    a, b, price, days = random.randint(12, 60), random.randint(5, 30), random.randint(2, 6), random.randint(3, 14)
    each_day = work.step("A day brings {} loaves.", a, "+", b)
    taken = work.step("They sell for {} dollars.", each_day, "*", price)
    work.step(f"Over {days} days that is {{}} dollars.", taken, "*", days)
    return (
        f"{names[0]} bakes {a} loaves of bread every morning and {b} more every evening. Each loaf is sold for "
        f"{price} dollars. How many dollars does {names[0]} take in over {days} days?"
    )


def library(random: Random, work: Solution, names: list[str]) -> str:
    shelves, books, readers, each = (random.randint(*span) for span in ((8, 30), (20, 45), (4, 15), (2, 6)))
    out = random.randint(90, 150)
    room = work.step("All shelves together hold {} books.", shelves, "*", books)
    there = work.step("This morning {} books were there.", room, "-", out)
    back = work.step("The readers bring back {} books.", readers, "*", each)
    work.step("Now there are {} books.", there, "+", back)
    return (
        f"{names[0]} looks after a library with {shelves} shelves. When nothing is lent out {books} books stand on "
        f"each. This morning {out} books were lent out. In the afternoon {readers} readers bring back {each} books "
        "each. How many books stand on the shelves now?"
    )


def bicycle(random: Random, work: Solution, names: list[str]) -> str:
    wage, hours, weeks = random.randint(11, 24), random.randint(8, 30), random.randint(5, 16)
    spent = random.randint(20, wage * hours // 2)
    price = weeks * (wage * hours - spent)
    earned = work.step(f"{names[0]} earns {{}} dollars a week.", wage, "*", hours)
    saved = work.step("Of these {} dollars are saved.", earned, "-", spent)
    work.step("So it takes {} weeks.", price, "/", saved)
    return (
        f"{names[0]} earns {wage} dollars an hour and works {hours} hours a week. Every week {names[0]} spends "
        f"{spent} dollars and saves the rest. After how many weeks can {names[0]} buy a cargo bicycle for {price} "
        "dollars?"
    )


def marbles(random: Random, work: Solution, names: list[str]) -> str:
    own, times = random.randint(6, 40), random.randint(2, 5)
    fewer = random.randint(2, own * times - 2)
    second = work.step(f"{names[1]} has {{}} marbles.", own, "*", times)
    third = work.step(f"{names[2]} has {{}} marbles.", second, "-", fewer)
    two = work.step(f"{names[0]} and {names[1]} have {{}} marbles.", own, "+", second)
    work.step("All three have {} marbles.", two, "+", third)
    return (
        f"{names[0]} has {own} marbles. {names[1]} has {times} times as many, and {names[2]} has {fewer} fewer than "
        f"{names[1]}. How many marbles do the three have together?"
    )


def train(random: Random, work: Solution, names: list[str]) -> str:
    off, on, last_on = random.randint(10, 40), random.randint(5, 30), random.randint(5, 30)
    half, last_off = random.randint(30, 90), random.randint(4, 25)
    start = 2 * half + off - on
    after = work.step(f"When {off} have got off there are {{}} passengers.", start, "-", off)
    first = work.step("With the new ones there are {}.", after, "+", on)
    second = work.step("Half of them is {}.", first, "/", 2)
    more = work.step("After the second stop there are {}.", second, "+", last_on)
    work.step("After the third stop there are {}.", more, "-", last_off)
    return (
        f"{names[0]} drives a train that sets out with {start} passengers. At the first stop {off} get off and {on} "
        f"get on. At the second stop half of the passengers get off and {last_on} get on. At the third stop "
        f"{last_off} get off and nobody gets on. How many passengers are on the train then?"
    )


def fence(random: Random, work: Solution, names: list[str]) -> str:
    length, width, gate = random.randint(22, 40), random.randint(6, 20), random.randint(2, 5)
    price, gate_price = random.randint(7, 30), random.randint(45, 160)
    half = work.step("Two sides are {} metres.", length, "+", width)
    around = work.step("All around it is {} metres.", half, "*", 2)
    fenced = work.step("Without the gate {} metres are fenced.", around, "-", gate)
    cost = work.step("The fence costs {} dollars.", fenced, "*", price)
    work.step("With the gate it is {} dollars.", cost, "+", gate_price)
    return (
        f"{names[0]} puts a fence around a rectangular garden that is {length} metres long and {width} metres wide. "
        f"A gate of {gate} metres takes the place of a piece of the fence and costs {gate_price} dollars. A metre of "
        f"fence costs {price} dollars. How many dollars do fence and gate cost together?"
    )


def tiles(random: Random, work: Solution, names: list[str]) -> str:
    length, width, each, box = (random.randint(*span) for span in ((4, 9), (3, 8), (9, 25), (12, 30)))
    total = length * width * each
    boxes = total // box - random.randint(1, 2)
    left = total - boxes * box
    area = work.step("The floor has {} square metres.", length, "*", width)
    needed = work.step("It needs {} tiles.", area, "*", each)
    missing = work.step("{} tiles are missing.", needed, "-", left)
    work.step("They come in {} boxes.", missing, "/", box)
    return (
        f"{names[0]} tiles a floor of {length} by {width} metres. Every square metre takes {each} tiles. {names[0]} "
        f"still has {left} tiles, and the shop sells them in boxes of {box}. How many boxes does {names[0]} have to "
        "buy so that no tile is left over?"
    )


def flour(random: Random, work: Solution, names: list[str]) -> str:
    people, grams, guests = random.randint(3, 8), random.randint(40, 120), random.randint(10, 30)
    stock = random.randint(100, grams * guests - 50)
    one = work.step("One person needs {} grams.", people * grams, "/", people)
    needed = work.step("The guests need {} grams.", one, "*", guests)
    work.step("{} grams have to be bought.", needed, "-", stock)
    return (
        f"A pancake recipe for {people} people takes {people * grams} grams of flour. {names[0]} makes pancakes for "
        f"{guests} people and has {stock} grams of flour at home. How many grams does {names[0]} have to buy?"
    )


def factory(random: Random, work: Solution, names: list[str]) -> str:
    machines, rate, hours = random.randint(3, 12), 20 * random.randint(2, 8), 5 * random.randint(1, 4)
    days, faulty = random.randint(2, 7), random.randint(2, 9)
    hourly = work.step("An hour brings {} parts.", machines, "*", rate)
    daily = work.step("A day brings {} parts.", hourly, "*", hours)
    total = work.step(f"In {days} days there are {{}} parts.", daily, "*", days)
    hundreds = work.step("That is {} hundreds.", total, "/", 100)
    bad = work.step("{} parts are faulty.", hundreds, "*", faulty)
    work.step("{} parts are good.", total, "-", bad)
    return (
        f"{names[0]} runs a factory with {machines} machines. Each makes {rate} parts an hour. They run {hours} "
        f"hours a day. Of every 100 parts {faulty} are faulty. How many good parts does it make in {days} days?"
    )


def buses(random: Random, work: Solution, names: list[str]) -> str:
    classes, pupils, seats, price = (random.randint(*span) for span in ((4, 12), (18, 30), (30, 60), (180, 420)))
    hired = classes * pupils // seats + 1
    adults = hired * seats - classes * pupils
    children = work.step("{} pupils come along.", classes, "*", pupils)
    people = work.step("With the adults there are {} people.", children, "+", adults)
    number = work.step("They fill {} buses.", people, "/", seats)
    work.step("The buses cost {} dollars.", number, "*", price)
    return (
        f"{classes} classes of {pupils} pupils go to the sea with {adults} adults. {names[0]} plans the trip. A bus "
        f"has {seats} seats for passengers and costs {price} dollars. How many dollars do the buses cost when every "
        "seat is taken?"
    )


def ages(random: Random, work: Solution, names: list[str]) -> str:
    older = random.randint(9, 40)
    years = random.randint(2, older - 4)
    young = work.step(
        f"{names[1]} will then be as old as the difference, so {names[1]} is {{}} now.", older, "-", years
    )
    old = work.step(f"{names[0]} is {{}} now.", young, "+", older)
    work.step("Together they are {}.", young, "+", old)
    return (
        f"{names[0]} is {older} years older than {names[1]}. In {years} years {names[0]} will be exactly twice as "
        f"old as {names[1]}. How old are the two together today, in years?"
    )


def coats(random: Random, work: Solution, names: list[str]) -> str:
    price, percent = 20 * random.randint(3, 12), 5 * random.randint(1, 8)
    coupon, number = random.randint(3, 12), random.randint(2, 5)
    paid = (price * number // 100 + 1) * 100
    product = work.step("Price times percent is {}.", price, "*", percent)
    off = work.step("A coat is {} dollars cheaper.", product, "/", 100)
    reduced = work.step("It costs {} dollars.", price, "-", off)
    one = work.step("With a coupon it costs {} dollars.", reduced, "-", coupon)
    due = work.step(f"All {number} cost {{}} dollars.", one, "*", number)
    work.step("The change is {} dollars.", paid, "-", due)
    return (
        f"A coat costs {price} dollars and is now sold for {percent} percent less. A coupon takes another {coupon} "
        f"dollars off the reduced price of one coat. {names[0]} buys {number} coats with a coupon for each and pays "
        f"with {paid} dollars. How many dollars does {names[0]} get back?"
    )


def tank(random: Random, work: Solution, names: list[str]) -> str:
    out, hours, rest = random.randint(40, 120), random.randint(2, 9), random.randint(3, 12)
    into = random.randint(10, out - 5)
    volume = (out - into) * hours + out * rest
    loss = work.step("At first {} litres are lost an hour.", out, "-", into)
    lost = work.step(f"After {hours} hours {{}} litres are gone.", loss, "*", hours)
    left = work.step("{} litres are left.", volume, "-", lost)
    work.step("They last {} hours.", left, "/", out)
    return (
        f"{names[0]} has a full tank of {volume} litres. Every hour {out} litres flow out and {into} litres flow in. "
        f"After {hours} hours the inflow is shut, and the outflow goes on as before. How many more hours does it "
        "take until the tank is empty?"
    )


def novel(random: Random, work: Solution, names: list[str]) -> str:
    weekday, weekend, weeks = random.randint(8, 30), random.randint(20, 60), random.randint(2, 5)
    pages = weeks * (5 * weekday + 2 * weekend) + random.randint(30, 240)
    week = work.step("The five weekdays make {} pages.", weekday, "*", 5)
    end = work.step("The weekend makes {} pages.", weekend, "*", 2)
    both = work.step("A week makes {} pages.", week, "+", end)
    read = work.step(f"{weeks} weeks make {{}} pages.", both, "*", weeks)
    work.step("{} pages are left.", pages, "-", read)
    return (
        f"{names[0]} reads {weekday} pages of a novel on each day from Monday to Friday, and {weekend} pages on each "
        f"Saturday and Sunday. The novel has {pages} pages. How many are left after {weeks} full weeks?"
    )


def farm(random: Random, work: Solution, names: list[str]) -> str:
    cows, times = random.randint(5, 40), random.randint(2, 6)
    hens = work.step("There are {} hens.", cows, "*", times)
    many = work.step("The cows have {} legs.", cows, "*", 4)
    few = work.step("The hens have {} legs.", hens, "*", 2)
    work.step("Together they have {} legs.", many, "+", few)
    return (
        f"On the farm of {names[0]} there are {cows} cows and {times} times as many hens, and no other animals. How "
        "many legs do the animals have in all?"
    )


def journey(random: Random, work: Solution, names: list[str]) -> str:
    fast, slow = random.randint(70, 120), random.randint(30, 65)
    hours, more, shorter = random.randint(2, 5), random.randint(2, 4), random.randint(10, 60)
    first = work.step("The first part is {} kilometres.", fast, "*", hours)
    second = work.step("The second part is {} kilometres.", slow, "*", more)
    there = work.step("The way there is {} kilometres.", first, "+", second)
    back = work.step("The way back is {} kilometres.", there, "-", shorter)
    work.step("In all it is {} kilometres.", there, "+", back)
    return (
        f"{names[0]} drives {hours} hours at {fast} kilometres an hour, then {more} hours at {slow} kilometres an "
        f"hour, to visit {names[1]}. The way back is {shorter} kilometres shorter. How many kilometres does "
        f"{names[0]} drive there and back?"
    )


def stamps(random: Random, work: Solution, names: list[str]) -> str:
    kept, friends, half = random.randint(10, 50), random.randint(3, 9), random.randint(12, 40)
    bought = random.randint(3, half)
    total = kept + friends * (2 * half - bought)
    shared = work.step("{} stamps are shared.", total, "-", kept)
    each = work.step("Each friend gets {} stamps.", shared, "/", friends)
    more = work.step(f"{names[1]} then has {{}} stamps.", each, "+", bought)
    work.step("Half of them is {}.", more, "/", 2)
    return (
        f"{names[0]} has {total} stamps, keeps {kept} and shares the others equally among {friends} friends. "
        f"{names[1]} is one of these friends, had none before, buys {bought} more and then gives away half of the "
        f"collection. How many stamps are left to {names[1]}?"
    )


def workshop(random: Random, work: Solution, names: list[str]) -> str:
    fee, free, rate = random.randint(25, 90), random.randint(4, 12), random.randint(3, 11)
    used, months = free + random.randint(2, 15), random.randint(3, 11)
    extra = work.step("{} hours a month are not included.", used, "-", free)
    cost = work.step("They cost {} dollars.", extra, "*", rate)
    monthly = work.step("A month costs {} dollars.", cost, "+", fee)
    work.step(f"{months} months cost {{}} dollars.", monthly, "*", months)
    return (
        f"Renting a bench in a workshop costs {fee} dollars a month, which includes {free} hours. Every further hour "
        f"of a month costs {rate} dollars. {names[0]} is there for {used} hours in each of {months} months. How many "
        f"dollars does {names[0]} pay in all?"
    )


def orchard(random: Random, work: Solution, names: list[str]) -> str:
    rows, trees, each, crate = (random.randint(*span) for span in ((5, 15), (6, 20), (12, 30), (9, 25)))
    total = rows * trees * each
    pressed = total % crate + crate * random.randint(2, 12)
    number = work.step("There are {} trees.", rows, "*", trees)
    picked = work.step("They give {} kilograms.", number, "*", each)
    rest = work.step("{} kilograms are packed.", picked, "-", pressed)
    work.step("They fill {} crates.", rest, "/", crate)
    return (
        f"{names[0]} has an orchard with {rows} rows of {trees} apple trees. Each tree gives {each} kilograms of "
        f"apples. {pressed} kilograms are pressed to juice, the rest is packed into crates of {crate} kilograms. How "
        "many crates are filled?"
    )


def league(random: Random, work: Solution, names: list[str]) -> str:
    win, draw = random.randint(3, 5), random.randint(1, 2)
    wins, draws = random.randint(6, 18), random.randint(2, 9)
    total = win * wins + draw * draws
    fewer = total % win + win * random.randint(1, 4)
    first = work.step("The wins bring {} points.", win, "*", wins)
    second = work.step("The draws bring {} points.", draw, "*", draws)
    points = work.step("Together that is {} points.", first, "+", second)
    other = work.step("The other team has {} points.", points, "-", fewer)
    work.step("That takes {} wins.", other, "/", win)
    return (
        f"In a league a win brings {win} points, a draw {draw} and a defeat none. The team of {names[0]} has won "
        f"{wins} games and drawn {draws}. The team of {names[1]} has {fewer} points fewer and has not drawn a single "
        f"game. How many games has the team of {names[1]} won?"
    )


TEMPLATES: tuple[Template, ...] = (
    loaves, library, bicycle, marbles, train, fence, tiles, flour, factory, buses,
    ages, coats, tank, novel, farm, journey, stamps, workshop, orchard, league,
)  # fmt: skip


def problems() -> list[dict[str, str]]:
    """The rows of the data file."""
    random = Random(SEED)
    seen: set[tuple[str, ...]] = set()
    rows = []
    for number in range(EACH):
        for template in TEMPLATES:
            question, answer = _fresh(template, random, seen)
            split = "eval" if number >= EACH - HELD_OUT else "train"
            rows.append({"template": template.__name__, "split": split, "question": question, "answer": answer})
    return rows


def text_of(rows: list[dict[str, str]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def _fresh(template: Template, random: Random, seen: set[tuple[str, ...]]) -> tuple[str, str]:
    while True:
        work = Solution()
        question = template(random, work, random.sample(NAMES, 3))
        numbers = tuple(re.findall(r"\d+", question))
        known = (template.__name__, *numbers)
        if known not in seen and str(work.value) not in numbers:
            seen.add(known)
            return question, str(work)


if __name__ == "__main__":
    DATA.parent.mkdir(exist_ok=True)
    DATA.write_text(text_of(problems()))
    print(f"{len(problems())} problems: {DATA}")
