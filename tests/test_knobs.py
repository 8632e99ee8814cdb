"""Knobs of kernels that a model wrote: what is one, how a source is rewritten, what is tried."""

import ast
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kmem.explore.models.knobs import (
    current_settings,
    differ_in_knobs_only,
    knob_variants,
    make_knob_space,
    with_knobs,
)
from kmem.records import Kernel

SOURCE = '''"""A file."""
import torch

BLOCK = 256; WARPS = 4  # two on one line
MODE: str = "ieee"
SCALE = 2.0
FLAG = True
TWICE = 1
TWICE = 2
LATER, OTHER = 3, 4
if FLAG:
    BRANCH = 1
    BLOCKS = 1
LONG = (
    "a"
    "b"
)


def forward(x, BLOCK=1):
    ähnlich = "ä"; SCALE = BLOCK
    return BLOCK
'''


def test_numbers_are_put_in_order_and_the_present_value_always_counts() -> None:
    space = make_knob_space(
        SOURCE, {"WARPS": [8, 2], "BLOCK": [1024, 256, 512, 512], "MODE": ["tf32x3"]}
    )
    assert space == (
        ("BLOCK", (256, 512, 1024)),
        ("MODE", ("ieee", "tf32x3")),
        ("WARPS", (2, 4, 8)),
    )
    assert current_settings(SOURCE, space) == {"BLOCK": 256, "MODE": "ieee", "WARPS": 4}


@pytest.mark.parametrize(
    ("values", "fault"),
    [
        ({"MISSING": [1, 2]}, "MISSING is no module-level constant"),
        ({"SCALE": [1, 2]}, "SCALE is no module-level constant"),
        ({"FLAG": [0, 1]}, "FLAG is no module-level constant"),
        ({"TWICE": [1, 2]}, "TWICE is no module-level constant"),
        ({"LATER": [1, 2]}, "LATER is no module-level constant"),
        ({"BRANCH": [1, 2]}, "BRANCH is no module-level constant"),
        ({"LONG": ["a", "b"]}, "LONG is no module-level constant"),
        ({"BLOCK": [128, "large"]}, "BLOCK = 256 cannot take 'large'"),
        ({"BLOCK": [True, 128]}, "BLOCK = 256 cannot take True"),
        ({"BLOCK": [256]}, "BLOCK has nothing to choose from beside 256"),
        ({"BLOCK": []}, "BLOCK has nothing to choose from beside 256"),
    ],
)
def test_what_is_no_knob_is_named(values: dict[str, list[int | str]], fault: str) -> None:
    with pytest.raises(ValueError, match="^" + fault.replace("(", r"\(")):
        make_knob_space(SOURCE, values)


def test_every_fault_is_named_at_once() -> None:
    with pytest.raises(ValueError, match="MISSING .*; WARPS = 4 cannot take 'x'"):
        make_knob_space(SOURCE, {"WARPS": ["x"], "MISSING": [1]})


def test_only_the_literals_change() -> None:
    changed = with_knobs(SOURCE, {"BLOCK": 1024, "WARPS": 16, "MODE": "it's"})
    expected = SOURCE.replace("BLOCK = 256; WARPS = 4", "BLOCK = 1024; WARPS = 16").replace(
        '"ieee"', '"it\'s"'
    )
    assert changed == expected


def test_a_literal_after_letters_of_several_bytes_is_found() -> None:
    source = 'NAME = "ä"; BLOCK = 64\n'
    assert with_knobs(source, {"BLOCK": 128}) == 'NAME = "ä"; BLOCK = 128\n'
    assert with_knobs(source, {"NAME": "é", "BLOCK": 8}) == "NAME = 'é'; BLOCK = 8\n"


@given(st.integers(0, 10**6), st.text(max_size=20))
def test_what_is_put_in_is_what_python_reads(number: int, text: str) -> None:
    source = 'A = 1\nB = "x"  # ä\nC = 3\n'
    changed = with_knobs(source, {"A": number, "B": text})
    space: dict[str, object] = {}
    for statement in ast.parse(changed).body:
        space[statement.targets[0].id] = ast.literal_eval(statement.value)
    assert space == {"A": number, "B": text, "C": 3}


def kernel(values: dict[str, list[int | str]]) -> Kernel:
    return Kernel(SOURCE, "parent", knob_space=make_knob_space(SOURCE, values))


def test_one_step_of_one_knob_comes_before_jumps_and_no_setting_twice() -> None:
    base = kernel(
        {"BLOCK": [64, 128, 256, 512, 1024], "WARPS": [1, 2, 4, 8], "MODE": ["tf32x3", "bf16x3"]}
    )
    found = [
        current_settings(variant.source, base.knob_space)
        for variant in islice(knob_variants(base, "seed"), 12)
    ]
    start = {"BLOCK": 256, "WARPS": 4, "MODE": "ieee"}
    steps = [
        {name: value for name, value in settings.items() if value != start[name]}
        for settings in found
    ]
    assert sorted(map(str, steps[:6])) == sorted(
        map(
            str,
            [
                {"BLOCK": 128},
                {"BLOCK": 512},
                {"WARPS": 2},
                {"WARPS": 8},
                {"MODE": "tf32x3"},
                {"MODE": "bf16x3"},
            ],
        )
    )
    assert len({str(step) for step in steps}) == 12
    assert {} not in steps


def test_variants_are_the_same_for_the_same_seed_and_keep_space_and_parent() -> None:
    base = kernel({"BLOCK": [64, 128, 256], "WARPS": [1, 2, 4]})
    once = list(knob_variants(base, "a"))
    assert once == list(knob_variants(base, "a")) != list(knob_variants(base, "b"))
    assert {(variant.parent, variant.knob_space) for variant in once} == {
        ("parent", base.knob_space)
    }


def test_a_small_space_is_exhausted() -> None:
    assert len(list(knob_variants(kernel({"WARPS": [1, 2, 4]}), "seed"))) == 2
    assert len(list(knob_variants(kernel({"WARPS": [1, 2, 4], "MODE": ["x"]}), "seed"))) == 5


def test_kernels_at_two_settings_of_the_same_knobs_are_one_text() -> None:
    base = kernel({"WARPS": [1, 2, 4]})
    (variant, _) = knob_variants(base, "seed")
    assert differ_in_knobs_only(base, variant)
    assert differ_in_knobs_only(base, base)
    assert not differ_in_knobs_only(base, Kernel(SOURCE + "# other\n", knob_space=base.knob_space))
    assert not differ_in_knobs_only(Kernel(SOURCE), Kernel(SOURCE)), (
        "without knobs there is nothing to differ in"
    )
