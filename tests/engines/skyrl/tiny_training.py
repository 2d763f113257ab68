"""A policy in training on the tiny model, through the tinker SDK as anybody would use it."""

import gc
import json
import urllib.request
import warnings
from typing import Any, Self

import numpy as np
import tinker
from numpy.typing import NDArray
from tinker import types

PROMPT = list(range(10, 30))
SAMPLES, LENGTH = 4, 8
# Of the tiny model, far enough that one step shows.
LEARNING_RATE = 1e-2


class TinyTraining:
    """Sequences that were drawn before any step, and what has become of their logprobs since."""

    def __init__(self, service: tinker.ServiceClient, client: Any) -> None:
        self.service, self.client = service, client
        self._saved = 0

    @classmethod
    def begun(cls, url: str, model: str, *, seed: int = 1) -> Self:
        service = tinker.ServiceClient(base_url=url, api_key="tml-none")
        with warnings.catch_warnings():
            # The SDK never closes the connections by which it asks for its settings, one for training and one for REST.
            warnings.simplefilter("ignore", ResourceWarning)
            client = service.create_lora_training_client(base_model=model, rank=4, seed=seed)
            service.get_server_capabilities()
            gc.collect()
        return cls(service, client)

    def from_state(self, path: str) -> "TinyTraining":
        """Another model with these weights and this optimizer."""
        return TinyTraining(self.service, self.service.create_training_client_from_state_with_optimizer(path))

    @property
    def rest(self) -> tinker.RestClient:
        """Closed with the service, as one of its own never would be."""
        return self.service._rest_client()

    @property
    def model_id(self) -> str:
        return str(self.client.get_info().model_id)

    def close(self) -> None:
        """The engine unloads what this client had."""
        self.service.close("success").result()

    def save_sampler(self) -> str:
        self._saved += 1
        return str(self.client.save_weights_for_sampler(f"sampler-{self._saved}").result().path)

    def save_state(self, name: str = "state") -> str:
        return str(self.client.save_state(name).result().path)

    def backward(self) -> Any:
        """Gradients that no step has taken yet."""
        return self.client.forward_backward(DATA, "importance_sampling")

    def step(self, **adam: float) -> dict[str, float]:
        backward, step = self.backward(), self.client.optim_step(types.AdamParams(learning_rate=LEARNING_RATE, **adam))
        backward.result()
        return dict(step.result().metrics)

    def logprobs(self) -> NDArray[np.float64]:
        """Of SEQUENCES, from the weights in training."""
        outputs = self.client.forward(DATA, "importance_sampling").result().loss_fn_outputs
        return np.concatenate([np.array(output["logprobs"].tolist())[len(PROMPT) - 1 :] for output in outputs])

    def sampler_logprobs(self, path: str) -> NDArray[np.float64]:
        """Of the same, from saved weights."""
        sampler = self.service.create_sampling_client(model_path=path)
        scores = [sampler.compute_logprobs(types.ModelInput.from_ints([*PROMPT, *more])) for more in SEQUENCES]
        return np.concatenate([np.array(score.result()[len(PROMPT) :], float) for score in scores])


SEQUENCES: list[list[int]] = np.random.default_rng(0).integers(3, 300, (SAMPLES, LENGTH)).tolist()


def _datum(more: list[int], advantage: float) -> types.Datum:
    tokens, before = [*PROMPT, *more], len(PROMPT) - 1
    return types.Datum(
        model_input=types.ModelInput.from_ints(tokens[:-1]),
        loss_fn_inputs={
            "target_tokens": types.TensorData.from_numpy(np.array(tokens[1:], np.int64)),
            "logprobs": types.TensorData.from_numpy(np.array([0.0] * before + [-5.0] * LENGTH, np.float32)),
            "advantages": types.TensorData.from_numpy(np.array([0.0] * before + [advantage] * LENGTH, np.float32)),
        },
    )


DATA = [_datum(more, 1.0 if number % 2 else -1.0) for number, more in enumerate(SEQUENCES)]


def post(url: str, body: dict[str, Any], seconds: float = 30.0) -> dict[str, Any]:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    # No proxy stands between us and our own server.
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=seconds) as response:
        answer: dict[str, Any] = json.load(response)
    return answer
