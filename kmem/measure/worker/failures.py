"""What a candidate's code raised, and at which stage: import, contract, construct, and so on.

Runs inside the worker, from a copy of this file (standard library only).
"""

import traceback
from collections.abc import Callable
from typing import TypeVar

_T = TypeVar("_T")
#: How much of a message and of a traceback is sent to the judge.
_MESSAGE_CHARACTERS, _TRACEBACK_CHARACTERS = 4000, 6000


class CandidateFailed(Exception):
    """Something a candidate's code raised, with the stage it happened in."""

    def __init__(self, stage: str, cause: BaseException) -> None:
        self.stage, self.cause = stage, cause

    def as_answer(self) -> dict[str, object]:
        """The answer to the command that failed."""
        cause = self.cause
        return {
            "failed": self.stage,
            "type": type(cause).__name__,
            "bases": [base.__name__ for base in type(cause).__mro__],
            "message": _message_of(cause)[:_MESSAGE_CHARACTERS],
            "traceback": "".join(traceback.format_exception(cause))[-_TRACEBACK_CHARACTERS:],
        }


def _message_of(cause: BaseException) -> str:
    try:
        return str(cause)
    except Exception as ex:  # noqa: BLE001 - the candidate's own __str__ may raise anything
        return f"(its message cannot be shown: {type(ex).__name__})"


def guarded(stage: str, function: Callable[..., _T], *args: object) -> _T:
    """Call what may run a candidate's code. Raises CandidateFailed: whatever that raises."""
    try:
        return function(*args)
    except CandidateFailed:
        raise
    # a candidate may raise anything, SystemExit included; it is reported, never swallowed
    except BaseException as ex:  # noqa: BLE001
        raise CandidateFailed(stage, ex) from ex
