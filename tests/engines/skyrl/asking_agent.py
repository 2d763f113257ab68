"""An agent in plain HTTP: asks the model for one answer to the messages in the file it is told, and prints it."""

import json
import os
import sys
import urllib.request
from pathlib import Path

body = {"model": "any", "messages": json.loads(Path(sys.argv[1]).read_text())}
request = urllib.request.Request(
    os.environ["OPENAI_BASE_URL"] + "/chat/completions",
    json.dumps(body).encode(),
    {"Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}", "Content-Type": "application/json"},
)
with urllib.request.urlopen(request) as answer:
    print(json.load(answer)["choices"][0]["message"]["content"])
