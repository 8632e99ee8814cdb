"""The tensors of a description: `bf16[32, 4096, 8192]`, with names for their sizes."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

#: What people call a dtype, and what torch does.
DTYPES = {
    **dict.fromkeys(("bf16", "bfloat16"), "bfloat16"),
    **dict.fromkeys(("fp16", "f16", "float16", "half"), "float16"),
    **dict.fromkeys(("fp32", "f32", "float32", "float"), "float32"),
}
TENSOR = re.compile(
    rf"\b({'|'.join(sorted(DTYPES, key=len, reverse=True))})\s*\[\s*(\d+(?:\s*[,x]\s*\d+)*)\s*\]",
    re.IGNORECASE,
)
#: Names of the sizes of a tensor by its rank; further tensors take what is left.
_NAMES = {1: "N", 2: "MN", 3: "BMN", 4: "BHMN", 5: "BHDMN"}
_FURTHER = "KLPQRSTUVWXYZ"


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor as it was said: dtype as torch calls it, and its shape."""

    dtype: str
    shape: tuple[int, ...]


def find_tensors(text: str) -> list[Tensor]:
    """Every `dtype[sizes]` of a text, in order."""
    return [
        Tensor(DTYPES[found[1].lower()], tuple(map(int, re.split(r"\s*[,x]\s*", found[2]))))
        for found in TENSOR.finditer(text)
    ]


def name_sizes(tensors: Sequence[Tensor]) -> tuple[dict[str, int], list[tuple[str, ...]]]:
    """Constants for the sizes, and each tensor's shape in them; equal sizes share a name.

    Within one tensor every size has a name of its own.
    """
    sizes: dict[str, int] = {}
    shapes = []
    for place, tensor in enumerate(tensors):
        own = list(_NAMES.get(len(tensor.shape), "")) if place == 0 else []
        taken: list[str] = []
        for size in tensor.shape:
            shared = (name for name, value in sizes.items() if value == size and name not in taken)
            name = own.pop(0) if own else next(shared, "")
            name = name or next(letter for letter in _FURTHER if letter not in sizes)
            sizes[name] = size
            taken.append(name)
        shapes.append(tuple(taken))
    return sizes, shapes
