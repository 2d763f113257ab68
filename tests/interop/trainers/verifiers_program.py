"""verifiers' own `vf-eval` of an exported environment: ENDPOINT PACKAGE OUTPUT [OPTION…].

Writes OUTPUT/**/traces.jsonl.
"""

import sys

from verifiers.v1.cli.eval.main import main

endpoint, package, output, *options = sys.argv[1:]
client = ["--client.base-url", endpoint, "--client.api-key-var", "OPENAI_API_KEY"]
runtime = ["--env.agent.runtime.type", "subprocess"]
sys.argv = ["vf-eval", package, "-m", "scripted", "--no-push", "-o", output, *client, *runtime, *options]
main()
