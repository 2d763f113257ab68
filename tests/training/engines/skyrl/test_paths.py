import pytest

from hermes_rl.core.errors import ConfigError
from hermes_rl.core.paths import rl_home
from hermes_rl.training.engines.skyrl.paths import EnginePaths


def test_a_name_always_has_the_same_paths() -> None:
    places = EnginePaths("words")
    assert places.record == rl_home() / "engines" / "words.json"
    assert {places.database.parent, places.checkpoints.parent, places.log.parent} == {rl_home() / "engines" / "words"}


@pytest.mark.parametrize("name", ["", "../up", "a/b", ".hidden", "x" * 65, "skyrl-0123"])
def test_a_name_that_would_be_another_path_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="invalid engine name"):
        EnginePaths(name)
