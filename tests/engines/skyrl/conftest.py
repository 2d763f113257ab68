"""The real SkyRL on the tiny model, started once for all tests that leave it running."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts.hf_model import model_folder
from tests.engines.skyrl.tiny_training import TinyTraining
from tests.support.skyrl_engine import SkyrlEngine

OPTIONS = ("--rank", "8", "--samples", "4", "--micro-batch", "4")


@pytest.fixture(scope="session")
def tiny_model() -> Path:
    return model_folder("tiny")


@pytest.fixture(scope="session")
def skyrl_engine(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SkyrlEngine]:
    with SkyrlEngine(tiny_model, tmp_path_factory.mktemp("skyrl-home"), *OPTIONS) as engine:
        yield engine


@pytest.fixture
def training(skyrl_engine: SkyrlEngine) -> Iterator[TinyTraining]:
    """A policy of its own, whose slot is free again at the end."""
    training = TinyTraining.begun(skyrl_engine.url, skyrl_engine.model)
    yield training
    training.close()


@pytest.fixture(scope="session")
def learning_engine(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SkyrlEngine]:
    """One with room for whole batches, for runs that learn."""
    options = ("--rank", "8", "--samples", "64", "--micro-batch", "64", "--adapters", "16")
    with SkyrlEngine(tiny_model, tmp_path_factory.mktemp("learning-engine"), *options) as engine:
        yield engine
