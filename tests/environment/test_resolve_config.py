"""CLI over YAML over config_init; what is unknown or wrong is named."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import Field

from hermes_rl import APIServerConfig, ConfigError, HermesAgentEnvConfig
from hermes_rl.console.config_options import ConfigSections, check_fields, parse_flag, read_sections
from hermes_rl.environment.resolve_config import config_defaults, resolve_settings
from hermes_rl.inference.config import ServerBaseline, ServerType
from hermes_rl.inference.reasoning import Reasoning
from tests.support.environments import FileEnv


class Config(HermesAgentEnvConfig):
    difficulty: str = Field(default="easy", description="How hard the tasks are.")


class ConfiguredEnv(FileEnv):
    env_config_cls = Config

    @classmethod
    def config_init(cls) -> tuple[Config, list[APIServerConfig]]:
        return Config(group_size=2, total_steps=2), [APIServerConfig(base_url="http://init/v1", model_name="init")]


def config_file(folder: Path, text: str) -> ConfigSections:
    path = folder / "config.yaml"
    path.write_text(text)
    return read_sections(path)


def test_the_command_line_goes_over_yaml_over_config_init(tmp_path: Path) -> None:
    config = config_file(tmp_path, "env: {total_steps: 3, seed: 3}\nopenai: {model_name: yaml, timeout: 3}\n")
    settings = resolve_settings(ConfiguredEnv, config, {"seed": "4", "difficulty": "hard"}, {"timeout": "4"})
    env, (endpoint,) = settings.env, settings.endpoints
    assert isinstance(env, Config)
    assert (env.group_size, env.total_steps, env.seed, env.difficulty) == (2, 3, 4, "hard")
    assert (endpoint.base_url, endpoint.model_name, endpoint.timeout) == ("http://init/v1", "yaml", 4)


def test_no_endpoint_anywhere_is_seen() -> None:
    assert not resolve_settings(FileEnv, ConfigSections(), {}, {}).has_endpoint
    assert not resolve_settings(FileEnv, ConfigSections(), {}, {"model_name": "m"}).has_endpoint
    assert resolve_settings(FileEnv, ConfigSections(), {}, {"base_url": "http://x/v1"}).has_endpoint


def test_several_endpoints_from_yaml_refuse_flags(tmp_path: Path) -> None:
    config = config_file(tmp_path, "openai:\n- {base_url: 'http://a/v1'}\n- {base_url: 'http://b/v1'}\n")
    assert [one.base_url for one in resolve_settings(FileEnv, config, {}, {}).endpoints] == [
        "http://a/v1",
        "http://b/v1",
    ]
    with pytest.raises(ConfigError, match="lists 2 endpoints"):
        resolve_settings(FileEnv, config, {}, {"model_name": "m"})


class BaselineEnv(FileEnv):
    @classmethod
    def config_init(cls) -> tuple[HermesAgentEnvConfig, Any]:
        return HermesAgentEnvConfig(), ServerBaseline(model_name="shared", timeout=7, server_type=ServerType.VLLM)


def test_a_server_baseline_holds_for_every_endpoint_given_elsewhere(tmp_path: Path) -> None:
    assert not resolve_settings(BaselineEnv, ConfigSections(), {}, {}).has_endpoint
    given = {"base_url": "http://x/v1", "model_name": "mine"}
    [endpoint] = resolve_settings(BaselineEnv, ConfigSections(), {}, given).endpoints
    assert (endpoint.model_name, endpoint.timeout, endpoint.server_type) == ("mine", 7, "vllm")
    config = config_file(tmp_path, "openai:\n- {base_url: 'http://a/v1'}\n- {base_url: 'http://b/v1', timeout: 8}\n")
    both = resolve_settings(BaselineEnv, config, {}, {}).endpoints
    assert [(one.model_name, one.timeout) for one in both] == [("shared", 7), ("shared", 8)]


def test_an_environment_is_not_made_on_a_baseline_alone() -> None:
    with pytest.raises(ConfigError, match=r"pass --openai\.base_url"):
        FileEnv(HermesAgentEnvConfig(), ServerBaseline())


@pytest.mark.parametrize(("flag", "instead"), [("slurm", "--env.engines_file"), ("testing", "hermes-rl validate")])
def test_endpoints_that_atropos_would_choose_are_refused(tmp_path: Path, flag: str, instead: str) -> None:
    with pytest.raises(ConfigError, match=instead):
        FileEnv(HermesAgentEnvConfig(), [APIServerConfig(base_url="http://x/v1")], **{flag: True})
    with pytest.raises(ConfigError, match=instead):
        config_file(tmp_path, f"env: {{seed: 3}}\n{flag}: true\n")
    assert config_file(tmp_path, f"env: {{seed: 3}}\n{flag}: false\n").values == {"env": {"seed": 3}}


def test_the_thinking_prompt_comes_before_the_system_prompt() -> None:
    config = HermesAgentEnvConfig(thinking_mode=True, custom_thinking_prompt="Think.", system_prompt="Be brief.")
    env = FileEnv(config, [APIServerConfig(base_url="http://x/v1")])
    assert env.initial_messages({"number": 1})[0] == {"role": "system", "content": "Think.\n\nBe brief."}


def test_a_thinking_prompt_without_thinking_mode_is_refused() -> None:
    with pytest.raises(ConfigError, match="custom_thinking_prompt needs thinking_mode"):
        resolve_settings(FileEnv, ConfigSections(), {"custom_thinking_prompt": "Think."}, {})
    resolve_settings(FileEnv, ConfigSections(), {"custom_thinking_prompt": "x", "reasoning_effort": "low"}, {})


def test_an_unknown_effort_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"--env\.reasoning_effort.*'xhigh', got 'huge'"):
        resolve_settings(FileEnv, ConfigSections(), {"reasoning_effort": "huge"}, {})


@pytest.mark.parametrize(
    ("settings", "reasoning"),
    [
        ({}, None),
        ({"thinking_mode": True}, Reasoning()),
        ({"reasoning_effort": "low"}, Reasoning("low")),
        ({"max_reasoning_tokens": 2000}, Reasoning(None, 2000)),
    ],
)
def test_an_environments_server_asks_for_the_configured_reasoning(
    settings: dict[str, Any], reasoning: Reasoning | None
) -> None:
    env = FileEnv(HermesAgentEnvConfig(**settings), [APIServerConfig(base_url="http://x/v1")])
    assert env.server.reasoning == reasoning


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("openai: {base_ulr: x}", r"did you mean: base_ulr → base_url"),
        ("environment: {}", r"may only have the sections env, openai, tinker"),
        ("env: [", r"not valid YAML"),
        ("env: {group_size: 0}", r"--env.group_size: Input should be greater than or equal to 1, got 0"),
    ],
)
def test_a_wrong_file_is_refused_with_the_place(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        resolve_settings(FileEnv, config_file(tmp_path, text), {}, {})


def test_unknown_fields_of_a_file_are_named_together_in_three_lines(tmp_path: Path) -> None:
    config = config_file(tmp_path, "env: {grop_size: 3, max_turns: 2, zzz: 1}")
    with pytest.raises(ConfigError) as refused:
        resolve_settings(FileEnv, config, {}, {})
    assert str(refused.value).splitlines() == [
        f"{tmp_path}/config.yaml, section env: unknown fields grop_size, max_turns, zzz",
        "did you mean: grop_size → group_size; max_turns → max_agent_turns",
        "all fields: the same command with --help",
    ]


def init_line(environment: type[FileEnv]) -> str:
    return f"test_resolve_config.py:{environment.config_init.__func__.__code__.co_firstlineno + 2}"  # type: ignore[attr-defined]


def test_unknown_fields_in_config_init_are_named_with_the_line_in_three_lines() -> None:
    class Misspelt(ConfiguredEnv):
        @classmethod
        def config_init(cls) -> tuple[Config, list[APIServerConfig]]:
            return Config(group_sise=2, dificulty="hard"), []  # type: ignore[call-arg]

    with pytest.raises(ConfigError) as refused:
        config_defaults(Misspelt)
    assert str(refused.value).splitlines() == [
        f"config_init of Misspelt at {init_line(Misspelt)}: unknown fields group_sise, dificulty",
        "did you mean: group_sise → group_size; dificulty → difficulty",
        "all fields: hermes-rl env show terminal_test --all",
    ]


def test_unknown_fields_of_an_endpoint_in_config_init_are_compared_with_its_own() -> None:
    class Misspelt(FileEnv):
        @classmethod
        def config_init(cls) -> tuple[Config, list[APIServerConfig]]:
            return Config(), [APIServerConfig(base_ulr="http://x/v1")]  # type: ignore[call-arg]

    with pytest.raises(ConfigError, match="did you mean: base_ulr → base_url"):
        config_defaults(Misspelt)


def test_a_field_like_no_other_has_no_suggestion() -> None:
    with pytest.raises(ConfigError) as refused:
        check_fields({"zzz": 1}, Config, "x.yaml")
    assert str(refused.value).splitlines()[:2] == ["x.yaml: unknown field zzz", "no field has a similar name"]


def test_a_wrong_value_in_config_init_is_named_with_the_line() -> None:
    class Empty(FileEnv):
        @classmethod
        def config_init(cls) -> tuple[Config, list[APIServerConfig]]:
            return Config(group_size=0), []

    with pytest.raises(ConfigError) as refused:
        config_defaults(Empty)
    expected = (
        f"config_init of Empty at {init_line(Empty)}: group_size: Input should be greater than or equal to 1, got 0"
    )
    assert str(refused.value) == expected


def test_an_error_in_config_init_is_named_with_the_line() -> None:
    class Broken(FileEnv):
        @classmethod
        def config_init(cls) -> tuple[Config, list[APIServerConfig]]:
            raise KeyError("HOME_OF_DATA")

    with pytest.raises(ConfigError) as refused:
        config_defaults(Broken)
    assert str(refused.value) == f"config_init of Broken raised KeyError at {init_line(Broken)}: 'HOME_OF_DATA'"


@pytest.mark.parametrize("name", ["hermess", "no_such_module:Parser"])
def test_an_unknown_parser_is_refused_before_anything_is_opened(name: str) -> None:
    endpoint = APIServerConfig(base_url="http://127.0.0.1:9/v1")
    with pytest.raises(ConfigError, match=f"tool-call parser .*{name}"):
        FileEnv(Config(tool_call_parser=name), [endpoint])


def test_a_wrong_flag_names_itself_and_its_value() -> None:
    with pytest.raises(ConfigError, match=r"--env.group_size.*got 'many'"):
        resolve_settings(FileEnv, ConfigSections(), {"group_size": "many"}, {})


def test_a_wrong_key_is_refused_without_showing_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--openai.api_key") as refused:
        resolve_settings(
            FileEnv, config_file(tmp_path, "openai: {base_url: 'http://x/v1', api_key: 123456789}"), {}, {}
        )
    assert "123456789" not in str(refused.value)


def test_a_wrong_token_of_the_api_is_refused_without_showing_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--env.rollout_server_token") as refused:
        resolve_settings(FileEnv, config_file(tmp_path, "env: {rollout_server_token: 123456789}"), {}, {})
    assert "123456789" not in str(refused.value)


def test_two_ways_to_choose_tools_exclude_each_other() -> None:
    with pytest.raises(ConfigError, match="mutually exclusive"):
        resolve_settings(FileEnv, ConfigSections(), {"enabled_toolsets": "file", "distribution": "default"}, {})


@pytest.mark.parametrize(
    ("annotation", "text", "value"),
    [
        (bool, "false", False),
        (int, "7", 7),
        (str, "007", "007"),
        (str | None, "none", None),
        (str | None, "true", "true"),
        (list[str] | None, "terminal,file", ["terminal", "file"]),
        (list[str] | None, "[terminal, file]", ["terminal", "file"]),
        (list[str] | None, "terminal", ["terminal"]),
        (dict[str, Any] | None, '{"provider": {"order": ["x"]}}', {"provider": {"order": ["x"]}}),
        (float | None, "null", None),
    ],
)
def test_flags_are_read_by_the_type_of_their_field(annotation: Any, text: str, value: Any) -> None:
    assert parse_flag(annotation, text) == value


def test_the_configuration_has_every_field_of_the_seeds_with_its_default() -> None:
    config = HermesAgentEnvConfig()
    atropos = {
        "group_size": 4, "max_num_workers": -1, "max_eval_workers": 16, "max_num_workers_per_node": 8,
        "steps_per_eval": 100, "max_token_length": 2048, "eval_limit_ratio": 0.5, "inference_weight": 1.0,
        "batch_size": -1, "max_batches_offpolicy": 3, "use_wandb": True,
        "tokenizer_name": "NousResearch/DeepHermes-3-Llama-3-3B-Preview",
        "rollout_server_url": "http://localhost:8000", "total_steps": 1000, "wandb_name": None,
        "num_rollouts_to_keep": 32, "num_rollouts_per_group_for_logging": 1, "ensure_scores_are_not_same": True,
        "data_path_to_save_groups": None, "data_dir_to_save_evals": None, "min_items_sent_before_logging": 2,
        "include_messages": False, "min_batch_allocation": None, "worker_timeout": 600, "thinking_mode": False,
        "reasoning_effort": None, "max_reasoning_tokens": None, "custom_thinking_prompt": None,
    }  # fmt: skip
    seed = {
        "enabled_toolsets": None, "disabled_toolsets": None, "distribution": None, "max_agent_turns": 30,
        "system_prompt": None, "agent_temperature": 1.0, "terminal_backend": "auto", "terminal_timeout": 120,
        "terminal_lifetime": 3600, "dataset_name": None, "dataset_split": "train", "prompt_field": "prompt",
        "tool_pool_size": 128, "tool_call_parser": "hermes", "extra_body": None,
    }  # fmt: skip
    assert {name: getattr(config, name) for name in (*atropos, *seed)} == {**atropos, **seed}
    assert config.eval_handling.value == "STOP_TRAIN"
