"""Small workloads: which constants may shrink, how far, and what is said when none can."""

import logging

import pytest
import torch

from kmem.errors import ProblemError
from kmem.problem.sizing.program import MAX_SMALL_RESULTS, computes_much
from kmem.problem.sizing.search import MAX_SMALL_ELEMENTS
from kmem.problem.sizing.workload import (
    derive_small,
    derive_small_workload,
    find_input_constants,
)
from kmem.problem.source.load import execute_problem
from kmem.problem.tracing.trace import trace_problem
from kmem.records import Problem, Workload


def problem_of(
    constants: str,
    forward: str,
    inputs: str,
    init: str = "pass",
    arguments: str = "self",
    init_inputs: str = "",
    extra: str = "",
):
    source = f"""
import torch

{constants}


class Model(torch.nn.Module):
    def __init__({arguments}):
        super().__init__()
        {init}

    def forward(self, *inputs):
        x = inputs[0]
        {forward}


def get_inputs():
    return [{inputs}]


def get_init_inputs():
    return [{init_inputs}]

{extra}
"""
    return Problem("inline", "inline.py", source)


def sizes_at(problem: Problem, workload: Workload):
    graph = trace_problem(execute_problem(problem, workload))
    assert graph.opaque_reason is None, graph.opaque_reason
    shapes = [
        placeholder.spec.shape for placeholder in graph.placeholders if placeholder.kind == "input"
    ]
    elements = sum(
        placeholder.spec.numel for placeholder in graph.placeholders if placeholder.kind == "input"
    )
    return shapes, elements + sum(graph.spec(name).numel for name in graph.outputs)


def test_sizes_that_only_shape_inputs_shrink_off_powers_of_two_and_odd_ones_stay_odd() -> None:
    problem = problem_of(
        "batch_size = 4096\nWIDTH = 393217",
        "return torch.softmax(x, 1)",
        "torch.rand(batch_size, WIDTH)",
    )
    workload = derive_small_workload(problem)
    (rows, columns), elements = sizes_at(problem, workload)[0][0], sizes_at(problem, workload)[1]
    assert 2048 <= elements <= MAX_SMALL_ELEMENTS
    assert columns % 2 == 1 and columns & (columns - 1) and rows < columns


def test_a_shared_inner_dimension_stays_shared() -> None:
    problem = problem_of(
        "M = 2048\nK = 8192\nN = 4096", "return x @ inputs[1]", "torch.rand(M, K), torch.rand(K, N)"
    )
    left, right = sizes_at(problem, derive_small_workload(problem))[0]
    assert left[1] == right[0] and left != right


def test_constants_computed_from_others_follow_and_are_not_replaced_themselves() -> None:
    problem = problem_of("M = 1024 * 2\nHALF = M // 2", "return x", "torch.rand(M, HALF)")
    workload = derive_small_workload(problem)
    assert [name for name, _ in workload.constants] == ["M"]
    ((rows, columns),) = sizes_at(problem, workload)[0]
    assert columns == rows // 2


def test_constants_that_reach_the_constructor_through_others_are_kept() -> None:
    problem = problem_of(
        "BATCH = 1024\nHEADS = 8\nWIDTH = HEADS * 4\nLENGTH = 4096",
        "return self.linear(x)",
        "torch.rand(BATCH, LENGTH, WIDTH)",
        init="self.linear = torch.nn.Linear(width, width)",
        arguments="self, width",
        init_inputs="WIDTH",
    )
    assert set(find_input_constants(problem, execute_problem(problem))) == {"BATCH", "LENGTH"}
    assert sizes_at(problem, derive_small_workload(problem))[0][0][2] == 32


def test_a_parameter_named_like_a_constant_does_not_protect_it() -> None:
    problem = problem_of(
        "dim = 65536",
        "return x.sum(self.dim)",
        "torch.rand(dim, 4)",
        init="self.dim = dim",
        arguments="self, dim=0",
    )
    assert set(find_input_constants(problem, execute_problem(problem))) == {"dim"}


def test_a_constant_the_model_reads_as_a_global_is_kept() -> None:
    problem = problem_of("N = 512\nM = 65536", "return x * N", "torch.rand(M, N)")
    assert set(find_input_constants(problem, execute_problem(problem))) == {"M"}


def test_constants_are_followed_through_helper_functions_and_base_classes() -> None:
    helpers = (
        "N = 1 << 20\nWIDTH = 64\n\n\ndef make(length=N):\n    return torch.rand(length, WIDTH)\n\n"
        "\n"
    )
    helpers += "class Base(torch.nn.Module):\n    def scale(self):\n        return WIDTH\n"
    problem = problem_of(helpers, "return x / self.scale()", "make()")
    problem = Problem(
        "inline",
        "inline.py",
        problem.source.replace("class Model(torch.nn.Module)", "class Model(Base)"),
    )
    assert find_input_constants(problem, execute_problem(problem)) == {"N": 1 << 20}


def test_tuples_of_sizes_shrink_number_by_number() -> None:
    problem = problem_of("SHAPE = (3, 4096, 513)", "return x.cumsum(1)", "torch.rand(*SHAPE)")
    ((name, shape),) = derive_small_workload(problem).constants
    assert name == "SHAPE" and shape[0] == 3 and shape[1] < 4096 and shape[2] % 2 == 1


def test_sizes_that_must_be_equal_stay_equal() -> None:
    problem = problem_of(
        "ROWS = 32768\nSHAPE = (32768,)",
        "return x * inputs[1]",
        "torch.rand(ROWS, *SHAPE), torch.rand(ROWS)",
    )
    (rows, columns), _ = sizes_at(problem, derive_small_workload(problem))[0]
    assert rows == columns >= 32


def test_a_module_that_divides_gets_sizes_it_accepts() -> None:
    problem = problem_of("LENGTH = 1 << 20", "return x.view(-1, 16).sum(1)", "torch.rand(LENGTH)")
    ((length,),) = sizes_at(problem, derive_small_workload(problem))[0]
    assert length % 16 == 0 and length < 1 << 16


def test_a_constant_that_changes_the_program_is_kept_while_others_shrink() -> None:
    forward = "return sum(x[step] for step in range(x.shape[0]))"
    problem = problem_of("STEPS = 6\nWIDTH = 65536", forward, "torch.rand(STEPS, WIDTH)")
    shapes, elements = sizes_at(problem, derive_small_workload(problem))
    assert shapes[0][0] == 6 and elements <= MAX_SMALL_ELEMENTS


def test_a_window_larger_than_the_smallest_sizes_limits_how_far_they_shrink() -> None:
    problem = problem_of(
        "H = 4096\nW = 4096", "return torch.nn.functional.avg_pool2d(x, 31)", "torch.rand(16, H, W)"
    )
    ((_, height, width),) = sizes_at(problem, derive_small_workload(problem))[0]
    assert min(height, width) >= 31


def deconvolved(batch: int, side: int, forward: str) -> Problem:
    """Few inputs and few outputs; between them each input value becomes 25 of 256 channels."""
    return problem_of(
        f"BATCH = {batch}\nSIDE = {side}",
        forward,
        "torch.rand(BATCH, 128, SIDE, SIDE)",
        init="self.conv = torch.nn.ConvTranspose2d(128, 256, 5)",
    )


@pytest.mark.parametrize(("batch", "side"), [(16, 64), (2, 15)])
def test_sizes_shrink_on_while_the_forward_computes_much_between_small_inputs_and_outputs(
    batch: int, side: int
) -> None:
    problem = deconvolved(batch, side, "return self.conv(x).mean((2, 3))")
    heavy = Workload("small", (("BATCH", 2), ("SIDE", 15)))
    assert sizes_at(problem, heavy)[1] <= MAX_SMALL_ELEMENTS
    assert computes_much(trace_problem(execute_problem(problem, heavy)))
    workload = derive_small_workload(problem)
    assert dict(workload.constants)["SIDE"] == 11
    assert not computes_much(trace_problem(execute_problem(problem, workload)))


def test_values_between_inputs_and_outputs_count_as_multiply_adds_do() -> None:
    problem = problem_of(
        "SIDE = 4096",
        "return torch.sin(x[:, None] + x).mean()",
        "torch.rand(SIDE)",
    )
    results = {size: 2 * size * size + 1 for size in (641, 769)}
    assert results[641] <= MAX_SMALL_RESULTS < results[769]
    assert derive_small_workload(problem).constants == (("SIDE", 641),)


@pytest.mark.parametrize(("window", "side"), [(7, 11), (8, 15)])
def test_lighter_sizes_that_leave_a_pooling_one_column_are_not_taken(
    window: int, side: int
) -> None:
    # of side 11 the convolution makes 15 columns
    problem = deconvolved(16, 64, f"return torch.max_pool2d(self.conv(x), {window})")
    assert derive_small_workload(problem).constants == (("BATCH", 2), ("SIDE", side))


@pytest.mark.parametrize(("operators", "side"), [(30, 11), (60, 15)])
def test_lighter_sizes_are_not_looked_for_in_networks(operators: int, side: int) -> None:
    chain = "self.conv(x).mean((2, 3))" + ".neg()" * operators
    problem = deconvolved(16, 64, f"return {chain}")
    assert dict(derive_small_workload(problem).constants)["SIDE"] == side


def test_a_problem_that_is_small_needs_nothing_replaced() -> None:
    assert derive_small_workload(problem_of("N = 16", "return x", "torch.rand(N, 2)")) == Workload(
        "small"
    )
    assert derive_small_workload(problem_of("", "return x", "torch.rand(7, 2)")) == Workload(
        "small"
    )


def test_the_graph_at_small_sizes_is_traced_once() -> None:
    problem = problem_of("N = 1 << 20", "return torch.relu(x) + 1", "torch.rand(N)")
    workload, graph = derive_small(problem)
    module = execute_problem(problem, workload)
    assert graph is not None and graph.hash == trace_problem(module, both_modes=False).hash


def test_the_problems_own_small_inputs_come_first() -> None:
    problem = problem_of(
        "N = 1 << 20",
        "return x",
        "torch.rand(N)",
        extra="def get_small_inputs():\n    return [torch.rand(5)]",
    )
    assert derive_small_workload(problem) == Workload("small", small_inputs=True)


def test_parameters_that_the_model_itself_sizes_give_the_smallest_sizes_and_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    problem = problem_of(
        "BATCH = 64\nWIDTH = 131072",
        "return self.norm(x)",
        "torch.rand(BATCH, WIDTH)",
        init="self.norm = torch.nn.LayerNorm(WIDTH)",
    )
    with caplog.at_level(logging.WARNING, "kmem.problem.sizing.workload"):
        assert derive_small_workload(problem).constants == (("BATCH", 2),)
    text = "no fewer than 524288 elements of inputs and results, 262144 of parameters"
    assert text in caplog.text


@pytest.mark.parametrize("width", ["WIDTH", "131072"])
def test_large_parameters_shrink_with_their_inputs(width: str) -> None:
    problem = problem_of(
        "BATCH = 64\nWIDTH = 131072",
        "return self.norm(x)",
        f"torch.rand(BATCH, {width})",
        init="self.norm = torch.nn.LayerNorm(width)",
        arguments="self, width",
        init_inputs=width,
    )
    workload = derive_small_workload(problem)
    assert {"BATCH", width} <= dict(workload.constants).keys()
    (rows, columns), elements = sizes_at(problem, workload)[0][0], sizes_at(problem, workload)[1]
    assert 2048 <= elements <= MAX_SMALL_ELEMENTS and min(rows, columns) > 4
    model = execute_problem(problem, workload).Model(columns)
    assert model.norm.normalized_shape == (columns,)


def test_sizes_written_inside_get_inputs_shrink() -> None:
    problem = problem_of("", "return x", "torch.rand(4096, 8192)")
    ((rows, columns),), elements = sizes_at(problem, derive_small_workload(problem))
    assert rows != columns and 2048 <= elements <= MAX_SMALL_ELEMENTS


@pytest.mark.parametrize(("rows", "width"), [(4096, 1024), (8192, 256)])
def test_a_written_width_that_parameters_have_stays_while_written_rows_shrink(
    rows: int, width: int
) -> None:
    problem = problem_of(
        "",
        "return x + self.linear(x)",
        f"torch.randn({rows}, {width})",
        init="self.linear = torch.nn.Linear(width, width)",
        arguments="self, width",
        init_inputs=str(width),
    )
    workload = derive_small_workload(problem)
    assert dict(workload.constants).keys() == {str(rows)}
    ((fewer, columns),), elements = sizes_at(problem, workload)
    assert fewer < rows // 32 and columns == width and elements <= MAX_SMALL_ELEMENTS


def test_a_number_written_twice_with_two_meanings_shrinks_where_it_may() -> None:
    problem = problem_of(
        "",
        "return self.linear(x)",
        "torch.randn(1024, 1024)",
        init="self.linear = torch.nn.Linear(1024, 8)",
    )
    ((name, size),) = derive_small_workload(problem).constants
    assert name.startswith("1024@") and size < 64


def test_sizes_that_only_the_tensors_tell_shrink_with_the_tensors() -> None:
    settings = "class Sizes:\n    rows, width = 1 << 14, 512\n"
    problem = problem_of(
        settings,
        "return self.linear(x)",
        "torch.randn(Sizes.rows, Sizes.width)",
        init="self.linear = torch.nn.Linear(Sizes.width, 8)",
    )
    workload = derive_small_workload(problem)
    assert [name for name, _ in workload.constants] == ["inputs[0].0"]
    ((rows, columns),), _ = sizes_at(problem, workload)
    assert rows < 256 and columns == 512


def test_a_part_of_an_input_with_gaps_keeps_them() -> None:
    problem = problem_of("", "return x + 1", "torch.randn(1024, 8)[:, ::2]")
    sizes = (("inputs[0].0", 32), ("inputs[0].1", 3))
    (x,) = execute_problem(problem, Workload("small", sizes)).get_inputs()
    assert (x.shape, x.stride()) == ((32, 3), (8, 2))
    problem = problem_of("", "return x + 1", "torch.randn(1024, 8)")
    (x,) = execute_problem(problem, Workload("small", sizes)).get_inputs()
    assert (x.shape, x.is_contiguous()) == ((32, 3), True)


def test_heads_stay_a_divisor_of_a_large_width_that_shrinks() -> None:
    problem = problem_of(
        "",
        "return self.attend(x, x, x, need_weights=False)[0]",
        "torch.randn(16, 128, 4096)",
        init="self.attend = torch.nn.MultiheadAttention(width, heads, batch_first=True)",
        arguments="self, width, heads",
        init_inputs="4096, 8",
    )
    workload = derive_small_workload(problem)
    ((_, _, width),), _ = sizes_at(problem, workload)
    assert width < 1024 and width % 8 == 0


def test_groups_of_several_channels_stay_groups_of_several() -> None:
    """A group of one channel is another norm, whose kernel is another text."""
    problem = problem_of(
        "rows = 1024\nwidth = 8192\ngroups = 512",
        "return self.norm(self.linear(x))",
        "torch.randn(rows, width)",
        init="self.linear = torch.nn.Linear(width, width); "
        "self.norm = torch.nn.GroupNorm(groups, width)",
        arguments="self, width, groups",
        init_inputs="width, groups",
    )
    sizes = dict(derive_small_workload(problem).constants)
    assert sizes["width"] // sizes["groups"] == 16, "in proportion"
    assert sizes["rows"] < 1024 > sizes["width"]


@pytest.mark.slow
def test_a_module_that_takes_no_smaller_sizes_is_an_error_with_the_remedy() -> None:
    forward = "assert x.shape[0] == 1 << 20; return x"
    with pytest.raises(
        ProblemError, match=r"works at no smaller sizes of its inputs; define get_small_inputs\(\)"
    ):
        derive_small_workload(problem_of("N = 1 << 20", forward, "torch.rand(N)"))


def test_an_opaque_module_shrinks_too() -> None:
    problem = problem_of("N = 1 << 20", "return x if x.sum() > 0 else -x", "torch.rand(N)")
    ((_, size),) = derive_small_workload(problem).constants
    assert size <= MAX_SMALL_ELEMENTS


def test_a_convolutions_gradient_keeps_the_size_of_its_output() -> None:
    """Tensors without data take any; cuDNN refused 2 x 2 images with gradients of 14 x 14."""
    problem = Problem(
        "p",
        "p.py",
        """
import torch
class Model(torch.nn.Module):
    def forward(self, x, w, gradient):
        return torch.ops.aten.convolution_backward.default(
            gradient, x, w, [64], [16, 16], [0, 0], [1, 1], False, [0, 0], 1, [False, True, True]
        )[1] * 2
def get_inputs():
    return [
        torch.randn(32, 3, 224, 224), torch.randn(64, 3, 16, 16), torch.randn(32, 64, 14, 14)
    ]
""",
    )
    workload = derive_small_workload(problem)
    x, w, gradient = execute_problem(problem, workload).get_inputs()
    made = torch.nn.functional.conv2d(x, w, stride=16)
    assert made.shape == gradient.shape and x.numel() < 32 * 3 * 224 * 224
