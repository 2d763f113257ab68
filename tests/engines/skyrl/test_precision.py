"""What a step moves of an adapter in half precision; twenty steps of a whole model are in the suite `parity`."""

import pytest

from tests.support.skyrl_backend import backend_process

pytestmark = pytest.mark.timeout(600)


def test_a_step_of_an_adapter_in_bfloat16_is_lost_and_in_this_engine_kept() -> None:
    unmoved = backend_process("layer", "none")
    assert unmoved["SkyRL"] > 0.5
    assert unmoved["kept"] < 0.01
