#!/usr/bin/env python3
"""How often the intervals of hermes_rl.evaluation.statistics hold the truth, in simulated evaluations.

scripts/coverage_simulation.py            the whole grid, 10,000 evaluations a cell (about a quarter of an hour)
scripts/coverage_simulation.py --write    and puts the tables into docs/statistics.md
scripts/coverage_simulation.py --quick    a few cells, under 20 seconds, with an allowance for the smaller number

An interval that says 95% must hold the truth in at least 94% of the evaluations of every cell, and a test at 5% may
reject what is true in at most 6%. The last line printed is one JSON object; exit status 1 when a cell misses that.
"""

import argparse
import itertools
import json
import math
import multiprocessing
import sys
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from hermes_rl.evaluation.statistics.distributions import student_t_quantile
from hermes_rl.evaluation.statistics.intervals import (
    LEVEL,
    Bounds,
    Interval,
    Moments,
    bounded_interval,
    mean_interval,
    widen_to_student_t,
)
from hermes_rl.evaluation.statistics.paired import difference_interval, mcnemar, paired_test, sign_flip
from hermes_rl.evaluation.statistics.pass_at_k import (
    all_pass,
    at_least_one_passes,
    max_effective_size,
    pass_at_k,
    pass_hat_k,
    rate_interval,
)

PAGE = Path(__file__).parents[1] / "docs" / "statistics.md"
_BEGIN, _END = "<!-- begin of what scripts/coverage_simulation.py writes -->", "<!-- end -->"

LEAST_COVERAGE = 0.94
MOST_REJECTIONS = 0.06

ITEMS = (20, 50, 100, 300, 1000)
SAMPLES = (1, 4, 8, 16)
MEANS = (0.02, 0.05, 0.2, 0.5, 0.8, 0.95, 0.98)
CORRELATIONS = (0.0, 0.2, 0.5, 0.9, 1.0)

Array = npt.NDArray[np.float64]
Key = TypeVar("Key")
Ends = Callable[[Moments], tuple[float, float]]


@dataclass(frozen=True)
class Cell:
    """One world to evaluate in. `k` samples an item; for pass rates `of` of them are asked about."""

    part: str
    items: int
    k: int
    mean: float = 0.0
    correlation: float = 0.0
    of: int = 0
    shift: float = 0.0
    world: str = ""
    evaluations: int = 10_000

    @property
    def random(self) -> np.random.Generator:
        return np.random.default_rng(zlib.crc32(repr(self).encode()))


@dataclass(frozen=True)
class Found:
    """`coverage` and `width` are ours, those with `plain_` of mean ± t · standard error; `rejected` is of the test."""

    cell: Cell
    coverage: float
    width: float
    plain_coverage: float
    plain_width: float
    rejected: float | None = None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a few cells with few evaluations each")
    parser.add_argument("--write", action="store_true", help="put the tables into docs/statistics.md")
    parser.add_argument("--jobs", type=int, default=1, help="processes that share the work")
    parser.add_argument("--keep", type=Path, metavar="FILE", help="keep each cell's outcome here, and go on from it")
    arguments = parser.parse_args()
    started = time.monotonic()
    cells = list(quick_cells() if arguments.quick else full_cells())
    found = kept(arguments.keep)
    with multiprocessing.Pool(arguments.jobs) as pool:
        missing = [cell for cell in cells if cell not in found]
        for number, one in enumerate(pool.imap(simulate, missing), start=1):
            found[one.cell] = one
            if arguments.keep:
                with arguments.keep.open("a") as file:
                    file.write(json.dumps(asdict(one)) + "\n")
            if number % 50 == 0:
                print(f"{number} of {len(missing)} cells", file=sys.stderr, flush=True)
    outcome = [found[cell] for cell in cells]
    tables = told(outcome)
    print(tables)
    if arguments.write:
        write(tables)
    return report(outcome, time.monotonic() - started)


def kept(path: Path | None) -> dict[Cell, Found]:
    lines = path.read_text().splitlines() if path and path.exists() else []
    return {(cell := Cell(**line.pop("cell"))): Found(cell, **line) for line in map(json.loads, lines)}


def full_cells() -> Iterator[Cell]:
    for items, k, mean, correlation in itertools.product(ITEMS, SAMPLES, MEANS, CORRELATIONS):
        yield Cell("mean", items, k, mean, correlation)
    for items, (k, of), mean, correlation in itertools.product(
        (20, 100), ((4, 2), (8, 4), (8, 8), (16, 4)), (0.05, 0.2, 0.5, 0.8, 0.95), (0.0, 0.2, 0.5, 0.9)
    ):
        yield Cell("pass@k", items, k, mean, correlation, of=of)
        yield Cell("pass^k", items, k, mean, correlation, of=of)
    for items, world in itertools.product(ITEMS, WORLDS):
        yield Cell("scores", items, 4, world=world)
    for items, k, mean, correlation, shift in itertools.product(
        (20, 100), (1, 4, 8), (0.05, 0.2, 0.5, 0.95), (0.2, 0.5, 0.9), (0.0, 0.1, 0.3)
    ):
        yield Cell("difference", items, k, mean, correlation, shift=shift)
    for items, k, mean, correlation in itertools.product((20, 100), (1, 4), (0.05, 0.2, 0.5), (0.2, 0.5, 0.9)):
        yield Cell("test", items, k, mean, correlation, evaluations=4_000)
    for items, world in itertools.product(ITEMS, BEYOND):
        yield Cell("beyond", items, 16, world=world)


def quick_cells() -> Iterator[Cell]:
    for items, k, mean, correlation in itertools.product((20, 100), (1, 8), (0.02, 0.5, 0.95), (0.0, 0.5, 1.0)):
        yield Cell("mean", items, k, mean, correlation, evaluations=1_000)
    for part, mean in itertools.product(("pass@k", "pass^k"), (0.05, 0.5, 0.95)):
        yield Cell(part, 50, 8, mean, 0.5, of=4, evaluations=1_000)
    for world in WORLDS:
        yield Cell("scores", 20, 4, world=world, evaluations=1_000)
    for k, shift in itertools.product((1, 4), (0.0, 0.3)):
        yield Cell("difference", 50, k, 0.2, 0.5, shift=shift, evaluations=1_000)
    for k in (1, 4):
        yield Cell("test", 20, k, 0.2, 0.5, evaluations=1_000)


def simulate(cell: Cell) -> Found:
    return {
        "mean": _simulate_mean,
        "pass@k": _simulate_passes,
        "pass^k": _simulate_passes,
        "scores": _simulate_scores,
        "beyond": _simulate_scores,
        "difference": _simulate_difference,
        "test": _simulate_test,
    }[cell.part](cell)


def _simulate_mean(cell: Cell) -> Found:
    values = np.arange(cell.k + 1) / cell.k

    def ours(moments: Moments) -> tuple[float, float]:
        return bounded_interval(moments, (0.0, 1.0), max_size=cell.items * cell.k, level=LEVEL)[:2]

    def public(scores: Sequence[Sequence[float]]) -> Interval | None:
        return mean_interval(scores)

    return _measure_counts(cell, cell.mean, values, ours, public)


def _simulate_passes(cell: Cell) -> Found:
    if cell.part == "pass@k":
        of_item, rate_of = at_least_one_passes, pass_at_k
        truth = 1 - _power_mean(1 - cell.mean, cell.correlation, cell.of)
    else:
        of_item, rate_of = all_pass, pass_hat_k
        truth = _power_mean(cell.mean, cell.correlation, cell.of)
    values = np.array([of_item(cell.k, count, cell.of) for count in range(cell.k + 1)])
    max_size = max_effective_size([cell.k] * cell.items, cell.of)

    def ours(moments: Moments) -> tuple[float, float]:
        return rate_interval(moments, max_size, LEVEL)[:2]

    def public(scores: Sequence[Sequence[float]]) -> Interval | None:
        return rate_of(scores, cell.of).interval

    return _measure_counts(cell, truth, values, ours, public)


def _simulate_scores(cell: Cell) -> Found:
    world = (WORLDS | BEYOND)[cell.world]
    known = world.bounds

    def batch(random: np.random.Generator, size: int) -> Array:
        return world.draw(random, (size, cell.items), cell.k)

    if known is not None:
        bounds, max_size = known, float(cell.items * cell.k) if world.binary else math.inf

        def ours(moments: Moments) -> tuple[float, float]:
            return bounded_interval(moments, bounds, max_size=max_size, level=LEVEL)[:2]

        return _measure_values(cell, world.mean, batch, ours)

    # Here the observed range counts too, and hardly any two evaluations are alike. One sample an item.
    values = batch(cell.random, cell.evaluations)
    moments = _moments(values)
    ends = []
    for number, (row, *own) in enumerate(zip(values, *moments, strict=True)):
        found = Moments(cell.items, *map(float, own))
        seen = float(row.min()), float(row.max())
        low, high, _ = bounded_interval(found, seen, max_size=math.inf, level=LEVEL)
        ends.append(widen_to_student_t(found, low, high, LEVEL))
        if number < 3 and (interval := mean_interval([[float(value)] for value in row])):
            _same(cell, ends[-1][0], interval.low)
            _same(cell, ends[-1][1], interval.high)
    return _found(cell, world.mean, np.array(ends), _plain(*moments, cell.items))


def _simulate_difference(cell: Cell) -> Found:
    def batch(random: np.random.Generator, size: int) -> Array:
        before = item_rates(random, cell, size)
        after = before + cell.shift * (1 - before)
        return (passes(random, after, cell.k) - passes(random, before, cell.k)) / cell.k

    def ours(moments: Moments) -> tuple[float, float]:
        return difference_interval(moments, 1.0, LEVEL)[:2]

    return _measure_values(cell, cell.shift * (1 - cell.mean), batch, ours)


def _simulate_test(cell: Cell) -> Found:
    """Two evaluations of one model: how often the test says that they differ."""
    random = cell.random
    rates = item_rates(random, cell, cell.evaluations)
    before, after = passes(random, rates, cell.k), passes(random, rates, cell.k)
    p_value = cache(lambda signed: sign_flip(signed)[0])
    rejected = 0
    for number, row in enumerate(after - before):
        if cell.k == 1:
            p = mcnemar(int((row > 0).sum()), int((row < 0).sum()))
        else:
            # The test looks at the differences alone, in any order.
            p = p_value(tuple(sorted(float(value) / cell.k for value in row)))
        if number < 5:
            pair = [
                {str(item): _spelt_out(int(count), cell.k) for item, count in enumerate(counts[number])}
                for counts in (before, after)
            ]
            _same(cell, paired_test(*pair).p_value, p)
        rejected += p <= 1 - LEVEL
    nothing = math.nan
    return Found(cell, nothing, nothing, nothing, nothing, rejected / cell.evaluations)


def _measure_counts(
    cell: Cell,
    truth: float,
    values: Array,
    ours: Ends,
    public: Callable[[Sequence[Sequence[float]]], Interval | None],
) -> Found:
    """For values that depend on an item's number of passes: how many items have each is all there is to draw.

    `ours` takes moments where a user's call takes scores; the first evaluations go both ways, and must agree.
    """
    drawn = cell.random.multinomial(cell.items, chances_of_passes(cell), cell.evaluations)
    mean = drawn @ values / cell.items
    squares = (values - mean[:, None]) ** 2
    alike = (drawn > 0) @ np.ones(len(values)) == 1
    rows = [mean, *(np.where(alike, 0.0, (drawn * powers).sum(axis=1)) for powers in (squares, squares**2))]
    found = _measure(cell, truth, np.stack(rows, axis=1), ours)
    for items in drawn[:3]:
        whole = public([_spelt_out(passed, cell.k) for passed, count in enumerate(items) for _ in range(count)])
        moments = Moments.of([float(value) for value in np.repeat(values, items)])
        for mine, theirs in zip(ours(moments), (whole.low, whole.high) if whole else (), strict=True):
            _same(cell, mine, theirs)
    return found


def _measure_values(cell: Cell, truth: float, batch: Callable[[np.random.Generator, int], Array], ours: Ends) -> Found:
    random = cell.random
    size = max(1, min(cell.evaluations, 1_000_000 // cell.items))
    starts = range(0, cell.evaluations, size)
    rows = [np.stack(_moments(batch(random, min(size, cell.evaluations - start))), axis=1) for start in starts]
    return _measure(cell, truth, np.concatenate(rows), ours)


def _measure(cell: Cell, truth: float, rows: Array, ours: Ends) -> Found:
    """Evaluations that have the same moments have the same interval, which is found once."""
    distinct, which = np.unique(rows.round(12), axis=0, return_inverse=True)
    ends = np.array([ours(Moments(cell.items, *map(float, row))) for row in distinct])
    return _found(cell, truth, ends[which.reshape(-1)], _plain(rows[:, 0], rows[:, 1], rows[:, 2], cell.items))


def _found(cell: Cell, truth: float, ends: Array, plain: Array) -> Found:
    def covers(pairs: Array) -> float:
        return float(np.mean((pairs[:, 0] <= truth + 1e-12) & (truth - 1e-12 <= pairs[:, 1])))

    def width(pairs: Array) -> float:
        widths = pairs[:, 1] - pairs[:, 0]
        # Equal scores of unknown range have an interval without ends.
        return float(np.mean(widths[np.isfinite(widths)]))

    return Found(cell, covers(ends), width(ends), covers(plain), width(plain))


def _moments(values: Array) -> tuple[Array, Array, Array]:
    mean = values.mean(axis=1)
    squares = (values - mean[:, None]) ** 2
    spread = squares.sum(axis=1)
    equal = values.min(axis=1) == values.max(axis=1)
    return mean, np.where(equal, 0.0, spread), np.where(equal, 0.0, (squares**2).sum(axis=1))


def _plain(mean: Array, squares: Array, _fourths: Array, items: int) -> Array:
    half = student_t_quantile((1 + LEVEL) / 2, items - 1) * np.sqrt(squares / (items - 1) / items)
    return np.stack([mean - half, mean + half], axis=1)


def chances_of_passes(cell: Cell) -> Array:
    """Of 0, 1, … k passes of an item whose own chance has the distribution of `item_rates`: beta-binomial."""
    counts = range(cell.k + 1)
    if cell.correlation == 0:
        return np.array([math.comb(cell.k, c) * cell.mean**c * (1 - cell.mean) ** (cell.k - c) for c in counts])
    if cell.correlation == 1:
        return np.array([1 - cell.mean, *[0.0] * (cell.k - 1), cell.mean])
    total = 1 / cell.correlation - 1
    a, b = cell.mean * total, (1 - cell.mean) * total
    return np.array(
        [math.comb(cell.k, c) * math.exp(_log_beta(c + a, cell.k - c + b) - _log_beta(a, b)) for c in counts]
    )


def _log_beta(a: float, b: float) -> float:
    return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)


def item_rates(random: np.random.Generator, cell: Cell, size: int) -> Array:
    """Each item's own chance to pass: a Beta distribution with the cell's mean and intra-item correlation."""
    shape = (size, cell.items)
    if cell.correlation == 0:
        return np.full(shape, cell.mean)
    if cell.correlation == 1:
        return (random.random(shape) < cell.mean).astype(np.float64)
    total = 1 / cell.correlation - 1
    return random.beta(cell.mean * total, (1 - cell.mean) * total, shape)


def passes(random: np.random.Generator, rates: Array, k: int) -> Array:
    return random.binomial(k, rates).astype(np.float64)


def _power_mean(mean: float, correlation: float, power: int) -> float:
    """The mean of the power of a Beta variable."""
    if correlation == 0:
        return mean**power
    total = 1 / correlation - 1
    return math.prod((mean * total + step) / (total + step) for step in range(power))


def _spelt_out(passed: int, k: int) -> list[float]:
    return [1.0] * passed + [0.0] * (k - passed)


def _same(cell: Cell, mine: float, theirs: float) -> None:
    if not math.isclose(mine, theirs, rel_tol=1e-9, abs_tol=1e-9):
        raise SystemExit(f"{cell}: the simulation's shortcut gives {mine}, the function that users call {theirs}")


@dataclass(frozen=True)
class World:
    """Items' mean scores over k samples, with their true mean; `bounds` as a user would state them."""

    mean: float
    bounds: Bounds | None
    draw: Callable[[np.random.Generator, tuple[int, int], int], Array]
    binary: bool = False


def _weighted(solved: float) -> World:
    """The seed's 0.6/0.2/0.2: solved, well-formed, and efficient more often where solved."""

    def draw(random: np.random.Generator, shape: tuple[int, int], k: int) -> Array:
        rate = random.beta(solved, 1 - solved, shape)
        parts = (0.6, rate), (0.2, np.full(shape, 0.9)), (0.2, 0.5 + rate / 2)
        return np.asarray(sum(weight * random.binomial(k, chance) / k for weight, chance in parts))

    return World(0.6 * solved + 0.2 * 0.9 + 0.2 * (0.5 + solved / 2), (0.0, 1.0), draw)


def _partial(a: float, b: float) -> World:
    return World(a / (a + b), (0.0, 1.0), lambda random, shape, _k: random.beta(a, b, shape))


def _seldom(reached: float) -> World:
    """0 unless a late stage is reached, then anything up to 1."""

    def draw(random: np.random.Generator, shape: tuple[int, int], _k: int) -> Array:
        return (random.random(shape) < reached) * random.random(shape)

    return World(reached / 2, (0.0, 1.0), draw)


def _penalised(bounds: Bounds | None) -> World:
    def draw(random: np.random.Generator, shape: tuple[int, int], _k: int) -> Array:
        return random.choice(np.array([-1.0, 0.0, 1.0]), shape, p=[0.1, 0.7, 0.2])

    return World(0.1, bounds, draw)


def _two_kinds(easy: float) -> World:
    """Items that are solved 19 times of 20, and items that never are."""

    def draw(random: np.random.Generator, shape: tuple[int, int], k: int) -> Array:
        return random.binomial(k, 0.95 * (random.random(shape) < easy)) / k

    return World(0.95 * easy, (0.0, 1.0), draw, binary=True)


WORLDS = {
    "partial credit, Beta(0.2, 0.8)": _partial(0.2, 0.8),
    "partial credit, Beta(0.1, 1.9)": _partial(0.1, 1.9),
    "partial credit, Beta(5, 5)": _partial(5, 5),
    "partial credit, Beta(9, 1)": _partial(9, 1),
    "0.6/0.2/0.2, 30% solved": _weighted(0.3),
    "0.6/0.2/0.2, 2% solved": _weighted(0.02),
    "a stage reached by 5%": _seldom(0.05),
    "a stage reached by 20%": _seldom(0.2),
    "-1, 0 or 1, range stated": _penalised((-1.0, 1.0)),
    "-1, 0 or 1, range unknown": _penalised(None),
    "normal, range unknown": World(0.0, None, lambda random, shape, _k: random.normal(0, 1, shape)),
    "exponential, range unknown": World(1.0, None, lambda random, shape, _k: random.exponential(1, shape)),
}
# Where no promise is made; docs/statistics.md says why.
BEYOND = {
    "95% on nine items of ten, 0 on the tenth": _two_kinds(0.9),
    "log-normal (sigma 1), range unknown": World(
        math.exp(0.5), None, lambda random, shape, _k: random.lognormal(0, 1, shape)
    ),
}


def told(found: Sequence[Found]) -> str:
    """Every table, in Markdown."""
    mean = [one for one in found if one.cell.part == "mean"]
    lines = ["| items | samples | lowest coverage | at p, correlation | mean coverage | width | t: lowest coverage |"]
    lines += ["|---|---|---|---|---|---|---|"]
    for (items, k), group in _grouped(mean, lambda cell: (cell.items, cell.k)):
        worst = min(group, key=lambda one: one.coverage)
        lines.append(
            f"| {items} | {k} | {worst.coverage:.4f} | {worst.cell.mean}, {worst.cell.correlation} "
            f"| {_mean(group):.3f} | {_widths(group)} | {min(one.plain_coverage for one in group):.3f} |"
        )
    lines += ["", "| what | items | lowest coverage | where | mean coverage | width | t: lowest coverage |"]
    lines += ["|---|---|---|---|---|---|---|"]
    for part in ("pass@k", "pass^k", "difference"):
        own = [one for one in found if one.cell.part == part]
        for items, group in _grouped(own, lambda cell: cell.items):
            worst = min(group, key=lambda one: one.coverage)
            lines.append(
                f"| {part} | {items} | {worst.coverage:.4f} | {_where(worst.cell)} | {_mean(group):.3f} "
                f"| {_widths(group)} | {min(one.plain_coverage for one in group):.3f} |"
            )
    for part, title in (("scores", "scores"), ("beyond", "no promise")):
        own = [one for one in found if one.cell.part == part]
        if own:
            sizes = sorted({one.cell.items for one in own})
            lines += ["", f"| {title} | " + " | ".join(f"{size} items" for size in sizes) + " |"]
            lines += ["|---|" + "---|" * len(sizes)]
            for world, group in _grouped(own, lambda cell: cell.world):
                cells = [f"{one.coverage:.3f} (t {one.plain_coverage:.3f}, {_widths([one])})" for one in group]
                lines.append(f"| {world} | " + " | ".join(cells) + " |")
    lines += ["", "| test at 5%, no difference | samples an item | highest share rejected |", "|---|---|---|"]
    tests = [one for one in found if one.cell.part == "test"]
    for (items, k), group in _grouped(tests, lambda cell: (cell.items, cell.k)):
        lines.append(f"| {items} items | {k} | {max(one.rejected or 0.0 for one in group):.4f} |")
    return "\n".join(lines)


def _grouped(found: Iterable[Found], key: Callable[[Cell], Key]) -> list[tuple[Key, list[Found]]]:
    groups: dict[Key, list[Found]] = {}
    for one in found:
        groups.setdefault(key(one.cell), []).append(one)
    return list(groups.items())


def _mean(group: Sequence[Found]) -> float:
    return sum(one.coverage for one in group) / len(group)


def _widths(group: Sequence[Found]) -> str:
    """How many times the width of the plain t interval, over the cells in which that one holds its word."""
    honest = [one.width / one.plain_width for one in group if one.plain_coverage >= LEAST_COVERAGE]
    return f"× {sum(honest) / len(honest):.2f}" if honest else "t fails"


def _where(cell: Cell) -> str:
    words = [f"p {cell.mean}", f"correlation {cell.correlation}", f"{cell.k} samples"]
    if cell.of:
        words.append(f"k {cell.of}")
    if cell.part == "difference":
        words.append(f"shift {cell.shift}")
    return ", ".join(words)


def write(tables: str) -> None:
    before, _, rest = PAGE.read_text().partition(_BEGIN)
    _, _, after = rest.partition(_END)
    said = f"Measured on {datetime.now(UTC):%Y-%m-%d}."
    PAGE.write_text(f"{before}{_BEGIN}\n\n{said}\n\n{tables}\n\n{_END}{after}")


def report(found: Sequence[Found], seconds: float) -> int:
    figures: dict[str, object] = {"cells": len(found), "seconds": round(seconds, 1)}
    goals: dict[str, dict[str, object]] = {}
    for part in ("mean", "pass@k", "pass^k", "scores", "difference"):
        own = [one for one in found if one.cell.part == part]
        worst = min(own, key=lambda one: one.coverage - _allowed(one.cell, LEAST_COVERAGE, -1))
        least = _allowed(worst.cell, LEAST_COVERAGE, -1)
        figures[part] = {"cells": len(own), "lowest": worst.coverage, "where": repr(worst.cell)}
        goals[f"{part}: coverage"] = {"goal": least, "measured": worst.coverage, "met": worst.coverage >= least}
    tests = [one for one in found if one.cell.part == "test"]
    loosest = max(tests, key=lambda one: one.rejected or 0.0)
    max_size = _allowed(loosest.cell, MOST_REJECTIONS, 1)
    rejected = loosest.rejected or 0.0
    goals["test: rejects the truth"] = {"goal": max_size, "measured": rejected, "met": rejected <= max_size}
    print(json.dumps({"benchmark": "coverage_simulation", "figures": figures, "goals": goals}))
    return 0 if all(goal["met"] for goal in goals.values()) else 1


def _allowed(cell: Cell, goal: float, sign: int) -> float:
    """The goal itself for a whole run; for a quick one, less or more by three of its standard errors."""
    if cell.evaluations > 1_000:
        return goal
    return goal + sign * 3 * math.sqrt(goal * (1 - goal) / cell.evaluations)


if __name__ == "__main__":
    sys.exit(main())
