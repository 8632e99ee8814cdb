"""Masks and biases between scores and what weighs them, read from a graph one behind the other.

The kernels take a bias, a band of constants and a mask in this order. Where a forward has another
one, it is the same if both are added, if both hide with -inf, or if one hides and the other adds
what parameters alone decide: these are taken to be finite.

Covered: masks that are filled, chosen (`where`) or added; one for each window of an image, added to
scores that are viewed by windows (Swin). Not covered: three masks that are read, two bands.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from kmem.codegen.steady import kept_operands
from kmem.problem.graph import Arg, Node, OpGraph, Ref

from .bands import Band
from .constants import made_for, read_band
from .filling import ReadMask, ways_to_mask
from .ramps import ReadRamp, read_ramp
from .scaling import is_inner, read_scaled

_VIEWS = ("aten.view.default", "aten.reshape.default")
_MOST_STEPS = 3  # a bias, a band and a mask


@dataclass(frozen=True, slots=True)
class Masking:
    """The nodes of one step that masks scores, the last first, and what it does to them."""

    nodes: tuple[Node, ...]
    scores: Ref
    mask: ReadMask
    band: Band | None = None  # that the mask is, if it is one of constants
    constants: frozenset[str] = frozenset()  # nodes that make the mask and that nothing else needs
    ramp: ReadRamp | None = None  # that the mask is, if it is added and one


@dataclass(frozen=True, slots=True)
class Terms:
    """What scores go through as kernels take it, and the nodes that make a mask for it alone."""

    bias: ReadMask | ReadRamp | None = None
    band: Band = Band()
    mask: ReadMask | None = None
    constants: frozenset[str] = frozenset()


def read_maskings(graph: OpGraph, masked: Arg, floor: float = -math.inf) -> list[Masking]:
    """The steps between scores and a value, the last first; none if nothing masks them.

    Args:
        floor: what scores up to it become is the same behind the last step.
    """
    steps: list[Masking] = []
    while isinstance(masked, Ref) and len(steps) < _MOST_STEPS:
        last = floor if not steps else -math.inf
        step = _read_masking(graph, masked, _MOST_STEPS - len(steps), last)
        if step is None:
            break
        steps.append(step)
        masked = step.scores
    return steps


def arrange_terms(graph: OpGraph, steps: Sequence[Masking], *, is_softmax: bool) -> Terms | None:
    """Steps in the order in which kernels take them; None if that is not the same.

    Args:
        steps: as a forward has them, the first first.
        is_softmax: whether a hidden score of NaN makes a row NaN that is all infinite anyway.
    """
    reads_all = not is_softmax or any(
        step.band is None and step.mask.is_added and not _is_kept(graph, step) for step in steps
    )
    if reads_all:  # where -inf is added to an infinity or NaN, blocks may not be skipped
        steps = [
            replace(step, band=None, constants=frozenset()) if step.mask.is_added else step
            for step in steps
        ]
    bands = [step for step in steps if step.band is not None]
    read = [step for step in steps if step.band is None]
    if len(bands) > 1 or len(read) > 2:
        return None
    for bias, mask in _pairs(read, has_band=bool(bands)):
        taken = [step for step in (bias, *bands, mask) if step is not None]
        if _is_same(graph, taken, steps):
            constants = {name for each in bands for name in each.constants}
            if bias is not None and bias.ramp is not None:
                constants |= bias.ramp.constants
            return Terms(
                None if bias is None else bias.ramp or bias.mask,
                bands[0].band or Band() if bands else Band(),
                None if mask is None else mask.mask,
                frozenset(constants),
            )
    return None


def _pairs(
    read: Sequence[Masking], *, has_band: bool
) -> Iterator[tuple[Masking | None, Masking | None]]:
    """Each way to take steps as bias and mask."""
    ways: list[tuple[Masking | None, Masking | None]] = [(None, None)]
    if len(read) == 1:
        is_bias = has_band or read[0].ramp is not None
        ways = [(read[0], None), (None, read[0])] if is_bias else [(None, read[0])]
    elif read:
        ways = [(read[0], read[1]), (read[1], read[0])]
        ways.sort(key=lambda way: way[0] is None or way[0].ramp is None)
    for bias, mask in ways:
        if bias is None or (bias.mask.is_added and not bias.mask.period):
            yield bias, mask


def _is_same(graph: OpGraph, taken: Sequence[Masking], steps: Sequence[Masking]) -> bool:
    """Whether steps that a forward has in another order may be exchanged, and what a band hides
    stays hidden, for its blocks are skipped.
    """
    return all(
        (steps.index(one) < steps.index(other) and one.band is None) or _commute(graph, one, other)
        for one, other in combinations(taken, 2)
    )


def _commute(graph: OpGraph, one: Masking, other: Masking) -> bool:
    if one.mask.is_added:
        return other.mask.is_added or other.mask.hides and _is_kept(graph, one)
    if other.mask.is_added:
        return one.mask.hides and _is_kept(graph, other)
    return one.mask.hides and other.mask.hides


def _is_kept(graph: OpGraph, step: Masking) -> bool:
    """Whether parameters alone decide what is added."""
    if step.ramp is not None:
        return step.ramp.is_kept
    return kept_operands(graph, (step.mask.name,))[0].kept


def _read_masking(
    graph: OpGraph, masked: Ref, most: int, floor: float = -math.inf
) -> Masking | None:
    """What masks scores right before a value; None if nothing does that is known."""
    node = graph.node(masked.name)
    if node is None or not is_inner(graph, node):
        return None
    for nodes, scores, mask in _ways(graph, node):
        if graph.spec(scores.name).shape != node.spec.shape:
            continue
        if not _is_scored(graph, scores, most - 1):
            continue
        if mask.fill <= floor:
            mask = replace(mask, fill=-math.inf)
            band = read_band(graph, mask.name, node.spec, mask.hiding)
            if band is not None:
                band = replace(band, spreads=True, is_added=mask.is_added)
                constants = frozenset(made_for(graph, mask.name, [each.name for each in nodes]))
                return Masking(nodes, scores, mask, band, constants)
        ramp = None
        if mask.is_added and not mask.period:
            ramp = read_ramp(graph, mask.name, node.spec, nodes[0].name)
            ramp = None if ramp is not None and ramp.band is not None else ramp
        return Masking(nodes, scores, mask, ramp=ramp)
    return None


def _is_scored(graph: OpGraph, scores: Ref, most: int) -> bool:
    """Whether a value is a product, scaled or cast, or one that so many steps mask."""
    if read_scaled(graph, scores) is not None:
        return True
    return most > 0 and _read_masking(graph, scores, most) is not None


def _ways(graph: OpGraph, node: Node) -> Iterator[tuple[tuple[Node, ...], Ref, ReadMask]]:
    """Nodes, scores and a mask: each way to see a node as masking."""
    for scores, mask in ways_to_mask(graph, node):
        yield (node,), scores, mask
    yield from _ways_by_window(graph, node)


def _ways_by_window(graph: OpGraph, node: Node) -> Iterator[tuple[tuple[Node, ...], Ref, ReadMask]]:
    """As `_ways`, of scores (images * windows, heads, ...) viewed as (images, windows, heads, ...)
    and masked, and of the view of that as before.
    """
    shape = node.spec.shape
    source = node.args[0] if node.target in _VIEWS else None
    inner = graph.node(source.name) if isinstance(source, Ref) else None
    if inner is None or not is_inner(graph, inner) or len(shape) != 4:
        return
    inner_shape = inner.spec.shape
    if len(inner_shape) != 5 or inner_shape[2:] != shape[1:]:
        return
    for scores, mask in ways_to_mask(graph, inner):
        viewed = graph.node(scores.name)
        if viewed is None or viewed.target not in _VIEWS or not is_inner(graph, viewed):
            continue
        sizes = graph.spec(mask.name).shape
        if len(sizes) < 5 or sizes[0] == 1:
            period = inner_shape[1] if sizes[-4:-3] == inner_shape[1:2] else 0
            yield (node, inner, viewed), viewed.args[0], replace(mask, period=period)
