"""Matrix products of every spelling, as einsums of two operands and a bias; and attention."""

import logging
import math
from collections.abc import Sequence

from kmem.problem.graph import Node, Ref
from kmem.problem.operators.arithmetic import Work, input_elements, output_elements
from kmem.problem.operators.row import (
    Call,
    Operator,
    Parameters,
    Product,
    ProductTerms,
    parameters,
)
from kmem.records import TensorSpec

logger = logging.getLogger(__name__)


# --- multiply-adds


def _product_work(node: Node, inputs: Sequence[TensorSpec]) -> Work:
    """Output elements times the contracted length.

    `x @ x` reads one value twice, so the left operand comes first or alone.
    """
    return Work(product_fma=output_elements(node) * inputs[0].shape[-1])


def _added_product_work(node: Node, inputs: Sequence[TensorSpec]) -> Work:
    made = output_elements(node)
    left = inputs[1] if len(inputs) > 1 else inputs[0]
    return Work(product_fma=made * left.shape[-1], simple=made)


def _linear_work(node: Node, inputs: Sequence[TensorSpec]) -> Work:
    made = output_elements(node)
    return Work(product_fma=made * inputs[0].shape[-1], simple=made if len(inputs) > 2 else 0)


def _einsum_work(node: Node, inputs: Sequence[TensorSpec]) -> Work:
    """One multiply-add per combination of all labels, for two operands without ellipsis."""
    equation = str(node.args[0])
    operands = equation.replace(" ", "").split("->")[0].split(",")
    if len(operands) != 2 or "." in equation or len(inputs) != 2:
        logger.info("einsum %s is counted as one operation per element", equation)
        return Work(simple=input_elements(inputs))
    sizes: dict[str, int] = {}
    for labels, spec in zip(operands, inputs, strict=True):
        for label, size in zip(labels, spec.shape, strict=True):
            sizes[label] = max(size, sizes.get(label, 1))
    return Work(product_fma=math.prod(sizes.values()))


def _attention_work(node: Node, inputs: Sequence[TensorSpec]) -> Work:
    """Scores (length x keys x width) and weighted values, one exp per score.

    A causal mask leaves about half of both.
    """
    names = {arg.name for arg in node.args[:3] if isinstance(arg, Ref)}
    is_of_one = len(names) == len(inputs) == 1
    query = inputs[0]
    key = query if is_of_one else inputs[min(1, len(inputs) - 1)]
    value = query if is_of_one else inputs[min(2, len(inputs) - 1)]
    batch = math.prod(query.shape[:-2])
    rows, keys = query.shape[-2], key.shape[-2]
    given = dict(zip(_ATTENTION, node.args, strict=False)) | dict(node.kwargs)
    scores = rows * keys
    if given.get("is_causal", False):
        scores = sum(min(keys, row + 1) for row in range(rows))
    width = query.shape[-1] + value.shape[-1]
    return Work(product_fma=batch * scores * width, special=batch * scores)


# --- terms


def _read_matmul(call: Call) -> ProductTerms:
    ranks = len(call.spec("a").shape), len(call.spec("b").shape)
    return ProductTerms(_matmul_equation(*ranks), call.value("a"), call.value("b"))


def _matmul_equation(rank_a: int, rank_b: int) -> str:
    """torch.matmul's broadcasting as an equation; leading labels are aligned from the right."""
    lead = "uvwxyz"[: max(rank_a, rank_b, 2) - 2]
    a = "k" if rank_a == 1 else lead[len(lead) - (rank_a - 2) :] + "mk"
    b = "k" if rank_b == 1 else lead[len(lead) - (rank_b - 2) :] + "kn"
    return f"{a},{b}->{lead}{'m' if rank_a > 1 else ''}{'n' if rank_b > 1 else ''}"


def _read_linear(call: Call) -> ProductTerms | None:
    if len(call.spec("b").shape) != 2:
        return None
    lead = "uvwxyz"[: len(call.spec("a").shape) - 1]
    equation = f"{lead}k,nk->{lead}n"
    return ProductTerms(equation, call.value("a"), call.value("b"), call.value("bias"))


def _read_einsum(call: Call) -> ProductTerms | None:
    operands = call["operands"]
    equation = call["equation"].replace(" ", "")
    is_of_two = not call.node.kwargs and len(call.node.args) == 2 and len(operands) == 2
    if not is_of_two or "->" not in equation or "." in equation:
        return None
    return ProductTerms(equation, operands[0].name, operands[1].name)


_OF_TWO = parameters("a", "b")
_ADDED = parameters("bias", "a", "b", alpha=1, beta=1)


def _plain(target: str, name: str, equation: str) -> Operator:
    """A product of two operands whose equation does not depend on their ranks."""

    def read(call: Call) -> ProductTerms:
        return ProductTerms(equation, call.value("a"), call.value("b"))

    return Operator(f"aten.{target}.default", name, _product_work, _OF_TWO, Product(read))


def _added(target: str, name: str, equation: str) -> Operator:
    """beta * bias + alpha * a product whose equation does not depend on ranks."""

    def read(call: Call) -> ProductTerms:
        scales = float(call["alpha"]), float(call["beta"])
        return ProductTerms(equation, call.value("a"), call.value("b"), call.value("bias"), *scales)

    return Operator(f"aten.{target}.default", name, _added_product_work, _ADDED, Product(read))


def _by_rank(target: str, name: str) -> Operator:
    return Operator(f"aten.{target}.default", name, _product_work, _OF_TWO, Product(_read_matmul))


_ATTENTION: Parameters = parameters(
    "query",
    "key",
    "value",
    attn_mask=None,
    dropout_p=0.0,
    is_causal=False,
    scale=None,
    enable_gqa=False,
)
ROWS = (
    _by_rank("mm", "matmul"),
    _by_rank("bmm", "batched_matmul"),
    _by_rank("matmul", "matmul"),
    _plain("mv", "matvec", "mk,k->m"),
    _plain("dot", "matvec", "k,k->"),
    _added("addmm", "matmul", "mk,kn->mn"),
    _added("baddbmm", "batched_matmul", "bmk,bkn->bmn"),
    _added("addmv", "matvec", "mk,k->m"),
    Operator(
        "aten.linear.default",
        "linear",
        _linear_work,
        parameters("a", "b", bias=None),
        Product(_read_linear),
        is_fresh=True,
    ),
    Operator(
        "aten.einsum.default",
        "matmul",
        _einsum_work,
        parameters("equation", "operands", path=None),
        Product(_read_einsum),
    ),
    Operator(
        "aten.scaled_dot_product_attention.default",
        "attention",
        _attention_work,
        _ATTENTION,
    ),
)
