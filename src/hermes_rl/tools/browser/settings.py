"""The `browser` toolset's settings and Chromium's command line."""

import re

from pydantic import Field, field_validator

from hermes_rl.tools.network_policy import ALLOW_PRIVATE, AllowPrivate, NetworkPolicy
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
# All traffic goes through our proxy, which applies the network policy: `<-loopback>` takes away Chromium's exception
# for loopback, names are resolved only by the proxy, and WebRTC sends nothing past it.
PROXY_FLAGS = (
    "--proxy-bypass-list=<-loopback>",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
    "--force-webrtc-ip-handling-policy=disable_non_proxied_udp",
    "--webrtc-ip-handling-policy=disable_non_proxied_udp",
)


class BrowserSettings(ToolsetSettings):
    executable: str | None = Field(
        default=None, description="Path of Chromium. Default: chromium, chromium-browser or google-chrome on PATH."
    )
    headless: bool = Field(default=True, description="Run without a window; false needs a display.")
    timeout: float = Field(default=30, gt=0, description="Timeout of a page load, and of any other call, in seconds.")
    viewport: tuple[int, int] = Field(default=(1280, 720), description="Width and height of the page in pixels.")
    allowed_hosts: list[str] | None = Field(
        default=None, description="Allowed hosts: example.com, *.example.com, 127.0.0.1. Default: any public host."
    )
    allow_private: AllowPrivate = Field(default=False, description=ALLOW_PRIVATE)
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

    def policy(self) -> NetworkPolicy:
        return NetworkPolicy.from_settings(self.allow_private, self.allowed_hosts)

    def arguments(self, proxy_url: str) -> list[str]:
        """Chromium's arguments in addition to Playwright's."""
        return [*QUIET_FLAGS, *PROXY_FLAGS, f"--proxy-server={proxy_url}"]
