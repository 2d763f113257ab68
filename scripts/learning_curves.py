"""Draws what benchmarks/self_play.py and benchmarks/word_game.py measured, one panel for each figure.

python -m scripts.learning_curves RUN:FIGURE=LABEL… -o docs/images/any-task.svg

RUN is the folder of a run, FIGURE a name in its step-N.json. Needs matplotlib (group docs).
"""

import argparse
import json
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt

from scripts.curves import COLOURS, STYLE


def points(run: Path, figure: str) -> list[tuple[int, float]]:
    """Step and value of each measured checkpoint, by step."""
    measured = {int(path.stem.partition("-")[2]): json.loads(path.read_text()) for path in run.glob("step-*.json")}
    return [(step, measured[step][figure]) for step in sorted(measured)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("curves", nargs="+", metavar="RUN:FIGURE=LABEL")
    parser.add_argument("-o", "--output", type=Path, required=True)
    chosen = parser.parse_args()
    # Equal runs make equal files.
    mpl.rcParams.update({**STYLE, "svg.hashsalt": "hermes-rl"})
    count = len(chosen.curves)
    figure, panels = plt.subplots(1, count, figsize=(3 * count, 2.4), layout="constrained", squeeze=False)
    for panel, text, colour in zip(panels[0], chosen.curves, COLOURS, strict=False):
        place, _, label = text.partition("=")
        run, _, name = place.rpartition(":")
        steps, values = zip(*points(Path(run), name), strict=True)
        panel.plot(steps, values, color=colour, marker="o", markersize=3)
        panel.set_title(label)
        panel.set_xlabel("steps")
        panel.set_ylim(0, max(1.0, *values) if max(values) > 0.5 else None)
    figure.savefig(chosen.output, metadata={"Date": None})


if __name__ == "__main__":
    main()
