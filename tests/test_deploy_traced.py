"""Operators that a compiler sees through: their launches, traced for an H200 without having one."""

import os
import subprocess
import sys

import pytest

from kmem.deploy.package import export_package
from kmem.devices import named_target
from kmem.records import Contract
from kmem.skills import load_recipe, load_skill
from kmem.testing import emit_source, trace_source
from tests.shipped_runs import KERNEL, finished_run
from tests.test_codegen_emitted import CASES, PROBLEM, SKILLS

TRACE = '''
import importlib
import sys

import torch
import triton
from torch._functorch.aot_autograd import aot_function
from torch._subclasses.fake_tensor import FakeTensorMode
from triton.backends.compiler import GPUTarget

sys.modules["kmem"] = None


class Driver:
    """What Triton asks of a driver before it launches anything."""

    get_current_target = staticmethod(lambda: GPUTarget("cuda", 90, 32))
    get_current_device = staticmethod(lambda: 0)


triton.runtime.driver.set_active(Driver())


def keep(graph, inputs):
    for node in graph.graph.nodes:
        if node.op == "call_function":
            print(name, node.target, node.kwargs.get("tensors_to_clone", ""))
    return graph.forward


for name in sys.argv[1:]:
    package = importlib.import_module(name)
    operator = package.operator(package.ENTRIES[0])
    with FakeTensorMode(), torch.no_grad():
        x, *state = (
            torch.empty(each.shape, device="cuda")
            for each in (*operator.entry.inputs, *operator.entry.state)
        )
        call = aot_function(lambda x, *s: operator([x + 1], s), keep, inference_compiler=keep)
        print(name, operator.is_traced, tuple(call(x, *state).shape))
'''
SCALAR = "self.w = nn.Parameter(torch.tensor(2.0))"
PACKAGES = {
    "plain": KERNEL,
    "address": KERNEL.replace("out = torch", "assert x.data_ptr()\n        out = torch"),
    "value": KERNEL.replace("out = torch", "assert x.sum().item() < 9e9\n        out = torch"),
    "alias": KERNEL.replace("return out", "return out if out is x else x"),
    # a function that is not what emitted kernels call by this name
    "own_key": KERNEL.replace("out = torch", "assert _key(x)\n        out = torch").replace(
        "class ModelNew", "def _key(x):\n    return x.shape\n\n\nclass ModelNew"
    ),
}

#: Modules whose kernels go through handles: by skill; the last one splits its weights ahead, and
#: what follows has scratch memory in parts.
EMITTED = {
    skill: (skill, *CASES[skill])
    for skill in ("row-norm", "fuse-pointwise-chain", "tile-matmul", "split-fp16-matmul")
} | {
    "scratch": ("split-fp16-matmul", "self.scale = 2", "x @ x.t()", "40, SIZE"),
    # a constructor that a tracer's fake tensors do not let through
    "scalar": ("fuse-pointwise-chain", SCALAR, "torch.relu(x) * self.w", "5, SIZE"),
}


def written(skill: str, problem: str) -> str:
    """What a skill's recipe writes for a problem, first site and setting."""
    recipe = load_recipe(load_skill(SKILLS / skill))
    _, graph = trace_source(problem)
    (site, *_) = recipe.match(graph, Contract())
    setting = recipe.space(site, named_target("h200")).settings()[0]
    return emit_source(problem, graph, [(recipe, site, setting)])


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What a tracer saw of the operators of packages, in a process that cannot import kmem."""
    directory = tmp_path_factory.mktemp("packages")
    for name, kernel in PACKAGES.items():
        run = finished_run(directory / f"run_{name}", kernel=kernel)
        export_package([run], directory / name, name)
    for case, (skill, init, forward, shape) in EMITTED.items():
        problem = PROBLEM.format(size=24, init=init, forward=forward, shape=shape)
        name = case.replace("-", "_")
        kernel = written(skill, problem)
        run = finished_run(directory / f"run_{name}", problem=problem, kernel=kernel)
        export_package([run], directory / name, name)
    names = [*PACKAGES, *(case.replace("-", "_") for case in EMITTED)]
    places = os.pathsep.join(str(directory / name) for name in names)
    environment = {**os.environ, "PYTHONPATH": places}
    environment.pop("TRITON_INTERPRET", None)
    environment.pop("COVERAGE_PROCESS_CONFIG", None)
    done = subprocess.run(
        [sys.executable, "-c", TRACE, *names],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_compiler_sees_the_launches_and_what_they_write(seen: list[str]) -> None:
    assert {"plain True (6, 64)", "own_key True (6, 64)"} <= {*seen}
    assert "plain triton_kernel_wrapper_functional ['target']" in seen
    assert not any(line.startswith("plain kmem.") for line in seen)


@pytest.mark.parametrize("name", ["address", "value", "alias"])
def test_what_cannot_be_traced_is_one_opaque_call(name: str, seen: list[str]) -> None:
    assert f"{name} False (6, 64)" in seen
    assert any(line.startswith(f"{name} kmem.rms_norm_") for line in seen)
    assert not any(line.startswith(f"{name} triton") for line in seen)


@pytest.mark.parametrize(
    "name", ["row_norm", "fuse_pointwise_chain", "tile_matmul", "scratch", "scalar"]
)
def test_launches_of_emitted_kernels_are_seen_too(name: str, seen: list[str]) -> None:
    assert any(line.startswith(f"{name} True ") for line in seen), seen
    assert any(line.startswith(f"{name} triton_kernel_wrapper_functional") for line in seen)


def test_parts_of_scratch_memory_are_no_views_of_bytes_to_a_compiler(seen: list[str]) -> None:
    called = [line.split()[1] for line in seen if line.startswith("scratch ")]
    assert called.count("aten.new_empty.default") >= 8
    assert not any(name.startswith(("aten.slice", "aten.view.dtype")) for name in called)


def test_a_kernel_that_keeps_its_split_weights_is_one_opaque_call(seen: list[str]) -> None:
    assert any(line.startswith("split_fp16_matmul False ") for line in seen), seen
    assert any(line.startswith("split_fp16_matmul kmem.") for line in seen)
