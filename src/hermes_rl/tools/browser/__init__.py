"""The `browser` toolset: a real Chromium, one for an environment, with a private context for each rollout."""

from hermes_rl.tools.browser.settings import BrowserSettings
from hermes_rl.tools.browser.toolset import BROWSER

__all__ = ["BROWSER", "BrowserSettings"]
