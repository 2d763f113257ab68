"""verifiers' own evaluation of tasksets against one endpoint; run in the environment of verifiers 0.4.0.

    python own_v1.py ENDPOINT OUTPUT PACKAGE…

Writes OUTPUT/PACKAGE/**/traces.jsonl.
"""

import sys
from pathlib import Path

from verifiers.v1.cli.eval.main import main

endpoint, output, *packages = sys.argv[1:]
for package in packages:
    options = {
        "--client.base-url": endpoint,
        "--client.api-key-var": "OPENAI_API_KEY",
        "--env.agent.harness.id": "null",
        "--env.agent.runtime.type": "subprocess",
        "-o": str(Path(output, package)),
    }
    arguments = [package, "-m", "recorded", "--no-push", *(word for pair in options.items() for word in pair)]
    sys.argv = ["vf-eval", *arguments]
    try:
        main()
    except SystemExit as ended:
        if ended.code:
            raise
