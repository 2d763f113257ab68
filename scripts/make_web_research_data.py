"""Makes the pages and the questions of the web_research environment: a world that exists nowhere else.

The same seed gives the same files. A question names one thing and follows two to four facts from it. Each is checked
before it is written: every step leads to exactly one thing, the page it names states it, and no page that names the
first thing names the answer. Run `python scripts/make_web_research_data.py --help`.
"""

import argparse
import gzip
import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

SEED = 5
FOLDER = Path(__file__).parents[1] / "environments" / "data"
PAGES, QUESTIONS = "web_research_pages.jsonl.gz", "web_research_questions.jsonl"
SITE = "https://almanac.test"
HOW_MANY = {
    "town": 160,
    "person": 700,
    "institute": 140,
    "company": 240,
    "ship": 280,
    "book": 260,
    "landmark": 100,
    "prize": 120,
}
TRAIN, HELD_OUT = 180, 50
MOST_OF_ONE_SHAPE = 12
WORDS = (80, 200)

ONSETS = "b br c cr d dr f fl g gr h k l m n p pr qu r s sk st t tr v w z th".split()
VOWELS = "a e i o u ae ei ou".split()
CODAS = "l n r s th m nd rn sk lt x".split()
TOWN_ENDS = "ford wick mere holm stead haven bury gate moor combe".split()
FIRST_NAMES = (
    "Adela Bram Calla Dorian Edda Fenn Greta Hale Ines Jory Katla Lorne Maren Nils Odile Per Quill Runa Sander Thea "
    "Ulf Vera Wendel Xenia Yorick Zelda Anselm Birgit Cosima Detlef Elin Falk Gisela Henrik Isolde Joost Kerstin Leif"
).split()
NOUNS = (
    "Anvil Beacon Cinder Dune Ember Falcon Garnet Heron Icicle Juniper Kestrel Lantern Meadow Nettle Osprey Pebble "
    "Quarry Raven Sparrow Thistle Umber Violet Willow Yarrow Zephyr Acorn Bramble Compass Drift Elder Furrow Glade"
).split()
QUALITIES = "Silent Northern Patient Amber Hollow Restless Crimson Distant Iron Late Pale Steady Bright Sober".split()
TRADES = "Shipyards Foundry Printworks Navigation Press Instruments Mills Engineering".split()
FIELDS = "Hydrology Metallurgy Botany Cartography Acoustics Astronomy Linguistics Geology Optics".split()
SIGHTS = "Bridge Tower Lighthouse Observatory Aqueduct Library".split()
# What sentences are filled with besides the facts; drawn anew for each.
FILLINGS = {
    "work": "surveyor engineer chemist historian navigator botanist composer physician glassmaker astronomer".split(),
    "goods": "salt wool slate amber paper copper barley glass timber herring".split(),
    "sky": "mild dry windy foggy wet cold".split(),
    "tone": "plain dry generous stern playful restrained".split(),
    "season": "spring summer autumn winter".split(),
    "stone": "granite sandstone limestone brick basalt marble".split(),
}


@dataclass(frozen=True)
class Relation:
    """A fact as a step of a question: from a thing to what the fact names or, `back`, from that to the thing."""

    kind: str
    fact: str
    leads_to: str
    phrase: str
    asks: str
    back: bool = False

    @property
    def starts_at(self) -> str:
        return self.leads_to if self.back else self.kind


RELATIONS = (
    Relation("person", "birthplace", "town", "the town where {} was born", "In which town was {} born?"),
    Relation("person", "school", "institute", "the institute where {} studied", "At which institute did {} study?"),
    Relation("person", "teacher", "person", "the teacher of {}", "Who was the teacher of {}?"),
    Relation("institute", "director", "person", "the director of {}", "Who is the director of {}?"),
    Relation("institute", "seat", "town", "the town where {} has its seat", "In which town does {} have its seat?"),
    Relation("company", "founder", "person", "the founder of {}", "Who founded {}?"),
    Relation(
        "company", "office", "town", "the town of the head office of {}", "In which town is the head office of {}?"
    ),
    Relation("ship", "builder", "company", "the company that built {}", "Which company built {}?"),
    Relation("ship", "namesake", "person", "the person after whom {} is named", "After whom is {} named?"),
    Relation("ship", "captain", "person", "the first captain of {}", "Who was the first captain of {}?"),
    Relation("book", "author", "person", "the author of {}", "Who wrote {}?"),
    Relation("book", "publisher", "company", "the company that published {}", "Which company published {}?"),
    Relation("landmark", "architect", "person", "the architect of {}", "Who was the architect of {}?"),
    Relation("landmark", "place", "town", "the town where {} stands", "In which town does {} stand?"),
    Relation("prize", "giver", "institute", "the institute that awards {}", "Which institute awards {}?"),
    Relation("prize", "winner", "person", "the first winner of {}", "Who was the first winner of {}?"),
    Relation("ship", "namesake", "person", "the ship named after {}", "Which ship is named after {}?", back=True),
    Relation("book", "author", "person", "the book written by {}", "Which book was written by {}?", back=True),
    Relation(
        "company", "founder", "person", "the company founded by {}", "Which company was founded by {}?", back=True
    ),
    Relation("prize", "winner", "person", "the prize first won by {}", "Which prize was first won by {}?", back=True),
)
# Told beside the others, and never asked for.
ASIDES = (
    ("town", "neighbour", "town"),
    ("person", "home", "town"),
    ("ship", "port", "town"),
    ("company", "rival", "company"),
)

# One sentence of each row is on every page of the kind: they state its facts.
FACTS: Mapping[str, Sequence[Sequence[str]]] = {
    "town": (
        ("{name} is a town of about {thousands} inhabitants on the upper course of a slow river.",
         "{name}, a market town with some {thousands} inhabitants, lies between two low ranges of hills."),
        ("It was first mentioned in the year {early} and received its charter {few} years later.",),
        ("For centuries it lived on the trade in {goods} and on the tolls of its only bridge.",),
        ("The nearest town is {neighbour}, and the two share a fire brigade.",
         "There has always been a rivalry with {neighbour}, the nearest town."),
    ),
    "person": (
        ("{name} (born {late}) was a {work} whose notebooks are still read.",
         "{name}, born in {late}, is remembered as a {work} and as a tireless writer of letters."),
        ("The family came from the coast, but {name} was born in {birthplace}, the youngest of {few} children.",
         "{name} was born in {birthplace} in a house that no longer stands."),
        ("After some unhappy years at school {name} studied at the {school}.",
         "A small inheritance made it possible to study at the {school}, and {name} finished there in {few} years."),
        ("The teacher who mattered most was {teacher}, to whom the first notebook is dedicated.",
         "{teacher} was the teacher of {name} and remained a severe critic for life."),
        ("For many years {name} lived in {home}, and is buried there.",
         "The last years were spent in {home}, in two rooms above a bakery."),
    ),
    "institute": (
        ("The {name} was opened in {late} with {few} rooms and a borrowed library.",
         "Founded in {late}, the {name} began as a private collection of instruments."),
        ("It has its seat in {seat}, in a building of {stone} beside the old customs house.",
         "Its seat is {seat}, where it occupies a former school."),
        ("The director is {director}, who has promised to open the archives.",
         "{director} is its director and edits its yearbook."),
    ),
    "company": (
        ("{name} is a company that was entered in the trade register in {late}.",
         "{name}, a company with about {hundreds} employees, has been in business since {late}."),
        ("Its founder was {founder}, who ran it without a partner for {few} years.",
         "It was founded by {founder} with money made in {goods}."),
        ("The head office is in {office}, though most of the work is done elsewhere.",
         "Its head office has always been in {office}."),
        ("Its oldest rival is {rival}, and the two have met in court more than once.",),
    ),
    "ship": (
        ("The {name} was a ship of {hundreds} tons, launched in the {season} of {late}.",
         "Launched in {late}, the {name} was a ship built for the carriage of {goods}."),
        ("She was built by {builder}, whose mark could be seen on every beam.",
         "Her builder was {builder}, and she was the {few}th of {few} sisters."),
        ("A brass plate said that the {name} was named after {namesake}.",
         "The owners named her after {namesake}, who never saw her."),
        ("Her first captain was {captain}, and the crew numbered {few}.",
         "{captain} was her first captain and kept the log in a small neat hand."),
        ("Her home port was {port}.",),
    ),
    "book": (
        ("{name} is a book of {hundreds} pages that appeared in {late}.",
         "Printed for the first time in {late}, the book {name} is known for its {tone} style."),
        ("It was written by {author} in the course of a single {season}.",
         "Its author is {author}, who called it an accident."),
        ("The first edition was published by {publisher} in {few} hundred copies.",
         "{publisher} published it after {few} others had refused."),
    ),
    "landmark": (
        ("The {name} is a monument of {stone}, finished in {late}.",
         "Finished in {late}, the {name} took {few} years longer than planned."),
        ("It stands in {place}, a short walk from the market.",
         "Visitors find it in {place}, where it can be seen from every road."),
        ("Its architect was {architect}, whose drawings are kept in the crypt.",
         "The architect, {architect}, did not live to see the roof."),
    ),
    "prize": (
        ("The {name} has been given every {few} years since {late}.",
         "The {name} was first given in {late} and consists of a medal and a journey."),
        ("It is awarded by the {giver} after a secret ballot.",
         "The {giver} awards it on the longest day of the year."),
        ("Its first winner was {winner}, for a work on the trade in {goods}.",
         "{winner} was the first winner and gave the money away."),
    ),
}  # fmt: skip
# As many of these as a page has room for.
MORE: Mapping[str, Sequence[str]] = {
    "town": (
        "The climate is {sky}, and gardens do well there in spite of late frosts.",
        "A fire in {late} destroyed {few} streets, which were rebuilt in {stone}.",
        "The weekly market, held in {season} as in {season}, is known for its {goods}.",
        "A narrow railway reached the place in {late} and was given up {few} years later.",
        "The town hall has a clock that shows the phases of the moon and is always a little fast.",
        "Its arms show {few} silver fish below a tower.",
        "Older maps spell the name differently, and the inhabitants do not mind.",
    ),
    "person": (
        "A portrait painted in {late} shows a thin face and very large hands.",
        "Friends describe a {tone} manner and a habit of walking at night.",
        "A journey of {few} months along the coast, made in {late}, was paid for by selling {goods}.",
        "There is no complete edition of the letters, of which about {hundreds} survive.",
        "Contemporaries found the lectures hard to follow and the conversation delightful.",
        "In the {season} of {late} an illness put an end to all travelling.",
        "Nothing came of a plan to open a school for young people of the trade.",
    ),
    "institute": (
        "About {hundreds} students are enrolled, a third of them in the evening courses.",
        "Its collection of {goods} samples is the largest of its kind.",
        "In {late} a flood reached the reading room, and {hundreds} volumes had to be dried by hand.",
        "The yearbook, printed on {tone} grey paper, appears every {season}.",
        "A small observatory on the roof is open to the public on clear nights.",
        "Since {late} it has kept a record of the weather, day and night.",
    ),
    "company": (
        "In good years it employs {hundreds} people, most of them from the villages nearby.",
        "A strike in the {season} of {late} lasted {few} weeks and was settled by a handshake.",
        "Its first product was a scale for weighing {goods}, which sold badly.",
        "The archive burned in {late}, so that little is known of the early days.",
        "Its catalogue is written in a {tone} style that has found imitators.",
        "The works stand beside a canal that was dug for them in {late}.",
    ),
    "ship": (
        "On her first voyage she carried {goods} and returned with {goods}.",
        "In {late} she lost a mast in a storm and was towed for {few} days.",
        "Her figurehead, carved of oak, is kept in a chapel.",
        "She was thought a {tone} sailer, quick in light winds and stubborn in heavy ones.",
        "A model of her at a scale of one to {few} hangs in the registry.",
        "She was sold in {late} and broken up in the {season} after.",
        "The log mentions {few} births on board and a single wedding.",
    ),
    "book": (
        "Reviewers praised its {tone} tone and complained about the index.",
        "A second edition of {late} leaves out {few} chapters.",
        "It tells of a family that deals in {goods} and of a {season} that does not end.",
        "The copy in the national library has notes by an unknown reader.",
        "It has been translated {few} times, never well.",
        "A play was made of it in {late}, which closed after {few} evenings.",
        "The paper of the early copies was made with {goods} and has darkened.",
    ),
    "landmark": (
        "The {stone} came from a quarry that was closed in {late}.",
        "In the {season} it is lit from inside, and boatmen steer by it.",
        "Lightning struck it {few} times before a conductor was fitted in {late}.",
        "There are {hundreds} steps, and no lift.",
        "A toll in {goods} was taken here until {late}.",
        "Its proportions have been called {tone}, and also merely odd.",
        "Restorers found a sealed bottle in the foundation and left it there.",
    ),
    "prize": (
        "In {late} it was not given, because the jury could not agree.",
        "The medal shows a sheaf of barley and weighs {few} ounces.",
        "The speech of thanks may last {few} minutes and is rarely {tone}.",
        "Winners have included a {work}, a {work} and a retired judge.",
        "The fund behind it was made with {goods} and is managed with care.",
        "The ceremony, always in {season}, is followed by a walk to the harbour.",
        "A list of all candidates is burned in public after the vote.",
    ),
}


@dataclass(eq=False)
class Thing:
    """What one page is about. Its `facts` name other things."""

    kind: str
    name: str
    facts: "dict[str, Thing]" = field(default_factory=dict)
    text: str = ""

    @property
    def url(self) -> str:
        return f"{SITE}/{self.kind}/{re.sub(r'[^a-z]+', '-', self.name.lower()).strip('-')}"

    def page(self) -> dict[str, Any]:
        links = [other.url for other in self.facts.values()]
        return {"url": self.url, "title": self.name, "text": self.text, "links": links}


@dataclass(frozen=True)
class Chain:
    """A thing and the steps from it: the relations, and where each leads."""

    start: Thing
    relations: tuple[Relation, ...]
    reached: tuple[Thing, ...]

    @property
    def answer(self) -> Thing:
        return self.reached[-1]

    @property
    def told_on(self) -> list[Thing]:
        """Whose page tells each step: the fact's owner, which for a step back is where the step leads."""
        before = (self.start, *self.reached)
        return [
            after if relation.back else here
            for relation, here, after in zip(self.relations, before, self.reached, strict=False)
        ]

    def question(self) -> dict[str, Any]:
        name, kind = self.start.name, self.start.kind
        phrase = (
            name if kind == "person" else f"the {kind} {name}" if kind in {"book", "company", "ship"} else f"the {name}"
        )
        for relation in self.relations[:-1]:
            phrase = relation.phrase.format(phrase)
        return {
            "question": self.relations[-1].asks.format(phrase),
            "answer": self.answer.name,
            "kind": self.answer.kind,
            "chain": [thing.name for thing in (self.start, *self.reached)],
            "pages": [thing.url for thing in self.told_on],
        }


class World:
    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self._names: set[str] = set()
        self._year = 0
        self.things = {kind: [Thing(kind, self._name(kind)) for _ in range(count)] for kind, count in HOW_MANY.items()}
        facts = [(one.kind, one.fact, one.leads_to) for one in RELATIONS if not one.back]
        for kind, fact, leads_to in (*facts, *ASIDES):
            for thing in self.things[kind]:
                thing.facts[fact] = self._other(thing, leads_to)
        self.everything = [thing for things in self.things.values() for thing in things]
        self._owners: dict[tuple[str, str, str], list[Thing]] = defaultdict(list)
        for thing in self.everything:
            thing.text = self._prose(thing)
            for fact, other in thing.facts.items():
                self._owners[thing.kind, fact, other.name].append(thing)
        self._mentions = {thing: mentions(thing) for thing in self.everything}

    def step(self, here: Thing, relation: Relation) -> list[Thing]:
        """All that a step could lead to."""
        owners = self._owners[relation.kind, relation.fact, here.name]
        return owners if relation.back else [here.facts[relation.fact]]

    def questions(self, count: int) -> list[dict[str, Any]]:
        """Sound questions of many shapes, no two of which have the same beginning and the same answer."""
        made: dict[tuple[str, str], dict[str, Any]] = {}
        shapes: dict[tuple[Relation, ...], int] = defaultdict(int)
        while len(made) < count:
            chain = self._chain(self.random.choice(self.everything), self.random.choice((2, 2, 3, 3, 4)))
            if chain is None or shapes[chain.relations] == MOST_OF_ONE_SHAPE or not self.sound(chain):
                continue
            ends = chain.start.name, chain.answer.name
            shapes[chain.relations] += ends not in made
            made.setdefault(ends, chain.question())
        return list(made.values())

    def sound(self, chain: Chain) -> bool:
        """Whether each step leads to one thing, its page tells it, and no page is a short cut to the answer."""
        start, answer = chain.start.name, chain.answer.name
        path = (start, *(thing.name for thing in chain.reached))
        before = (chain.start, *chain.reached)
        return (
            len(set(path)) == len(path)
            and all(
                self.step(here, relation) == [after]
                for here, relation, after in zip(before, chain.relations, chain.reached, strict=False)
            )
            and all(
                {one, other} <= self._mentions[page]
                for page, one, other in zip(chain.told_on, path, path[1:], strict=False)
            )
            and not any(start in names and answer in names for names in self._mentions.values())
            and answer not in chain.question()["question"]
        )

    def _chain(self, start: Thing, hops: int) -> Chain | None:
        relations: list[Relation] = []
        reached: list[Thing] = []
        here = start
        for _ in range(hops):
            ways = [one for one in RELATIONS if one.starts_at == here.kind and len(self.step(here, one)) == 1]
            if not ways:
                return None
            relations.append(self.random.choice(ways))
            here = self.step(here, relations[-1])[0]
            reached.append(here)
        return Chain(start, tuple(relations), tuple(reached))

    def _other(self, thing: Thing, kind: str) -> Thing:
        while True:
            other = self.random.choice(self.things[kind])
            if other is not thing and other not in thing.facts.values():
                return other

    def _prose(self, thing: Thing) -> str:
        self._year = self.random.randrange(1720, 1890)
        sentences = [self._filled(self.random.choice(row), thing) for row in FACTS[thing.kind]]
        wanted = self.random.randrange(90, 150)
        more = self.random.sample(MORE[thing.kind], len(MORE[thing.kind]))
        while more and sum(len(sentence.split()) for sentence in sentences) < wanted:
            sentences.append(self._filled(more.pop(), thing))
        text = " ".join(sentences)
        if not WORDS[0] <= len(text.split()) <= WORDS[1]:
            raise ValueError(f"a page has {' to '.join(map(str, WORDS))} words, not {len(text.split())}: {text}")
        return text

    def _filled(self, sentence: str, thing: Thing) -> str:
        def word(found: "re.Match[str]") -> str:
            slot, random = found[1], self.random
            match slot:
                case "name":
                    return thing.name
                case "late":
                    # Later with each sentence, so that a life goes forward.
                    self._year += random.randrange(1, 12)
                    return str(self._year)
                case "early" | "few":
                    return str(random.randrange(900, 1400) if slot == "early" else random.randrange(3, 13))
                case "hundreds" | "thousands":
                    return str({"hundreds": 10, "thousands": 1000}[slot] * random.randrange(4, 40))
            return thing.facts[slot].name if slot in thing.facts else random.choice(FILLINGS[slot])

        return re.sub(r"\{(\w+)\}", word, sentence)

    def _name(self, kind: str) -> str:
        pick = self.random.choice
        match kind:
            case "town":
                return self._new(lambda: self._sound(1) + pick(TOWN_ENDS))
            case "person":
                return f"{pick(FIRST_NAMES)} {self._new(lambda: self._sound(2))}"
            case "institute":
                return f"{self._new(lambda: self._sound(2))} Institute of {pick(FIELDS)}"
            case "ship":
                return self._new(lambda: f"{pick(QUALITIES)} {pick(NOUNS)}")
            case "book":
                return self._new(lambda: "The {} and the {}".format(*self.random.sample(NOUNS, 2)))
        last = {"company": pick(TRADES), "landmark": pick(SIGHTS), "prize": "Prize"}[kind]
        return f"{self._new(lambda: self._sound(2))} {last}"

    def _new(self, make: Callable[[], str]) -> str:
        """A name that is in no other and has no other in it."""
        while True:
            name = make()
            if not any(name in other or other in name for other in self._names):
                self._names.add(name)
                return name

    def _sound(self, syllables: int) -> str:
        pick = self.random.choice
        return (pick(ONSETS) + "".join(pick(VOWELS) + pick(CODAS) for _ in range(syllables))).capitalize()


def mentions(page: Thing) -> set[str]:
    """The names on a page: its own, and those of its facts."""
    return {page.name, *(other.name for other in page.facts.values() if other.name in page.text)}


def lines(rows: Iterator[Mapping[str, Any]]) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def make(seed: int = SEED) -> dict[str, bytes]:
    """The files by name, as they are before compression."""
    world = World(seed)
    questions = world.questions(TRAIN + HELD_OUT)
    splits = ["train"] * TRAIN + ["eval"] * HELD_OUT
    return {
        PAGES: lines(thing.page() for thing in sorted(world.everything, key=lambda thing: thing.url)),
        QUESTIONS: lines({"split": split, **one} for split, one in zip(splits, questions, strict=True)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--to", type=Path, default=FOLDER, help="the folder to write to")
    given = parser.parse_args()
    for name, data in make(given.seed).items():
        written = gzip.compress(data, mtime=0) if name.endswith(".gz") else data
        (given.to / name).write_bytes(written)
        print(f"{given.to / name}: {len(written):,} bytes")


if __name__ == "__main__":
    main()
