"""Errors against the oracle, the accuracy contract, and the input families, by small cases."""

import copy
import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from corpus import problems
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kmem.errors import DeviceMemoryError, ProblemError, first_line
from kmem.measure.examine.examination import Examination, Refused
from kmem.measure.oracle.answers.answer import Answer, Comparison, InputsChanged
from kmem.measure.oracle.answers.expected import SlicedExpected
from kmem.measure.oracle.answers.trivial import trivial_outputs
from kmem.measure.oracle.correctness import (
    SHORTEST_ROW,
    Difference,
    ErrorTally,
    error_floor,
    is_within,
    measure_error,
)
from kmem.measure.oracle.inputs.families import FLOATING_FAMILIES, NON_FINITE, apply_family
from kmem.measure.oracle.inputs.traits import InputTraits, input_traits
from kmem.measure.oracle.inputs.variants import other_layouts, other_sizes
from kmem.measure.oracle.lost import find_lost
from kmem.measure.oracle.reference import Reference
from kmem.measure.oracle.running.forward import room_for
from kmem.measure.oracle.running.slices import PIECES, find_slicing
from kmem.measure.pool import checksum
from kmem.measure.pool.arguments import SharedArguments, given_layouts
from kmem.measure.pool.checksum import bit_sum
from kmem.measure.worker.tensors import Placement
from kmem.orchestrate.accuracy import near_miss
from kmem.records import Contract, Kernel, Measurement, Precision, Problem, Status, Workload

INF, NAN = float("inf"), float("nan")


def vector(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32)


def test_the_loss_of_a_batch_is_held_as_a_row_is() -> None:
    """One number errs by chance four times what another does; a norm of many does not."""
    for elements, is_lenient in ((1, True), (7, True), (8, False)):
        right = torch.full((elements,), 3.0, dtype=torch.float64)
        eager, other = (measure_error(right * (1 + e), right, right) for e in (2.2e-6, 5.2e-6))
        assert is_within(other, eager, 1e-6) is is_lenient
        assert not is_within(measure_error(right * (1 + 9e-6), right, right), eager, 1e-6)


def test_the_relative_error_is_the_frobenius_norm_of_the_difference_over_that_of_the_oracle() -> (
    None
):
    oracle = torch.tensor([3.0, 4.0], dtype=torch.float64)
    difference = measure_error(vector(3.0, 4.5), oracle, vector(3.0, 4.0))
    assert difference == Difference(0.1, 0.125)


def test_a_small_row_is_held_to_its_own_magnitude() -> None:
    oracle = torch.ones(2, 8, dtype=torch.float64)
    oracle[1] = 1e-6
    output = oracle.float()
    output[1] = 2e-6
    found = measure_error(output, oracle, oracle.float())
    assert found.relative_error < 1e-5
    assert found.row_error == pytest.approx(1.0, rel=1e-4)


@pytest.mark.parametrize(
    ("output", "oracle", "eager", "right"),
    [
        (INF, INF, INF, True),
        (-INF, INF, INF, False),
        (1.0, INF, INF, False),
        (NAN, NAN, NAN, True),
        (0.0, NAN, NAN, False),
        (NAN, 1.0, 1.0, False),
        (INF, 1.0, 1.0, False),
        (INF, 2.0, INF, True),  # eager overflowed and so may the candidate
        (2.0, 2.0, INF, True),  # or it may be better
        (NAN, 2.0, INF, False),
    ],
)
def test_non_finite_values_stand_where_the_reference_has_them(
    output: float, oracle: float, eager: float, right: bool
) -> None:
    fault = measure_error(
        vector(output), torch.tensor([oracle], dtype=torch.float64), vector(eager)
    ).fault
    assert (fault is None) is right


@pytest.mark.parametrize(
    ("output", "oracle", "right"),
    [(INF, 65490.0, True), (INF, 60000.0, False), (-INF, 65490.0, False)],
)
def test_what_is_next_to_overflow_may_be_rounded_to_infinity(
    output: float, oracle: float, right: bool
) -> None:
    eager = torch.full((8,), 65472.0, dtype=torch.float16)
    found = measure_error(
        torch.full_like(eager, output), torch.full((8,), oracle, dtype=torch.float64), eager
    )
    assert (found.fault is None) is right


def test_denormals_may_be_flushed() -> None:
    oracle = torch.full((16,), 1e-39, dtype=torch.float64)
    assert measure_error(torch.zeros(16), oracle, oracle.float()) == Difference(0.0, 0.0)


def test_integers_must_equal_eager_or_the_oracle() -> None:
    eager, oracle = torch.tensor([1, 2, 3, 4]), torch.tensor([1, 2, 3, 5])
    assert measure_error(torch.tensor([1, 2, 3, 5]), oracle, eager) == Difference(0.0, 0.0)
    assert measure_error(torch.tensor([1, 2, 0, 4]), oracle, eager) == Difference(0.25, 0.25)


def test_a_scalar_and_an_empty_tensor_have_an_error() -> None:
    assert (
        measure_error(
            torch.tensor(1.5), torch.tensor(1.0, dtype=torch.float64), torch.tensor(1.0)
        ).relative_error
        == 0.5
    )
    assert measure_error(
        torch.empty(0, 4), torch.empty(0, 4, dtype=torch.float64), torch.empty(0, 4)
    ) == Difference(0.0, 0.0)


def test_complex_outputs_are_compared_in_both_parts() -> None:
    oracle = torch.tensor([1 + 1j], dtype=torch.complex128)
    assert measure_error(
        torch.tensor([1 - 1j]), oracle, torch.tensor([1 + 1j])
    ).relative_error == pytest.approx(math.sqrt(2))


@pytest.mark.parametrize(
    ("dtype", "precision", "floor"),
    [
        (torch.float32, Precision.MATCH, 1e-6),
        (torch.float32, Precision.TF32, 2.0**-10),
        (torch.bfloat16, Precision.BF16, 2.0**-8),
        (torch.float16, Precision.MATCH, 2.0**-11),
        (torch.complex64, Precision.MATCH, 1e-6),
        (torch.int64, Precision.MATCH, 0.0),
    ],
)
def test_the_floor_follows_the_output_type_and_the_contract(
    dtype: torch.dtype, precision: Precision, floor: float
) -> None:
    assert error_floor(dtype, precision) == floor


def test_a_candidate_may_err_at_most_twice_what_eager_does() -> None:
    eager = Difference(1e-4, 1e-4)
    assert is_within(Difference(2e-4, 2e-4), eager, 1e-6)
    assert not is_within(Difference(2.1e-4, 2e-4), eager, 1e-6)
    assert not is_within(Difference(1e-4, 5e-4), eager, 1e-6)
    assert not is_within(Difference(0.0, 0.0, "misplaced"), eager, 1e-6)


def test_noise_may_be_larger_than_the_noise_of_eager_and_an_error_may_not() -> None:
    noise = Difference(5.7e8, 5.9e8)  # the mean of a normalised group, which is zero
    assert is_within(Difference(1.3e9, 1.1e9), noise, 1e-6)
    assert is_within(Difference(4.5e9, 9.4e9), noise, 1e-6)
    assert not is_within(Difference(4.6e9, 1.1e9), noise, 1e-6)
    assert not is_within(Difference(1.3e9, 9.5e9), noise, 1e-6)
    assert not is_within(Difference(2.0, 0.9), Difference(0.9, 0.9), 1e-6)


def test_tf32_operands_stay_outside_an_fp32_contract() -> None:
    torch.manual_seed(0)
    a, b = torch.rand(64, 256), torch.rand(256, 64)
    oracle, eager = a.double() @ b.double(), a @ b
    cut = [(value.view(torch.int32) & -(2**13)).view(torch.float32) for value in (a, b)]
    reference = measure_error(eager, oracle, eager)
    found = measure_error(cut[0] @ cut[1], oracle, eager)
    assert not is_within(found, reference, error_floor(torch.float32, Precision.MATCH))
    assert is_within(found, reference, error_floor(torch.float32, Precision.TF32))


@settings(max_examples=40)
@given(st.lists(st.integers(1, 9), min_size=0, max_size=4), st.integers(0, 2**31))
def test_a_correctly_rounded_result_always_passes(shape: list[int], seed: int) -> None:
    oracle = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    output = oracle.float()
    assert is_within(
        measure_error(output, oracle, output),
        Difference(0.0, 0.0),
        error_floor(torch.float32, Precision.MATCH),
    )


@settings(max_examples=40)
@given(
    st.integers(1, 40),
    st.integers(0, 2**31),
    st.sampled_from([torch.float32, torch.bfloat16, torch.int64, torch.bool]),
)
def test_any_change_of_one_element_changes_the_checksum(
    size: int, place: int, dtype: torch.dtype
) -> None:
    value = torch.ones(size, dtype=dtype)
    before = bit_sum(value)
    value[place % size] = 0
    assert bit_sum(value) != before


def test_trivial_outputs_are_zeros_a_constant_the_inputs_and_the_previous_output() -> None:
    expected, earlier = vector(1.0, 3.0), vector(2.0, 6.0)
    found = trivial_outputs(expected, [vector(7.0, 8.0), 3, vector(1.0)], earlier)
    assert {name: value.tolist() for name, value in found.items()} == {
        "zeros": [0, 0],
        "constant": [4, 4],
        "input 0": [7, 8],
        "previous output": [2, 6],
    }


def test_integers_labels_and_scalars_keep_the_distribution_of_the_problem() -> None:
    labels = torch.tensor([1.0, -1.0, 1.0])
    assert input_traits(3, 3) == InputTraits(fixed=True)
    for value in (torch.tensor([1, 2]), labels):
        assert input_traits(value, value) == InputTraits(fixed=True, repeated=True)
        assert input_traits(value, -value) == InputTraits(fixed=True)


def test_structural_zeros_and_symmetry_survive_every_family() -> None:
    torch.manual_seed(1)
    first, second = torch.triu(torch.rand(6, 6)), torch.triu(torch.rand(6, 6))
    traits = input_traits(first, second)
    assert traits.zeros is not None
    symmetric = first + first.mT
    for family in FLOATING_FAMILIES:
        value = first.clone()
        apply_family(family, [value], [traits], torch.Generator().manual_seed(2))
        assert torch.equal(torch.tril(value, -1), torch.zeros(6, 6)), family
        square = symmetric.clone()
        apply_family(
            family, [square], [input_traits(symmetric, symmetric)], torch.Generator().manual_seed(2)
        )
        assert family in NON_FINITE or torch.equal(square, square.mT), family


def test_a_family_is_the_same_for_the_same_seed_and_another_for_another() -> None:
    def draw(seed: int) -> torch.Tensor:
        value = torch.rand(50)
        apply_family(
            "normal", [value], [InputTraits(fixed=False)], torch.Generator().manual_seed(seed)
        )
        return value

    assert torch.equal(draw(1), draw(1))
    assert not torch.equal(draw(1), draw(2))


def test_the_large_family_leaves_the_range_of_half_precision() -> None:
    value = torch.rand(1000)
    apply_family("large", [value], [InputTraits(fixed=False)], torch.Generator().manual_seed(1))
    assert torch.isinf(value.half()).any()


def test_an_input_without_elements_has_no_other_sizes() -> None:
    assert [name for name, _ in other_sizes([torch.rand(0, 64)])] == [
        "last dimension - 1",
        "last dimension + 1",
        "every 64 to 67",
    ]


def test_other_sizes_change_one_shared_dimension() -> None:
    names = {
        name: [tuple(value.shape) for value in values]
        for name, values in other_sizes([torch.rand(4, 6), torch.rand(4, 7)])
    }
    assert names == {
        "first dimension - 1": [(3, 6), (3, 7)],
        "first dimension + 1": [(5, 6), (5, 7)],
        "first 4 to 1": [(1, 6), (1, 7)],
        "only dimension 0 of input 0 to 5": [(5, 6), (4, 7)],
        "only dimension 0 of input 1 to 5": [(4, 6), (5, 7)],
        "every 6 to 7": [(4, 7), (4, 7)],
        "every 7 to 11": [(4, 6), (4, 11)],
    }


def test_other_layouts_hold_the_same_values(tmp_path: Path) -> None:
    value = torch.rand(2, 3, 5)
    for name, layouts in other_layouts([value, 2]):
        if name == "expanded":
            continue  # which stands for other values
        shared = SharedArguments(
            "layout",
            [value, 2],
            Placement(torch.device("cpu"), tmp_path, ipc=False),
            layouts=layouts,
        )
        shared.write([value, 2])
        held = shared.values[0]
        assert torch.equal(held, value), name
        assert (held.is_contiguous(), held.storage_offset()) == (
            (True, 1) if name == "misaligned" else (False, 0)
        )
        shared.remove()


def test_arguments_lie_as_the_problem_gives_them(tmp_path: Path) -> None:
    line = torch.rand(1025)
    windows = line.unfold(0, 8, 4)
    given = [line[1:].view(32, 32)[:, ::2], line[600:], line[:8].expand(4, 8), windows, 3]
    placement = Placement(torch.device("cpu"), tmp_path, ipc=False)
    layouts = given_layouts(given, placement)
    assert layouts == [((32, 2), 1), ((1,), 600 % 128), ((0, 1), 0), None, None]
    shared = SharedArguments("given", given, placement, layouts=layouts, private=True)
    shared.write(given)
    for values in (shared.values, shared.shared_values):
        assert all(map(torch.equal, values[:4], given[:4]))
        assert [value.stride() for value in values[:4]] == [(32, 2), (1,), (0, 1), (8, 1)]
        assert [value.storage_offset() for value in values[:4]] == [1, 600 % 128, 0, 0]
    gaps = shared.shared_values[0].as_strided((32, 15), (32, 2), 2)
    assert gaps.isnan().all()  # zeros would hide that a kernel sums them
    shared.remove()


def sliced(
    module: Callable[..., torch.Tensor], *values: torch.Tensor, limit: int = 10**9, pieces: int = 4
) -> SlicedExpected | None:
    """The right answer of a pure function in slices; None if it cannot be cut.

    On a device that has room for `limit` elements of float64 at a time.
    """

    def oracle(part: Sequence[object]) -> tuple[torch.Tensor, ...]:
        if sum(value.numel() for value in part) > limit:
            raise torch.OutOfMemoryError
        return (module(*[value.double() for value in part]),)

    def eager(part: Sequence[object]) -> tuple[torch.Tensor, ...]:
        return (module(*part),)

    def floor(dtype: torch.dtype) -> float:
        return error_floor(dtype, Precision.MATCH)

    whole = eager(values)
    slicing = find_slicing(eager, values, whole, floor, pieces=pieces)
    answer = Answer(
        False,
        tuple(value.to("meta") for value in whole),
        tuple(floor(value.dtype) for value in whole),
    )
    return SlicedExpected(answer, values, slicing, eager, oracle) if slicing else None


@settings(max_examples=50)
@given(
    st.sampled_from([(), (3,), (5, 7), (4, 9), (2, 3, 16)]),
    st.sampled_from([torch.float32, torch.float16]),
    st.sampled_from([1e-36, 1e-4, 1.0, 1e4]),
    st.sampled_from([None, float("nan"), float("inf")]),
    st.integers(0, 2**31),
)
def test_the_short_way_for_finite_values_finds_the_errors_of_the_long_way(
    shape: tuple[int, ...], dtype: torch.dtype, scale: float, odd: float | None, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    eager = (scale * torch.randn(shape, generator=generator)).to(dtype)
    output = eager * (1 + 1e-3 * torch.randn(shape, generator=generator)).to(dtype)
    oracle = eager.double() * (1 + 1e-7)
    if odd is not None:  # only eager leaves the range: the candidate is still held to the oracle
        eager = eager.clone().fill_(odd)
    short, long = measure_error(output, oracle, eager), ErrorTally()
    long._elements, long._is_floating = output.numel(), True
    by_row = len(shape) > 0 and shape[-1] >= SHORTEST_ROW
    largest = torch.finfo(dtype).max
    long._add_any(output.double(), oracle, eager.double(), None, largest=largest, by_row=by_row)
    right = long.difference()
    assert (short.relative_error, short.row_error) == pytest.approx(
        (right.relative_error, right.row_error), rel=1e-9, abs=1e-30
    )
    assert short.fault == right.fault


@settings(max_examples=25)
@given(st.integers(1, 70), st.integers(1, 12), st.sampled_from(PIECES), st.integers(0, 2**31))
def test_errors_of_independent_rows_are_the_same_in_slices(
    rows: int, columns: int, pieces: int, seed: int
) -> None:
    x = torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))
    output = torch.softmax(x, -1) * (1 + 1e-5)
    oracle = torch.softmax(x.double(), -1)
    eager = torch.softmax(x, -1)
    compared = sliced(lambda x: torch.softmax(x, -1), x, pieces=pieces).compare([output])
    for found, right in (
        (compared.found[0], measure_error(output, oracle, eager)),
        (compared.eager[0], measure_error(eager, oracle, eager)),
    ):
        assert found.relative_error == pytest.approx(right.relative_error, rel=1e-9)
        assert found.row_error == right.row_error


def test_eager_is_as_wrong_as_it_is_for_all_rows_at_once() -> None:
    """A library may choose another order of sums for fewer rows; the module is used whole."""

    def module(x: torch.Tensor) -> torch.Tensor:
        return x * (2 + 4e-6 * (x.dtype is torch.float32 and len(x) == 64))

    x = torch.rand(64, 10)
    compared = sliced(module, x).compare([module(x)])
    assert compared.is_within
    assert compared.eager[0].relative_error == pytest.approx(2e-6, rel=0.1)
    assert not sliced(lambda x: x * 2, x).compare([module(x)]).is_within


def test_a_second_candidate_is_held_to_the_same_answer_at_less_cost() -> None:
    x = torch.rand(64, 10)
    once, twice = sliced(lambda x: x.sigmoid(), x), sliced(lambda x: x.sigmoid(), x)
    right, wrong = x.sigmoid(), x.sigmoid() * 1.01
    assert twice.compare([right]) == once.compare([right])
    passing = twice.passing_adversaries()
    assert twice.compare([wrong]) == sliced(lambda x: x.sigmoid(), x).compare([wrong])
    assert twice.passing_adversaries() == passing
    x[3, 4] = 0.0
    with pytest.raises(InputsChanged):
        twice.compare([right])


def test_slices_become_finer_until_they_fit() -> None:
    x = torch.randn(64, 10)
    assert sliced(lambda x: x * 2, x, limit=10).compare([x * 2]).is_within  # one row
    with pytest.raises(torch.OutOfMemoryError):
        sliced(lambda x: x * 2, x, limit=9).compare([x * 2])


def test_inputs_that_change_after_the_forward_are_seen_however_the_change_is_balanced() -> None:
    x = torch.rand(64, 10)
    expected = sliced(lambda x: x * 2, x)
    x[3, 4], x[40, 7] = 0.0, 0.0
    with pytest.raises(InputsChanged, match="input 0 was changed"):
        expected.compare([x * 2])
    a, b = torch.rand(16, 8), torch.rand(8, 4)
    expected = sliced(torch.matmul, a, b)
    assert expected.compare([a @ b]).is_within
    b.zero_()
    with pytest.raises(InputsChanged, match="input 1 was changed"):
        expected.noise(lambda part: list(part))


@settings(max_examples=30)
@given(
    st.integers(0, 40),
    st.integers(1, 7),
    st.integers(0, 40),
    st.sampled_from((torch.float32, torch.int64, torch.uint8, torch.complex64)),
)
def test_checksums_of_parts_add_up_and_reading_changes_nothing(
    rows: int, columns: int, cut: int, dtype: torch.dtype
) -> None:
    value = (torch.randn(rows, columns) * 50).abs().to(dtype)
    before, cut = value.clone(), min(cut, rows)
    parts = bit_sum(value[:cut]) + bit_sum(value[cut:], cut * columns)
    assert bit_sum(value) == parts % 2**64 and torch.equal(value, before)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32, torch.int64])
@pytest.mark.parametrize(("size", "first"), [(1, 0), (5, 1), (4096, 7), (3 * 4096 + 7, 2**33)])
def test_the_kernel_for_gpus_makes_the_same_checksum(
    dtype: torch.dtype, size: int, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the interpreter; two programs, so that each goes over several blocks.

    Wide places: beyond 32 bits.
    """
    monkeypatch.setattr(checksum, "_PROGRAMS", 2)
    limits = torch.iinfo(dtype)
    words = torch.randint(limits.min, limits.max, (size,), dtype=dtype)
    assert checksum._sum_on_device(words, first) == checksum._sum_in_chunks(words, first)


def test_slices_tell_trivial_outputs_and_noise() -> None:
    x = torch.rand(64, 10)
    expected = sliced(lambda x: x.clone(), x)
    assert expected.compare([x]).is_within
    assert expected.passing_adversaries() == {"input 0"}
    (noise,) = expected.noise(lambda part: [part[0].double() * (1 + 2.0**-24)])
    assert noise.relative_error == pytest.approx(2.0**-24)


def test_a_square_matrix_product_is_cut_in_its_first_factor() -> None:
    a, b = torch.randn(16, 16), torch.randn(16, 16)
    compared = sliced(torch.matmul, a, b).compare([a @ b])
    assert compared.found == compared.eager
    assert not sliced(torch.matmul, a, b).compare([b @ a]).is_within


@pytest.mark.parametrize(
    "mixing",
    [lambda x: x - x.mean(0), lambda x: x.flip(0), lambda x: torch.cumsum(x, 0), lambda x: x.sum()],
)
def test_a_module_that_mixes_rows_is_not_cut(
    mixing: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    assert sliced(mixing, torch.randn(16, 5)) is None


@settings(max_examples=30)
@given(
    st.lists(st.integers(1, 6), min_size=1, max_size=4),
    st.integers(0, 2**31),
    st.sampled_from(("drawn", *FLOATING_FAMILIES)),
)
def test_every_family_fills_any_shape_and_stride(shape: list[int], seed: int, family: str) -> None:
    generator = torch.Generator().manual_seed(seed)
    for value in (
        torch.rand(shape, generator=generator),
        torch.rand(shape[::-1], generator=generator).permute(*reversed(range(len(shape)))),
    ):
        before = value.clone()
        apply_family(family, [value], [InputTraits(fixed=False)], generator)
        assert value.shape == before.shape
        if family == "sparse":  # of few elements it may leave all
            assert ((value == before) | (value == 0)).all()
        else:
            assert torch.equal(value, before) is (family == "drawn")
        assert value.isnan().any().item() is (family == "nan")
        assert value.isinf().any().item() is (family in ("infinite", "infinite rows"))


@settings(max_examples=30)
@given(st.lists(st.integers(1, 5), min_size=1, max_size=3), st.integers(0, 2**31))
@example([3, 2], 25163)
def test_a_layout_changes_no_verdict(shape: list[int], seed: int) -> None:
    oracle = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    eager = oracle.float()
    strided = (
        torch.empty(shape[::-1]).permute(*reversed(range(len(shape)))).copy_(eager * (1 + 1e-5))
    )
    assert measure_error(strided, oracle, eager) == measure_error(
        strided.contiguous(), oracle, eager
    )


def reference_of(forward: str, inputs: str, place: Path, *, imports: str = "math") -> Reference:
    source = (
        f"import {imports}\nimport torch\nimport torch.nn.functional as F\n\n\n"
        f"class Model(torch.nn.Module):\n"
        f"    def forward(self, *args):\n        return {forward}\n\n\ndef get_inputs():\n"
        f"    return [{inputs}]\n"
    )
    placement = Placement(torch.device("cpu"), place, ipc=False)
    return Reference(Problem("p", "p.py", source), Workload("full"), Contract(), placement, seed=1)


@pytest.mark.parametrize(
    ("forward", "is_cut"),
    [
        ("args[0] * 2", True),
        # of many values from [0, 1), every slice has nearly the same extremes
        ("args[0] / args[0].max()", False),
        ("args[0] - args[0].min()", False),
        # refuses signed values
        ("F.binary_cross_entropy(args[0], args[0] * 0, reduction='none')", True),
    ],
)
def test_rows_that_depend_on_an_extreme_of_all_rows_are_not_cut(
    forward: str, is_cut: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kmem.measure.oracle.inputs.filled._WHOLE_BYTES", 2**12)
    # Rows are alike in what is drawn, so that only other values tell.
    reference = reference_of(
        forward, "(torch.arange(64) / 64).repeat(128, 1) + 0 * torch.rand(1)", tmp_path
    )
    reference.inputs.fill("drawn", 3)
    before = reference.inputs.shared.checksums()
    assert isinstance(reference.expect(reference.inputs.values, 3), SlicedExpected) is is_cut
    assert reference.inputs.shared.checksums() == before


@pytest.mark.parametrize(
    ("forward", "is_stochastic"),
    [
        ("args[0] @ args[0].T", False),
        ("F.dropout(args[0], 0.5)", True),
        # drawn from torch: random, however little it moves
        ("args[0] + 2e-6 * torch.rand(1)", True),
        # as atomic additions in any order differ
        ("args[0] * (1 + 1e-6 * random.random())", False),
        ("args[0] * (1 + 1e-3 * random.random())", True),  # random numbers of another library
        ("args[0] + 0 * torch.rand(1)", False),
    ],
)
def test_a_module_is_random_if_it_draws_and_not_if_it_only_adds_in_another_order(
    forward: str, is_stochastic: bool, tmp_path: Path
) -> None:
    reference = reference_of(forward, "torch.rand(16, 16) + 1", tmp_path, imports="random")
    expected = reference.expect(reference.inputs.values, 3)
    assert reference.is_stochastic is is_stochastic
    assert ("stochastic" in reference.flags) is is_stochastic
    if not is_stochastic:  # then eager is held to the oracle, not to itself
        assert "1e-6" not in forward or expected.compare(expected.eager).eager[0].relative_error > 0


@pytest.mark.parametrize(
    ("problem", "remembers"),
    [("counter", True), ("batch_norm_train", False), ("scale_relu", False)],
)
def test_a_module_remembers_if_an_answer_depends_on_earlier_calls(
    problem: str, remembers: bool, tmp_path: Path
) -> None:
    source = (Path(__file__).parent / "corpus" / "problems" / f"{problem}.py").read_text()
    placement = Placement(torch.device("cpu"), tmp_path, ipc=False)
    reference = Reference(
        Problem("p", "p.py", source), Workload("full"), Contract(), placement, seed=1
    )
    reference.expect(reference.inputs.values, 3)
    assert reference.remembers is remembers


def test_buffers_after_several_forwards_are_held_to_float64_and_not_to_eager_alone(
    tmp_path: Path,
) -> None:
    source = (Path(__file__).parent / "corpus" / "problems" / "batch_norm_train.py").read_text()
    placement = Placement(torch.device("cpu"), tmp_path, ipc=False)
    reference = Reference(
        Problem("p", "p.py", source), Workload("full"), Contract(), placement, seed=1
    )
    reference.expect(reference.inputs.values, 3)
    answer = reference.answer_after(3, 4)
    right = copy.deepcopy(reference.module.model).double()
    for _ in range(4):
        right(*(value.double() for value in reference.inputs.values))
    assert set(answer.oracle_state) == set(answer.eager_state) != set()
    for name, value in right.named_buffers():
        torch.testing.assert_close(answer.oracle_state[name], value, rtol=1e-14, atol=0)
    assert not torch.equal(
        answer.oracle_state["norm.running_mean"], answer.eager_state["norm.running_mean"].double()
    )


@pytest.mark.parametrize(
    ("inputs", "traits"),
    [
        ("torch.randn(64, 64)", (False, False, False)),
        # zeros, but seldom in the same places
        ("torch.relu(torch.randn(64, 64) + 1)", (False, False, False)),
        ("torch.triu(torch.randn(64, 64))", (False, True, False)),
        ("(lambda x: x + x.T)(torch.randn(64, 64))", (False, False, True)),
        ("torch.randint(0, 5, (64, 64)).float()", (True, False, False)),
    ],
)
def test_inputs_too_large_for_two_draws_have_the_traits_that_two_draws_tell(
    inputs: str, traits: tuple[bool, bool, bool], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_once = reference_of("args[0]", inputs, tmp_path)
    monkeypatch.setattr("kmem.measure.oracle.inputs.filled._WHOLE_BYTES", 64)
    in_turn = reference_of("args[0]", inputs, tmp_path)
    for reference in (at_once, in_turn):
        (found,) = reference.inputs.traits
        assert (found.fixed, found.zeros is not None, found.symmetric) == traits
    assert torch.equal(at_once.inputs.values[0], in_turn.inputs.values[0])


@pytest.mark.parametrize("has_room", [True, False])
def test_what_a_worker_writes_into_large_inputs_changes_no_answer_or_is_seen(
    has_room: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kmem.measure.oracle.inputs.filled._WHOLE_BYTES", 2**12)
    monkeypatch.setattr(
        "kmem.measure.oracle.inputs.filled._PRIVATE_SHARE", 1.0 if has_room else 0.0
    )
    reference = reference_of("args[0] * 2", "torch.rand(128, 64)", tmp_path)
    inputs = reference.inputs
    inputs.fill("drawn", 3)
    right = [value.clone() for value in reference.run_eager(inputs.values, 3)]
    expected = reference.expect(inputs.values, 3)
    assert isinstance(expected, SlicedExpected)
    before = inputs.shared.own_checksums()
    assert inputs.shared.checksums() == before
    inputs.shared.items[0].value.zero_()  # as a worker may
    assert inputs.shared.checksums() != before
    if has_room:
        assert inputs.shared.own_checksums() == before
        assert expected.compare(right).is_within
    else:
        with pytest.raises(InputsChanged, match="input 0 was changed"):
            expected.compare(right)
    reference.close()


def test_a_family_that_the_module_refuses_has_no_answer_and_its_own_values_must_have_one(
    tmp_path: Path,
) -> None:
    reference = reference_of(
        "torch.linalg.cholesky(args[0])", "torch.eye(8) + 0.01 * torch.rand(1, 1)", tmp_path
    )
    reference.inputs.fill("drawn", 3)
    assert reference.expect_case("drawn", reference.inputs.values, 3) is not None
    reference.inputs.fill("constant", 3)
    assert reference.expect_case("constant", reference.inputs.values, 3) is None
    assert list(reference.refused) == ["constant"]
    assert re.match("_?LinAlgError: .*not positive-definite", reference.refused["constant"])
    reference = reference_of("torch.linalg.cholesky(-args[0])", "torch.eye(8)", tmp_path)
    with pytest.raises(ProblemError, match=r"^p.py: forward raised _?LinAlgError: .*$"):
        reference.expect_case("drawn", reference.inputs.values, 3)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", "ValueError"),
        ("one\ntwo", "ValueError: one"),
        (
            "at 12:14:\n    for k in range(K):\n    ^\nacc changes its type",
            "ValueError: at 12:14: acc changes its type",
        ),
    ],
)
def test_an_error_is_told_in_one_line_that_says_what_happened(text: str, line: str) -> None:
    assert first_line(ValueError(text)) == line


def test_a_module_that_does_not_run_in_float64_is_told_in_one_line(tmp_path: Path) -> None:
    reference = reference_of(
        "args[0] if args[0].dtype is torch.float32 else {}['no kernel for float64']",
        "torch.rand(8)",
        tmp_path,
    )
    reference.inputs.fill("drawn", 3)
    with pytest.raises(
        ProblemError,
        match=(
            "^p.py: forward does not run in float64, .*: KeyError: 'no kernel for float64'; write "
            "the"
        ),
    ):
        reference.expect_case("drawn", reference.inputs.values, 3)
    assert torch.get_default_dtype() is torch.float32


def test_an_answer_that_finds_no_room_is_one_line(tmp_path: Path) -> None:
    reference = reference_of("args[0]", "torch.rand(8)", tmp_path)
    with (
        pytest.raises(
            DeviceMemoryError,
            match=r"^p.py leaves no room on the device to be judged: out of memory; .*$",
        ),
        room_for(reference.problem),
    ):
        raise torch.OutOfMemoryError


def test_an_answer_for_complex_numbers_is_of_twice_the_precision_and_expanded_views_stay_so(
    tmp_path: Path,
) -> None:
    reference = reference_of(
        "args[0] @ args[0].mT", "torch.randn(4, 9, dtype=torch.complex64)", tmp_path
    )
    expected = reference.expect(reference.inputs.values, 3)
    assert expected.oracle[0].dtype is torch.complex128
    assert 0 < expected.compare(expected.eager).found[0].relative_error < 1e-6
    reference = reference_of("args[0][:, :1].expand(-1, 5)", "torch.rand(4, 9)", tmp_path)
    (layout,) = reference.expect(reference.inputs.values, 3).answer.layouts
    assert (layout.shape, layout.stride(1)) == ((4, 5), 0)


@pytest.mark.parametrize(
    "problem",
    [problems.LINEAR, problems.SOFTMAX, problems.MIN_AND_MAX, problems.BATCH_NORM, problems.MATMUL],
)
def test_a_large_case_has_the_same_oracle_as_a_small_one(
    problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In slices, but for the batch norm and the minima and maxima, which are done whole.

    The batch norm mixes rows, and the rows of minima and maxima are numbers.
    """

    def examine(scale: float) -> tuple[Comparison, Answer]:
        placement = Placement(torch.device("cpu"), tmp_path, ipc=False)
        reference = Reference(
            Problem("p", "<p>", problem), Workload("full"), Contract(), placement, seed=1
        )
        reference.inputs.fill("normal", 3)
        expected = reference.expect(reference.inputs.values, 3)
        assert isinstance(expected, SlicedExpected) is (
            is_cut and problem not in (problems.BATCH_NORM, problems.MIN_AND_MAX)
        )
        torch.manual_seed(3)
        with torch.no_grad():
            outputs = reference.module.model(*reference.inputs.values)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        compared = expected.compare(
            [value * scale if value.is_floating_point() else value for value in outputs]
        )
        reference.close()
        return compared, expected.answer

    found = {}
    for is_cut in (False, True):
        monkeypatch.setattr(
            "kmem.measure.oracle.inputs.filled._WHOLE_BYTES", 0 if is_cut else 2**40
        )
        found[is_cut] = [examine(1.0), examine(1.01)]
    for (whole, answer), (cut, cut_answer) in zip(found[False], found[True], strict=True):
        for one, two in zip(whole.found + whole.eager, cut.found + cut.eager, strict=True):
            assert one.relative_error == pytest.approx(two.relative_error, rel=1e-3, abs=1e-7)
        assert (answer.returns_tuple, answer.eager_state.keys()) == (
            cut_answer.returns_tuple,
            cut_answer.eager_state.keys(),
        )
        assert [value.shape for value in answer.layouts] == [
            value.shape for value in cut_answer.layouts
        ]
    assert found[True][0][0].is_within
    assert not found[True][1][0].is_within


@pytest.mark.parametrize(
    ("output", "eager", "beyond"),
    [
        (torch.tensor([1.0, 100.0 + 0.009]), torch.tensor([1.0, 100.0]), False),
        (torch.tensor([1.0 + 3e-4, 100.0]), torch.tensor([1.0, 100.0]), True),
        (torch.tensor([1.0 + 0.015]).half(), torch.tensor([1.0]).half(), False),
        # torch.allclose without equal_nan
        (torch.tensor([float("nan")]), torch.tensor([float("nan")]), True),
        (torch.tensor([3]), torch.tensor([3]), False),
        (torch.tensor([3]), torch.tensor([4]), True),
    ],
)
def test_kernelbenchs_tolerance_is_reported_beside_eager(output, eager, beyond):
    oracle = eager.double() if eager.is_floating_point() else eager
    assert measure_error(output, oracle, eager).beyond_kernelbench is beyond


@pytest.mark.parametrize(
    ("forward", "candidate", "lost"),
    [
        ("torch.exp(x)", lambda x: torch.where(x < -80, 0.0, torch.exp(x)), True),
        ("torch.exp(x)", lambda x: torch.exp2(x * 1.4426950408889634), False),
        ("torch.softmax(x, -1)", lambda x: torch.softmax(x, -1).relu().half().float(), True),
        ("torch.softmax(x, -1)", lambda x: (x - x.logsumexp(-1, True)).exp(), False),
        # what is small here cancels, in eager too
        (
            "x - x.mean(-1, keepdim=True)",
            lambda x: x - x.sum(-1, keepdim=True) / x.shape[-1],
            False,
        ),
        # another form may be more accurate than eager, or less where both cancel
        ("x * x - x", lambda x: x * (x - 1), False),
        ("1 - torch.cos(x)", lambda x: 2 * torch.sin(x / 2) ** 2, False),
    ],
)
def test_small_results_are_lost_where_eager_keeps_them(
    forward: str, candidate: Callable[[torch.Tensor], torch.Tensor], lost: bool, tmp_path: Path
) -> None:
    reference = reference_of(re.sub(r"\bx\b", "args[0]", forward), "torch.randn(12, 64)", tmp_path)
    reference.inputs.fill("tails", 3)
    values = reference.inputs.values
    expected = reference.expect(values, 5)
    found = find_lost(expected, [candidate(values[0])], reference, 5)
    assert (found is not None) is lost, found
    # whole ranges, which no better sum brings back
    assert found is None or found.excess > 10
    reference.close()


def test_how_much_is_lost_tells_a_cancellation_from_a_threshold(tmp_path: Path) -> None:
    reference = reference_of("torch.exp(args[0])", "torch.randn(64, 512)", tmp_path)
    reference.inputs.fill("tails", 3)
    expected = reference.expect(reference.inputs.values, 5)
    right = expected.oracle[0]
    small = ((right > 1e-30) & (right < 1e-12)).nonzero()[:96]
    output = right.float()
    output[small[:, 0], small[:, 1]] *= 2.0  # three times as many as luck may lose
    found = find_lost(expected, [output], reference, 5)
    assert found is not None
    assert found.excess == 3.0
    # it is told as an error that a climb may mend
    examination = Examination(Kernel(""), None, Contract(), 60.0, 60.0)  # type: ignore[arg-type]
    examination.reference = reference
    with pytest.raises(Refused, match="96 of 32768 elements of output 0 are lost"):
        examination.compare([output], expected, "tails", 5)
    assert [(each.family, each.excess) for each in examination.errors] == [("tails", 3.0)]
    refused = Measurement(Status.WRONG_VALUES, None, False, tuple(examination.errors), log="lost")
    assert near_miss(refused) is not None
    reference.close()


#: A square of a transposed convolution and what is added to it, elements of the latter's shape.
CONVOLVED = "F.conv_transpose1d(args[0], args[0].new_tensor([[[0.9, -1.3, 0.7, 1.1]]]), stride=2)"
SQUARED = f"({CONVOLVED} + args[1]).square()"
#: The same under a name that says nothing of cuDNN, which has fp32 operands in TF32.
OF_PRODUCTS = SQUARED.replace("F.conv_transpose1d", "getattr(F, 'co' + 'nv_transpose1d')")


@pytest.mark.parametrize(
    ("forward", "dropped", "is_refused"),
    [(SQUARED, 0.0, False), (SQUARED, 0.1, True), (OF_PRODUCTS, 0.0, True)],
)
def test_elements_may_err_by_what_tf32_costs_a_gpu_for_which_the_cpu_stands_in(
    forward: str, dropped: float, is_refused: bool, tmp_path: Path
) -> None:
    parts = "torch.randn(64, 1, 255), torch.randn(64, 1, 512)"
    reference = reference_of(forward, parts, tmp_path)
    reference.inputs.fill("large", 3)
    x, added = reference.inputs.values
    expected = reference.expect([x, added], 5)
    assert expected.answer.is_elementwise
    in_tf32 = ((x.view(torch.int32) + 0x1000) & -8192).view(torch.float32)
    output = reference.module.run_oracle([in_tf32, added], 5).outputs[0].float()
    output[output < output.quantile(dropped)] = 0.0
    found = find_lost(expected, [output], reference, 5)
    assert (found is not None) is is_refused, found
    if found is not None:
        assert "beside their own size; the module takes each by itself" in found.text
        assert found.excess > 1
    reference.close()
