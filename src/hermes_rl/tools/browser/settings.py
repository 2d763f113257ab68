"""The `browser` toolset's settings, and what they mean for Chromium's command line."""

import re

from pydantic import Field, field_validator

from hermes_rl.tools.toolset import ToolsetSettings

HOST = re.compile(r"(\*\.)?[A-Za-z0-9_.-]+|\[[0-9a-fA-F:.]+\]")
# Chromium speaks to its maker at every start otherwise; a page's traffic is all that should leave the machine.
QUIET = (
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


class BrowserSettings(ToolsetSettings):
    executable: str | None = Field(
        None, description="Path of Chromium; looked for as chromium, chromium-browser, google-chrome when left out."
    )
    headless: bool = Field(True, description="Without a window; false shows one, on a machine with a screen.")
    timeout: float = Field(30, gt=0, description="Seconds a page may take to load, and any other call to answer.")
    viewport: tuple[int, int] = Field((1280, 720), description="Width and height of the page in pixels.")
    allowed_hosts: list[str] | None = Field(
        None, description="Hosts that may be reached: example.com, *.example.com, 127.0.0.1; any when left out."
    )
    chromium_sandbox: bool | None = Field(
        None, description="Chromium's own sandbox around pages; on unless we run as root, where it cannot start."
    )

    @field_validator("viewport")
    @classmethod
    def _is_a_size(cls, value: tuple[int, int]) -> tuple[int, int]:
        if not all(100 <= side <= 10_000 for side in value):
            raise ValueError("width and height are from 100 to 10000 pixels")
        return value

    @field_validator("allowed_hosts")
    @classmethod
    def _are_hosts(cls, value: list[str] | None) -> list[str] | None:
        for host in value or []:
            if not HOST.fullmatch(host):
                raise ValueError(f"{host!r} is no host; give a name or an address, without scheme and port")
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
        """What Chromium is started with besides Playwright's own.

        Other hosts are made unknown to Chromium's resolver. Intercepting requests, the usual way, would leave out
        redirects, web sockets and service workers.
        """
        if self.allowed_hosts is None:
            return list(QUIET)
        rules = ", ".join(["MAP * ~NOTFOUND", *(f"EXCLUDE {host}" for host in self.allowed_hosts)])
        return [*QUIET, f"--host-resolver-rules={rules}"]
