"""Sick kernels of many kinds, over families of operators, each with the skills that mend it.

- case.py: what a case is.
- rows.py: reductions, norms and softmax along rows.
- elements.py: pointwise operators, copies and gathers.
- products.py: matrix products and attention.
- windows.py: convolutions, poolings, scans and losses.
- layers.py: poolings, convolutions and norms of images.
- chains.py: forwards of several launches, and ill chosen lanes, loops and updates.
- crossed.py: sicknesses of rows and elements in the families of other operators.
- habits/: habits of hand-written kernels, over operators of every family.
- tiles.py: tiles, orders and chains of products, and attention beyond one head.
- parts.py: texts of kernels that cases of several modules are made of.
- loops.py: loops written out, of short turns, and down long rows by few programs.
- uneven.py: ragged rows, rare paths, bands and masks.
- places.py: lanes on the wrong axis, parts loaded apart, places found dearly, caches misused.
- passes.py: results that pass through memory, copies, fills and launches that need not be.
- formulas.py: what algebra would spare, precision not used, tiles and waves ill chosen.

What is right for a kind follows from how its sickness is made, and was written down before
retrieval was run on any of them (2026-11-23; of layers.py to tiles.py 2026-11-29, of loops.py to
formulas.py 2026-11-30).
`tools/collect_labelled.py` compiles and profiles them.
"""

from sick.case import SickKernel
from sick.chains import chain_cases
from sick.crossed import crossed_cases
from sick.elements import element_cases
from sick.formulas import formula_cases
from sick.habits import habit_cases
from sick.layers import layer_cases
from sick.loops import loop_cases
from sick.passes import pass_cases
from sick.places import place_cases
from sick.products import product_cases
from sick.rows import row_cases
from sick.tiles import tile_cases
from sick.uneven import uneven_cases
from sick.windows import window_cases


def sick_kernels() -> list[SickKernel]:
    """Every case, by name."""
    makers = (row_cases, element_cases, product_cases, window_cases)
    later = (layer_cases, chain_cases, tile_cases, habit_cases, crossed_cases)
    last = (loop_cases, uneven_cases, place_cases, pass_cases, formula_cases)
    cases = [case for make in (*makers, *later, *last) for case in make()]
    assert len({case.name for case in cases}) == len(cases)
    return sorted(cases, key=lambda case: case.name)
