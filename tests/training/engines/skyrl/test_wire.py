"""What crosses the wire, written and read by the tinker SDK's own code on the other side."""

import numpy as np
import pytest
import tinker.types as sdk
from tinker.proto.request_conv import forward_backward_request_to_proto
from tinker.proto.response_conv import deserialize_forward_backward_output, deserialize_sample_response

from hermes_rl.training.engines.skyrl.inside.hermes_skyrl.wire import WireError, read_passes, result_bytes


def request_of(*chunks: sdk.ModelInputChunk, **config: float) -> sdk.ForwardBackwardRequest:
    datum = sdk.Datum(
        model_input=sdk.ModelInput(chunks=list(chunks)),
        loss_fn_inputs={
            "target_tokens": sdk.TensorData.from_numpy(np.array([2, 3], np.int64)),
            "logprobs": sdk.TensorData.from_numpy(np.array([0.1, -0.3], np.float32)),
        },
    )
    passes = sdk.ForwardBackwardInput(data=[datum], loss_fn="ppo", loss_fn_config=config or None)
    return sdk.ForwardBackwardRequest(forward_backward_input=passes, model_id="m", seq_id=7)


def body_of(request: sdk.ForwardBackwardRequest, *, forward_only: bool = False) -> bytes:
    message = forward_backward_request_to_proto(request)
    message.forward_only = forward_only
    return bytes(message.SerializeToString())


def test_a_training_pass_is_read_as_skyrl_takes_it() -> None:
    text = sdk.EncodedTextChunk(tokens=[1, 2])
    forward_only, fields = read_passes(body_of(request_of(text, clip_low_threshold=0.5)))
    [datum] = fields["forward_backward_input"].pop("data")
    assert not forward_only
    assert fields == {
        "model_id": "m",
        "seq_id": 7,
        "forward_backward_input": {"loss_fn": "ppo", "loss_fn_config": {"clip_low_threshold": 0.5}},
    }
    assert datum["model_input"] == {"chunks": [{"type": "encoded_text", "tokens": [1, 2]}]}
    assert datum["loss_fn_inputs"]["target_tokens"] == {"data": [2, 3]}
    assert datum["loss_fn_inputs"]["logprobs"]["data"] == [np.float32(0.1), np.float32(-0.3)]


def test_a_forward_pass_is_told_apart() -> None:
    forward_only, fields = read_passes(body_of(request_of(sdk.EncodedTextChunk(tokens=[1])), forward_only=True))
    assert forward_only and "forward_input" in fields


def test_an_image_is_refused() -> None:
    with pytest.raises(WireError, match="text only"):
        read_passes(body_of(request_of(sdk.ImageChunk(data=b"x", format="png"))))


def test_noise_is_refused() -> None:
    with pytest.raises(WireError, match="not a ForwardBackwardRequest"):
        read_passes(b"\xff\xff\xff")


def test_samples_are_read_by_the_sdk_as_skyrl_gave_them() -> None:
    body = result_bytes(
        {
            "sequences": [
                {"stop_reason": "stop", "tokens": [5, 6], "logprobs": [-0.5, -1.5]},
                {"stop_reason": "length", "tokens": [7], "logprobs": [-2.0]},
            ],
            "prompt_logprobs": [-3.0, -4.0],
        }
    )
    assert body is not None
    response = deserialize_sample_response(body)
    assert [(one.stop_reason, one.tokens, one.logprobs) for one in response.sequences] == [
        ("stop", [5, 6], [-0.5, -1.5]),
        ("length", [7], [-2.0]),
    ]
    assert response.prompt_logprobs == [None, -3.0, -4.0]


def test_losses_of_sequences_of_any_length_are_read_by_the_sdk() -> None:
    outputs = [
        {"logprobs": {"data": [-1.0, -2.0]}, "elementwise_loss": {"data": [0.5, 0.25]}},
        {"logprobs": {"data": [-3.0]}, "elementwise_loss": {"data": [1.0]}},
    ]
    body = result_bytes({"loss_fn_outputs": outputs, "metrics": {"a": 1.5}})
    assert body is not None
    response = deserialize_forward_backward_output(body)
    assert [output["logprobs"].tolist() for output in response.loss_fn_outputs] == [[-1.0, -2.0], [-3.0]]
    assert [output["elementwise_loss"].tolist() for output in response.loss_fn_outputs] == [[0.5, 0.25], [1.0]]
    assert response.metrics == {"a": 1.5}


def test_other_results_stay_json() -> None:
    assert result_bytes({"path": "tinker://m/weights/w"}) is None
