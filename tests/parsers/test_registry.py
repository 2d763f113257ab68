import pytest

from hermes_rl.core.errors import ConfigError
from hermes_rl.extensions import PARSERS
from hermes_rl.parsers import get_parser, list_parsers


def test_every_listed_parser_can_be_had_by_its_name() -> None:
    for name in list_parsers():
        assert get_parser(name).name == PARSERS.aliases.get(name, name)


def test_an_alias_gives_the_parser_it_stands_for() -> None:
    assert get_parser("deepseek_v31").name == "deepseek_v3_1"


def test_the_formats_of_the_seed_are_there() -> None:
    formats = "hermes qwen longcat mistral llama3_json llama4_json qwen3_coder kimi_k2 glm45 glm47"
    assert list_parsers() == sorted([*formats.split(), "deepseek_v3", "deepseek_v3_1", "deepseek_v31"])


def test_an_unknown_parser_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"'hermez': choose one of .*hermes, kimi_k2"):
        get_parser("hermez")
