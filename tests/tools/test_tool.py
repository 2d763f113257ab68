from typing import Any, Literal

import pytest
from pydantic import BaseModel

from hermes_rl.tools.registry import all_tools
from hermes_rl.tools.session import ToolSession
from hermes_rl.tools.tool import Tool, ToolUseError, tool


class Point(BaseModel):
    x: int
    y: int = 0


@tool
async def sample(
    session: ToolSession,
    title: str,
    count: int = 3,
    mode: Literal["fast", "slow"] = "fast",
    place: Point | None = None,
    bare: bool = False,
) -> str:
    """Do a thing.

    Do it
    well.

    Args:
        title: What it is called,
            told over two lines.
        count: How often.
        mode: fast or slow.
        place: Where: a point.

    Returns:
        bare: not a description of the parameter.
    """
    return f"{title} {count} {mode} {place} {bare}"


PARAMETERS = sample.schema["function"]["parameters"]
PROPERTIES = PARAMETERS["properties"]


def titles(schema: Any) -> list[str]:
    if isinstance(schema, dict):
        own = [schema["title"]] if isinstance(schema.get("title"), str) else []
        return own + [title for value in schema.values() for title in titles(value)]
    return [title for value in schema for title in titles(value)] if isinstance(schema, list) else []


def refusal(**arguments: Any) -> str:
    with pytest.raises(ToolUseError) as caught:
        sample.check(arguments)
    return str(caught.value)


def test_a_schema_is_in_openais_form() -> None:
    assert (sample.schema["type"], sample.schema["function"]["name"]) == ("function", "sample")


def test_the_description_is_the_docstring_without_its_sections() -> None:
    assert sample.description == "Do a thing. Do it well."


def test_each_parameter_has_its_description() -> None:
    assert PROPERTIES["title"]["description"] == "What it is called, told over two lines."
    assert PROPERTIES["place"]["description"] == "Where: a point."


def test_another_section_describes_no_parameter() -> None:
    assert "description" not in PROPERTIES["bare"]


def test_types_come_from_the_hints() -> None:
    assert [PROPERTIES[name]["type"] for name in ("title", "count", "bare")] == ["string", "integer", "boolean"]


def test_what_has_a_default_is_not_required_and_shows_it() -> None:
    assert PARAMETERS["required"] == ["title"]
    assert PROPERTIES["count"]["default"] == 3


def test_a_literal_is_an_enum() -> None:
    assert PROPERTIES["mode"]["enum"] == ["fast", "slow"]


def test_the_session_is_not_shown_to_the_model() -> None:
    assert list(PROPERTIES) == ["title", "count", "mode", "place", "bare"]


def test_no_titles_are_shown_and_a_parameter_named_title_stays() -> None:
    assert titles(sample.schema) == []
    assert PROPERTIES["title"]["type"] == "string"


@pytest.mark.parametrize("one", all_tools().values(), ids=lambda one: one.name)
def test_every_tool_describes_itself_and_each_parameter(one: Tool) -> None:
    function = one.schema["function"]
    assert function["description"]
    assert [name for name, field in function["parameters"]["properties"].items() if not field.get("description")] == []


def test_arguments_are_given_their_types_and_defaults() -> None:
    assert sample.check({"title": "t", "count": "5", "place": {"x": 1}}) == {
        "title": "t",
        "count": 5,
        "mode": "fast",
        "place": Point(x=1),
        "bare": False,
    }


def test_a_missing_argument_is_named() -> None:
    assert "title: Field required" in refusal()


def test_each_wrong_argument_is_named() -> None:
    text = refusal(title=3, count="many", mode="odd", place={"x": "left"})
    assert [name for name in ("title:", "count:", "mode:", "place.x:") if name not in text] == []


def test_an_unknown_argument_is_named_beside_the_known_ones() -> None:
    text = refusal(title="t", titel="t")
    assert "titel: Extra inputs are not permitted" in text
    assert text.endswith("Its parameters: title, count, mode, place, bare")


def test_a_wrong_choice_lists_the_right_ones() -> None:
    assert "'fast' or 'slow'" in refusal(title="t", mode="odd")
