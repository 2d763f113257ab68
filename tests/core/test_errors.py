import pytest

from hermes_rl.core.errors import (
    ConfigError,
    DeadlineError,
    EndpointError,
    EnvironmentCodeError,
    Failure,
    FailureSource,
    InfrastructureError,
    JudgeError,
    SandboxError,
    ToolHostError,
    VerifierError,
    failure_of,
)


@pytest.mark.parametrize(
    ("kind", "whose"),
    [
        (EndpointError, FailureSource.ENDPOINT),
        (SandboxError, FailureSource.SANDBOX),
        (ToolHostError, FailureSource.TOOL),
        (VerifierError, FailureSource.VERIFIER),
        (JudgeError, FailureSource.JUDGE),
        (EnvironmentCodeError, FailureSource.ENVIRONMENT),
        (DeadlineError, FailureSource.FRAMEWORK),
        (InfrastructureError, FailureSource.FRAMEWORK),
    ],
)
def test_each_error_of_the_world_says_whose_fault_it_was(kind: type[InfrastructureError], whose: FailureSource) -> None:
    assert failure_of(kind("cause", "what happened")) == Failure(whose, "cause", "what happened")


def test_every_party_at_fault_has_an_error_of_its_own() -> None:
    kinds: list[type[InfrastructureError]] = [InfrastructureError, *InfrastructureError.__subclasses__()]
    assert {kind.whose for kind in kinds} == set(FailureSource)


def test_an_error_nobody_foresaw_is_counted_against_the_framework() -> None:
    assert failure_of(KeyError("x")) == Failure(FailureSource.FRAMEWORK, "unexpected", "KeyError: 'x'")


def test_a_failure_is_shown_by_the_words_it_is_counted_by() -> None:
    assert str(Failure(FailureSource.SANDBOX, "start", "bwrap is missing")) == "sandbox/start"


def test_the_text_of_a_world_error_is_its_message() -> None:
    assert str(EndpointError("http_500", "it broke")) == "it broke"


def test_a_config_error_is_never_the_worlds_fault() -> None:
    assert not issubclass(ConfigError, InfrastructureError)
