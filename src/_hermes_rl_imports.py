"""Serves the modules of hermes-agent and Atropos that environment files import, by a finder last in sys.meta_path.

`_hermes_rl_imports.pth` loads this file when one of the names is imported. Modules of others always come first, and a
real atroposlib is never mixed with ours.
"""

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

# The module that holds the names of each; None for a package without any.
MODULES: dict[str, str | None] = {
    "atroposlib": None,
    "atroposlib.envs": None,
    "atroposlib.envs.base": "hermes_rl.environment.compat.atropos",
    "atroposlib.envs.server_handling": None,
    "atroposlib.envs.server_handling.managed_server": "hermes_rl.environment.compat.atropos",
    "atroposlib.envs.server_handling.openai_server": "hermes_rl.environment.compat.atropos",
    "atroposlib.envs.server_handling.server_baseline": "hermes_rl.environment.compat.atropos",
    "atroposlib.envs.server_handling.server_manager": "hermes_rl.environment.compat.atropos",
    "atroposlib.type_definitions": "hermes_rl.environment.compat.atropos",
    "environments": None,
    "environments.agent_loop": "hermes_rl.environment.compat.agent_loop",
    "environments.hermes_base_env": "hermes_rl.environment.compat.hermes_base_env",
    "environments.patches": "hermes_rl.environment.compat.patches",
    "environments.tool_call_parsers": "hermes_rl.environment.compat.tool_call_parsers",
    "environments.tool_context": "hermes_rl.environment.compat.tool_context",
    "model_tools": "hermes_rl.environment.compat.model_tools",
    "tools": None,
    "tools.terminal_tool": "hermes_rl.environment.compat.terminal_tool",
    "toolset_distributions": "hermes_rl.environment.compat.toolset_distributions",
}
# Packages that users have too: what theirs lacks is ours, unless it has this module and so is hermes-agent's own.
_SHARED = {"environments": "environments.hermes_base_env", "tools": "tools.terminal_tool"}


class AliasFinder(MetaPathFinder, Loader):
    """Finder and loader of `MODULES`."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in MODULES:
            return None
        real = self._real_spec(name, path)
        if real is not None:
            return real
        parent = name.rpartition(".")[0]
        if parent and not is_alias(sys.modules[parent].__spec__):
            mark = _SHARED.get(parent)
            if mark is None or self._real_spec(mark, path) is not None:
                return None
        return ModuleSpec(name, self, origin="hermes-rl", is_package=MODULES[name] is None)

    def _real_spec(self, name: str, path: Sequence[str] | None) -> ModuleSpec | None:
        """What the other finders have. Those appended to sys.meta_path after this one have not been asked yet."""
        others = (finder.find_spec(name, path) for finder in tuple(sys.meta_path) if finder is not self)
        return next((spec for spec in others if spec is not None), None)

    def create_module(self, spec: ModuleSpec) -> None:
        """Let Python create the module."""

    def exec_module(self, module: ModuleType) -> None:
        source = MODULES[module.__name__]
        if source is not None:
            ours = import_module(source)
            module.__doc__ = ours.__doc__
            vars(module).update({name: getattr(ours, name) for name in ("__all__", *ours.__all__)})


FINDER = AliasFinder()


def is_alias(spec: ModuleSpec | None) -> bool:
    """Whether a spec is for one of our modules, and not for a real one of that name."""
    return spec is not None and spec.loader is FINDER


# In place of the one in the .pth file.
sys.meta_path[:] = [finder for finder in sys.meta_path if getattr(finder, "__name__", "") != "HermesRLImports"]
sys.meta_path.append(FINDER)
