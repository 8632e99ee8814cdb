"""Read matrix products of every spelling into one form: out[batch, m, n] = sum over k of a[batch,
m, k] * b[batch, k, n], with strides.

Owned here: the einsum view of aten.mm, bmm, mv, dot, matmul, linear, addmm, baddbmm, addmv and
two-operand einsum; merging of axes whose strides allow it (so a 4D tensor times a matrix becomes
one tall product); the sites a product takes (with a triu or tril and what is pointwise after it:
epilogue.py). Kernels: matmul.py, split_matmul.py and the skills' own.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from kmem.codegen.epilogue import Bias, Epilogue, grow_epilogue, write_epilogue
from kmem.problem.graph import Node, OpGraph, Ref
from kmem.recipes import Operand, Site
from kmem.records import DTYPE_BYTES, Contract, Precision, TensorSpec

#: Offsets inside one tile are 32-bit: a tile of 256 lines may not span more. Batch and tile offsets
#: are 64-bit.
MAX_STRIDE = (2**31 - 1) // 512
DTYPES = ("float32", "bfloat16", "float16")


@dataclass(frozen=True, slots=True)
class Axis:
    """A loop of the product: its size and its step, in elements, through a, b, out and the
    epilogue's operands (0 where one lacks it).
    """

    size: int
    a: int = 0
    b: int = 0
    out: int = 0
    operands: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Product:
    """One product in canonical form.

    `batch` has exactly two axes (size 1 if unused), the outer one first.

    `triangle` is "none", "upper" or "lower": sums outside it need not be computed; `diagonal` as in
    torch.triu. `operand_specs` belong to the epilogue's operands, whose steps the axes hold.
    """

    m: Axis
    n: Axis
    k: Axis
    batch: tuple[Axis, Axis]
    dtype: str
    out: TensorSpec
    precision: Precision
    triangle: str = "none"
    diagonal: int = 0
    epilogue: Epilogue = Epilogue()
    operand_specs: tuple[TensorSpec, ...] = ()

    @property
    def batches(self) -> int:
        return self.batch[0].size * self.batch[1].size

    @property
    def flops(self) -> float:
        return 2.0 * self.batches * self.m.size * self.n.size * self.k.size

    @property
    def operand_steps(self) -> list[tuple[int, int, int, int]]:
        """For each operand of the epilogue its steps along both batch axes, m and n."""
        axes = (*self.batch, self.m, self.n)
        return [
            tuple(axis.operands[index] if axis.operands else 0 for axis in axes)
            for index in range(len(self.operand_specs))
        ]

    @property
    def full_operands(self) -> int:
        """Operands of the epilogue that differ along both m and n."""
        return sum(step_m != 0 and step_n != 0 for _, _, step_m, step_n in self.operand_steps)

    @property
    def operand_bytes(self) -> tuple[int, int, int]:
        """Bytes of a, b and out, each counted once."""
        width = DTYPE_BYTES[self.dtype]
        batches_a = (self.batch[0].size if self.batch[0].a else 1) * (
            self.batch[1].size if self.batch[1].a else 1
        )
        batches_b = (self.batch[0].size if self.batch[0].b else 1) * (
            self.batch[1].size if self.batch[1].b else 1
        )
        m = self.m.size
        n = self.n.size
        k = self.k.size
        return batches_a * m * k * width, batches_b * k * n * width, self.out.numel * width


def find_products(graph: OpGraph, contract: Contract) -> list[Site]:
    """Every product of the graph as a site whose detail is a `Product`, with the triu or tril and
    the pointwise nodes that follow it.
    """
    sites, taken = [], set()
    for node in graph.nodes:
        read = _operands(node, graph)
        if read is None or node.name in taken:
            continue
        labels, names, bias = read
        triangle = _triangle(graph, node)
        start = triangle or node
        # What follows may have strides that keep axes from merging: then the product goes without
        # it.
        for members in (grow_epilogue(graph, start, taken), ()):
            last = members[-1] if members else start
            epilogue = write_epilogue(graph, node, bias, triangle, members)
            if epilogue is None:
                continue
            product = read_product(
                labels,
                [graph.spec(name) for name in names],
                last.spec,
                contract.precision,
                *_kept(triangle),
                epilogue,
                [graph.spec(name) for name in epilogue.operands],
            )
            if product is None:
                continue
            nodes = tuple(
                dict.fromkeys((node.name, start.name, *(member.name for member in members)))
            )
            taken.update(nodes)
            sites.append(
                Site(
                    name=node.name,
                    operator=_operator(node, product),
                    nodes=nodes,
                    inputs=tuple(
                        Operand(name, graph.spec(name)) for name in (*names, *epilogue.operands)
                    ),
                    outputs=(Operand(last.name, last.spec),),
                    detail=product,
                    bytes=sum(product.operand_bytes)
                    + sum(spec.bytes for spec in product.operand_specs),
                    flops=product.flops * (0.5 if triangle else 1.0),
                    flags=("algebraic",) if triangle else (),
                )
            )
            break
    return sites


def _triangle(graph: OpGraph, node: Node) -> Node | None:
    """The triu or tril that is the only reader of a product."""
    if not graph.has_one_user(node.name):
        return None
    user = graph.users(node.name)[0]
    return (
        user
        if user.target in ("aten.triu.default", "aten.tril.default")
        and user.args[0] == Ref(node.name)
        else None
    )


def _kept(triangle: Node | None) -> tuple[str, int]:
    """Which triangle is kept and its diagonal."""
    if triangle is None:
        return "none", 0
    diagonal = triangle.args[1] if len(triangle.args) > 1 else triangle.kwargs.get("diagonal", 0)
    return "upper" if triangle.target == "aten.triu.default" else "lower", diagonal


def _operator(node: Node, product: Product) -> str:
    if product.triangle != "none":
        return "triangular_matmul"
    if min(product.m.size, product.n.size) == 1:
        return "matvec"
    if node.target == "aten.linear.default":
        return "linear"
    return "batched_matmul" if product.batches > 1 else "matmul"


#: Products whose operands come first: target -> equation.
_PLAIN = {"aten.mv.default": "mk,k->m", "aten.dot.default": "k,k->"}
#: beta * bias + alpha * product: target -> the product's equation.
_ADDED = {
    "aten.addmm.default": "mk,kn->mn",
    "aten.baddbmm.default": "bmk,bkn->bmn",
    "aten.addmv.default": "mk,k->m",
}


def _operands(node: Node, graph: OpGraph) -> tuple[str, tuple[str, str], Bias | None] | None:
    """The einsum equation of a node, the names of its operands and its bias; None if it is no
    product.
    """
    if not isinstance(node.output, TensorSpec):
        return None
    if node.target in ("aten.mm.default", "aten.bmm.default", "aten.matmul.default"):
        a, b = node.args[0].name, node.args[1].name
        return _matmul_equation(len(graph.spec(a).shape), len(graph.spec(b).shape)), (a, b), None
    if node.target in _PLAIN:
        return _PLAIN[node.target], (node.args[0].name, node.args[1].name), None
    if node.target == "aten.linear.default":
        a, b = node.args[0].name, node.args[1].name
        bias = (
            Bias(node.args[2].name)
            if len(node.args) > 2 and isinstance(node.args[2], Ref)
            else None
        )
        lead = "uvwxyz"[: len(graph.spec(a).shape) - 1]
        return (f"{lead}k,nk->{lead}n", (a, b), bias) if len(graph.spec(b).shape) == 2 else None
    if node.target in _ADDED:
        bias, a, b = (operand.name for operand in node.args[:3])
        return (
            _ADDED[node.target],
            (a, b),
            Bias(bias, float(node.kwargs.get("alpha", 1)), float(node.kwargs.get("beta", 1))),
        )
    if (
        node.target == "aten.einsum.default"
        and not node.kwargs
        and len(node.args) == 2
        and len(node.args[1]) == 2
    ):
        equation = node.args[0].replace(" ", "")
        return (
            (equation, tuple(operand.name for operand in node.args[1]), None)
            if "->" in equation and "." not in equation
            else None
        )
    return None


def _matmul_equation(rank_a: int, rank_b: int) -> str:
    """torch.matmul's broadcasting as an equation; leading labels are aligned from the right."""
    lead = "uvwxyz"[: max(rank_a, rank_b, 2) - 2]
    a = "k" if rank_a == 1 else lead[len(lead) - (rank_a - 2) :] + "mk"
    b = "k" if rank_b == 1 else lead[len(lead) - (rank_b - 2) :] + "kn"
    return f"{a},{b}->{lead}{'m' if rank_a > 1 else ''}{'n' if rank_b > 1 else ''}"


def read_product(
    equation: str,
    specs: Sequence[TensorSpec],
    out: TensorSpec,
    precision: Precision,
    triangle: str = "none",
    diagonal: int = 0,
    epilogue: Epilogue | None = None,
    operand_specs: Sequence[TensorSpec] = (),
) -> Product | None:
    """Bring an einsum of two operands into canonical form.

    Args:
        equation: "ab,bc->ac" with single letters; a letter of size 1 in one operand broadcasts.
        specs: of the two operands; `out` of the result, whose strides the kernels write.
        operand_specs: of the epilogue's operands, which broadcast to the result's shape.
    Returns: None where the kernels do not apply: mixed or other dtypes, empty, a repeated or lone
        letter, axes that do not merge, huge strides.
    """
    inputs, result = equation.split("->")
    left, right = inputs.split(",")
    if any(len(set(term)) != len(term) for term in (left, right, result)) or {
        spec.dtype for spec in (*specs, out)
    } - {specs[0].dtype}:
        return None
    if specs[0].dtype not in DTYPES or any(len(spec.shape) > len(result) for spec in operand_specs):
        return None
    steps = [_steps(left, specs[0]), _steps(right, specs[1]), _steps(result, out)]
    steps += [_steps(result[len(result) - len(spec.shape) :], spec) for spec in operand_specs]
    groups: dict[str, list[Axis]] = {"batch": [], "m": [], "n": [], "k": []}
    for letter in dict.fromkeys(result + left + right):
        size = max(spec[letter][0] for spec in steps if letter in spec)
        a, b, c, *others = (
            spec[letter][1] if letter in spec and spec[letter][0] != 1 else 0 for spec in steps
        )
        kind = {
            (True, True, True): "batch",
            (True, False, True): "m",
            (False, True, True): "n",
            (True, True, False): "k",
        }.get(tuple(letter in spec for spec in steps[:3]))
        if (
            kind is None
            or size == 0
            or (kind == "k" and any(spec[letter][0] != size for spec in steps[:2]))
        ):
            return None
        if size > 1:
            groups[kind].append(Axis(size, a, b, c, tuple(others)))
    if triangle != "none" and not (
        result[-2:-1] in left and result[-1:] in right and len(result) >= 2
    ):
        return None  # triu counts rows and columns of the last two axes
    batch = groups["batch"]
    for kind in ("m", "n"):
        # Rows (columns) that do not merge into one axis, or that triu must not count, are a batch
        # that the other operand lacks.
        merged = _merge(groups[kind]) if triangle == "none" else groups[kind]
        batch, groups[kind] = [*batch, *merged[:-1]], merged[-1:]
    groups["k"], batch = _merge(groups["k"]), _merge(batch)
    if len(groups["k"]) > 1 or len(batch) > 2:
        return None
    m, n, k = (groups[kind][0] if groups[kind] else Axis(1) for kind in ("m", "n", "k"))
    if max(m.a, m.out, n.b, n.out, k.a, k.b, *m.operands, *n.operands) > MAX_STRIDE:
        return None
    outer, inner = ([Axis(1)] * (2 - len(batch)) + batch)[:2]
    return Product(
        m,
        n,
        k,
        (outer, inner),
        specs[0].dtype,
        out,
        precision,
        triangle,
        diagonal,
        epilogue or Epilogue(),
        tuple(operand_specs),
    )


def _steps(letters: str, spec: TensorSpec) -> dict[str, tuple[int, int]]:
    return {
        letter: (size, step)
        for letter, size, step in zip(letters, spec.shape, spec.stride, strict=True)
    }


def _merge(axes: Sequence[Axis]) -> list[Axis]:
    """Join neighbouring axes that every value steps through as through one."""
    merged: list[Axis] = []
    for axis in axes:
        last = merged[-1] if merged else None
        if last and (last.a, last.b, last.out, *last.operands) == tuple(
            step * axis.size for step in (axis.a, axis.b, axis.out, *axis.operands)
        ):
            merged[-1] = Axis(last.size * axis.size, axis.a, axis.b, axis.out, axis.operands)
        else:
            merged.append(axis)
    return merged
