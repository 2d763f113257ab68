"""The modes of an environment's command line: each is a command of `hermes-rl` too."""

MODES = {
    "process": "Generate groups of rollouts and write them to a JSONL file.",
    "evaluate": "Run the agent on the held-out items and write metrics.json and samples.jsonl.",
    "serve": "Generate groups of rollouts and deliver them to a trajectory API for a trainer.",
}
