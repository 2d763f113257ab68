"""Which Python files a caller may have loaded: those below the search paths, and below paths that the operator allowed.

Always true: links and `..` are resolved before the check, and the resolved file is the one that is loaded.
"""

import sysconfig
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hermes_rl.core.errors import ConfigError
from hermes_rl.environment.loading.import_resolution import file_reference
from hermes_rl.orchestration.discovery.folders import all_search_paths
from hermes_rl.orchestration.discovery.source import resolve_path

AGENT_PREFIX = "agent:"


@dataclass(frozen=True, slots=True)
class AllowedFiles:
    """`paths` are files and folders in addition to the search paths."""

    paths: tuple[Path, ...] = ()

    def require(self, file: Path) -> Path:
        """The file without links and `..`; ConfigError when it is not below a search path or an allowed path."""
        resolved = resolve_path(file.expanduser())
        known = (*(search_path.path for search_path in all_search_paths()[0]), *self.paths)
        if not any(resolved.is_relative_to(resolve_path(path)) for path in known):
            raise ConfigError(
                f"{file} is outside the folders of environments, so this server does not load it; move it to one of "
                "them (docs/discovery.md), or restart the server with --allow-path PATH"
            )
        return resolved

    def require_references(self, value: Any) -> None:
        """ConfigError when a setting names a component (`file.py:Name`, `module:Name`) in a file that is not allowed.

        Modules of installed packages are allowed: installing them was the operator's decision.
        """
        installed = [Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "purelib", "platlib")]
        for text in _texts(value):
            named = text.removeprefix(AGENT_PREFIX)
            place, colon, _ = file_reference(named).rpartition(":")
            if not colon or not place.endswith(".py"):
                continue
            file = Path(place).expanduser().absolute()
            is_module = not named.startswith(place)
            if is_module and any(file.resolve().is_relative_to(folder) for folder in installed):
                continue
            # The setting keeps this spelling, and a link on the way could lead to another file later.
            if (resolved := self.require(file)) != file:
                raise ConfigError(f"{file} goes through a link or `..`; name the file itself: {resolved}")


def _texts(value: Any) -> Iterator[str]:
    """Every text in a JSON value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _texts(key)
            yield from _texts(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _texts(inner)
