"""The pages on training name settings that exist."""

import re
from pathlib import Path

import pytest

from hermes_rl import HermesAgentEnvConfig
from hermes_rl.training.config import TrainerSettings

DOCS = Path(__file__).parents[2] / "docs"
SECTIONS = {"tinker": TrainerSettings.model_fields, "env": HermesAgentEnvConfig.model_fields}


@pytest.mark.parametrize("page", ["training.md", "curves.md", "metrics.md"])
def test_every_flag_of_a_page_is_a_setting(page: str) -> None:
    flags = re.findall(r"--(tinker|env)\.(\w+)", (DOCS / page).read_text())
    assert flags
    assert [f"--{section}.{name}" for section, name in flags if name not in SECTIONS[section]] == []
