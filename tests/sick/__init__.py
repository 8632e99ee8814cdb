"""Sick kernels of many kinds, over families of operators, each with the skills that mend it.

- case.py: what a case is.
- rows.py: reductions, norms and softmax along rows.
- elements.py: pointwise operators, copies and gathers.
- products.py: matrix products and attention.
- windows.py: convolutions, poolings, scans and losses.

What is right for a kind follows from how its sickness is made, and was written down before
retrieval was run on any of them (2026-11-23). `tools/collect_labelled.py` compiles and profiles
them.
"""

from sick.case import SickKernel
from sick.elements import element_cases
from sick.products import product_cases
from sick.rows import row_cases
from sick.windows import window_cases


def sick_kernels() -> list[SickKernel]:
    """Every case, by name."""
    cases = [*row_cases(), *element_cases(), *product_cases(), *window_cases()]
    assert len({case.name for case in cases}) == len(cases)
    return sorted(cases, key=lambda case: case.name)
