"""`hermes-rl clean` (Maintain): list files of hermes-rl on this disk, and remove those you select."""

import os
import re
import sys
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

import click

from hermes_rl.cli.progress import progress
from hermes_rl.console.live_display import warn
from hermes_rl.console.output import echo
from hermes_rl.core import fast_json
from hermes_rl.core.errors import ConfigError
from hermes_rl.orchestration.cleanup.plan import CleanupPlan, DiskItem, ItemKind, Selection, disk_bytes, plan

_SECONDS = {"h": 3600.0, "d": 86_400.0, "w": 604_800.0}


def _age(_context: click.Context, _option: click.Parameter, value: str | None) -> float | None:
    if value is None:
        return None
    if match := re.fullmatch(r"(\d+)([hdw])", value):
        return int(match[1]) * _SECONDS[match[2]]
    raise click.BadParameter(f"{value!r} is not a duration; use hours, days or weeks, such as 12h, 14d or 4w")


@click.command(context_settings={"max_content_width": 110})
@click.argument("names", metavar="[NAME]...", nargs=-1)
@click.option(
    "--kind",
    "kinds",
    multiple=True,
    type=click.Choice([kind.value for kind in ItemKind]),
    help="Select this kind; repeatable.",
)
@click.option("--older-than", callback=_age, metavar="AGE", help="Select items not used for this long: 12h, 14d, 4w.")
@click.option("--remove", is_flag=True, help="Remove what NAME, --kind or --older-than select.")
@click.option("--yes", is_flag=True, help="Remove without asking.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def clean(
    names: tuple[str, ...], kinds: tuple[str, ...], older_than: float | None, remove: bool, yes: bool, as_json: bool
) -> int:
    """List files of hermes-rl on this disk with their size, and remove those you select.

    NAME is a name or path from the list. With several criteria, items must meet all of them. Nothing is removed without
    --remove. A run that has not ended, or anything in use by a process, a sandbox or a lock, is never removed.
    """
    from hermes_rl.orchestration.cleanup.removal import remove_all
    from hermes_rl.orchestration.cleanup.scan import find_disk_items

    if remove and not names and not kinds and older_than is None:
        raise ConfigError("--remove needs a NAME, --kind or --older-than; list the names with `hermes-rl clean`")
    items = _measure_all(find_disk_items(warn))
    known = {known for item in items for known in (item.name, item.location)}
    # Accepts relative paths and trailing slashes too.
    meant = {name: name if name in known else os.path.abspath(name) for name in names}  # noqa: PTH100 - keeps links
    if unknown := [name for name, there in meant.items() if there not in known]:
        raise ConfigError(f"no item named {', '.join(unknown)}; list the names with `hermes-rl clean`")
    selection = Selection(frozenset(meant.values()), frozenset(map(ItemKind, kinds)), older_than)
    now = time.time()
    if not remove:
        listed = [item for item in items if selection.matches(item, now)]
        echo(_json(listed) if as_json else _table(listed))
        return 0
    chosen = plan(items, selection, now)
    if not as_json:
        _announce(chosen)
    if chosen.remove and not yes:
        _confirm(chosen.remove)
    with progress("removing", len(chosen.remove)) as shown:
        failed = remove_all(chosen.remove, shown.show)
    removed = [item for item in chosen.remove if item.location not in failed]
    if as_json:
        echo(_json([*chosen.remove, *chosen.kept], removed=[item.location for item in removed], failed=failed))
    elif chosen.remove:
        echo(f"removed {len(removed)} items, {_size(disk_bytes(removed))}")
    for location, why in failed.items():
        warn(f"could not remove {location}: {why}")
    return 1 if failed or (names and chosen.kept) else 0


def _measure_all(items: Sequence[DiskItem]) -> list[DiskItem]:
    from hermes_rl.orchestration.cleanup.usage import measure

    with progress("measuring", len(items)) as shown:
        result = []
        for number, item in enumerate(items):
            shown.show(number, item.name)
            result.append(measure(item))
    order = list(ItemKind)
    return sorted(result, key=lambda item: (order.index(item.kind), -item.bytes, item.name))


def _confirm(items: Sequence[DiskItem]) -> None:
    if not sys.stdin.isatty():
        raise ConfigError("nothing removed: cannot ask for confirmation without a terminal; pass --yes")
    if not click.confirm(f"Remove {len(items)} items, {_size(disk_bytes(items))}?", err=True):
        raise click.Abort


def _announce(chosen: CleanupPlan) -> None:
    echo(_lines(chosen.remove) if chosen.remove else "nothing to remove")
    for item in chosen.kept:
        echo(f"keeping {item.kind} {item.name}: {item.keep}", err=True)


def _table(items: Sequence[DiskItem]) -> str:
    if not items:
        return "nothing found"
    free = _size(disk_bytes(item for item in items if not item.keep))
    totals = [*_totals(items).items(), ("total", (len(items), disk_bytes(items)))]
    return "\n".join(
        [
            _lines(items),
            "",
            *(f"{kind:<9}{_size(size):>9}  {count}" for kind, (count, size) in totals),
            f"{free} are not in use. Remove some with: hermes-rl clean --remove NAME",
            "or hermes-rl clean --remove --kind KIND --older-than 14d",
        ]
    )


def _lines(items: Sequence[DiskItem]) -> str:
    rows = [("KIND", "SIZE", "LAST USED", "NAME", "PATH", "STATE")]
    for item in items:
        used = datetime.fromtimestamp(item.last_used).astimezone().strftime("%Y-%m-%d %H:%M") if item.last_used else ""
        path = re.sub(f"^{re.escape(str(Path.home()))}/", "~/", item.location)
        rows.append((item.kind, _size(item.bytes), used, item.name, path, item.keep or item.note))
    names, paths = (max(len(row[column]) for row in rows) for column in (3, 4))
    return "\n".join(f"{a:<9}{b:>9}  {c:<17} {d:<{names}}  {e:<{paths}}  {f}" for a, b, c, d, e, f in rows)


def _totals(items: Sequence[DiskItem]) -> dict[ItemKind, tuple[int, int]]:
    """The number of items and bytes of each kind."""
    kinds = {kind: [item for item in items if item.kind is kind] for kind in ItemKind}
    return {kind: (len(some), disk_bytes(some)) for kind, some in kinds.items() if some}


def _size(count: int) -> str:
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} B"


def _json(items: Sequence[DiskItem], **more: object) -> str:
    fields = ("kind", "name", "bytes", "last_used", "note", "keep")
    report = {
        "items": [{field: getattr(item, field) for field in fields} | {"path": item.location} for item in items],
        "totals": {kind: {"items": count, "bytes": size} for kind, (count, size) in _totals(items).items()},
        "bytes": disk_bytes(items),
        "removable_bytes": disk_bytes(item for item in items if not item.keep),
    }
    return fast_json.dumps(report | more).decode()
