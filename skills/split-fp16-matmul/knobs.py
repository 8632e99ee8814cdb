"""The knobs of both ways to split fp32 operands, and what follows from them."""

from dataclasses import dataclass

from kmem.codegen.contraction import Product
from kmem.codegen.product_tuning import TileSettings
from kmem.codegen.settings import read_settings
from kmem.problem.sizes import ceil_div
from kmem.recipes import Settings
from kmem.records import Precision

#: Elements of K that one tensor-core accumulation may sum. Source: anchors probe, errors 2.3e-7
#: (normal) and 4.7e-7 (uniform) at 4096.
PROMOTE_ELEMENTS = 128


@dataclass(frozen=True, slots=True)
class SplitSettings(TileSettings):
    """The knobs: those of a tiled product, and where operands are split.

    That is "ahead" of the product, or "in_loop", while they are read. A space without that choice
    has no such knob.
    """

    split: str = "ahead"

    @property
    def is_in_loop(self) -> bool:
        return self.split == "in_loop"


def read_knobs(settings: Settings) -> SplitSettings:
    """The settings of a site as a record."""
    return read_settings(SplitSettings, settings)


def terms_of(product: Product) -> int:
    """Tensor-core products per multiplication.

    One scaled fp16 product has TF32's 11 bits, so it serves the tf32 contract.
    """
    return 1 if product.precision is Precision.TF32 else 3


def part_bytes(product: Product) -> int:
    """Bytes of the parts that stand for one element of an operand."""
    return 4 if terms_of(product) == 3 else 2


def promote_steps(product: Product, knobs: SplitSettings) -> int:
    """Steps of K in one tensor-core sum; 0 where no sum has to be promoted.

    That is where the whole sum is short enough, or as exact as its contract.
    """
    is_long = ceil_div(product.k.size, knobs.splits) > PROMOTE_ELEMENTS
    return max(1, PROMOTE_ELEMENTS // knobs.block_k) if terms_of(product) == 3 and is_long else 0


def live_tiles(product: Product, knobs: SplitSettings) -> int:
    """fp32 tiles of the output that are in registers at once.

    They are the sum, with promotion a second one, and the cross terms.
    """
    return 1 + (terms_of(product) == 3) + (promote_steps(product, knobs) > 0)
