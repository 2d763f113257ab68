"""The extra `browser`: a real Chromium opens a page and clicks, as the toolset does for an agent."""

import asyncio
import json
import re
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from hermes_rl.sandbox.backends.local import LocalBackend
from hermes_rl.sandbox.pool import SandboxPool
from hermes_rl.tools.host import ToolHost
from hermes_rl.tools.registry import open_toolsets

PAGE = b"<title>Smoke</title><button onclick=\"document.title='Clicked'\">Press</button>"


class Page(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(PAGE)

    def log_message(self, *_: object) -> None:
        """A request is nobody's news."""


def main(_given: dict[str, Any]) -> str:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Page)
    threading.Thread(target=server.serve_forever, args=[0.05], daemon=True).start()
    return asyncio.run(browsed(f"http://127.0.0.1:{server.server_port}/"))


async def browsed(url: str) -> str:
    async with open_toolsets(["browser"], {"browser": {"timeout": 60}}) as toolsets:
        host = ToolHost({}, SandboxPool(LocalBackend()), calls_in_flight=1, terminal_timeout=5, toolsets=toolsets)
        try:
            with host.running():
                session = host.session("smoke")
                told = json.loads((await session.call("browser_navigate", {"url": url})).text)
                assert told["title"] == "Smoke", told
                seen = json.loads((await session.call("browser_snapshot", {})).text)["snapshot"]
                (ref,) = re.findall(r'button "Press" \[ref=(e\d+)\]', seen)
                await session.call("browser_click", {"ref": ref})
                after = json.loads((await session.call("browser_snapshot", {})).text)
                assert after["title"] == "Clicked", after
        finally:
            await host.close()
    return "a page opened and a button pressed in Chromium"


if __name__ == "__main__":
    print(main(json.loads(sys.argv[1])))
