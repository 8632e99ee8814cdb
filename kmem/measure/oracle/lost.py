"""Small results that are lost: wrong beside their own size, where eager keeps them.

A norm does not see them: the far end of a softmax, exp(-80), what a threshold has cut off. They are
held to what eager reaches at results of about the same size. Where that says no, other ways to the
right answer are asked how far they get: inputs moved by one rounding, and definitions of operators
in place of a vendor's kernels. What these lose as well is forgiven.

Where a module takes each element by itself, no element may be wrong beside its own size, small or
not (answers/elements.py).

Covered: floating results of modules that neither draw random numbers nor modify inputs, and that
are judged whole; of large ones a sample.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch._decomp import get_decompositions
from torch.utils._python_dispatch import TorchDispatchMode

from kmem.measure.oracle.answers.elements import UNLIKE_AT_MOST, input_magnitude, unlike_share
from kmem.measure.oracle.answers.expected import Expected, WholeExpected
from kmem.measure.oracle.reference import Reference
from kmem.measure.oracle.running.forward import UNDEFINED, round_once

#: An element is lost if it errs by more than this share of itself, and by so many times more than
#: eager does there and for half of the results of about its size.
_SHARE, _OVER = 1 / 8, 64.0
#: So few of a result's elements may be lost by an unlucky cancellation.
_LUCK, _UNLUCKY_SHARE = 1, 1 / 1024
#: Results of about the same size are within this power of two.
_OCTAVES = 8
#: Smallest numbers may be flushed, in results and in what they are made of. Where each element
#: follows from its own place that is multiplied by no more than the inputs there; elsewhere by
#: anything. Source: PTX ISA, div.full.f32 and .ftz.
_TINY = torch.finfo(torch.float32).tiny
_FLUSHED, _FLUSHED_ANYWHERE = 1.5 * _TINY, _TINY * 2.0**20
#: Elements that are looked at.
_SAMPLE = 2**20
_ROUNDED = 2  # draws of rounded inputs: one may cancel by chance


@dataclass(frozen=True, slots=True)
class Lost:
    """What is lost of one output: in a line with what to write instead, and how much it is.

    `excess` is the share of the output's elements over what luck may lose: up to ten, sums that err
    less may mend it, as where large numbers cancelled; a threshold loses whole ranges.
    """

    index: int
    text: str
    excess: float


def find_lost(
    expected: Expected, outputs: Sequence[torch.Tensor], reference: Reference, seed: int
) -> Lost | None:
    """The first output of which something is lost; None if nothing is."""
    if not isinstance(expected, WholeExpected) or reference.is_stochastic:
        return None
    if expected.answer.is_elementwise:
        unlike = _find_unlike(expected, outputs, reference, seed)
        if unlike is not None:
            return unlike
    if expected.answer.changed_inputs:
        return None
    suspects = {}
    for index, (output, oracle, eager) in enumerate(
        zip(outputs, expected.oracle, expected.eager, strict=True)
    ):
        if not output.is_floating_point() or not output.numel():
            continue
        least = torch.tensor(_FLUSHED_ANYWHERE)
        if expected.answer.is_elementwise:
            least = _FLUSHED * input_magnitude(expected.values, oracle.shape)
        least = least.clamp_min(torch.finfo(output.dtype).tiny).to(oracle.device)
        of = _Result(output, oracle, least)
        if of.is_lost(eager):
            suspects[index] = of
    if not suspects:
        return None
    for other in _other_ways(expected.values, reference, seed):
        for index in list(suspects):
            if not suspects[index].is_lost(other[index]):
                del suspects[index]
        if not suspects:
            return None
    index, of = next(iter(suspects.items()))
    text = (
        f"{of.count} of {of.looked_at} elements of output {index} are lost beside their own size, "
        f"{of.example}; eager keeps them. Leave out thresholds, and use forms that keep small "
        f"results: libdevice's expm1, log1p, tanh, erfc, or a series near zero"
    )
    return Lost(index, text, of.count / (_UNLUCKY_SHARE * of.looked_at))


def _find_unlike(
    expected: WholeExpected, outputs: Sequence[torch.Tensor], reference: Reference, seed: int
) -> Lost | None:
    """The output of which most elements are wrong beside their own size, if these are too many.

    Where the CPU stands in for a GPU, eager there has the operands of convolutions in TF32, and so
    may the candidate: it errs no more than that costs an element. What lies at an element's own
    place is no such operand.
    """
    others = [expected.eager]
    shares = _unlike_shares(expected, outputs, others)
    if max(shares) > UNLIKE_AT_MOST and reference.module.stands_in:
        own = {output.shape for output in expected.oracle}
        others += _moved(expected.values, reference, seed, keep=own)
        shares = _unlike_shares(expected, outputs, others)
    worst = max(shares)
    if worst <= UNLIKE_AT_MOST:
        return None
    index = shares.index(worst)
    text = (
        f"{worst:.0%} of the elements of output {index} are wrong beside their own size; the "
        f"module takes each by itself"
    )
    return Lost(index, text, worst / UNLIKE_AT_MOST)


def _unlike_shares(
    expected: WholeExpected,
    outputs: Sequence[torch.Tensor],
    others: Sequence[Sequence[torch.Tensor]],
) -> list[float]:
    by_output = zip(*others, strict=True)
    every = zip(outputs, expected.oracle, by_output, expected.answer.floors, strict=True)
    return [
        unlike_share(output, oracle, known, input_magnitude(expected.values, oracle.shape), floor)
        for output, oracle, known, floor in every
    ]


class _Result:
    """A sample of one output, with the elements that nothing has explained so far."""

    def __init__(self, output: torch.Tensor, oracle: torch.Tensor, least: torch.Tensor) -> None:
        self._step = max(1, oracle.numel() // _SAMPLE)
        self._device = oracle.device
        self._right = self._sample(oracle)
        self._found = self._sample(output)
        self._error = (self._found - self._right).abs()
        size = self._right.abs()
        self._lost = torch.isfinite(self._error) & (self._error > _SHARE * size)
        self._lost &= size > self._sample(least.expand(oracle.shape))
        self.looked_at = size.numel()

    def is_lost(self, other: torch.Tensor) -> bool:
        """Whether elements stay lost beside what another way to the same answer has kept."""
        self._lost &= torch.isfinite(own := (self._sample(other) - self._right).abs())
        self._lost &= self._error > _OVER * own
        if self._is_luck():
            return False
        size = self._right.abs().clamp_min(_TINY)
        bins = torch.where(torch.isfinite(own), (size.log2() / _OCTAVES).floor(), torch.nan)
        for octave in bins[self._lost].unique():
            alike = bins == octave
            usual = (own[alike] / size[alike]).median()
            self._lost &= ~alike | (self._error > _OVER * usual * size)
        return not self._is_luck()

    @property
    def count(self) -> int:
        """How many are lost."""
        return int(self._lost.sum())

    @property
    def example(self) -> str:
        """One of them."""
        place = int(self._lost.int().argmax())
        return f"as {self._found[place]:.3g} for {self._right[place]:.3g}"

    def _is_luck(self) -> bool:
        return self.count <= max(_LUCK, _UNLUCKY_SHARE * self.looked_at)

    def _sample(self, values: torch.Tensor) -> torch.Tensor:
        return values.detach().reshape(-1)[:: self._step].to(self._device).double()


def _other_ways(
    values: Sequence[object], reference: Reference, seed: int
) -> Iterator[tuple[torch.Tensor, ...]]:
    """The module's outputs by other ways, each as good as eager."""
    yield from _moved(values, reference, seed)
    try:
        with _ByDefinition():
            found = reference.module.run_eager(values, seed).outputs
    except (*UNDEFINED, NotImplementedError):
        return
    yield found


def _moved(
    values: Sequence[object],
    reference: Reference,
    seed: int,
    *,
    keep: Collection[torch.Size] = (),
) -> Iterator[tuple[torch.Tensor, ...]]:
    """The right answers to inputs moved by one rounding; those of shapes to `keep` stay."""
    module = reference.module
    for draw in range(_ROUNDED):
        generator = torch.Generator(device=reference.device).manual_seed(seed + draw)
        rounded = round_once(values, generator, to_tf32=module.stands_in)
        moved = [
            value if isinstance(value, torch.Tensor) and value.shape in keep else other
            for value, other in zip(values, rounded, strict=True)
        ]
        yield module.run_oracle(moved, seed).outputs


class _ByDefinition(TorchDispatchMode):
    """Computes activations by their definitions, as vendors' kernels may and need not."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # noqa: ANN001, ANN204
        return _definitions().get(func, func)(*args, **(kwargs or {}))


@cache
def _definitions() -> dict[object, object]:
    aten = torch.ops.aten
    return get_decompositions(
        [aten.gelu, aten.silu, aten.mish, aten.softplus, aten.elu, aten.log_sigmoid_forward]
    )
