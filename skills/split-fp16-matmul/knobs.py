"""The knobs of both ways to split fp32 operands, and what follows from them."""

from dataclasses import dataclass

from kmem.codegen.products.contraction import Product
from kmem.codegen.products.tuning import TileSettings, fit_tile
from kmem.codegen.settings import read_settings
from kmem.codegen.text.accumulate import PROMOTE_ELEMENTS, steps_in_chain
from kmem.problem.sizes import ceil_div
from kmem.recipes import Settings
from kmem.records import Precision


@dataclass(frozen=True, slots=True)
class SplitSettings(TileSettings):
    """The knobs: those of a tiled product, and where operands are split.

    That is "ahead" of the product, or "in_loop", while they are read. A space without that choice
    has no such knob. `accuracy` is the rung of the precision ladder, see `terms_of` and `effort`.
    """

    split: str = "ahead"
    accuracy: int = 0

    @property
    def is_in_loop(self) -> bool:
        return self.split == "in_loop"


def read_knobs(product: Product, settings: Settings) -> SplitSettings:
    """The settings of a site as a record."""
    return fit_tile(product, read_settings(SplitSettings, settings))


def rungs(product: Product) -> tuple[int, ...]:
    """The precision ladder of a product: one term where that will do, three, and two more efforts.

    There is no effort to make where the whole sum is one short chain.
    """
    efforts = 3 if product.k.size > PROMOTE_ELEMENTS else 1
    return tuple(range(_one_term(product) + efforts))


def _one_term(product: Product) -> bool:
    """One scaled fp16 product has TF32's 11 bits, so it serves the tf32 contract."""
    return product.precision is Precision.TF32


def terms_of(product: Product, knobs: SplitSettings) -> int:
    """Tensor-core products per multiplication: one on the lowest rung under tf32, else three."""
    return 1 if _one_term(product) and knobs.accuracy == 0 else 3


def effort(product: Product, knobs: SplitSettings) -> int:
    """What is done against rounding of the sums of three terms.

    0: chains of PROMOTE_ELEMENTS are added to a total. 1: the total is compensated. 2: and every
    step of K is a chain of its own.
    """
    return max(0, knobs.accuracy - _one_term(product))


def part_bytes(product: Product, knobs: SplitSettings) -> int:
    """Bytes of the parts that stand for one element of an operand."""
    return 4 if terms_of(product, knobs) == 3 else 2


def promote_steps(product: Product, knobs: SplitSettings) -> int:
    """Steps of K in one tensor-core sum; 0 where no sum has to be promoted.

    That is where the whole sum is short enough, or as exact as its contract.
    """
    is_long = ceil_div(product.k.size, knobs.splits) > PROMOTE_ELEMENTS
    if terms_of(product, knobs) == 1 or not is_long:
        return 0
    return 1 if effort(product, knobs) == 2 else steps_in_chain(knobs.block_k)


def is_compensated(product: Product, knobs: SplitSettings) -> bool:
    """Whether the total carries what it loses along."""
    return effort(product, knobs) > 0


def live_tiles(product: Product, knobs: SplitSettings) -> int:
    """fp32 tiles of the output that are in registers at once.

    They are the sum, with promotion a second one, the cross terms, and what the total lost.
    """
    has_total = promote_steps(product, knobs) > 0
    has_lost = has_total and is_compensated(product, knobs)
    return 1 + (terms_of(product, knobs) == 3) + has_total + has_lost
