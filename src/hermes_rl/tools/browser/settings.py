"""The `browser` toolset's settings and Chromium's command line."""

import re

from pydantic import Field, field_validator

from hermes_rl.tools.toolset import ToolsetSettings

HOST = re.compile(r"(\*\.)?[A-Za-z0-9_.-]+|\[[0-9a-fA-F:.]+\]")
# Without these Chromium contacts Google at every start; only page traffic should leave the machine.
QUIET_FLAGS = (
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


class BrowserSettings(ToolsetSettings):
    executable: str | None = Field(
        default=None, description="Path of Chromium. Default: chromium, chromium-browser or google-chrome on PATH."
    )
    headless: bool = Field(default=True, description="Run without a window; false needs a display.")
    timeout: float = Field(default=30, gt=0, description="Timeout of a page load, and of any other call, in seconds.")
    viewport: tuple[int, int] = Field(default=(1280, 720), description="Width and height of the page in pixels.")
    allowed_hosts: list[str] | None = Field(
        default=None, description="Allowed hosts: example.com, *.example.com, 127.0.0.1. Default: any."
    )
    chromium_sandbox: bool | None = Field(
        default=None, description="Chromium's own sandbox. Default: on, except as root, where it cannot start."
    )

    @field_validator("viewport")
    @classmethod
    def _check_viewport(cls, value: tuple[int, int]) -> tuple[int, int]:
        if not all(100 <= side <= 10_000 for side in value):
            raise ValueError("width and height must be from 100 to 10000 pixels")
        return value

    @field_validator("allowed_hosts")
    @classmethod
    def _check_hosts(cls, value: list[str] | None) -> list[str] | None:
        for host in value or []:
            if not HOST.fullmatch(host):
                raise ValueError(f"{host!r} is not a host; give a name or an address, without scheme and port")
        return value

    def allows(self, host: str) -> bool:
        if self.allowed_hosts is None:
            return True
        host = host.lower()
        return any(
            host.endswith(allowed[1:].lower()) if allowed.startswith("*.") else host == allowed.strip("[]").lower()
            for allowed in self.allowed_hosts
        )

    def arguments(self) -> list[str]:
        """Chromium's arguments in addition to Playwright's.

        Hosts that are not allowed fail in Chromium's resolver. Intercepting requests, the usual way, would miss
        redirects, web sockets and service workers.
        """
        if self.allowed_hosts is None:
            return list(QUIET_FLAGS)
        rules = ", ".join(["MAP * ~NOTFOUND", *(f"EXCLUDE {host}" for host in self.allowed_hosts)])
        return [*QUIET_FLAGS, f"--host-resolver-rules={rules}"]
