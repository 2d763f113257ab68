"""Every field of the configuration is read somewhere in the package, or the table below says who reads it."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

import hermes_rl
from hermes_rl.inference.config import APIServerConfig
from hermes_rl.rollout.config import HermesAgentEnvConfig

PACKAGE = Path(hermes_rl.__file__).parent
# A validator that reads a field gives it no effect.
DEFINITIONS = {PACKAGE / "rollout/config.py", PACKAGE / "inference/config.py"}
# The names under which the package holds these two models.
HOLDERS = re.compile(r"(.*\.)?(config|configs\[0\]|env|endpoint)")
READ_BY_NAME = {
    "default_result_size_chars": "rollout/config.py passes it to the tool results of a rollout",
    "preview_size_chars": "rollout/config.py passes it to the tool results of a rollout",
    "tool_result_overrides": "rollout/config.py passes it to the tool results of a rollout",
    "turn_budget_chars": "rollout/config.py passes it to the tool results of a rollout",
    "dataset_split": "the environment's setup reads it",
    "prompt_field": "the environment's setup reads it",
}


@cache
def fields_read() -> frozenset[str]:
    return frozenset(
        node.attr
        for file in PACKAGE.rglob("*.py")
        if file not in DEFINITIONS
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Attribute)
        if isinstance(node.ctx, ast.Load)
        if HOLDERS.fullmatch(ast.unparse(node.value))
    )


@pytest.mark.parametrize("field", sorted({*HermesAgentEnvConfig.model_fields, *APIServerConfig.model_fields}))
def test_a_field_is_read(field: str) -> None:
    assert (field in fields_read()) != (field in READ_BY_NAME), READ_BY_NAME.get(field, "nothing reads it")
