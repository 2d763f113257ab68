"""The `web` toolset: searching with one of five providers, and reading the pages found."""

from hermes_rl.tools.web.provider import SearchHit, SearchProvider
from hermes_rl.tools.web.toolset import WEB, WebSettings

__all__ = ["WEB", "SearchHit", "SearchProvider", "WebSettings"]
