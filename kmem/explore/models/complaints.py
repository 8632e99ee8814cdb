"""What the user hears of models none of whose answers could be used in a role.

A run goes on with bad answers (none becomes an attempt), so its end must say that a model never
gave a good one: what was wrong, and what the user can do.
"""

import threading
from collections.abc import Mapping
from dataclasses import dataclass

from kmem.interfaces import Completion, CompletionKey, StopReason

_ANOTHER_MODEL = "choose another model with -m"


@dataclass(frozen=True, slots=True)
class _Fault:
    """What was wrong with an answer, and the remedy, in words for the user."""

    what: str
    remedy: str


class Complaints:
    """Takes note of what came of every question, from several threads.

    What it says does not depend on the order in which answers came.

    Args:
        models: which model plays each role.
    """

    def __init__(self, models: Mapping[str, str]) -> None:
        self._models = models
        self._useful: set[str] = set()  # roles
        self._faults: dict[CompletionKey, _Fault] = {}
        self._lock = threading.Lock()

    def usable(self, key: CompletionKey) -> None:
        """Note that the answer to a question was of use."""
        with self._lock:
            self._useful.add(key.role)

    def unusable(self, key: CompletionKey, completion: Completion, told: str) -> None:
        """Note that no answer to a question was of use, and what the model heard of the last."""
        with self._lock:
            self._faults[key] = _explain(completion, told)

    @property
    def count(self) -> int:
        """How many questions had no answer of use."""
        with self._lock:
            return len(self._faults)

    @property
    def text(self) -> str:
        """One line with models, roles, faults and remedies; empty if all roles were of use."""
        with self._lock:
            useless = [key for key in self._faults if key.role not in self._useful]
        lines = []
        for model in sorted({self._models[key.role] for key in useless}):
            keys = sorted(
                (key for key in useless if self._models[key.role] == model),
                key=lambda key: (key.round, key.role, key.slot),
            )
            roles, fault = ", ".join(dict.fromkeys(key.role for key in keys)), self._faults[keys[0]]
            questions = "1 question" if len(keys) == 1 else f"{len(keys)} questions"
            lines.append(
                f"{model} gave no usable answer to {questions} as {roles}: the first "
                f"{fault.what}; {fault.remedy}"
            )
        return "; ".join(lines)


def _explain(completion: Completion, told: str) -> _Fault:
    if completion.stop is StopReason.LOST:
        return _Fault(f"never arrived ({completion.text})", "ask a server that holds on")
    if completion.stop is StopReason.LENGTH:
        return _Fault(
            "was cut off at its length limit", "raise --max-output-tokens, or lower --effort"
        )
    if completion.stop is StopReason.REFUSAL:
        return _Fault("was a refusal", _ANOTHER_MODEL)
    if not completion.text.strip():
        return _Fault("was empty", _ANOTHER_MODEL)
    return _Fault(f"was not in the form asked for ({told})", _ANOTHER_MODEL)
