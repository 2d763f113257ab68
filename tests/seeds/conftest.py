"""A model, its tokenizer as a folder, and a store for the trajectory API."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from hermes_rl.store.database.store import Store, open_store
from tests.seeds.parts import MODEL, SeedModel


@pytest.fixture
async def model() -> AsyncIterator[SeedModel]:
    async with SeedModel() as model:
        yield model


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return MODEL.save(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    async with open_store(tmp_path / "store.db") as opened:
        yield opened
