"""The toolset `rl`: found by its name, there when its requirements are met, a draft for each rollout."""

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hermes_rl.errors import ConfigError
from hermes_rl.runs.places import drafts_home
from hermes_rl.tools.session import ToolSession
from hermes_rl.tools.toolsets import known_toolsets, open_toolsets, toolset_named


def test_it_is_known_by_its_name() -> None:
    assert len(toolset_named("rl").tools) == 10
    assert "rl," in known_toolsets()


def test_where_training_is_not_installed_it_is_listed_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hermes_rl.runs.requirements.find_spec", lambda name: None)
    assert "rl (not here: tinker is not there" in known_toolsets()
    with pytest.raises(ConfigError, match=r"the toolset rl cannot work here: .*pip install 'hermes-rl\[train\]'"):
        toolset_named("rl")


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


class _NoPool:
    async def release(self, sandbox: Any) -> None:
        raise AssertionError(f"no sandbox was started, yet {sandbox} is given back")


def test_importing_the_tools_imports_no_run() -> None:
    program = "import sys, hermes_rl.tools; print([name for name in sys.modules if name.startswith('hermes_rl.runs')])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
