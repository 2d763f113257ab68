"""Parses YAML: a value of plain types, or BadYamlError, whatever the text.

PyYAML also raises errors of other kinds: ValueError for a date such as 2026-13-45 or a number of 5,000 digits, KeyError
for `!!bool x`, RecursionError for deep nesting, after seconds. Aliases are references there, so nine lines may stand
for a billion elements, or for a list that contains itself; both are refused.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from yaml.nodes import Node

MAX_ELEMENTS = 1_000_000
MAX_DEPTH = 100


class BadYamlError(ValueError):
    """The text is not YAML, or is larger than MAX_ELEMENTS with its aliases expanded."""


def loads(text: bytes | str) -> Any:
    # Imported here: the help of most commands does not need it.
    import yaml

    class Loader(yaml.SafeLoader):
        depth = 0

        def compose_node(self, parent: Any, index: Any) -> Any:
            self.depth += 1
            if self.depth > MAX_DEPTH:
                raise BadYamlError("nested too deeply")
            node = super().compose_node(parent, index)
            self.depth -= 1
            return node

    try:
        loader = Loader(text.decode() if isinstance(text, bytes) else text)
        try:
            node = loader.get_single_node()
            if node is None:
                return None
            if _elements(node, {}) > MAX_ELEMENTS:
                raise BadYamlError(f"more than {MAX_ELEMENTS:,} elements with its aliases expanded")
            return loader.construct_document(node)
        finally:
            loader.dispose()
    except UnicodeDecodeError as error:
        raise BadYamlError(f"not UTF-8: {error.reason} at byte {error.start}") from None
    except RecursionError:
        raise BadYamlError("nested too deeply") from None
    except (yaml.YAMLError, ValueError, OverflowError, LookupError, AttributeError, TypeError) as error:
        raise BadYamlError(str(error)) from None


def _elements(node: "Node", known: "dict[Node, int]") -> int:
    """The number of elements with aliases expanded; more than MAX_ELEMENTS for one that contains itself."""
    if node not in known:
        known[node] = MAX_ELEMENTS + 1
        parts = node.value if isinstance(node.value, list) else ()
        children = [child for part in parts for child in (part if isinstance(part, tuple) else (part,))]
        known[node] = 1 + sum(_elements(child, known) for child in children)
    return known[node]
