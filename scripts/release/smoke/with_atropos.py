"""The extra `atropos`: a bundled environment as a real subclass of atroposlib's BaseEnv."""

import json
import sys
from importlib import import_module
from typing import Any

from hermes_rl.environment.atropos_adapter.adapter import atropos_environment


def main(_given: dict[str, Any]) -> str:
    from atroposlib.envs.base import BaseEnv

    # Only in an installation.
    bundled = import_module("hermes_rl.bundled.terminal_test_env")
    adapted = atropos_environment(bundled.TerminalTestEnv)
    assert issubclass(adapted, BaseEnv)
    config, servers = adapted.config_init()
    assert config.group_size > 0 and isinstance(servers, list)
    return f"{adapted.__name__} is a BaseEnv with {len(adapted.env_config_cls.model_fields)} settings"


if __name__ == "__main__":
    print(main(json.loads(sys.argv[1])))
