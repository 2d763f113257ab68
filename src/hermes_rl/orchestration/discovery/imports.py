"""Find an import that would fail when an environment's file is loaded, without loading it.

Always true: an import is reported only if none of the environment's own code, which could change sys.path, runs before.
"""

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from hermes_rl.environment.loading.import_resolution import resolve_local_import
from hermes_rl.orchestration.discovery.module import Module
from hermes_rl.orchestration.discovery.types import BrokenFile

# The loader has modules for the names that the seeds import from these.
_ALIASED = ("atroposlib", "environments")


def missing_import(file: Path, read: Callable[[Path], Module | None]) -> BrokenFile | None:
    """The first import, of the file or of its local modules, that is not installed."""
    search = _Search(read)
    search.visit(file)
    if search.missing is None:
        return None
    importer, name, line = search.missing
    who, where = ("it", line) if importer == file else (f"its module {importer.name}", None)
    return BrokenFile(file, f"{who} imports {name}, which is not installed", where)


@dataclass(slots=True)
class _Search:
    read: Callable[[Path], Module | None]
    seen: set[Path] = field(default_factory=set)
    missing: tuple[Path, str, int] | None = None

    def visit(self, importer: Path) -> bool:
        """Follow the imports of a module in order; whether those of its importer can be followed further."""
        module = None if importer in self.seen else self.read(importer)
        self.seen.add(importer)
        for imported, line in () if module is None else module.imports:
            top = imported.name.partition(".")[0]
            if not imported.level and top in _ALIASED:
                continue
            local = resolve_local_import(importer, imported.name, imported.level)
            if local is not None:
                if local.is_file() and not self.visit(local):
                    return False
            elif not imported.level and not _is_importable(top):
                self.missing = importer, str(imported), line
                return False
        return module is None or not module.runs_code


def _is_importable(top: str) -> bool:
    try:
        return importlib.util.find_spec(top) is not None
    except (ImportError, ValueError, AttributeError):
        return True
