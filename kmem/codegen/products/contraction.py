"""Matrix products of every spelling in one form.

out[batch, m, n] = sum over k of a[batch, m, k] * b[batch, k, n], with strides.

Owned here: merging of axes whose strides allow it (so that a 4D tensor times a matrix becomes one
tall product). Which products a graph has, sites.py finds. Kernels: what all share in matmul.py,
and the skills' own.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from kmem.codegen.chains.epilogue import Epilogue
from kmem.codegen.chains.finishing import Finish
from kmem.codegen.products.joined import Joined
from kmem.codegen.products.prologue import Opening
from kmem.problem.dtypes import FLOATS
from kmem.records import DTYPE_BYTES, Precision, TensorSpec

#: Offsets inside one tile are 32-bit: a tile of 256 lines may not span more. Batch and tile offsets
#: are 64-bit.
MAX_STRIDE = (2**31 - 1) // 512


@dataclass(frozen=True, slots=True)
class ProductAxis:
    """A loop of the product, with its step through every operand.

    Steps are in elements: through a, b, out and the epilogue's operands, 0 where one lacks the
    axis.
    """

    size: int
    a: int = 0
    b: int = 0
    out: int = 0
    operands: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Tail:
    """What is written with a product.

    `triangle` is "none", "upper" or "lower": sums outside it need not be computed; `diagonal` as in
    torch.triu. `operand_specs` belong to the epilogue's operands, which broadcast to the result's
    shape. `before` are the openings of both operands, empty where neither has one.
    """

    triangle: str = "none"
    diagonal: int = 0
    epilogue: Epilogue = Epilogue()
    operand_specs: tuple[TensorSpec, ...] = ()
    before: tuple[Opening, ...] = ()


@dataclass(frozen=True, slots=True)
class Product:
    """One product in canonical form.

    `batch` has exactly two axes (size 1 if unused), the outer one first. `triangle`, `diagonal`,
    `epilogue`, `operand_specs` and `before` are those of the `Tail`; the axes hold the steps of the
    epilogue's operands, then those of the openings' operands.
    """

    m: ProductAxis
    n: ProductAxis
    k: ProductAxis
    batch: tuple[ProductAxis, ProductAxis]
    dtype: str
    out: TensorSpec
    precision: Precision
    triangle: str = "none"
    diagonal: int = 0
    epilogue: Epilogue = Epilogue()
    operand_specs: tuple[TensorSpec, ...] = ()
    before: tuple[Opening, ...] = ()
    finish: Finish | None = None  # with it, tiles leave parts of rows, and `out` is the rows' value
    joined: Joined | None = None  # with it, b is a copy of columns of several operands

    @property
    def batches(self) -> int:
        """How many products there are."""
        return self.batch[0].size * self.batch[1].size

    @property
    def unpacks(self) -> bool:
        """Whether b is made of packed numbers."""
        return any(opening.pointers for opening in self.before)

    @property
    def flops(self) -> float:
        """Operations of the whole rectangle."""
        return 2.0 * self.batches * self.m.size * self.n.size * self.k.size

    @property
    def operand_steps(self) -> list[tuple[int, int, int, int]]:
        """For each operand of the epilogue its steps along both batch axes, m and n."""
        return self._steps_along((*self.batch, self.m, self.n), 0, len(self.operand_specs))

    @property
    def opening_steps(self) -> tuple[list[tuple[int, int, int, int]], ...]:
        """For each opening its operands' steps along both batch axes, its rows and columns."""
        steps, first = [], len(self.operand_specs)
        for opening, axes in zip(self.before, ((self.m, self.k), (self.k, self.n)), strict=False):
            own = self._steps_along((*self.batch, *axes), first, len(opening.specs))
            steps.append([*own, *[(0, 0, 0, 0)] * len(opening.pointers)])
            first += len(opening.specs)
        return tuple(steps)

    def _steps_along(
        self, axes: Sequence[ProductAxis], first: int, count: int
    ) -> list[tuple[int, int, int, int]]:
        return [
            tuple(axis.operands[index] if axis.operands else 0 for axis in axes)
            for index in range(first, first + count)
        ]

    @property
    def full_operands(self) -> int:
        """Operands of the epilogue that differ along both m and n."""
        return sum(step_m != 0 and step_n != 0 for _, _, step_m, step_n in self.operand_steps)

    @property
    def operand_bytes(self) -> tuple[int, int, int]:
        """Bytes of a, b and out, each counted once."""
        width = DTYPE_BYTES[self.dtype]
        widths = [DTYPE_BYTES[opening.spec.dtype] for opening in self.before] or [width, width]
        lines_a = self.m.size * prod(axis.size for axis in self.batch if axis.a)
        lines_b = self.n.size * prod(axis.size for axis in self.batch if axis.b)
        k = self.k.size
        read = [opening.read_bytes for opening in self.before] or [0, 0]
        bytes_a, bytes_b = lines_a * k * widths[0], lines_b * k * widths[1]
        return read[0] or bytes_a, read[1] or bytes_b, self.out.numel * width


#: Which of (a, b, out) have a letter -> the kind of axis that it is.
_KINDS = {
    (True, True, True): "batch",
    (True, False, True): "m",
    (False, True, True): "n",
    (True, True, False): "k",
}


def read_product(
    equation: str,
    specs: tuple[TensorSpec, TensorSpec],
    out: TensorSpec,
    precision: Precision,
    tail: Tail,
) -> Product | None:
    """Bring an einsum of two operands into canonical form.

    Args:
        equation: "ab,bc->ac" with single letters; a letter of size 1 in one operand broadcasts.
        specs: of the two operands; `out` of the result, whose strides the kernels write.
    Returns: None where the kernels do not apply: mixed or other dtypes, empty, a repeated or lone
        letter, axes that do not merge, huge strides.
    """
    inputs, result = equation.split("->")
    left, right = inputs.split(",")
    if not _is_readable(left, right, result, (*specs, out)):
        return None
    beside = [(result, spec) for spec in tail.operand_specs]
    for letters, opening in zip((left, right), tail.before, strict=False):
        beside += [(letters, spec) for spec in opening.specs]
    if any(len(spec.shape) > len(letters) for letters, spec in beside):
        return None
    read = [opening.spec for opening in tail.before] or specs  # as they lie in memory
    groups = _group_axes(left, right, result, (*read, out), beside)
    if groups is None:
        return None
    counts_both = result[-2:-1] in left and result[-1:] in right and len(result) >= 2
    if tail.triangle != "none" and not counts_both:
        return None  # triu counts rows and columns of the last two axes
    batch = groups["batch"]
    for kind in ("m", "n"):
        # Rows (columns) that do not merge into one axis, or that triu must not count, are a batch
        # that the other operand lacks.
        merged = _merge(groups[kind]) if tail.triangle == "none" else groups[kind]
        batch, groups[kind] = [*batch, *merged[:-1]], merged[-1:]
    groups["k"], batch = _merge(groups["k"]), _merge(batch)
    if len(groups["k"]) > 1 or len(batch) > 2:
        return None
    m = _only(groups["m"])
    n = _only(groups["n"])
    k = _only(groups["k"])
    if max(m.a, m.out, n.b, n.out, k.a, k.b, *m.operands, *n.operands, *k.operands) > MAX_STRIDE:
        return None
    outer, inner = ([ProductAxis(1)] * (2 - len(batch)) + batch)[:2]
    return Product(
        m,
        n,
        k,
        (outer, inner),
        out.dtype,
        out,
        precision,
        tail.triangle,
        tail.diagonal,
        tail.epilogue,
        tail.operand_specs,
        tail.before,
    )


def _is_readable(left: str, right: str, result: str, specs: Sequence[TensorSpec]) -> bool:
    """Whether no term repeats a letter and all tensors are of one type that kernels compute on."""
    repeats = any(len(set(term)) != len(term) for term in (left, right, result))
    dtypes = {spec.dtype for spec in specs}
    return not repeats and len(dtypes) == 1 and dtypes <= set(FLOATS)


def _group_axes(
    left: str,
    right: str,
    result: str,
    specs: Sequence[TensorSpec],
    beside: Sequence[tuple[str, TensorSpec]],
) -> dict[str, list[ProductAxis]] | None:
    """Axes of more than one step by kind, in the order of their letters.

    Returns: None if a letter stands alone, is empty, or broadcasts where it is summed.

    Args:
        specs: of both operands and the result.
        beside: what else is read, each with the letters of what it broadcasts to.
    """
    terms = [*zip((left, right, result), specs, strict=True)]
    terms += [(letters[len(letters) - len(spec.shape) :], spec) for letters, spec in beside]
    steps = [_steps(letters, spec) for letters, spec in terms]
    groups: dict[str, list[ProductAxis]] = {"batch": [], "m": [], "n": [], "k": []}
    for letter in dict.fromkeys(result + left + right):
        size = max(known[letter][0] for known in steps if letter in known)
        kind = _KINDS.get(tuple(letter in known for known in steps[:3]))
        if kind is None or size == 0:
            return None
        if kind == "k" and any(known[letter][0] != size for known in steps[:2]):
            return None
        if size > 1:
            taken = [_step(known, letter) for known in steps]
            groups[kind].append(ProductAxis(size, *taken[:3], tuple(taken[3:])))
    return groups


def _steps(letters: str, spec: TensorSpec) -> dict[str, tuple[int, int]]:
    return {
        letter: (size, step)
        for letter, size, step in zip(letters, spec.shape, spec.stride, strict=True)
    }


def _step(known: dict[str, tuple[int, int]], letter: str) -> int:
    """The step along a letter; 0 for a tensor that lacks it or broadcasts."""
    size, step = known.get(letter, (1, 0))
    return step if size != 1 else 0


def _only(axes: Sequence[ProductAxis]) -> ProductAxis:
    return axes[0] if axes else ProductAxis(1)


def _merge(axes: Sequence[ProductAxis]) -> list[ProductAxis]:
    """Join neighbouring axes that every value steps through as through one."""
    merged: list[ProductAxis] = []
    for axis in axes:
        last = merged[-1] if merged else None
        outer = tuple(step * axis.size for step in (axis.a, axis.b, axis.out, *axis.operands))
        if last is not None and (last.a, last.b, last.out, *last.operands) == outer:
            merged[-1] = ProductAxis(last.size * axis.size, axis.a, axis.b, axis.out, axis.operands)
        else:
            merged.append(axis)
    return merged
