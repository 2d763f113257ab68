"""A small site to browse on loopback, and a model that finds its way through it by what it is shown."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from tests.support.scripted_model import Calls, Reply, Text

# One pixel, so that the page has an image with a size.
PIXEL = "data:image/gif;base64,R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7"
PAGES = {
    "/": """<title>Home</title><h1>Welcome</h1><a href="/form">To the form</a>
        <a href="/tab" target="_blank">New tab</a> <a href="/cave">To the cave</a>
        <a href="/elsewhere">Elsewhere</a>""",
    "/form": """<title>Form</title><form action="/greeting"><label>Name <input name="name"></label>
        <label>Colour <select name="colour"><option>red</option><option>green</option></select></label>
        <label><input type="checkbox" name="agreed"> I agree</label><button>Send</button></form>""",
    "/tab": "<title>Tab</title><button onclick='window.close()'>Close me</button>",
    "/many": "<title>Many</title><button onclick=\"for (let i = 0; i < 20; i++) open('/tab')\">Open twenty</button>",
    "/script": """<title>Script</title><button id="b">Make</button><div id="out"></div><script>
        console.log("page ready"); console.warn("careful");
        document.getElementById("b").onclick = () => setTimeout(() => {
            document.getElementById("out").innerHTML = "<p>made by script</p><button>Made button</button>"}, 50);
        setTimeout(() => { throw new Error("broken on purpose") }, 10)</script>""",
    "/moving": """<title>Moving</title><button onclick="this.remove()">Remove me</button>
        <button onclick="setTimeout(() => { location.href = '/' }, 50)">Go home</button>
        <a href="/slow">Slow page</a> <a href="/late">Late page</a>""",
    "/images": f'<title>Images</title><img src="{PIXEL}" alt="a dot"><img src="/missing.png" alt="not there">',
    "/long": """<title>Long</title><div id="all"></div><script>
        for (let i = 0; i < 100; i++) all.insertAdjacentHTML("beforeend", `<p style="height:40px">line ${i}</p>`);
        onscroll = () => { if (!window.more) { window.more = 1; all.insertAdjacentHTML("beforeend", "<p>more</p>") } }
        </script>""",
    "/huge": "<title>Huge</title>" + "".join(f"<p>paragraph number {number} of many</p>" for number in range(2000)),
    "/hang": "<title>Hang</title><button onclick='for (;;) {}'>Hang</button>",
    "/covered": """<title>Covered</title><button>Under</button>
        <div style="position:fixed;inset:0;background:white">cover</div>""",
    "/frame": "<title>Frame</title><iframe srcdoc='<button onclick=parent.document.title=1>Inner</button>'></iframe>",
    "/hostile": """<title>Hostile</title><div id="all"></div><script>
        const target = new URLSearchParams(location.search).get("target"), http = `http://${target}`;
        all.innerHTML = `<img src="${http}/image"><iframe src="${http}/frame"></iframe>`;
        const quiet = { mode: "no-cors" };
        fetch(`${http}/fetch`, quiet).catch(() => 0);
        new WebSocket(`ws://${target}/socket`);
        new EventSource(`${http}/events`);
        navigator.sendBeacon(`${http}/beacon`, "x");
        new Worker(URL.createObjectURL(new Blob([`fetch("${http}/worker", { mode: "no-cors" })`])));
        navigator.serviceWorker.register("/service-worker.js?" + target);
        const peer = new RTCPeerConnection({ iceServers: [{ urls: `stun:${target}` }] });
        peer.createDataChannel("x");
        peer.createOffer().then(offer => peer.setLocalDescription(offer));
        </script>""",
    "/cave": "<title>Cave</title><p>It is dark.</p><a href='/cave/deeper'>Deeper</a>",
    "/cave/deeper": '<title>Deeper</title><label>Password <input></label><button onclick="'
    "document.querySelector('input').value === 'sesame' && (document.body.innerText = 'You found the treasure')\""
    ">Open</button>",
}


class Site:
    """The pages, a counter kept in a cookie, and a redirect to another host."""

    def __init__(self) -> None:
        self.url = ""

    async def serve(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.path in PAGES:
            return web.Response(text=PAGES[request.path], content_type="text/html")
        if request.path == "/greeting":
            told = ", ".join(f"{name}={value}" for name, value in request.query.items())
            return web.Response(text=f"<title>Greeting</title><p>Got {told}</p>", content_type="text/html")
        if request.path == "/cookie":
            visits = int(request.cookies.get("visits", "0")) + 1
            response = web.Response(text=f"<title>Visit {visits}</title>", content_type="text/html")
            response.set_cookie("visits", str(visits))
            return response
        if request.path == "/service-worker.js":
            script = f'fetch("http://{request.query_string}/service-worker", {{ mode: "no-cors" }}).catch(() => 0)'
            return web.Response(text=script, content_type="text/javascript")
        if request.path == "/redirect":
            raise web.HTTPFound(f"http://{request.query_string}/redirected")
        if request.path == "/elsewhere":
            raise web.HTTPFound(self.url.replace("127.0.0.1", "localhost"))
        if request.path == "/late":
            await asyncio.sleep(1)
            return web.Response(text="<title>Late</title>", content_type="text/html")
        if request.path == "/slow":
            await asyncio.sleep(30)
        raise web.HTTPNotFound(text="no such page")

    @asynccontextmanager
    async def served(self) -> AsyncIterator["Site"]:
        runner = web.ServerRunner(web.Server(self.serve), shutdown_timeout=0.1)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
            yield self
        finally:
            await runner.cleanup()


def ref_in(snapshot: str, what: str) -> str:
    line = next(line for line in snapshot.splitlines() if what in line)
    found = re.search(r"\[ref=(\w+)\]", line)
    assert found, line
    return found[1]


def explorer(site: str) -> Callable[[dict[str, Any]], Reply]:
    """A model that finds its way by what it is shown: it clicks what the snapshot names."""

    def reply(body: dict[str, Any]) -> Reply:
        told = [message for message in body["messages"] if message["role"] == "tool"]
        seen = json.loads(told[-1]["content"]).get("snapshot", "") if told else ""
        if len(told) in (1, 3, 5, 8):
            return call("snapshot")
        steps = {
            0: lambda: call("navigate", url=f"{site}/"),
            2: lambda: call("click", ref=ref_in(seen, "To the cave")),
            4: lambda: call("click", ref=ref_in(seen, "Deeper")),
            6: lambda: call("type", ref=ref_in(seen, 'textbox "Password"'), text="sesame"),
            7: lambda: call("click", ref=ref_in(json.loads(told[5]["content"])["snapshot"], "Open")),
        }
        if len(told) in steps:
            return steps[len(told)]()
        return Text("Found it." if "treasure" in seen else "Nothing here.")

    return reply


def call(name: str, **arguments: Any) -> Calls:
    return Calls([(f"browser_{name}", json.dumps(arguments))])
