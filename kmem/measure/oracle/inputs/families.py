"""Input families: the values a candidate must get right beyond those the problem happens to draw.

The problem's own draw says what each input is for: integers, labels stored as floats and scalars
keep the problem's distribution in every family for floating numbers; structural zeros (triangular,
diagonal) and symmetry are kept, because a module's author may rely on them. What every draw repeats
(a mask of ones, an initial state of zeros) has a family of its own, and so have integers and masks.
"""

from collections.abc import Sequence

import torch

from kmem.measure.oracle.inputs.traits import InputTraits

#: `drawn` first: it is what the problem is about. The rest is ordered by how much it has been seen
#: to catch; each costs one forward. Kinds of values are whole tensors ("negative") or change from
#: line to line ("rows" and "columns"), so that an error in one line is not hidden by the others.
FLOATING_FAMILIES = (
    "normal",
    "rows",
    "large",
    "columns",
    "sparse",
    "offset",
    "constant",
    "negative",
    "scaled",
    "tails",
    "tiny",
    "nan",
    "infinite",
    "infinite rows",
    "denormal",
)
#: Other values for what is no signed number: integers, masks, and inputs that are always the same.
INTEGER_FAMILIES = ("extreme integers", "ignored index", "large integers")
MASK_FAMILIES = ("masked rows",)
VARIED_FAMILIES = ("varied",)
FAMILIES = ("drawn", *FLOATING_FAMILIES, *INTEGER_FAMILIES, *MASK_FAMILIES, *VARIED_FAMILIES)
#: Families with values that are not finite: what answers nothing may be refuted by these alone.
NON_FINITE = frozenset({"nan", "infinite", "infinite rows"})
#: Families a screening looks at: the problem's own values, and signed ones.
SCREENING_FAMILIES = ("drawn", "normal")
#: Above float16's largest finite value (65504): a kernel that computes in half precision overflows.
LARGE = 1.0e5
TINY = 1.0e-5
DENSITY = 0.05
#: Scales are drawn log-uniformly between powers of ten; of float16, whose range ends there, between
#: the latter.
_SCALES = {
    "rows": ((-4.0, 4.0), (-2.0, 2.0)),
    "columns": ((-4.0, 4.0), (-2.0, 2.0)),
    "negative": ((-1.0, 1.0), (-1.0, 1.0)),
    "offset": ((1.5, 2.5), (0.5, 1.5)),
    "scaled": ((0.7, 2.5), (0.7, 2.0)),
}
#: "tails": three quarters of the elements are spread evenly up to this magnitude, where exp ends,
#: the rest over the powers of ten of all normal numbers; of float16 to where its range ends.
_TAILS = ((90.0, (-37.0, 2.0)), (10.0, (-4.0, 1.0)))
_POWERS_SHARE = 0.25
#: Tensors up to this size have their elements in equal steps, so that no stretch is left out.
_IN_STEPS = 2**16
#: What some lines of "rows" and "columns" hold, each at most so often in one tensor.
_KINDS = ("negative", "positive", "rising", "falling", "one-hot", "zero")
_LINES_OF_A_KIND = 2
#: The class that PyTorch's losses leave out. Source: torch.nn.CrossEntropyLoss, ignore_index.
IGNORED_INDEX = -100
_LARGE_INTEGER_BITS = 27  # beyond float32's 24


def families_for(values: Sequence[object], traits: Sequence[InputTraits]) -> tuple[str, ...]:
    """The families that change something in such inputs, "drawn" first, then by worth.

    All cost the same: one draw, the right answer, and one forward of the candidate.
    """
    found: set[str] = {"drawn"}
    for value, trait in zip(values, traits, strict=True):
        if not isinstance(value, torch.Tensor):
            continue
        if not trait.fixed:
            found |= set(FLOATING_FAMILIES)
        elif value.dtype is torch.bool:
            found |= set(MASK_FAMILIES)
        elif not value.is_floating_point() and not value.is_complex():
            found |= set(INTEGER_FAMILIES)
        if trait.repeated and (value.is_floating_point() or value.dtype is torch.bool):
            found |= set(VARIED_FAMILIES)
    return tuple(family for family in FAMILIES if family in found)


def apply_family(
    family: str, values: Sequence[object], traits: Sequence[InputTraits], generator: torch.Generator
) -> None:
    """Turn the problem's own draw into a family, in place.

    So no second copy of a large input is needed.

    Args:
        values: freshly drawn inputs; what the family is not about is left as drawn.
        generator: on the tensors' device.
    """
    for value, trait in zip(values, traits, strict=True):
        if family == "drawn" or not isinstance(value, torch.Tensor) or not value.numel():
            continue
        if trait.fixed:
            _fill_fixed(family, value, trait, generator)
        elif family in FLOATING_FAMILIES:
            _fill(family, value, generator)
            if trait.symmetric and family not in NON_FINITE:
                value.copy_((value + value.mT) / 2)
            if trait.zeros is not None:
                value.masked_fill_(trait.zeros, 0)


def _fill_fixed(
    family: str, value: torch.Tensor, trait: InputTraits, generator: torch.Generator
) -> None:
    """What a family makes of masks, integers and inputs that every draw repeats."""
    if family == "varied" and trait.repeated:
        if value.is_floating_point() or value.dtype is torch.bool:
            _vary(value, generator)
    elif value.dtype is torch.bool:
        if family in MASK_FAMILIES:
            lines = _lines(value, -1)
            # there may be one line
            for place, filled in zip(_some_lines(lines, 2, generator), (False, True)):  # noqa: B905
                lines[place] = filled
    elif family in INTEGER_FAMILIES and not value.is_floating_point() and not value.is_complex():
        _fill_integers(family, value, generator)


def _vary(value: torch.Tensor, generator: torch.Generator) -> None:
    """Other values for what every draw repeats: zeros, ones, a triangular mask.

    A constant becomes parts of itself (normal numbers in place of zeros); anything else has the
    elements of each line in another order.
    """
    first = value[(0,) * value.dim()].clone()
    coins = _uniform(value.shape, value.device, generator)
    if not bool((value == first).all()):
        order = coins.argsort(-1) if value.dim() else coins.long()
        value.copy_(value.gather(-1, order) if value.dim() else value)
    elif value.dtype is torch.bool:
        value.copy_(coins < (0.7 if first else 0.3))
    elif first == 0:
        value.normal_(generator=generator)
    elif torch.isfinite(first):
        value.mul_(torch.where(coins < 0.5, 0.25 + 1.5 * coins, (coins * 4).floor() - 2).to(value))


def _fill_integers(family: str, value: torch.Tensor, generator: torch.Generator) -> None:
    bits = torch.iinfo(value.dtype).bits - 2
    if family == "large integers":
        limit = 2 ** min(_LARGE_INTEGER_BITS, bits)
        value.random_(0 if value.dtype is torch.uint8 else -limit, limit, generator=generator)
        return
    low, high = value.min().clone(), value.max().clone()
    coins = _uniform(value.shape, value.device, generator)
    if family == "extreme integers":
        value.masked_fill_(coins < 0.3, low.item()).masked_fill_(coins > 0.7, high.item())
    elif value.dtype is not torch.uint8:
        value.masked_fill_(coins < 0.2, IGNORED_INDEX)


def _fill(family: str, value: torch.Tensor, generator: torch.Generator) -> None:
    if family == "large":
        value.normal_(generator=generator).mul_(
            LARGE if value.dtype is not torch.float16 else 100.0
        )
    elif family == "tiny":
        value.mul_(TINY)
    elif family == "sparse":
        value.mul_(torch.empty_like(value).bernoulli_(DENSITY, generator=generator))
    elif family == "constant":
        value.fill_(0.75)
    elif family == "tails":
        _fill_tails(value, generator)
    elif family == "denormal":
        value.mul_(torch.finfo(value.dtype).tiny / 8)
    elif family in ("nan", "infinite"):
        specials = [float("nan")] if family == "nan" else [float("inf"), float("-inf")]
        _plant(value, specials, generator)
    else:
        value.normal_(generator=generator)
        if family in _SCALES:
            _scale(family, value, generator)
        elif family == "infinite rows":
            lines = _lines(value, -1)
            lines[_some_lines(lines, 1, generator)[0]] = float("-inf")
        elif family != "normal":
            raise ValueError(f"no input family named {family}")


def _fill_tails(value: torch.Tensor, generator: torch.Generator) -> None:
    """Values of both signs and of every magnitude that functions do something with."""
    furthest, powers = _TAILS[int(value.dtype is torch.float16)]
    low, high = powers
    drawn = _uniform(value.shape, value.device, generator)
    if value.numel() <= _IN_STEPS:
        order = torch.randperm(value.numel(), generator=generator, device=value.device)
        drawn = (drawn + order.view(value.shape)) / value.numel()
    drawn.mul_(2).sub_(1)
    size = drawn.abs()
    small = 10.0 ** (low + (high - low) / _POWERS_SHARE * size)
    spread = (size - _POWERS_SHARE) / (1 - _POWERS_SHARE) * furthest
    value.copy_(torch.where(size < _POWERS_SHARE, small, spread).copysign(drawn))


def _scale(family: str, value: torch.Tensor, generator: torch.Generator) -> None:
    """Give normal numbers the scale, sign or offset of a family."""
    low, high = _SCALES[family][int(value.dtype is torch.float16)]

    def scales(shape: Sequence[int]) -> torch.Tensor:
        drawn = _uniform(shape, value.device, generator) * (high - low) + low
        return (10.0**drawn).to(value.dtype)

    if family in ("rows", "columns"):
        dimension = -1 if family == "rows" else int(value.dim() > 2)
        lines = _lines(value, dimension)
        _patch(lines, generator)
        lines.mul_(scales((*lines.shape[:-1], 1)))
    elif family == "offset":
        value.add_(scales(()) * (1 if _uniform((), value.device, generator) < 0.5 else -1))
    else:
        value.mul_(scales(()))
        if family == "negative":
            value.abs_().neg_()


def _patch(lines: torch.Tensor, generator: torch.Generator) -> None:
    """Overwrite some lines of normal numbers with lines of each kind."""
    count = lines.numel() // max(lines.shape[-1], 1)
    kinds = [
        _KINDS[index]
        for _ in range(_LINES_OF_A_KIND)
        for index in _order(len(_KINDS), lines.device, generator)
    ]
    some = _some_lines(lines, min(len(kinds), count - 1), generator)
    for place, kind in zip(some, kinds):  # noqa: B905 - there may be fewer lines
        line = lines[place]
        if kind in ("negative", "positive"):
            line.abs_().mul_(-1 if kind == "negative" else 1)
        elif kind in ("rising", "falling"):
            line.copy_(line.sort(descending=kind == "falling").values)
        else:
            kept = line[-1].clone()
            line.zero_()
            if kind == "one-hot":
                line[_order(line.numel(), line.device, generator)[0]] = kept


def _lines(value: torch.Tensor, dimension: int) -> torch.Tensor:
    """A view whose last dimension is the one named; of a scalar a line of one."""
    return value.movedim(dimension, -1) if value.dim() else value.view(1)


def _some_lines(
    lines: torch.Tensor, count: int, generator: torch.Generator
) -> list[tuple[int, ...]]:
    """Places of so many different lines, or of all if there are fewer."""
    shape = lines.shape[:-1]
    if not shape:
        return [()][:count]
    total = shape.numel()
    wanted = _uniform((min(4 * count, total),), lines.device, generator).mul(total).long()
    chosen = range(total) if total <= count else dict.fromkeys(wanted.tolist())
    return [
        tuple(int(index) for index in torch.unravel_index(torch.tensor(place), shape))
        for place in list(chosen)[:count]
    ]


def _order(count: int, device: torch.device, generator: torch.Generator) -> list[int]:
    """A random order of so many."""
    return torch.randperm(count, generator=generator, device=device).tolist()


def _uniform(
    shape: Sequence[int], device: torch.device, generator: torch.Generator
) -> torch.Tensor:
    return torch.rand(tuple(shape), generator=generator, device=device)


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
