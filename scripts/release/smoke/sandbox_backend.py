"""The extras `docker`, `ssh`, `modal` and `daytona`: a file and a command in a sandbox of that backend."""

import asyncio
import json
import sys
from typing import Any

from hermes_rl.sandbox.backends.registry import make_backend


def main(given: dict[str, Any]) -> str:
    return asyncio.run(used(given["extra"], given["settings"]))


async def used(name: str, settings: dict[str, Any]) -> str:
    backend = make_backend(name, settings)
    try:
        async with await backend.start() as sandbox:
            await sandbox.write("words.txt", b"one two three")
            done = await sandbox.exec("wc -w < words.txt", timeout=60)
            assert (done.exit_code, done.stdout.strip()) == (0, b"3"), done
    finally:
        await backend.close()
    return "a file and a command in a sandbox"


if __name__ == "__main__":
    print(main(json.loads(sys.argv[1])))
