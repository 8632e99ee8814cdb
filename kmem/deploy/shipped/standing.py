"""How the entries of a table stand in a model: what is active, what is not, and why."""

from collections.abc import Sequence
from dataclasses import dataclass

#: Modules that are named in the reason why an entry is not used.
_NAMED_AT_MOST = 3


@dataclass(frozen=True)
class Standing:
    """How one entry of the table stands in a model."""

    entry: str
    module: str | None  # path in the model; None where it fits no module
    active: bool
    reason: str  # why it is not active, or why the last call ran the module's own code
    served: int = 0  # calls outside of compiled code that the kernel answered
    passed_on: int = 0  # calls outside of compiled code that ran the module's own code
    first_call_s: float | None = None  # what the first served call took, compiling included

    def __str__(self) -> str:
        if self.module is None:
            return f"{self.entry}: not active, {self.reason}"
        where = f"{self.entry} at {self.module or 'the model itself'}"
        if not self.active:
            return f"{where}: not active, {self.reason}"
        text = f"{where}: active, {self.served} calls served, {self.passed_on} passed on"
        return f"{text}; last: {self.reason}" if self.reason else text


def name_objections(objections: Sequence[str]) -> str:
    """Why no module of a model takes an entry, from what each objects."""
    if not objections:
        return "no module of the model has its parameters"
    more = len(objections) - _NAMED_AT_MOST
    text = "; ".join(objections[:_NAMED_AT_MOST])
    return f"{text}; and {more} more modules" if more > 0 else text
