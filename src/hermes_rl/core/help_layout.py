"""How the fields of a configuration section are shown in help."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class HelpLayout:
    """The headings with their fields, and the fields that are used often.

    Fields without a heading are the author's own: they come first and are always shown.
    """

    headings: Mapping[str, Collection[str]]
    common: Collection[str]
    flags: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Further flags of a field, by its name."""
