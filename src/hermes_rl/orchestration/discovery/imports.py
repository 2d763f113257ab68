"""Find an import that would fail when an environment's file is loaded, without loading it.

Always true: an import is reported only if it is certain to run and to fail.
"""

import importlib.util
from collections.abc import Callable
from pathlib import Path

from hermes_rl.environment.loading.import_resolution import resolve_local_import
from hermes_rl.orchestration.discovery.module import Module
from hermes_rl.orchestration.discovery.types import BrokenFile

# The loader has modules for the names that the seeds import from these.
_ALIASED = ("atroposlib", "environments")


def missing_import(file: Path, read: Callable[[Path], Module | None]) -> BrokenFile | None:
    """The first import, of the file or of its local modules, that is not installed."""
    seen, pending = {file}, [file]
    while pending:
        importer = pending.pop()
        module = read(importer)
        for imported, line in () if module is None else module.imports:
            top = imported.name.partition(".")[0]
            if not imported.level and top in _ALIASED:
                continue
            local = resolve_local_import(importer, imported.name, imported.level)
            if local is not None:
                pending += [local] if local.is_file() and local not in seen else []
                seen.add(local)
            elif not imported.level and not _is_importable(top):
                who, where = ("it", line) if importer == file else (f"its module {importer.name}", None)
                return BrokenFile(file, f"{who} imports {imported}, which is not installed", where)
    return None


def _is_importable(top: str) -> bool:
    try:
        return importlib.util.find_spec(top) is not None
    except (ImportError, ValueError, AttributeError):
        return True
