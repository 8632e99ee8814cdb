"""Input families: the values a candidate must get right beyond those the problem happens to draw.

The problem's own draw says what each input is for: integers, labels stored as floats and scalars
keep the problem's distribution in every family; structural zeros (triangular, diagonal) and
symmetry are kept, because a module's author may rely on them.
"""

from collections.abc import Sequence

import torch

from kmem.measure.oracle.traits import InputTraits
from kmem.measure.pool.arguments import Layout

#: `drawn` first: it is what the problem is about. The rest is ordered by how much it has been seen
#: to catch.
FAMILIES = ("drawn", "normal", "large", "sparse", "constant", "tiny", "nan", "infinite", "denormal")
#: Families a screening looks at: the problem's own values, and signed ones.
SCREENING_FAMILIES = ("drawn", "normal")
#: Above float16's largest finite value (65504): a kernel that computes in half precision overflows.
LARGE = 1.0e5
TINY = 1.0e-5
DENSITY = 0.05


def apply_family(
    family: str, values: Sequence[object], traits: Sequence[InputTraits], generator: torch.Generator
) -> None:
    """Turn the problem's own draw into a family, in place.

    So no second copy of a large input is needed.

    Args:
        values: freshly drawn inputs; floating tensors without the trait `fixed` are overwritten.
        generator: on the tensors' device.
    """
    for value, trait in zip(values, traits, strict=True):
        if trait.fixed or family == "drawn":
            continue
        assert isinstance(value, torch.Tensor)
        _fill(family, value, generator)
        if trait.symmetric and family not in ("nan", "infinite"):
            value.copy_((value + value.mT) / 2)
        if trait.zeros is not None:
            value.masked_fill_(trait.zeros, 0)


def _fill(family: str, value: torch.Tensor, generator: torch.Generator) -> None:
    if family == "normal":
        value.normal_(generator=generator)
    elif family == "large":
        value.normal_(generator=generator).mul_(
            LARGE if value.dtype is not torch.float16 else 100.0
        )
    elif family == "tiny":
        value.mul_(TINY)
    elif family == "sparse":
        value.mul_(torch.empty_like(value).bernoulli_(DENSITY, generator=generator))
    elif family == "constant":
        value.fill_(0.75)
    elif family == "denormal":
        value.mul_(torch.finfo(value.dtype).tiny / 8)
    elif family in ("nan", "infinite"):
        specials = [float("nan")] if family == "nan" else [float("inf"), float("-inf")]
        _plant(value, specials, generator)
    else:
        raise ValueError(f"no input family named {family}")


def _plant(value: torch.Tensor, specials: Sequence[float], generator: torch.Generator) -> None:
    """Overwrite one random element with each special value."""
    if value.numel() == 0:
        return
    for special in specials:
        index = int(
            torch.randint(value.numel(), (1,), generator=generator, device=generator.device)
        )
        place = []
        for size in reversed(value.shape):
            index, within = divmod(index, size)
            place.append(within)
        value[tuple(reversed(place))] = special


def other_sizes(values: Sequence[object]) -> list[tuple[str, list[object]]]:
    """The same inputs at other sizes, by name.

    The first and the last dimension are made one shorter and one longer in every input, if all
    share its size. Whether the module accepts such inputs is for the reference to say. Non-tensors
    are kept.
    """
    tensors = [value for value in values if isinstance(value, torch.Tensor) and value.dim() > 0]
    found = []
    for name, dimension in (("first dimension", 0), ("last dimension", -1)):
        sizes = {value.shape[dimension] for value in tensors}
        if len(sizes) != 1 or 0 in sizes:
            continue
        size = sizes.pop()
        for sign, other in (("- 1", size - 1), ("+ 1", size + 1)):
            if other > 0:
                found.append(
                    (f"{name} {sign}", [_resize(value, dimension, other) for value in values])
                )
    return found


def _resize(value: object, dimension: int, size: int) -> object:
    """A tensor cut or lengthened along one dimension; anything else as it is.

    It is lengthened by repeating its first elements.
    """
    if not isinstance(value, torch.Tensor) or value.dim() == 0:
        return value
    kept = value.narrow(dimension, 0, min(size, value.shape[dimension]))
    if size > value.shape[dimension]:
        kept = torch.cat(
            [kept, value.narrow(dimension, 0, size - value.shape[dimension])], dimension
        )
    return kept.contiguous()


def other_layouts(values: Sequence[object]) -> list[tuple[str, list[Layout | None]]]:
    """Other strides and offsets for the same values, by name; None for what is no tensor.

    "transposed" reverses the order of strides; "misaligned" starts one element into its storage.
    """
    transposed, misaligned = [], []
    for value in values:
        if not isinstance(value, torch.Tensor):
            transposed.append(None)
            misaligned.append(None)
            continue
        steps, step = [], 1
        for size in value.shape:
            steps.append(step)
            step *= max(size, 1)
        transposed.append((tuple(steps), 0))
        misaligned.append((tuple(value.contiguous().stride()), 1))
    layouts = [("misaligned", misaligned)]
    if any(isinstance(value, torch.Tensor) and value.dim() > 1 for value in values):
        layouts.append(("transposed", transposed))
    return layouts
