"""Sick habits of hand-written kernels, over operators of every family.

- habit.py: what a habit is, and the pass over elements that several are made of.
- elements.py: habits of pointwise operators.
- rows.py: habits along rows: reductions, norms and scans.
- products.py: habits of products and attention.
- windows.py: habits of windows and losses.
"""

from collections.abc import Iterator

from sick.case import SickKernel, make_case
from sick.habits.elements import element_habits
from sick.habits.products import product_habits
from sick.habits.rows import row_habits
from sick.habits.windows import window_habits


def habit_cases() -> Iterator[SickKernel]:
    """The cases of this package."""
    for habit in (*element_habits(), *row_habits(), *product_habits(), *window_habits()):
        yield make_case(*habit)
