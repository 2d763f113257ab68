"""`hermes-rl init NAME` (Write): write a new environment NAME_env.py and its test."""

import keyword
import shlex
from importlib.resources import files
from pathlib import Path

import click

from hermes_rl.console.output import echo
from hermes_rl.core.errors import ConfigError

TEMPLATE = "word_count"


@click.command()
@click.argument("name")
@click.option(
    "--dir",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    default=".",
    help="Write the two files to this folder; created if missing.",
)
@click.option(
    "--from-traces",
    "traces",
    type=click.Path(exists=True, path_type=Path),
    help="Use the tasks of these traces, or of a file of groups from `hermes-rl import`, as items.",
)
def init(name: str, folder: Path, traces: Path | None) -> None:
    """Write a working environment NAME_env.py and its test, as a starting point."""
    name = parse_environment_name(name)
    files_of = render_template(name) if traces is None else _render_traces(name, traces)
    contents = {folder / file_name: text for file_name, text in files_of.items()}
    for path in contents:
        if path.exists():
            raise ConfigError(f"{path} already exists; choose another name, or remove it first")
    folder.mkdir(parents=True, exist_ok=True)
    for path, text in contents.items():
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
        echo(f"written: {path}")
    env_file, *_, test_file = map(shlex.quote, map(str, contents))
    steps = {
        f"hermes-rl validate {env_file}": "check the reward with scripted agents; needs no model",
        f"pytest {test_file}": "run the same check as a test",
        f"hermes-rl process {env_file} --env.total_steps 10": f"write rollouts of a model to data/{name}.jsonl",
        f"hermes-rl evaluate {env_file}": "evaluate a model on the held-out items",
    }
    width = max(map(len, steps)) + 2
    about = (
        "It works as it is: the agent counts the words of a text. Replace its items, prompt and reward."
        if traces is None
        else "The reward is a draft: it compares the final answer with the best recorded one. Replace it."
    )
    echo(f"\n{about} Next:")
    for command, what in steps.items():
        echo(f"  {command:<{width}}{what}")


def _render_traces(name: str, traces: Path) -> dict[str, str]:
    from hermes_rl.interop.traces.environment import environment_files, read_tasks

    found = read_tasks(traces)
    echo(f"{len(found.tasks):,} tasks; toolsets: {', '.join(found.toolsets) or 'none'}")
    for reason, count in found.left_out.items():
        echo(f"  left out: {count:,} tasks {reason}")
    if found.unknown_tools:
        echo(
            f"  tools that hermes-rl does not have: {', '.join(name for name, _ in found.unknown_tools.most_common())}"
        )
    return environment_files(name, found)


def parse_environment_name(text: str) -> str:
    """The module name without the suffix `_env`; ConfigError if it is not valid."""
    name = text.removesuffix(".py").replace("-", "_").removesuffix("_env")
    if not name.isidentifier() or not name.isascii() or keyword.iskeyword(name) or name.lower() != name:
        raise ConfigError(
            f"{text!r} is not a valid environment name; use lower-case words joined by _, such as word_count"
        )
    return name


def render_template(name: str) -> dict[str, str]:
    """The contents of the two files by name."""
    template = files("hermes_rl.environment") / "template"
    class_name = "".join(word.capitalize() for word in name.split("_"))
    return {
        pattern.format(name): (template / f"{pattern.format(TEMPLATE)}.txt")
        .read_text(encoding="utf-8")
        .replace("WordCount", class_name)
        .replace(TEMPLATE, name)
        for pattern in ("{}_env.py", "test_{}_env.py")
    }
