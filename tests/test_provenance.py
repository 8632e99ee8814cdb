"""Who did the work, from what was observed; and the source check's refusals and permissions."""

import pytest
from corpus import problems
from corpus.honest import HONEST

from kmem.codegen.module.assemble import assemble_module
from kmem.codegen.module.plan import WorkloadPlan
from kmem.measure.examine.provenance import computing_operators, impurity, library_share
from kmem.measure.source_check import check_source
from kmem.records import Purity
from kmem.testing import trace_source


def test_allocation_fills_copies_and_views_compute_nothing() -> None:
    log = {
        "aten.empty_like.default": 1,
        "aten.view.default": 2,
        "aten.fill_.Scalar": 1,
        "aten.copy_.default": 1,
        "aten._assert_tensor_metadata.default": 2,
        "aten.mm.default": 3,
    }
    assert computing_operators(log) == {"aten.mm.default": 3}


def test_the_library_share_is_time_in_kernels_that_the_file_does_not_define() -> None:
    kernels = [("softmax_kernel", 30.0), ("ampere_sgemm_128x64_nn", 60.0), ("softmax_kernel", 10.0)]
    assert library_share(kernels, {"softmax_kernel": 2}) == 0.6
    # one of them was not launched by the file: a library's kernel goes by the same name
    assert library_share(kernels, {"softmax_kernel": 1}) == 1.0
    assert library_share([], {"softmax_kernel": 1}) == 0.0


def test_constants_that_are_written_are_nobodys_computing() -> None:
    fill = "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<int>>"
    kernels = [("row_sum", 10.0), (fill, 5.0), ("Memset (Device)", 5.0)]
    assert library_share(kernels, {"row_sum": 1}) == 0.0
    assert library_share([*kernels, ("ampere_sgemm", 20.0)], {"row_sum": 1}) == 0.5
    # a kernel of another file that only calls itself so
    assert library_share([("Memset_gelu", 5.0), ("FillFunctor_gelu", 5.0)], {}) == 1.0


def test_copies_on_the_gpu_compute_nothing() -> None:
    copies = [
        ("Memcpy DtoD (Device -> Device)", 5.0),
        (
            "void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl_nocast<"
            "at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda()#3}>>",
            5.0,
        ),
    ]
    assert library_share([("row_sum", 10.0), *copies], {"row_sum": 1}) == 0.0
    added = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>"
    assert library_share([("row_sum", 10.0), *copies, (added, 20.0)], {"row_sum": 1}) == 0.5


@pytest.mark.parametrize(
    ("purity", "operators", "share", "launches", "needs_launches", "reason"),
    [
        (Purity.LIBRARY, {"aten.mm.default": 1}, 1.0, 0, True, None),
        (Purity.LIBRARY, {"aten.mm.default": 1}, 0.9, 1, False, "decoy"),
        (Purity.TRITON, {"aten.empty.memory_format": 1}, 0.005, 1, True, None),
        (
            Purity.TRITON,
            {"aten.mm.default": 1},
            None,
            1,
            True,
            "library operators compute: aten.mm.default x1",
        ),
        (Purity.TRITON, {}, 0.02, 1, True, "2.0% of GPU time"),
        (Purity.TRITON, {}, None, 0, True, "launches no Triton kernel"),
    ],
)
def test_purity_is_judged_from_operators_share_and_launches(
    purity: Purity,
    operators: dict[str, int],
    share: float | None,
    launches: int,
    needs_launches: bool,
    reason: str | None,
) -> None:
    found = impurity(purity, operators, share, launches, needs_launches)
    assert found is None if reason is None else reason in found


@pytest.mark.parametrize(
    ("source", "line", "what"),
    [
        ("import os", 1, "import of os"),
        ("from os import path", 1, "import of os.path"),
        ("import torch\nx = torch._inductor", 2, "torch._inductor"),
        ("import torch as t\nu = t\nu.allclose = None", 3, "assignment to torch.allclose"),
        ("import torch\ndel torch.relu", 2, "assignment to torch.relu"),
        (
            "import torch\ntorch.nn.functional.__dict__['relu'] = 1",
            2,
            "assignment into torch.nn.functional.__dict__",
        ),
        ("import torch\ngetattr(torch, 'compile')", 2, "torch.compile"),
        ("import torch\nname = 'relu'\ngetattr(torch, name)", 3, "getattr with a computed name"),
        ("eval('1')", 1, "eval"),
        ("open('x')", 1, "open"),
        ("from torch import *", 1, "import * from torch"),
        ("from . import x", 1, "a relative import"),
        ("import torch\nclass A(torch.Tensor): pass", 2, "a subclass of torch.Tensor"),
        ("import numpy as np\nnp.ctypeslib", 2, "numpy.ctypeslib"),
        ("def f(x):\n    return x.__globals__", 2, ".__globals__"),
        ("import torch\nwith torch.autocast('cuda'): pass", 2, "torch.autocast"),
    ],
)
def test_a_refusal_names_the_line_and_the_thing(source: str, line: int, what: str) -> None:
    refusals = check_source(source)
    assert (refusals[0].line, refusals[0].what) == (line, what)
    assert refusals[0].why


def test_comments_and_strings_are_not_read() -> None:
    assert check_source("# import os\ntext = 'exec(open(1))'\n'''torch.compile'''\n") == []


@pytest.mark.parametrize("source", [case[2] for case in HONEST], ids=[case[0] for case in HONEST])
def test_honest_sources_are_not_refused(source: str) -> None:
    assert check_source(source) == []


@pytest.mark.parametrize(
    "problem", [problems.LINEAR, problems.BATCH_NORM, problems.MIN_AND_MAX, problems.SOFTMAX_MEAN]
)
def test_a_module_kmem_emits_is_not_refused(problem: str) -> None:
    _, graph = trace_source(problem)
    emitted = assemble_module("test", problem, [WorkloadPlan("full", graph, ())]).source
    assert check_source(emitted, problem_source=problem) == []


def test_what_the_problem_itself_does_is_excused() -> None:
    source = (
        "import os\nimport einops\nimport torch\nsize = int(os.environ.get('SIZE', 4))\n"
        "private = torch._C\n"
    )
    assert check_source(source, problem_source=source) == []
    assert [
        refusal.what for refusal in check_source(source + "import socket\n", problem_source=source)
    ] == ["import of socket"]
