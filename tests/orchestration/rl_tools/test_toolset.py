"""The toolset `rl`: found by its name, there when its requirements are met, a draft for each rollout."""

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hermes_rl.core.errors import ConfigError
from hermes_rl.orchestration.run_paths import drafts_home
from hermes_rl.tools.registry import get_toolset, known_toolsets, open_toolsets
from hermes_rl.tools.session import ToolSession


def test_it_is_known_by_its_name() -> None:
    assert len(get_toolset("rl").tools) == 10
    assert "rl," in known_toolsets()


def test_where_training_is_not_installed_it_is_listed_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hermes_rl.orchestration.requirements.find_spec", lambda name: None)
    assert "rl (not here: tinker is missing" in known_toolsets()
    with pytest.raises(ConfigError, match=r"the toolset rl is not available here: .*pip install 'hermes-rl\[train\]'"):
        get_toolset("rl")


async def test_each_rollout_has_a_draft_of_its_own_that_ends_with_it(home: Path) -> None:
    async with open_toolsets(["rl"], {}) as opened:
        tools = {tool.name: tool for tool in opened["rl"].tools}
        one, other = (
            ToolSession(name, tools, _NoPool(), asyncio.Semaphore(4), 60.0)  # type: ignore[arg-type]
            for name in ("one", "other")
        )
        assert (await one.call("rl_select_environment", {"name": "plain_text"})).error is None
        assert (await one.call("rl_get_current_config", {})).error is None
        assert (await other.call("rl_get_current_config", {})).error is not None
        await one.close()
        await other.close()
    assert not list(drafts_home().glob("rollout-*"))


async def test_a_rollout_loads_no_file_outside_the_known_folders(
    home: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    outside = tmp_path_factory.mktemp("outside") / "other_env.py"
    outside.write_text("raise SystemExit('this file was run')")
    async with open_toolsets(["rl"], {}) as opened:
        tools = {tool.name: tool for tool in opened["rl"].tools}
        session = ToolSession("one", tools, _NoPool(), asyncio.Semaphore(4), 60.0)  # type: ignore[arg-type]
        refused = await session.call("rl_select_environment", {"name": str(outside)})
        await session.close()
    assert "outside the folders of environments" in str(refused.error)


class _NoPool:
    async def release(self, sandbox: Any) -> None:
        raise AssertionError(f"no sandbox was started, yet {sandbox} is given back")


def test_importing_the_tools_imports_no_run() -> None:
    loaded = "[name for name in sys.modules if name.startswith('hermes_rl.orchestration')]"
    program = f"import sys, hermes_rl.tools; print({loaded})"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
