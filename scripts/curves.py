#!/usr/bin/env python3
"""Draws the curves of training runs, as docs/curves.md reads them.

scripts/curves.py RUN… -o curves.png      RUN is a run's name, its folder, or a metrics file
scripts/curves.py RUN=LABEL …             says LABEL in the picture

One run: all it measured. Several: the same figure of each, in one panel. Needs matplotlib (group docs).
"""

import argparse
import io
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from PIL import Image

from hermes_rl.core.errors import ConfigError
from hermes_rl.core.paths import rl_home
from hermes_rl.sinks.metrics_file import read_metrics

Line = dict[str, Any]

# Okabe and Ito's, which colour-blind readers can tell apart; black is for text, yellow too pale for a line.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#4D4D4D")
INK, PALE = "#333333", "#D9D9D9"
STYLE: Any = {
    "axes.axisbelow": True,
    "axes.edgecolor": PALE,
    "axes.labelcolor": INK,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "figure.constrained_layout.h_pad": 0.09,
    "figure.constrained_layout.w_pad": 0.09,
    "font.size": 9,
    "legend.borderaxespad": 0,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "legend.handlelength": 1.4,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
}
BAND = ("reward/std", "reward/min", "reward/max", "rollouts/scored")
# Steps from which on a line is a running mean, and how many of its widths a run has.
MANY_STEPS, WIDTHS = 40, 20


@dataclass(frozen=True, slots=True)
class Curve:
    label: str
    name: str


@dataclass(frozen=True, slots=True)
class Panel:
    """`curves` with the one first that is drawn when runs are compared. `share`: from 0 to 1."""

    title: str
    unit: str
    curves: Sequence[Curve]
    share: bool = False

    def of(self, curves: Sequence[Curve]) -> "Panel":
        return replace(self, curves=curves)

    def comparing(self, curve: Curve) -> "Panel":
        """Of several runs."""
        title = self.title if len(self.curves) == 1 else f"{self.title}: {curve.label}"
        return replace(self, title=title, curves=(curve,))


@dataclass(frozen=True, slots=True)
class Run:
    label: str
    lines: Sequence[Line]


PANELS = (
    Panel("Reward", "mean of a step", [Curve("reward", "reward/mean")], share=True),
    Panel("KL divergence", "nats a token", [
        Curve("sampler from trainer", "kl/sample_train_k3"),
        Curve("reference", "kl/reference_k3"),
    ]),
    Panel("Entropy", "nats a token", [Curve("of sampled tokens", "entropy")]),
    Panel("Staleness", "versions behind", [
        Curve("mean", "staleness/mean"), Curve("largest", "staleness/max"),
    ]),
    Panel("Groups of a step", "groups", [
        Curve("trained on", "groups/used"), Curve("all scores equal", "groups/zero_signal"),
    ]),
    Panel("Speed", "tokens a second", [Curve("trained on", "tokens/per_second")]),
    Panel("Waiting", "share of a step", [
        Curve("engine idle", "time/engine_idle_share"), Curve("trainer idle", "time/trainer_idle_share"),
    ], share=True),
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", metavar="RUN")
    parser.add_argument("-o", "--output", type=Path, default=Path("curves.png"), help="PNG or SVG. [curves.png]")
    parser.add_argument("--title", help="A line above the picture.")
    given = parser.parse_args()
    try:
        runs = [read_run(text) for text in given.runs]
    except (ConfigError, OSError) as error:
        parser.exit(1, f"{error}\n")
    draw(runs, given.output, given.title)
    print(f"written: {given.output} ({given.output.stat().st_size / 1000:.0f} kB)")


def read_run(text: str) -> Run:
    place, _, label = text.partition("=")
    path = Path(place)
    if not path.exists() and path.name == place:
        path = rl_home() / "runs" / place
    if path.is_dir():
        path /= "metrics.jsonl"
    lines = read_metrics(path)
    if not lines:
        raise ConfigError(f"{path} has no step yet")
    return Run(label or (path.parent.name if path.name == "metrics.jsonl" else path.stem), lines)


def draw(runs: Sequence[Run], path: Path, title: str | None = None) -> None:
    panels = list(_panels(runs))
    order = [panel.title for panel in panels]
    wide = [[order.pop(0)] * 2] if len(order) % 2 else []
    rows: list[Any] = [*wide, *([left, right] for left, right in zip(order[::2], order[1::2], strict=True))]
    with mpl.rc_context(STYLE):
        figure = plt.figure(figsize=(9.2, 2.3 * len(rows) + (0.4 if title else 0)), layout="constrained")
        places = figure.subplot_mosaic(rows)
        for panel in panels:
            _draw_panel(places[panel.title], panel, runs)
        for name in rows[-1]:
            places[name].set_xlabel("step")
        if title:
            figure.suptitle(title, x=0.01, ha="left", fontsize=12, fontweight="bold")
        _save(figure, path)
        plt.close(figure)


def _panels(runs: Sequence[Run]) -> Iterator[Panel]:
    """Those that have something to show; of several runs one curve each, of one run also the parts of its reward."""
    for panel in PANELS:
        curves = [curve for curve in panel.curves if any(_points(run, curve.name)[1] for run in runs)]
        if curves:
            yield panel.of(curves) if len(runs) == 1 else panel.comparing(curves[0])
        if panel is PANELS[0] and len(runs) == 1 and (parts := _parts(runs[0])):
            yield replace(panel.of(parts), title="Reward by part")


def _parts(run: Run) -> list[Curve]:
    names = dict.fromkeys(name for line in run.lines for name in line)
    for prefix in ("reward/environment/", "reward/component/"):
        parts = [name for name in names if name.startswith(prefix)]
        if len(parts) > 1:
            return [Curve(name.removeprefix(prefix), name) for name in sorted(parts)]
    return []


def _draw_panel(axes: Axes, panel: Panel, runs: Sequence[Run]) -> None:
    axes.set_title(panel.title)
    axes.set_ylabel(panel.unit)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(axis="y", color=PALE, linewidth=0.6)
    drawn = [(run, run.label if len(runs) > 1 else curve.label, curve) for run in runs for curve in panel.curves]
    for number, (run, label, curve) in enumerate(drawn):
        colour, dashes = COLOURS[number % len(COLOURS)], "-" if number < len(COLOURS) else "--"
        steps, values = _points(run, curve.name)
        if panel.title == PANELS[0].title and len(runs) == 1:
            _draw_band(axes, run, colour)
        few = len(values) <= MANY_STEPS
        axes.plot(steps, values, "o" if few else ".", color=colour, markersize=3 if few else 2, alpha=1 if few else 0.3)
        axes.plot(steps, _smooth(values), color=colour, linestyle=dashes, linewidth=1.8, label=label)
    lowest, highest = axes.dataLim.intervaly
    top = max(1.0, highest) if panel.share else highest
    axes.set_ylim(min(0.0, lowest), top + 0.04 * (top - min(0.0, lowest)))
    if len(runs) > 1 and panel.title != PANELS[0].title:
        return
    if len(drawn) > 3:
        axes.legend(loc="upper left", bbox_to_anchor=(1, 1.04))
    elif len(drawn) > 1:
        axes.legend(loc="lower right", bbox_to_anchor=(1, 0.97), ncols=len(drawn))


def _draw_band(axes: Axes, run: Run, colour: str) -> None:
    """95% of where the mean of a step may lie, its rollouts taken as independent."""
    known = [line for line in run.lines if line.keys() >= {*BAND, "reward/mean"}]
    middle = _smooth([line["reward/mean"] for line in known])
    half = _smooth([1.96 * line["reward/std"] / math.sqrt(max(1, line["rollouts/scored"])) for line in known])
    axes.fill_between(
        [line["step"] for line in known],
        [max(at - by, line["reward/min"]) for at, by, line in zip(middle, half, known, strict=True)],
        [min(at + by, line["reward/max"]) for at, by, line in zip(middle, half, known, strict=True)],
        color=colour,
        alpha=0.15,
        linewidth=0,
    )


def _save(figure: Figure, path: Path) -> None:
    """A PNG of as many colours as a chart has, a quarter of the bytes."""
    if path.suffix != ".png":
        figure.savefig(path)
        return
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", dpi=130)
    with Image.open(drawn) as picture:
        picture.convert("RGB").quantize(200).save(path, optimize=True)


def _points(run: Run, name: str) -> tuple[list[int], list[float]]:
    pairs = [(line["step"], found) for line in run.lines if (found := line.get(name)) is not None]
    return [step for step, _ in pairs], [found for _, found in pairs]


def _smooth(values: Sequence[float]) -> list[float]:
    """A running mean of long runs, over as many steps before as after."""
    reach = len(values) // WIDTHS // 2 if len(values) > MANY_STEPS else 0
    windows = (values[max(0, at - reach) : at + reach + 1] for at in range(len(values)))
    return [sum(window) / len(window) for window in windows]


if __name__ == "__main__":
    main()
