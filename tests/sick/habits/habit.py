"""What a habit is, and the pass over elements that several are made of."""

from typing import NamedTuple

from sick.case import Body

PASS = """
@triton.jit
def sick(x_ptr, out_ptr, size, BLOCK: tl.constexpr):
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x_ptr + place, mask=place < size)
    tl.store(out_ptr + place, VALUE, mask=place < size)

"""


class Habit(NamedTuple):
    """A case whose text has no words to fill in."""

    kind: str
    operator: str
    family: str
    right: tuple[str, ...]
    body: Body
