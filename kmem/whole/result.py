"""What a run on a model came to, for a program or a notebook."""

from dataclasses import dataclass
from pathlib import Path

from torch import nn

from kmem.errors import OutputError
from kmem.whole.composing.binding import ModelHandle, bind, read_composed
from kmem.whole.composing.compose import COMPILED_REST
from kmem.whole.proving.clock import EAGER
from kmem.whole.proving.proof import Proof, read_proof
from kmem.whole.state import ModelState, read_state


@dataclass(frozen=True, slots=True)
class ModelResult:
    """One finished run on a model: `print(result)` is the verdict in a sentence."""

    directory: Path
    state: ModelState

    @property
    def is_proved(self) -> bool:
        """Whether a piece of the model has a kernel with which the whole is right and faster."""
        return bool(self.state.kept) and self.proof is not None

    @property
    def is_faster(self) -> bool:
        """Whether the whole is also faster than the best other way to run it, launched alike."""
        return self.is_proved and self.proof is not None and self.proof.is_faster

    @property
    def proof(self) -> Proof | None:
        """What was found of the whole; None if nothing was kept."""
        return read_proof(self.state.proof)

    @property
    def after_ms(self) -> float:
        """One forward, by its operators and the kernels in the places of pieces."""
        return self.state.total_ms - sum(piece.saved_ms for piece in self.state.pieces)

    @property
    def speedup(self) -> float:
        """Of the whole over eager: measured in pairs, or estimated from the pieces."""
        proof = self.proof
        if proof is not None and proof.ratio is not None:
            return proof.ratio
        return self.state.total_ms / self.after_ms if self.after_ms > 0 else 1.0

    def apply(self, model: nn.Module) -> ModelHandle:
        """Bind the kernels to a model; the handle undoes it.

        Raises OutputError: if there are none. ValueError: if the model is another one.
        """
        composed = read_composed(self.directory)
        if composed is None or not self.is_proved:
            raise OutputError(f"{self.directory} has no kernels: {self}")
        return bind(model, composed)

    def __str__(self) -> str:
        kept, tried = len(self.state.kept), len(self.state.parts)
        proof = self.proof
        if proof is None or not self.is_proved:
            none = f"{self.state.name}: no kernel makes the whole faster ({self.state.finished})"
            return f"{none}{self._fastest_way()}"
        kind = "estimated" if self.state.estimated else "measured"
        ways = [
            f"{gain[1]:.2f}x of {gain[0].replace('_', ' ')}"
            for gain in (proof.gain(graph=False), proof.gain(graph=True))
            if gain is not None
        ]
        by = f"kernels for {kept} of {tried} pieces"
        if tried == 1 and self.state.kept[0].holds:
            by = "kernels for it as one problem"
        rest = ", the rest compiled around them" if proof.rest == COMPILED_REST else ""
        beside = f"; beside the best launched alike {', '.join(ways)}" if ways else ""
        return (
            f"{self.state.name} on {self.state.device}: {self.speedup:.2f}x of eager, {kind}, by "
            f"{by}{rest}{beside}; proved: {proof.how}"
        )

    def _fastest_way(self) -> str:
        """Which way to run the model as it is takes less time than eager; empty if none does."""
        proof = read_proof(self.state.beginning)
        if proof is None or proof.eager_ms is None or proof.best[0] == EAGER:
            return ""
        way = proof.best[0]
        way_ms = proof.baselines_ms[way]
        return f"; {way.replace('_', ' ')} takes {way_ms:.4g} ms, eager {proof.eager_ms:.4g}"


def read_result(directory: Path) -> ModelResult | None:
    """The run on a model in a directory; None if it holds none.

    Raises OutputError: if the run has not finished.
    """
    state = read_state(directory)
    if state is None:
        return None
    if not state.finished:
        raise OutputError(f"The run in {directory} has not finished; kmem runs resume {directory}")
    return ModelResult(directory, state)
