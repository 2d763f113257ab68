"""The error that a tool raises to refuse a call: what failed, the call to make next, and the choices."""

from typing import Any

from hermes_rl.core.errors import HermesRLError


class RefusalError(HermesRLError):
    """`next_call` is the call to make next, as a caller would write it; `details` are further fields of the answer."""

    def __init__(self, error: str, next_call: str, **details: Any) -> None:
        super().__init__(error)
        self.next_call = next_call
        self.details = details

    @property
    def answer(self) -> dict[str, Any]:
        return {"error": str(self), "next": self.next_call, **self.details}
