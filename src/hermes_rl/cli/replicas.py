"""`hermes-rl replicas`: how the replicas of a `serve` stand, and what is wanted of them."""

from dataclasses import replace
from typing import Any

import click

from hermes_rl import jsontext
from hermes_rl.errors import ConfigError
from hermes_rl.runs.replicas.standing import (
    MOST_REPLICAS,
    FleetPlaces,
    Wish,
    change_wish,
    read_standing,
    replicas_home,
)

_SETTINGS = {"show_default": True, "max_content_width": 110}
_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.group(context_settings=_SETTINGS)
def replicas() -> None:
    """Watch, resize and drain the replicas of `hermes-rl serve ENV --replicas N`.

    NAME is what --name said, else the environment's name; for a run, the run's id.
    """


@replicas.command("list", context_settings=_SETTINGS)
@_json
def list_command(as_json: bool) -> None:
    """List what is served by replicas, or was."""
    known = [told for name in _names() if (told := read_standing(FleetPlaces(name))) is not None]
    if as_json:
        _print(known)
        return
    for told in known:
        click.echo(_line(told))
    if not known:
        click.echo("nothing is served by replicas; `hermes-rl serve ENV --replicas 2` does", err=True)


@replicas.command("status", context_settings=_SETTINGS)
@click.argument("name", metavar="NAME")
@_json
def status_command(name: str, as_json: bool) -> int:
    """Tell where each replica is and which shards it has. The exit code is 1 when they do not run."""
    told = _known(name)
    if as_json:
        _print(told)
        return 0 if told["running"] else 1
    click.echo(_line(told))
    for replica, one in told["replicas"].items():
        shards = ", ".join(map(str, one["shards"])) or "none"
        click.echo(f"  {replica:<14} {one['state']:<9} {one['node'] or 'waits for room':<24} shards {shards}")
    for one in told["shards"]:
        if one["state"] not in {"served", "done"} or one["problem"]:
            click.echo(f"  shard {one['shard']}: {one['state']}, {one['restarts']} restarts. {one['problem'] or ''}")
    return 0 if told["running"] else 1


@replicas.command("resize", context_settings=_SETTINGS)
@click.argument("name", metavar="NAME")
@click.argument("count", metavar="REPLICAS", type=click.IntRange(0, MOST_REPLICAS))
@_json
def resize_command(name: str, count: int, as_json: bool) -> None:
    """Have so many replicas from now on. Shards that move finish what is in flight first; 0 pauses all of them."""
    told = _running(name)
    wish = change_wish(FleetPlaces(name), lambda last: replace(last, replicas=count))
    shards = len(told["shards"])
    if count > shards:
        click.echo(f"there are {shards} shards, so {count - shards} replicas stand by for one that is lost", err=True)
    _answer(name, wish, as_json=as_json)


@replicas.command("drain", context_settings=_SETTINGS)
@click.argument("name", metavar="NAME")
@click.argument("chosen", metavar="REPLICA|NODE", nargs=-1, required=True)
@_json
def drain_command(name: str, chosen: tuple[str, ...], as_json: bool) -> None:
    """Let a replica finish what is in flight and close it; another is opened in its place, where there is room.

    For a NODE all of its replicas, and no other one goes there.
    """
    told = _running(name)
    names = {one: {one, *_node_names(about["node"])} for one, about in told["replicas"].items()}
    leaving = {one for one, known_by in names.items() if known_by & set(chosen)}
    known = set[str]().union(*names.values())
    if unknown := [one for one in chosen if one not in known]:
        raise ConfigError(f"{name} has no replica or node {unknown[0]!r}; it has {', '.join(sorted(known))}")
    nodes = {
        told["replicas"][one]["node"] for one in leaving if _node_names(told["replicas"][one]["node"]) & set(chosen)
    }

    def changed(last: Wish) -> Wish:
        both = {*last.leaving, *leaving}, {*last.avoided, *nodes}
        return replace(last, leaving=tuple(sorted(both[0])), avoided=tuple(sorted(both[1])))

    wish = change_wish(FleetPlaces(name), changed)
    _answer(name, wish, as_json=as_json)


def _node_names(node: str | None) -> set[str]:
    """A node by its whole name, and by its address alone."""
    return set() if node is None else {node, node.partition("/")[0]}


def _names() -> list[str]:
    home = replicas_home()
    return sorted(path.name for path in home.iterdir() if path.is_dir()) if home.is_dir() else []


def _known(name: str) -> dict[str, Any]:
    told = read_standing(FleetPlaces(name))
    if told is None:
        there = ", ".join(_names()) or "none"
        raise ConfigError(f"no replicas are called {name!r}; there are {there}")
    return told


def _running(name: str) -> dict[str, Any]:
    told = _known(name)
    if not told["running"]:
        raise ConfigError(f"{name} does not run now; start it again with as many --replicas as it is to have")
    return told


def _answer(name: str, wish: Wish, *, as_json: bool) -> None:
    if as_json:
        _print({"name": name, "wanted": wish.replicas, "leaving": list(wish.leaving)})
    else:
        click.echo(f"it is told; `hermes-rl replicas status {name}` shows how far it is", err=True)


def _line(told: dict[str, Any]) -> str:
    served = sum(one["state"] == "served" for one in told["shards"])
    opened = sum(one["state"] == "open" for one in told["replicas"].values())
    restarts = sum(one["restarts"] for one in told["shards"])
    state = "running" if told["running"] else told["ending"] or "not running"
    return (
        f"{told['name']}  {state} on {told['on']}: {opened} of {told['wanted']} replicas, "
        f"{served} of {len(told['shards'])} shards served, {restarts} restarts"
    )


def _print(value: Any) -> None:
    click.echo(jsontext.dumps(value).decode())
