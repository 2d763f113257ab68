"""Translates the protobuf of tinker SDK 0.25 and later into the JSON of SkyRL 0.3.0, and back.

Always true: numbers pass through unchanged; messages without a protobuf form in the SDK stay JSON.
"""

from typing import Any

import numpy as np
from google.protobuf.message import DecodeError
from tinker.proto import tinker_public_pb2 as pb

PROTOBUF = "application/x-protobuf"
_NUMPY = {pb.DTYPE_FLOAT32: np.float32, pb.DTYPE_INT64: np.int64, pb.DTYPE_INT32: np.int32}


class WireError(Exception):
    """The request contains something that this engine does not support."""


def read_passes(body: bytes) -> tuple[bool, dict[str, Any]]:
    """Parse a ForwardBackwardRequest: whether it is forward only, and the fields of SkyRL's request."""
    message = pb.ForwardBackwardRequest()
    try:
        message.ParseFromString(body)
    except DecodeError as error:
        raise WireError(f"not a ForwardBackwardRequest: {error}") from error
    passes: dict[str, Any] = {"data": [_datum(datum) for datum in message.data], "loss_fn": message.loss_fn}
    if message.loss_fn_config:
        passes["loss_fn_config"] = dict(message.loss_fn_config)
    name = "forward_input" if message.forward_only else "forward_backward_input"
    return message.forward_only, {"model_id": message.model_id, "seq_id": message.seq_id, name: passes}


def _datum(datum: Any) -> dict[str, Any]:
    chunks = []
    for chunk in datum.model_input:
        if not chunk.HasField("encoded_text"):
            raise WireError("this engine trains on text only: the model input contains an image or audio")
        chunks.append({"type": "encoded_text", "tokens": np.frombuffer(chunk.encoded_text.tokens, np.int32).tolist()})
    return {
        "model_input": {"chunks": chunks},
        "loss_fn_inputs": {name: {"data": _numbers(name, tensor)} for name, tensor in datum.loss_fn_inputs.items()},
    }


def _numbers(name: str, tensor: Any) -> list[float]:
    if tensor.HasField("sparse_csr"):
        raise WireError(f"sparse tensors are not supported: {name}")
    numbers: list[float] = np.frombuffer(tensor.dense, _NUMPY[tensor.dtype]).tolist()
    return numbers


def result_bytes(result: dict[str, Any]) -> bytes | None:
    """A SkyRL result in protobuf; None if the SDK expects it as JSON."""
    if "sequences" in result:
        return _samples(result)
    if "loss_fn_outputs" in result:
        return _losses(result)
    return None


def _samples(result: dict[str, Any]) -> bytes:
    message = pb.SampleResponse()
    for sequence in result["sequences"]:
        stopped = sequence["stop_reason"] == "stop"
        message.sequences.add(
            stop_reason=pb.STOP_REASON_STOP if stopped else pb.STOP_REASON_LENGTH,
            tokens=np.asarray(sequence["tokens"], np.int32).tobytes(),
            logprobs=np.asarray(sequence["logprobs"] or [], np.float32).tobytes(),
        )
    if result.get("prompt_logprobs") is not None:
        # The SDK expects one per token, with NaN for the first, which SkyRL omits.
        message.prompt_logprobs = np.asarray([np.nan, *result["prompt_logprobs"]], np.float32).tobytes()
    return bytes(message.SerializeToString())


def _losses(result: dict[str, Any]) -> bytes:
    message = pb.ForwardBackwardOutput(loss_fn_output_type="ArrayRecord")
    for name, value in result["metrics"].items():
        message.metrics[name] = float(value)
    if outputs := result["loss_fn_outputs"]:
        record = message.loss_fn_outputs.add(num_datums=len(outputs))
        for name in outputs[0]:
            arrays = [np.asarray(output[name]["data"], np.float32) for output in outputs]
            field = record.fields[name]
            field.dtype = pb.DTYPE_FLOAT32
            field.data = b"".join(array.tobytes() for array in arrays)
            field.offsets = np.cumsum([0, *(array.nbytes for array in arrays)]).astype(np.int64).tobytes()
    return bytes(message.SerializeToString())
