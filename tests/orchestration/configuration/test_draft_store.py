from pathlib import Path

import pytest

from hermes_rl.core.errors import ConfigError
from hermes_rl.orchestration.configuration.draft import Draft
from hermes_rl.orchestration.configuration.draft_store import load_draft, save_draft
from hermes_rl.orchestration.configuration.edit import add_environment, edit_field
from hermes_rl.orchestration.configuration.view import draft_view
from hermes_rl.orchestration.run_paths import drafts_home
from tests.orchestration.configuration.environments import written


def test_a_draft_is_the_same_when_it_is_read_again(laptop: Draft, tmp_path: Path) -> None:
    draft = add_environment(laptop, written(tmp_path, name="other"), weight=2.0, evaluation_only=True)
    draft = edit_field(edit_field(draft, "other.level", 2), "tool_settings", {"web": {"provider": "bm25"}})
    save_draft(draft, "mine")
    assert load_draft("mine") == draft


def test_a_session_without_a_draft_has_none() -> None:
    assert load_draft("nobody") is None


def test_sessions_do_not_meet(draft: Draft, laptop: Draft) -> None:
    save_draft(draft, "one")
    save_draft(laptop, "two")
    assert load_draft("one") == draft


def test_a_draft_can_be_read_when_its_file_is_gone(draft: Draft) -> None:
    save_draft(draft)
    draft.environments[0].file.unlink()
    again = load_draft()
    assert again is not None and "is gone" in draft_view(again)["notes"][0]


def test_a_file_that_is_no_draft_is_told_with_the_next_step() -> None:
    drafts_home().mkdir(parents=True)
    (drafts_home() / "default.json").write_text("[]")
    with pytest.raises(ConfigError, match=r"default\.json is not a draft .*select an environment again"):
        load_draft()


@pytest.mark.parametrize("session", ["", "../x", "a/b", ".hidden", "x" * 65])
def test_a_session_is_a_plain_name(session: str) -> None:
    with pytest.raises(ConfigError, match="is not a session name"):
        load_draft(session)
