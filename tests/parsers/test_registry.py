import pytest

from hermes_rl.core.errors import ConfigError
from hermes_rl.extensions import PARSERS
from hermes_rl.parsers import get_parser, list_parsers


def test_every_listed_parser_is_found_by_name() -> None:
    for name in list_parsers():
        assert get_parser(name).name == PARSERS.aliases.get(name, name)


def test_an_alias_gives_its_parser() -> None:
    assert get_parser("deepseek_v31").name == "deepseek_v3_1"


def test_all_formats_of_the_seed_are_listed() -> None:
    formats = "hermes qwen longcat mistral llama3_json llama4_json qwen3_coder kimi_k2 glm45 glm47"
    assert list_parsers() == sorted([*formats.split(), "deepseek_v3", "deepseek_v3_1", "deepseek_v31"])


def test_the_error_for_an_unknown_parser_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"'hermez': choose one of .*hermes, kimi_k2"):
        get_parser("hermez")
