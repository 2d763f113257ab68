"""`hermes-rl config`: the keys of model providers, trainers and trackers, in a file that only the user can read.

Always true: a value is never shown; at most its last four characters are.
"""

import difflib
import os
import sys
from collections.abc import Sequence
from typing import Any

import click

from hermes_rl import jsontext
from hermes_rl.errors import ConfigError
from hermes_rl.runs.key_file import check_name, read_keys
from hermes_rl.runs.keys import found_key, key_file, key_names, masked, set_key, unset_key

# No key is longer; whoever pipes a whole file by mistake is told before it is read.
_LONGEST = 65_536


@click.group(context_settings={"max_content_width": 110})
def config() -> None:
    """Keep the keys that training runs need.

    \b
    hermes-rl config set TINKER_API_KEY      asks for the value, and does not show it
    hermes-rl config show                    which keys there are, and where from
    hermes-rl config unset TINKER_API_KEY

    A run of `hermes-rl train` and the rl_* tools find a key in a variable of the same name, else in this file. Nothing
    but hosted Tinker needs one to train: `hermes-rl engine` trains on your own machine without any.
    """  # noqa: D301 - click's own mark for lines that are kept


# Click's own complaints about arguments repeat them, and one of these is a secret: so it takes whatever is given.
@config.command("set", context_settings={"ignore_unknown_options": True})
@click.argument("name")
@click.argument("value", nargs=-1, type=click.UNPROCESSED, metavar="[VALUE]")
def set_value(name: str, value: Sequence[str]) -> None:
    """Keep a key; without VALUE it is asked for, hidden, or read from a pipe.

    NAME is one that `hermes-rl config show` lists, or any of your own that a configuration refers to as env:NAME.

    \b
    hermes-rl config set TINKER_API_KEY
    hermes-rl config set WANDB_API_KEY - < key.txt
    pass show openrouter | hermes-rl config set OPENROUTER_API_KEY

    A VALUE on the command line works too, but stays in your shell's history, and others on this machine can see it in
    the process list while the command runs.
    """  # noqa: D301
    check_name(name)
    if len(value) > 1:
        raise ConfigError(f"{name} was given {len(value)} values; leave them out to be asked for one")
    given = next(iter(value), "-")
    if given != "-":
        _warn("the value stands in your shell's history and in the process list; next time leave it out to be asked")
    file = set_key(name, _asked(name) if given == "-" else given)
    kept = read_keys(file)[name]
    click.echo(f"{name} {masked(kept)} is kept in {file}, which only you can read")
    if os.environ.get(name, "").strip() not in {"", kept}:
        _warn(f"the variable {name} is set to another value, and goes before the file; to use the file: unset {name}")
    if name not in key_names():
        near = difflib.get_close_matches(name, key_names(), 1)
        meant = f"; if you meant {near[0]}: hermes-rl config unset {name}" if near else ""
        click.echo(
            f"hermes-rl itself uses no key of this name; a configuration finds it as env:{name}{meant}", err=True
        )


@config.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def show(as_json: bool) -> None:
    """List the keys, masked: which are set, where each comes from, and what it is for.

    A variable goes before the file.
    """
    rows = _rows()
    if as_json:
        click.echo(jsontext.dumps({"file": str(key_file()), "keys": rows}).decode())
        return
    width = max(len(row["name"]) for row in rows)
    for row in rows:
        state = f"{row['masked']:<6} {row['source']}" if row["set"] else "not set"
        click.echo(f"{row['name']:<{width}}  {state:<16}  {row['purpose']}")
    click.echo(f"\nThe file is {key_file()}. Set a key with: hermes-rl config set NAME", err=True)


@config.command()
@click.argument("name")
def unset(name: str) -> None:
    """Take a key out of the file. To take out one that is not there is no error."""
    removed = unset_key(name)
    click.echo(f"{name} is no longer in {key_file()}" if removed else f"{name} was not in {key_file()}")
    if os.environ.get(name, "").strip():
        _warn(f"the variable {name} is still set in this shell; to remove it: unset {name}")


@config.command()
def path() -> None:
    """Print where the key file is, there or not. A shell reads it by: set -a; . "$(hermes-rl config path)"; set +a."""
    click.echo(key_file())


def _asked(name: str) -> str:
    if sys.stdin.isatty():
        return str(click.prompt(f"Value of {name} (not shown)", hide_input=True, err=True))
    piped = sys.stdin.read(_LONGEST + 1)
    if len(piped) > _LONGEST:
        raise ConfigError(f"standard input holds more than {_LONGEST} characters, which is no key")
    return piped


def _rows() -> list[dict[str, Any]]:
    known = key_names()
    others = dict.fromkeys(sorted(set(read_keys(key_file())) - set(known)), "your own, as env:NAME in a configuration")
    rows = []
    for name, purpose in {**known, **others}.items():
        found = found_key(name)
        told: dict[str, Any] = {"set": False, "masked": None, "source": None}
        if found is not None:
            told = {"set": True, "masked": masked(found.value), "source": found.source}
        rows.append({"name": name, **told, "purpose": purpose})
    return rows


def _warn(text: str) -> None:
    click.echo(f"warning: {text}", err=True)
