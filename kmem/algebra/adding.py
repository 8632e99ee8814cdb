"""Weights added up ahead of the values that they multiply, without hiding an infinity.

x (u + w) is x u + x w for every finite x. For an infinite x the right side is NaN where u and w
differ in sign, or one is zero, and the left one is an infinity. What x u + x w is then depends on
the least and the largest of the weights alone: so the same map is applied three times, to the sum,
the least and the largest, and where the last two do not add up to something finite, that is the
answer.
"""

from kmem.algebra.editing import GraphEditor
from kmem.problem.graph import Ref


def sum_and_extremes(editor: GraphEditor, weight: Ref, dim: int) -> tuple[Ref, Ref, Ref]:
    """A weight added up along a dimension, which goes, and the least and largest along it."""
    return (
        editor.call("aten.sum.dim_IntList", weight, (dim,)),
        editor.call("aten.amin.default", weight, (dim,)),
        editor.call("aten.amax.default", weight, (dim,)),
    )


def with_infinities(editor: GraphEditor, result: Ref, least: Ref, most: Ref) -> Ref:
    """What a map makes with the added weights, and what infinities make where there are some.

    Args:
        result: by the added weights.
        least: by the least weights, without a bias.
        most: by the largest weights, without a bias.
    """
    extremes = editor.call("aten.add.Tensor", least, most)
    zero = editor.call("aten.sub.Tensor", extremes, extremes)
    is_finite = editor.call("aten.eq.Scalar", zero, 0)
    return editor.call("aten.where.self", is_finite, result, extremes)
