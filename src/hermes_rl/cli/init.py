"""`hermes-rl init NAME`: a working environment and its test, two files to start from. Nothing is overwritten."""

import keyword
import shlex
from importlib.resources import files
from pathlib import Path

import click

from hermes_rl.errors import ConfigError

TEMPLATE = "word_count"


@click.command()
@click.argument("name")
@click.option(
    "--dir",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    default=".",
    help="Where to put the two files; made when it is not there.",
)
def init(name: str, folder: Path) -> None:
    """Write a working environment NAME_env.py and its test, to change into your own."""
    name = environment_name(name)
    contents = {folder / place: text for place, text in made(name).items()}
    for path in contents:
        if path.exists():
            raise ConfigError(f"{path} is there already; choose another name, or remove it first")
    folder.mkdir(parents=True, exist_ok=True)
    for path, text in contents.items():
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
        click.echo(f"written: {path}")
    env_file, test_file = map(shlex.quote, map(str, contents))
    steps = {
        f"hermes-rl validate {env_file}": "does a solution score, and does a cheat? needs no model",
        f"pytest {test_file}": "the same as a test",
        f"hermes-rl process {env_file} --env.total_steps 10": f"rollouts of a model, written to data/{name}.jsonl",
        f"hermes-rl evaluate {env_file}": "a model on the held-out items",
    }
    width = max(map(len, steps)) + 2
    click.echo(
        "\nIt works as it is: the agent counts the words of a text. Make its items, prompt and reward yours. Next:"
    )
    for command, what in steps.items():
        click.echo(f"  {command:<{width}}{what}")


def environment_name(text: str) -> str:
    """NAME as a module can have it, without the ending that every environment's file has; ConfigError if it cannot."""
    name = text.removesuffix(".py").replace("-", "_").removesuffix("_env")
    if not name.isidentifier() or not name.isascii() or keyword.iskeyword(name) or name.lower() != name:
        raise ConfigError(f"{text!r} cannot be an environment's name: use lower-case words joined by _, as word_count")
    return name


def made(name: str) -> dict[str, str]:
    """The two files by their names."""
    template = files("hermes_rl.environment") / "template"
    class_name = "".join(word.capitalize() for word in name.split("_"))
    return {
        f"{place.format(name)}": (template / f"{place.format(TEMPLATE)}.txt")
        .read_text(encoding="utf-8")
        .replace("WordCount", class_name)
        .replace(TEMPLATE, name)
        for place in ("{}_env.py", "test_{}_env.py")
    }
