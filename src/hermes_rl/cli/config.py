"""`hermes-rl config` (Maintain): store the API keys that training runs need.

Values are never printed, only their last four characters.
"""

import difflib
import os
import sys
from collections.abc import Sequence
from typing import Any

import click

from hermes_rl.console.output import echo
from hermes_rl.core import fast_json
from hermes_rl.core.errors import ConfigError
from hermes_rl.core.key_file import check_name, read_keys
from hermes_rl.core.keys import key_file, lookup_key
from hermes_rl.orchestration.keys import key_names, mask_value, set_key, unset_key

# No key is longer; refuses a whole file piped by mistake.
_LONGEST = 65_536


@click.group(context_settings={"max_content_width": 110})
def config() -> None:
    """Store the API keys that training runs need.

    \b
    hermes-rl config set TINKER_API_KEY      prompt for the value without echo
    hermes-rl config show                    list the keys and their sources
    hermes-rl config unset TINKER_API_KEY

    Every command reads a key from the environment variable of the same name, else from .env in the working directory,
    else from this file, else from ~/.hermes/.env.
    Only hosted Tinker needs a key to train: `hermes-rl engine` trains on your own machine without one.
    """  # noqa: D301 - click's own mark for lines that are kept


# Click's usage errors repeat the arguments, and one of these is a secret: so accept any.
@config.command("set", context_settings={"ignore_unknown_options": True})
@click.argument("name")
@click.argument("value", nargs=-1, type=click.UNPROCESSED, metavar="[VALUE]")
def set_value(name: str, value: Sequence[str]) -> None:
    """Store a key; without VALUE, prompt for it or read it from a pipe.

    NAME is listed by `hermes-rl config show`, or any name that a configuration refers to as env:NAME.

    \b
    hermes-rl config set TINKER_API_KEY
    hermes-rl config set WANDB_API_KEY - < key.txt
    pass show openrouter | hermes-rl config set OPENROUTER_API_KEY

    A VALUE on the command line stays in your shell's history, and other users can see it in the process list while the
    command runs.
    """  # noqa: D301
    check_name(name)
    if len(value) > 1:
        raise ConfigError(f"{name} has {len(value)} values; run `hermes-rl config set {name}` to enter one")
    given = next(iter(value), "-")
    if given != "-":
        _warn("the value is in your shell's history and in the process list; next time leave it out to be prompted")
    file = set_key(name, _prompt(name) if given == "-" else given)
    stored = read_keys(file)[name]
    echo(f"{name} {mask_value(stored)} is stored in {file}, which only you can read")
    if os.environ.get(name, "").strip() not in {"", stored}:
        _warn(f"the environment variable {name} has another value and takes precedence; to use the file: unset {name}")
    if name not in key_names():
        near = difflib.get_close_matches(name, key_names(), 1)
        meant = f"; if you meant {near[0]}: hermes-rl config unset {name}" if near else ""
        echo(f"hermes-rl does not use {name} itself; refer to it in a configuration as env:{name}{meant}", err=True)


@config.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def show(as_json: bool) -> None:
    """List the keys, masked, with source and purpose. Environment variables take precedence over the file."""
    rows = _rows()
    if as_json:
        echo(fast_json.dumps({"file": str(key_file()), "keys": rows}).decode())
        return
    width = max(len(row["name"]) for row in rows)
    for row in rows:
        state = f"{row['masked']:<6} {row['source']}" if row["set"] else "not set"
        echo(f"{row['name']:<{width}}  {state:<16}  {row['purpose']}")
    echo(f"\nThe file is {key_file()}. Set a key with: hermes-rl config set NAME", err=True)


@config.command()
@click.argument("name")
def unset(name: str) -> None:
    """Remove a key from the file, if it is there."""
    removed = unset_key(name)
    echo(f"{name} is no longer in {key_file()}" if removed else f"{name} was not in {key_file()}")
    if os.environ.get(name, "").strip():
        _warn(f"the environment variable {name} is still set in this shell; to remove it: unset {name}")


@config.command()
def path() -> None:
    """Print the path of the key file. To load it in a shell: set -a; . "$(hermes-rl config path)"; set +a."""
    echo(key_file())


def _prompt(name: str) -> str:
    if sys.stdin.isatty():
        return str(click.prompt(f"Value of {name} (not shown)", hide_input=True, err=True))
    piped = sys.stdin.read(_LONGEST + 1)
    if len(piped) > _LONGEST:
        raise ConfigError(f"standard input has more than {_LONGEST} characters; pipe only the key")
    return piped


def _rows() -> list[dict[str, Any]]:
    known = key_names()
    others = dict.fromkeys(
        sorted(set(read_keys(key_file())) - set(known)), "yours, used as env:NAME in a configuration"
    )
    rows = []
    for name, purpose in {**known, **others}.items():
        found = lookup_key(name)
        state: dict[str, Any] = {"set": False, "masked": None, "source": None}
        if found is not None:
            state = {"set": True, "masked": mask_value(found.value), "source": found.source}
        rows.append({"name": name, **state, "purpose": purpose})
    return rows


def _warn(text: str) -> None:
    echo(f"warning: {text}", err=True)
