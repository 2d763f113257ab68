#!/usr/bin/env python3
"""The README's pictures, from real runs: docs/images/first-minute.svg, cheats-and-curve.svg and badges.svg.

    python scripts/readme_pictures.py               # all, about two minutes: it runs hermes-rl in a temporary folder
    python scripts/readme_pictures.py recording     # or one: recording, table, badges

The recording shows what the commands wrote to a terminal, faster than they did. The table is the answer of
`hermes-rl validate --json` for two rewards. The curve is read from docs/reports/training.md, which describes its run.
The badges are from pyproject.toml.
"""

import argparse
import codecs
import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import tempfile
import termios
import time
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"
REPORT = ROOT / "docs" / "reports" / "training.md"

INIT = "hermes-rl init word_count"
VALIDATE = "hermes-rl validate word_count_env.py"
# A common mistake: the reward looks for the right number anywhere in the file.
LOOSEN = r"sed -i 's/written.strip() == \(.*\) else/\1 in written else/' word_count_env.py"
SHOWN = ((INIT, 1.5), (VALIDATE, 3.5), (LOOSEN, 0.3), ("grep -n 'in written' word_count_env.py", 1.5), (VALIDATE, 5.5))
COLUMNS, ROWS = 113, 33
# Seconds of the recording: typing a command, and at most from its start to its end; and between two states.
TYPING, RUNNING, APART = 0.6, 2.2, 0.15

MONO = "ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace"
SANS = "system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif"
WIDTH_OF_CHARACTER, LINE = 8.4, 17
GREY, RED, GREEN, YELLOW, CYAN = "#8b949e", "#ff7b72", "#7ee787", "#e3b341", "#79c0ff"
COLOURS = {"31": RED, "32": GREEN, "33": YELLOW, "36": CYAN, "38;5;237": "#484f58", "38;5;197": RED, "38;5;70": GREEN}

Cell = tuple[str, str]


@dataclass
class Terminal:
    """The lines of a terminal as rich writes to it: colours, carriage return, cursor up, erase line."""

    lines: list[list[Cell]] = field(default_factory=lambda: [[]])
    row: int = 0
    column: int = 0
    style: str = ""

    def feed(self, text: str) -> None:
        for control, final, character in re.findall(r"\x1b\[([\d;?]*)([A-Za-z])|([^\x1b])", text):
            if final:
                self._control(control, final)
            elif character == "\r":
                self.column = 0
            elif character == "\n":
                self._down()
            else:
                self._put(character)

    def _control(self, control: str, final: str) -> None:
        match final:
            case "m":
                self.style = _style(self.style, control)
            case "A":
                self.row = max(0, self.row - int(control or 1))
            case "K":
                self.lines[self.row] = []

    def _down(self) -> None:
        self.row += 1
        if self.row == len(self.lines):
            self.lines.append([])

    def _put(self, character: str) -> None:
        if self.column == COLUMNS:
            self._down()
            self.column = 0
        line = self.lines[self.row]
        line.extend([(" ", "")] * (self.column + 1 - len(line)))
        line[self.column] = (character, self.style)
        self.column += 1

    def snapshot(self) -> list[tuple[Cell, ...]]:
        return [tuple(line) for line in self.lines]


def _style(before: str, codes: str) -> str:
    if codes in ("", "0"):
        return ""
    colour = next((value for code, value in COLOURS.items() if codes == code or codes.endswith(f";{code}")), None)
    bold = "font-weight:700;" if codes.split(";", maxsplit=1)[0] == "1" else ""
    return before + bold + (f"fill:{colour};" if colour else "")


def output_of(command: str, folder: Path) -> Iterator[tuple[float, str]]:
    """What a command writes to a terminal, each piece with the seconds since the command began."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "TERM": "xterm-256color"}
    keeper, screen = pty.openpty()
    fcntl.ioctl(screen, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    begin = time.monotonic()
    words = ["sh", "-c", command]
    with subprocess.Popen(words, cwd=folder, env=environment, stdin=screen, stdout=screen, stderr=screen):
        os.close(screen)
        decoder = codecs.getincrementaldecoder("utf-8")()
        while True:
            try:
                piece = os.read(keeper, 65536)
            except OSError:  # Linux's way to say that the other side is closed
                break
            yield time.monotonic() - begin, decoder.decode(piece)
    os.close(keeper)


def record(folder: Path) -> tuple[list[tuple[float, list[tuple[Cell, ...]]]], float, float]:
    """The states of the terminal, each with when it begins; the length of the recording; the real seconds."""
    terminal, states, now, real = Terminal(), [], 0.3, 0.0
    for command, pause in SHOWN:
        terminal.feed("\x1b[32m$ \x1b[0m")
        for typed in range(4, len(command) + 4, 4):
            terminal.feed(command[typed - 4 : typed])
            now += TYPING * 4 / len(command)
            states.append((now, terminal.snapshot()))
        terminal.feed("\r\n")
        pieces = list(output_of(command, folder))
        took = pieces[-1][0] if pieces else 0.0
        pace = min(1.0, RUNNING / took) if took else 1.0
        for at, piece in pieces:
            terminal.feed(piece)
            if now + at * pace - states[-1][0] >= APART or at == took:
                states.append((now + at * pace, terminal.snapshot()))
        real += took
        now += took * pace + pause
    return states, now, real


def recording_svg(folder: Path) -> str:
    """The recording: each line is there from when it was written until it was erased, and the screen scrolls."""
    states, seconds, real = record(folder)
    keyframes, drawn = [], []
    for row in range(max(len(lines) for _, lines in states)):
        shown: list[tuple[float, tuple[Cell, ...]]] = []
        for at, lines in states:
            line = lines[row] if row < len(lines) else ()
            if line != (shown[-1][1] if shown else ()):
                shown.append((at, line))
        for number, (at, line) in enumerate(shown):
            end = shown[number + 1][0] if number + 1 < len(shown) else None
            if line:
                name = f"r{row}_{number}"
                keyframes.append(_visible(name, at / seconds, end / seconds if end else None))
                style = f"animation:{name} {seconds:.1f}s step-end infinite" + (";opacity:0" if end else "")
                drawn.append(f'<g style="{style}">{_line(line, row)}</g>')
    scroll = {at: max(0, len(lines) - ROWS) * LINE for at, lines in states}
    moves = "".join(f"{100 * at / seconds:.2f}%{{transform:translateY(-{down}px)}}" for at, down in _changes(scroll))
    width, height = COLUMNS * WIDTH_OF_CHARACTER + 32, ROWS * LINE + 60
    final = max(scroll.values())
    title = f"a real run of {real:.0f} s on two busy cores, played faster"
    size = f'viewBox="0 0 {width:.0f} {height}" width="{width:.0f}"'
    return f"""<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">
<title>hermes-rl init and validate in a terminal: {title}</title>
<style>text{{font:14px {MONO};fill:#e6edf3;white-space:pre}}
#all{{transform:translateY(-{final}px);animation:scroll {seconds:.1f}s step-end infinite}}
@keyframes scroll{{0%{{transform:none}}{moves}}}
{"".join(keyframes)}
@media (prefers-reduced-motion){{#all,#all g{{animation:none!important}}}}</style>
<rect width="100%" height="100%" rx="8" fill="#0d1117"/>
<g fill="#30363d"><circle cx="20" cy="19" r="6"/><circle cx="40" cy="19" r="6"/><circle cx="60" cy="19" r="6"/></g>
<text x="{width - 16:.0f}" y="23" text-anchor="end" style="font:12px {SANS};fill:{GREY}">{title}</text>
<svg y="38" width="{width:.0f}" height="{ROWS * LINE + 8}"><g id="all">
{chr(10).join(drawn)}
</g></svg></svg>
"""


def _visible(name: str, begin: float, end: float | None) -> str:
    off = f"{100 * end:.2f}%{{opacity:0}}" if end else ""
    return f"@keyframes {name}{{0%{{opacity:0}}{100 * begin:.2f}%{{opacity:1}}{off}}}"


def _changes(values: dict[float, int]) -> Iterator[tuple[float, int]]:
    before = 0
    for at, value in values.items():
        if value != before:
            yield at, value
        before = value


def _line(cells: Sequence[Cell], row: int) -> str:
    """Each piece of one style is set at its column, so that a reader's font cannot break the table."""
    pieces: list[tuple[int, str, str]] = []
    for column, (character, style) in enumerate(cells):
        if pieces and pieces[-1][2] == style:
            start, text, _ = pieces[-1]
            pieces[-1] = (start, text + character, style)
        else:
            pieces.append((column, character, style))
    return "".join(
        f'<text x="{16 + column * WIDTH_OF_CHARACTER:.1f}" y="{row * LINE + 13}" '
        f'textLength="{len(text) * WIDTH_OF_CHARACTER:.1f}" lengthAdjust="spacingAndGlyphs"'
        + (f' style="{style}"' if style else "")
        + f">{escape(text)}</text>"
        for column, text, style in ((column, text.rstrip(), style) for column, text, style in pieces)
        if text
    )


def validated(folder: Path) -> dict[str, float]:
    """The mean score of each scripted agent, in the order of the table."""
    command = [sys.executable, "-m", "hermes_rl", *VALIDATE.split()[1:], "--search-seconds", "1", "--json"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    agents: list[dict[str, Any]] = json.loads(done.stdout)["agents"]
    return {agent["name"]: agent["mean"] for agent in agents}


def table_svg(folder: Path) -> str:
    """Left: every agent of `validate` under two rewards. Right: the reward of each step of a training run."""
    subprocess.run([sys.executable, "-m", "hermes_rl", *INIT.split()[1:]], cwd=folder, check=True, capture_output=True)
    right = validated(folder)
    subprocess.run(["sh", "-c", LOOSEN], cwd=folder, check=True)
    wrong = validated(folder)
    section = REPORT.read_text().split("## SmolLM2-135M learns to use a terminal")[1].split("To be shown (b)")[0]
    steps = [float(value) for value in re.search(r"By step: ([\d., ]+\d)\.", section)[1].split(", ")]  # type: ignore[index]
    means = dict(re.findall(r"\| (before|after 10 steps) \| ([\d.]+) ", section))
    rows = []
    for number, name in enumerate(right):
        y = 92 + 18 * number
        kind = "" if name in ("null", "oracle") else "cheat: "
        rows.append(f'<text x="24" y="{y}" class="m">{escape(kind + name)}</text>')
        for x, value in ((330, right[name]), (420, wrong[name])):
            caught = value > 0 and name != "oracle"
            rows.append(f'<text x="{x}" y="{y}" class="m e{" bad" if caught else ""}">{value:g}</text>')
        if wrong[name] > 0 and name != "oracle":
            rows.append(f'<rect x="16" y="{y - 13}" width="414" height="18" rx="3" class="mark"/>')
    bottom = 92 + 18 * len(right)
    left, base, across, tall = 500, bottom - 12, 350, bottom - 12 - 92
    points = [(left + across * number / (len(steps) - 1), base - tall * value) for number, value in enumerate(steps)]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    grid = "".join(
        f'<path d="M{left},{base - tall * value:.1f}h{across}" class="g"/>'
        f'<text x="{left - 8}" y="{base - tall * value + 4:.1f}" class="s e">{value:g}</text>'
        for value in (0, 0.25, 0.5, 0.75, 1)
    )
    ticks = "".join(f'<text x="{x:.1f}" y="{base + 17}" class="s c">{n}</text>' for n, (x, _) in enumerate(points, 1))
    height = bottom + 42
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 880 {height}" width="880" role="img">
<title>Left: scripted agents and cheats under a correct and a wrong reward. Right: reward of ten training steps.</title>
<style>text{{font:13px {SANS};fill:#1f2328}} .m{{font:13px {MONO}}} .h{{font-weight:700;font-size:15px}}
.s{{font-size:12px;fill:#59636e}}
.e{{text-anchor:end}} .c{{text-anchor:middle}} .bad{{fill:#cf222e;font-weight:700}} .mark{{fill:#cf222e;opacity:.12}}
.card{{fill:#fff;stroke:#d1d9e0}} .g{{stroke:#d1d9e0}} .l{{fill:none;stroke:#0969da;stroke-width:2.5}}
.d{{fill:#0969da}}
@media (prefers-color-scheme:dark){{text{{fill:#e6edf3}} .s{{fill:#9198a1}} .bad{{fill:#ff7b72}} .mark{{fill:#ff7b72}}
.card{{fill:#0d1117;stroke:#3d444d}} .g{{stroke:#3d444d}} .l{{stroke:#4493f8}} .d{{fill:#4493f8}}}}</style>
<rect x=".5" y=".5" width="879" height="{height - 1}" rx="8" class="card"/>
<text x="24" y="34" class="h">Before training: can the reward be cheated?</text>
<text x="24" y="62" class="s">scripted agent</text><text x="330" y="56" class="s e">file equals</text>
<text x="330" y="70" class="s e">the answer</text><text x="420" y="56" class="s e">file contains</text>
<text x="420" y="70" class="s e">the answer</text>
{"".join(rows)}
<text x="24" y="{bottom + 20}" class="s">Mean scores by hermes-rl validate, for two rewards of one task</text>
<text x="{left - 28}" y="34" class="h">Training on two CPU cores: mean reward</text>
{grid}{ticks}<text x="{left + across / 2}" y="{bottom + 20}" class="s c">training step</text>
<polyline points="{line}" class="l"/>
{"".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" class="d"/>' for x, y in points)}
<text x="{left - 28}" y="62" class="s">SmolLM2-135M, task terminal_words, sampled at temperature 1.</text>
<text x="{left - 28}" y="77" class="s">Held-out words: {means["before"]} before, {means["after 10 steps"]} after.</text>
</svg>
"""


def badges_svg(_folder: Path) -> str:
    """What the package declares: Python versions, licence, types."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    versions = re.findall(r"Python :: (3\.\d+)", " ".join(project["classifiers"]))
    typed = "yes" if "Typing :: Typed" in project["classifiers"] else "no"
    drawn, x = [], 0
    for label, value in (("python", " | ".join(versions)), ("licence", project["license"]), ("typed", typed)):
        left, right = 7 * len(label) + 14, 7 * len(value) + 14
        drawn.append(
            f'<rect x="{x}" width="{left}" height="20" fill="#555"/>'
            f'<rect x="{x + left}" width="{right}" height="20" fill="#0969da"/>'
            f'<text x="{x + left / 2}" y="14">{label}</text><text x="{x + left + right / 2}" y="14">{value}</text>'
        )
        x += left + right + 8
    return f"""<svg xmlns="http://www.w3.org/2000/svg" width="{x - 8}" height="20" role="img">
<style>text{{font:11px {SANS};fill:#fff;text-anchor:middle}}</style>
{chr(10).join(drawn)}
</svg>
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("pictures", nargs="*", choices=["recording", "table", "badges", []], help="by default all")
    chosen = parser.parse_args().pictures or ["recording", "table", "badges"]
    for name, file, drawn in (
        ("recording", "first-minute.svg", recording_svg),
        ("table", "cheats-and-curve.svg", table_svg),
        ("badges", "badges.svg", badges_svg),
    ):
        if name in chosen:
            with tempfile.TemporaryDirectory() as folder:
                (IMAGES / file).write_text(drawn(Path(folder)))
            print(f"written: {(IMAGES / file).relative_to(ROOT)}")


if __name__ == "__main__":
    main()
