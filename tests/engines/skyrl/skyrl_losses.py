"""SkyRL's own loss functions and their gradients over JSON from stdin; for `scripts/engine_environment skyrl`.

Reads {"loss", "clip", "logprobs", "mask", "sampled", "advantages"}, the last four a list of one for each target. Writes
{"losses", "gradients"}, the same.
"""

import json
import sys
import typing
from importlib import import_module
from typing import Any

import typing_extensions

# pydantic takes no other before Python 3.12.
typing.TypedDict = typing_extensions.TypedDict

jax: Any = import_module("jax")
skyrl: Any = import_module("skyrl.tinker.loss_fns")

asked = json.load(sys.stdin)
config = skyrl.LossFnConfig(*map(jax.numpy.float32, asked["clip"]))
logprobs, *others = (jax.numpy.array(asked[name], "float32") for name in ("logprobs", "mask", "sampled", "advantages"))


def losses(now: Any) -> Any:
    return skyrl.LOSS_FUNCTION_MAP[asked["loss"]](now, *others, config)


gradients = jax.grad(lambda now: losses(now).sum())(logprobs)
print(json.dumps({"losses": losses(logprobs).tolist(), "gradients": gradients.tolist()}))
