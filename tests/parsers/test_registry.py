import pytest

from hermes_rl.errors import ConfigError
from hermes_rl.parsers import get_parser, list_parsers


def test_every_listed_parser_can_be_had_by_its_name() -> None:
    assert [get_parser(name).name for name in list_parsers()] == list_parsers()


def test_an_unknown_parser_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="'hermez'; known: hermes"):
        get_parser("hermez")
