"""`hermes-rl replicas` (Serve): show, resize and drain the replicas of `hermes-rl serve ENV --replicas N`."""

from dataclasses import replace
from typing import Any

import click

from hermes_rl.console.output import echo
from hermes_rl.core import fast_json
from hermes_rl.core.errors import ConfigError
from hermes_rl.orchestration.replicas.state_file import (
    MAX_REPLICAS,
    DesiredFleet,
    FleetPaths,
    read_fleet_state,
    replicas_home,
    update_desired_fleet,
)

_SETTINGS = {"show_default": True, "max_content_width": 110}
_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.group(context_settings=_SETTINGS)
def replicas() -> None:
    """Show, resize and drain the replicas of `hermes-rl serve ENV --replicas N`.

    NAME is the value of --name, by default the environment's name; for a run, the run's id.
    """


@replicas.command("list", context_settings=_SETTINGS)
@_json
def list_command(as_json: bool) -> None:
    """List all sets of replicas, including stopped ones."""
    known = [state for name in _names() if (state := read_fleet_state(FleetPaths(name))) is not None]
    if as_json:
        _print(known)
        return
    for state in known:
        echo(_line(state))
    if not known:
        echo("no replicas yet; start some with `hermes-rl serve ENV --replicas 2`", err=True)


@replicas.command("status", context_settings=_SETTINGS)
@click.argument("name", metavar="NAME")
@_json
def status_command(name: str, as_json: bool) -> int:
    """Show the node and shards of each replica. The exit code is 1 if they are not running."""
    state = _known(name)
    if as_json:
        _print(state)
        return 0 if state["running"] else 1
    echo(_line(state))
    for replica, info in state["replicas"].items():
        shards = ", ".join(map(str, info["shards"])) or "none"
        echo(f"  {replica:<14} {info['state']:<9} {info['node'] or 'waiting for a node':<24} shards {shards}")
    for shard in state["shards"]:
        if shard["state"] not in {"served", "done"} or shard["problem"]:
            details = f"{shard['state']}, {shard['restarts']} restarts. {shard['problem'] or ''}"
            echo(f"  shard {shard['shard']}: {details}")
    return 0 if state["running"] else 1


@replicas.command("resize", context_settings=_SETTINGS)
@click.argument("name", metavar="NAME")
@click.argument("count", metavar="REPLICAS", type=click.IntRange(0, MAX_REPLICAS))
@_json
def resize_command(name: str, count: int, as_json: bool) -> None:
    """Change the number of replicas; 0 pauses. Shards that move finish their rollouts in flight first."""
    state = _running(name)
    desired = update_desired_fleet(FleetPaths(name), lambda last: replace(last, replicas=count))
    shards = len(state["shards"])
    if count > shards:
        echo(f"there are only {shards} shards, so {count - shards} replicas are idle spares", err=True)
    _answer(name, desired, as_json=as_json)


@replicas.command("drain", context_settings=_SETTINGS, short_help="Close a replica once its rollouts in flight finish.")
@click.argument("name", metavar="NAME")
@click.argument("chosen", metavar="REPLICA|NODE", nargs=-1, required=True)
@_json
def drain_command(name: str, chosen: tuple[str, ...], as_json: bool) -> None:
    """Close a replica after its rollouts in flight finish, and open another in its place if there is room.

    Draining a NODE closes all of its replicas and places no new ones there.
    """
    state = _running(name)
    names = {replica: {replica, *_node_names(info["node"])} for replica, info in state["replicas"].items()}
    leaving = {replica for replica, known_by in names.items() if known_by & set(chosen)}
    known = set[str]().union(*names.values())
    if unknown := [choice for choice in chosen if choice not in known]:
        raise ConfigError(f"{name} has no replica or node {unknown[0]!r}; it has {', '.join(sorted(known))}")
    nodes = {
        node for node in (state["replicas"][replica]["node"] for replica in leaving) if _node_names(node) & set(chosen)
    }

    def changed(last: DesiredFleet) -> DesiredFleet:
        both = {*last.leaving, *leaving}, {*last.avoided, *nodes}
        return replace(last, leaving=tuple(sorted(both[0])), avoided=tuple(sorted(both[1])))

    desired = update_desired_fleet(FleetPaths(name), changed)
    _answer(name, desired, as_json=as_json)


def _node_names(node: str | None) -> set[str]:
    """The full name of a node, and its address alone."""
    return set() if node is None else {node, node.partition("/")[0]}


def _names() -> list[str]:
    home = replicas_home()
    return sorted(path.name for path in home.iterdir() if path.is_dir()) if home.is_dir() else []


def _known(name: str) -> dict[str, Any]:
    state = read_fleet_state(FleetPaths(name))
    if state is None:
        there = ", ".join(_names()) or "none"
        raise ConfigError(f"no replicas named {name!r}; known names: {there}")
    return state


def _running(name: str) -> dict[str, Any]:
    state = _known(name)
    if not state["running"]:
        raise ConfigError(f"{name} is not running; start it with `hermes-rl serve ENV --replicas N`")
    return state


def _answer(name: str, desired: DesiredFleet, *, as_json: bool) -> None:
    if as_json:
        _print({"name": name, "wanted": desired.replicas, "leaving": list(desired.leaving)})
    else:
        echo(f"requested; check progress with `hermes-rl replicas status {name}`", err=True)


def _line(state: dict[str, Any]) -> str:
    served = sum(shard["state"] == "served" for shard in state["shards"])
    opened = sum(info["state"] == "open" for info in state["replicas"].values())
    restarts = sum(shard["restarts"] for shard in state["shards"])
    phase = "running" if state["running"] else state["ending"] or "not running"
    return (
        f"{state['name']}  {phase} on {state['on']}: {opened} of {state['wanted']} replicas, "
        f"{served} of {len(state['shards'])} shards served, {restarts} restarts"
    )


def _print(value: Any) -> None:
    echo(fast_json.dumps(value).decode())
