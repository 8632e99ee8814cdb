"""Operators that a graph spells out in others: norms and softmax written by hand.

    x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)  # an RMS norm

Skills for the operator then know the graph (vocabulary.GraphPattern.spells).
"""

from collections.abc import Iterator

from kmem.problem.features.families import Families, word_of
from kmem.problem.graph import Node


def _scaling(known: Families) -> Iterator[Node]:
    """The reductions by whose root a row is scaled: x * rsqrt(mean(...)), x / sqrt(var(...))."""
    for node in known.of("pointwise"):
        for name in node.refs() if word_of(node) in ("mul", "div") else ():
            maker, has_root = known.graph.node(name), False
            # a statistic is a chain of single values: what is added and its power are numbers
            while maker is not None and known.family(maker.name) in ("pointwise", "layout"):
                has_root = has_root or word_of(maker) in _ROOTS
                made = [known.graph.node(each) for each in maker.refs()]
                maker = made[0] if len(made) == 1 else None
            if maker is not None and has_root and known.family(maker.name) == "reduction":
                yield maker


_ROOTS = ("rsqrt", "sqrt", "pow", "reciprocal")


def _squared(known: Families, reduction: Node) -> Node | None:
    """What makes the value whose squares a mean reduces; None if it reduces anything else."""
    square = known.graph.node(next(iter(reduction.refs()), ""))
    while square is not None and known.family(square.name) == "layout":
        square = known.graph.node(next(iter(square.refs()), ""))
    if square is None:
        return None
    refs = [*square.refs()]
    is_power = word_of(square) == "pow" and square.args[1:] in ((2,), (2.0,))
    is_square = is_power or (word_of(square) == "mul" and len(refs) == 2 and refs[0] == refs[1])
    return square if is_square else None


def _about_a_mean(known: Families, square: Node) -> bool:
    """Whether what is squared had a mean taken off."""
    makers = [known.graph.node(name) for name in known.sources(square)]
    return any(
        maker is not None
        and word_of(maker) == "sub"
        and any(known.names.get(name) == "mean" for name in known.sources(maker))
        for maker in makers
    )


def scaled_by_squares(known: Families) -> bool:
    return any(
        square is not None and not _about_a_mean(known, square)
        for reduction in _scaling(known)
        if known.names[reduction.name] == "mean"
        for square in [_squared(known, reduction)]
    )


def scaled_by_spread(known: Families) -> bool:
    for reduction in _scaling(known):
        name = known.names[reduction.name]
        square = _squared(known, reduction) if name == "mean" else None
        if name == "variance" or (square is not None and _about_a_mean(known, square)):
            return True
    return False


def shared_exponentials(known: Families) -> bool:
    """Whether exponentials, of whatever, are divided by a sum of exponentials."""
    for node in known.of("pointwise"):
        if word_of(node) != "div":
            continue
        first, *rest = (known.graph.node(name) for name in node.refs())
        if first is None or word_of(first) != "exp":
            continue
        for total in rest:
            summed = total is not None and known.names.get(total.name) == "sum"
            terms = known.sources(total) if summed and total is not None else ()
            makers = (known.graph.node(name) for name in terms)
            if any(maker is not None and word_of(maker) == "exp" for maker in makers):
                return True
    return False
