"""What a tool answers when it cannot do as asked: what failed with the value, the next call, and the choices."""

from typing import Any

from hermes_rl.errors import HermesRLError


class RefusalError(HermesRLError):
    """`following` is the call to make next, as a caller would write it; `more` are choices beside it."""

    def __init__(self, error: str, following: str, **more: Any) -> None:
        super().__init__(error)
        self.following = following
        self.more = more

    @property
    def answer(self) -> dict[str, Any]:
        return {"error": str(self), "next": self.following, **self.more}
