"""How kernels keep running sums short, so that their error does not grow with what is summed.

A chain of n additions in fp32 errs by about 2**-24 * sqrt(n / 6) of its result where roundings are
random, by up to n * 2**-25 where they are not (equal terms), and inside a tensor core, which cuts
instead of rounding, always towards zero. So kernels sum at most some `PROMOTE_ELEMENTS` terms in
one chain and add that to a total ("promotion"). A total of more than `LONG_CHAIN` additions carries
along what it lost to rounding (Kahan): then it errs by one rounding however long it is.

Source: Higham, "Accuracy and Stability of Numerical Algorithms", 2nd ed., sections 4.2 and 4.3.
"""

from collections.abc import Sequence

from kmem.codegen.text.kernel_files import read_anchor
from kmem.problem.operators.expressions import Helper

#: Terms of one chain: of products on tensor cores (anchors probe on an H200, errors 2.3e-7 for
#: normal and 4.7e-7 for uniform operands at K = 4096), and of exact ones.
PROMOTE_ELEMENTS = 128
#: Additions from which a chain is worth compensating: 2**-24 * sqrt(128 / 6) is 2.8e-7.
LONG_CHAIN = 128

#: The second for chains of one step.
ADD_COMPENSATED, ADD_CHAIN = read_anchor("text.sums")


def steps_in_chain(block: int, elements: int = PROMOTE_ELEMENTS) -> int:
    """Steps of a loop, each of `block` terms, that one chain takes."""
    return max(1, elements // block)


# --- lanes of a loop over a row: regions/reductions.py

#: What loops call where their sums are compensated.
COMPENSATION = Helper(*ADD_COMPENSATED)


def start_lost(states: Sequence[str], width: str = "BR") -> list[str]:
    """What the lanes of summed states, so many a row, have lost before the first tile."""
    return [f"{state}_lost = tl.zeros((BK, {width}), tl.float32)" for state in states]


def add_lanes(state: str, part: str) -> str:
    """A compensated addition to the lanes of a state."""
    both = f"{state}_lanes, {state}_lost"
    return f"{both} = kmem_add_compensated({both}, {part})"


def when_compensated(compensated: Sequence[str], plain: Sequence[str]) -> list[str]:
    """Lines for loops that are COMPENSATED and for those that are not."""
    indented = [[f"    {line}" for line in lines] for lines in (compensated, plain)]
    return ["if COMPENSATED:", *indented[0], "else:", *indented[1]]
