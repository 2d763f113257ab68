"""A model, and its tokenizer as a folder."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.seeds.parts import MODEL, SeedModel


@pytest.fixture
async def model() -> AsyncIterator[SeedModel]:
    async with SeedModel() as model:
        yield model


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return MODEL.save(tmp_path_factory.mktemp("tokenizer"))
