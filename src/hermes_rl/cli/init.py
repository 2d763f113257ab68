"""`hermes-rl init NAME` (Write): write a new environment NAME_env.py and its test."""

import keyword
import shlex
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import click

from hermes_rl.console.output import echo
from hermes_rl.core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Template:
    """An environment that works: its name, what it does, and the option for its other model, with who needs it."""

    name: str
    about: str
    option: str = ""
    needed_by: str = "process and evaluate"


KINDS = {
    "shell": Template("word_count", "the agent counts the words of a text"),
    "tools": Template("library_desk", "the agent lends books with tools that change Python state"),
    "game": Template("number_game", "the agent guesses a number in plain text"),
    "conversation": Template(
        "table_booking",
        "the agent books a table for a simulated user",
        """--env.user_endpoint '{"base_url": "URL", "model_name": "MODEL"}'""",
    ),
    "judge": Template(
        "plain_words",
        "the agent explains a word, and a judge scores it",
        "--env.judge_url URL --env.judge_model MODEL",
        "validate, process and evaluate",
    ),
    "selfplay": Template("take_sticks", "two agents of one policy play each other"),
}
DEFAULT_KIND = "shell"


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
    "--kind",
    type=click.Choice(list(KINDS)),
    show_default=DEFAULT_KIND,
    help=f"Write this kind of example. {'; '.join(f'{kind}: {one.about}' for kind, one in KINDS.items())}.",
)
@click.option(
    "--from-traces",
    "traces",
    type=click.Path(exists=True, path_type=Path),
    help="Use the tasks of these traces, or of a file of groups from `hermes-rl import`, as items.",
)
def init(name: str, folder: Path, kind: str | None, traces: Path | None) -> None:
    """Write a working environment NAME_env.py and its test, as a starting point."""
    if kind and traces:
        raise ConfigError("--kind and --from-traces exclude each other; pass one of them")
    name, kind = parse_environment_name(name), kind or DEFAULT_KIND
    files_of = render_template(name, kind) if traces is None else _render_traces(name, traces)
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
    template = KINDS[kind]
    model = "the judge only" if "validate" in template.needed_by else "no model"
    steps = {
        f"hermes-rl validate {env_file}": f"check the reward with scripted agents; needs {model}",
        f"pytest {test_file}": "run the same check as a test",
        f"hermes-rl process {env_file}": f"write rollouts of a model to data/{name}.jsonl",
        f"hermes-rl evaluate {env_file}": "evaluate a model on the held-out items",
    }
    width = max(map(len, steps)) + 2
    about = (
        f"It works as it is: {template.about}. Replace its items, prompt and reward."
        if traces is None
        else "The reward is a draft: it compares the final answer with the best recorded one. Replace it."
    )
    echo(f"\n{about} Next:")
    for command, what in steps.items():
        echo(f"  {command:<{width}}{what}")
    if template.option:
        echo(f"\n{template.needed_by} also need {template.option}")


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


def render_template(name: str, kind: str = DEFAULT_KIND) -> dict[str, str]:
    """The contents of the two files by name."""
    folder = files("hermes_rl.environment") / "template"
    rendered: dict[str, str] = {}
    for pattern in ("{}_env.py", "test_{}_env.py"):
        # A kind without a test of its own has the first kind's.
        examples = (KINDS[kind].name, KINDS[DEFAULT_KIND].name)
        example = next(one for one in examples if (folder / f"{pattern.format(one)}.txt").is_file())
        text = (folder / f"{pattern.format(example)}.txt").read_text(encoding="utf-8")
        rendered[pattern.format(name)] = text.replace(_class_name(example), _class_name(name)).replace(example, name)
    return rendered


def _class_name(name: str) -> str:
    return "".join(word.capitalize() for word in name.split("_"))
