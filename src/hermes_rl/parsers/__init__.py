"""Tool-call text formats, a file each, and their registry. A new format is one file and one line here."""

from hermes_rl.errors import ConfigError
from hermes_rl.parsers.deepseek_v3 import DeepSeekV3Parser
from hermes_rl.parsers.deepseek_v3_1 import DeepSeekV31Parser
from hermes_rl.parsers.glm45 import Glm45Parser
from hermes_rl.parsers.glm47 import Glm47Parser
from hermes_rl.parsers.hermes import HermesParser
from hermes_rl.parsers.kimi_k2 import KimiK2Parser
from hermes_rl.parsers.llama3_json import Llama3JsonParser
from hermes_rl.parsers.llama4_json import Llama4JsonParser
from hermes_rl.parsers.longcat import LongcatParser
from hermes_rl.parsers.mistral import MistralParser
from hermes_rl.parsers.parser import BrokenCall, ParsedText, ToolCallParser
from hermes_rl.parsers.qwen import QwenParser
from hermes_rl.parsers.qwen3_coder import Qwen3CoderParser

PARSERS: dict[str, type[ToolCallParser]] = {
    parser.name: parser
    for parser in (
        DeepSeekV3Parser,
        DeepSeekV31Parser,
        Glm45Parser,
        Glm47Parser,
        HermesParser,
        KimiK2Parser,
        Llama3JsonParser,
        Llama4JsonParser,
        LongcatParser,
        MistralParser,
        QwenParser,
        Qwen3CoderParser,
    )
}
ALIASES = {"deepseek_v31": "deepseek_v3_1"}


def get_parser(name: str) -> ToolCallParser:
    """The parser of that name; ConfigError listing the known ones for any other."""
    parser = PARSERS.get(ALIASES.get(name, name))
    if parser is None:
        raise ConfigError(f"no tool-call parser is named {name!r}; known: {', '.join(list_parsers())}")
    return parser()


def list_parsers() -> list[str]:
    """Every name that `get_parser` knows, aliases too."""
    return sorted((*PARSERS, *ALIASES))


__all__ = ["ALIASES", "PARSERS", "BrokenCall", "ParsedText", "ToolCallParser", "get_parser", "list_parsers"]
