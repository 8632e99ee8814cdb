"""The arithmetic that one node of a traced graph needs at least.

The rules stand in the table of operators; bound.py adds the bytes and turns both into time.

Covered: every operator of KernelBench levels 1 to 3 as torch.export names it. An operator that the
table does not know is counted as pointwise, and named in the log once. Counts are lower bounds of
the textbook definition: taps that fall on padding and structural zeros of transposed convolutions
are left out, pooling and scans count each element once, however large the window. Not covered:
algorithms that need fewer multiply-adds than the definition (Strassen, Winograd, FFT), and algebra
across nodes.
"""

import logging
from functools import cache

from kmem.problem.graph import Node, OpGraph
from kmem.problem.operators.arithmetic import (
    Work,
    input_elements,
    input_specs,
    output_elements,
)
from kmem.problem.operators.table import find_operator

logger = logging.getLogger(__name__)


def node_work(graph: OpGraph, node: Node) -> Work:
    """Count one node.

    Raises nothing: an operator without a row, or with arguments that its rule does not know, counts
    as one operation per element.
    """
    inputs = input_specs(graph, node)
    operator = find_operator(node.target)
    if operator is not None:
        return operator.arithmetic(node, inputs)
    _log_unknown(node.target)
    return Work(simple=max(output_elements(node), input_elements(inputs)))


@cache  # each operator is named once, not once per node
def _log_unknown(target: str) -> None:
    logger.info(
        "No rule counts the arithmetic of %s; it is taken as one operation per element", target
    )
