from enum import StrEnum
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

from hermes_rl.core.config_schema import describe_model


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


class Sample(BaseModel):
    count: int = Field(default=1, ge=1, lt=10)
    share: float | None = Field(default=None, gt=0, le=1)
    nested: Annotated[int, Field(ge=5)] | None = None
    flag: bool = False
    word: str = ""
    colour: Colour = Colour.RED
    way: Literal["a", "b"] | None = None
    words: list[str] = Field(default_factory=list)
    ways: list[Literal["a", "b"]] = Field(default_factory=list)
    table: dict[str, int] = Field(default_factory=dict)
    either: int | str = 0
    odd: Any = None


@pytest.mark.parametrize(
    ("name", "type_", "allowed"),
    [
        ("count", "int", "a whole number from 1 below 10"),
        ("share", "float or null", "a number above 0 to 1, or null"),
        ("nested", "int or null", "a whole number from 5, or null"),
        ("flag", "bool", "true or false"),
        ("word", "str", "text"),
        ("colour", "str", "one of red, blue"),
        ("way", "str or null", "one of a, b, or null"),
        ("words", "list", "a list of text"),
        ("ways", "list", "a list of (a, b)"),
        ("table", "dict", "an object (as JSON)"),
        ("either", "int or str", "a whole number, or text"),
        ("odd", "any", "any value"),
    ],
)
def test_what_a_field_takes_is_said_in_words(name: str, type_: str, allowed: str) -> None:
    facts = describe_model(Sample)[name]
    assert (facts.type, facts.allowed) == (type_, allowed)
