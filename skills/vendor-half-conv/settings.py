"""The knobs of a vendor's convolution, and what follows from them."""

from dataclasses import dataclass, replace
from math import prod

from kmem.codegen.chains.approximate import approximate
from kmem.codegen.chains.epilogue import Epilogue
from kmem.codegen.settings import read_settings
from kmem.problem.sizes import ceil_div
from kmem.recipes import Settings

from .phases import has_phases, phase_outputs
from .vendor import VendorConv

EXACT = 2  # the rung of fp32 without tensor cores


@dataclass(frozen=True, slots=True)
class VendorSettings:
    """The knobs of a vendor's convolution.

    `algorithm`: whether the library measures its kernels, or guesses. `vector`: channels of a group
    are padded to multiples of it. `stage` and `finish` are elements of a tile that is staged, and
    of one of the result, `channels` the latter's channels at most. `order`: in which the kernels
    around the library's go through their tiles. `hint`: whether the last marks what it reads and
    writes once to leave the cache first. `transposed`: whether those with strides are the library's
    own, or convolutions that make the phases of a place. `accuracy`: rung 0 is half precision,
    scaled where it stands for fp32; 1 is TF32 and 2 fp32, both channels-last.
    """

    algorithm: str
    vector: int
    stage: int
    channels: int
    finish: int
    warps: int
    order: str = "forward"
    hint: str = "keep"
    transposed: str = "strided"
    accuracy: int = 0

    def is_phased(self, detail: VendorConv) -> bool:
        """Whether a transposed convolution is done as one that makes all phases of a place."""
        return self.transposed == "phases" and has_phases(detail)

    def is_scaled(self, detail: VendorConv) -> bool:
        """Whether fp32 is convolved in half precision."""
        return detail.base.dtype == "float32" and self.accuracy == 0

    def padded_in(self, detail: VendorConv) -> int:
        return ceil_div(detail.base.group_in, self.vector) * self.vector

    def padded_out(self, detail: VendorConv) -> int:
        """Output channels of a group as the library makes them."""
        vector = max(self.vector, 8)
        return ceil_div(detail.base.group_out, vector) * vector


def first_rung(detail: VendorConv) -> int:
    """Which of the rungs of `VendorSettings` is the first that is offered.

    Where eager is expected to be exact it is fp32, for what rounds operands would be refused. It is
    TF32 where a minimum or a logsumexp over channels is what is left of a place: the library rounds
    its result to half precision, which costs every value 2e-4, eager's own errors average out (to
    1.4e-6 of a logsumexp), and that rounding alone is 1.2 and 3.2 times what is allowed.
    """
    if detail.base.dtype != "float32":
        return 0
    if detail.base.is_eager_exact:
        return EXACT
    return 1 if detail.base.leaves_row else 0


def read_knobs(detail: VendorConv, settings: Settings) -> VendorSettings:
    """The settings of a site as a record, whose rungs are those of `VendorSettings`."""
    knobs = read_settings(VendorSettings, settings)
    first = first_rung(detail)
    return replace(knobs, accuracy=knobs.accuracy + first) if first else knobs


def staged_elements(detail: VendorConv, knobs: VendorSettings) -> tuple[int, int]:
    """Elements that are staged, and that the library makes."""
    base = detail.base
    inside = base.batches * knobs.padded_in(detail) * base.inputs
    places = prod(axis.out for axis in base.axes)
    if knobs.is_phased(detail):
        places = phase_outputs(detail)
    return inside, base.batches * knobs.padded_out(detail) * places


def as_exact(epilogue: Epilogue, knobs: VendorSettings) -> Epilogue:
    """What follows, as exact as what it follows."""
    return epilogue if knobs.accuracy == EXACT else approximate(epilogue)


def write_order(knobs: VendorSettings) -> str:
    return f"BACKWARD={knobs.order == 'backward'}"
