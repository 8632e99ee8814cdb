"""The text of emitted modules: what a reader sees, and what other sizes change in it."""

import ast
import subprocess
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from kmem.codegen.module import assemble
from kmem.codegen.module.alignment import Misaligned, align
from kmem.codegen.module.assemble import (
    EmittedModule,
    assemble_module,
    with_evidence,
)
from kmem.codegen.module.constants import BEGIN, END, swap_constants
from kmem.codegen.module.launchers import _scratch
from kmem.codegen.module.plan import SitePlan, WorkloadPlan
from kmem.codegen.module.runtime import RUNTIME, SCRATCH
from kmem.devices import named_target
from kmem.host.syntax import parse_python
from kmem.records import Contract
from kmem.skills import load_recipe, load_skill
from kmem.testing import emit_source, import_source, trace_source

SKILLS = Path(__file__).parents[1] / "skills"
PROBLEM = """
import math
import torch
from torch import nn
SIZE = {size}
UNUSED = 2 * SIZE
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        {init}
    def forward(self, x):
        return {forward}
def get_inputs():
    return [torch.randn({shape})]
if __name__ == "__main__":
    print(math.pi)
"""
#: (skill, what the module holds, its forward, the shape of its input)
CASES = {
    "row-norm": ("self.n = nn.LayerNorm(SIZE)", "self.n(x)", "17, SIZE"),
    "online-softmax": ("self.scale = 2", "torch.softmax(x, 1)", "9, SIZE"),
    "split-reduction": ("self.scale = 2", "torch.argmax(x, 1)", "3, SIZE, 20"),
    "fuse-pointwise-chain": ("self.scale = 2", "nn.functional.gelu(x) * 2 + 1", "5, SIZE"),
    "tile-matmul": ("self.l = nn.Linear(SIZE, 33)", "torch.relu(self.l(x)) + 1", "19, SIZE"),
    "split-fp16-matmul": ("self.l = nn.Linear(SIZE, 33)", "self.l(x)", "19, SIZE"),
    "blocked-row-scan": ("self.scale = 2", "torch.cumsum(x, 1)", "7, SIZE"),
    "separable-pooling": ("self.p = nn.MaxPool2d(3, 2)", "self.p(x)", "2, 3, SIZE, SIZE"),
    "staged-half-conv": (
        "self.c = nn.Conv2d(8, 8, 3)",
        "torch.relu(self.c(x))",
        "2, 8, SIZE, SIZE",
    ),
    "vendor-half-conv": (
        "self.c = nn.Conv2d(8, 8, 3)",
        "torch.relu(self.c(x))",
        "2, 8, SIZE, SIZE",
    ),
}


def emitted(skill: str, sizes: tuple[int, int] = (24, 13)) -> EmittedModule:
    """A module of one skill for the first size, and its constants for the other."""
    init, forward, shape = CASES[skill]
    recipe = load_recipe(load_skill(SKILLS / skill))
    plans, first = [], None
    for name, size in zip(("full", "small"), sizes, strict=True):
        text = PROBLEM.format(size=size, init=init, forward=forward, shape=shape)
        _, graph = trace_source(text)
        (site, *_) = recipe.match(graph, Contract())
        if first is None:
            first, source = site, text
            setting = recipe.space(site, named_target("h200")).settings()[0]
        plan = SitePlan(site, recipe.emit_like(site, setting, first), f"{skill} with some knobs")
        plans.append(WorkloadPlan(name, graph, (plan,)))
    return assemble_module("a case", source, plans)


@pytest.mark.parametrize("skill", CASES)
def test_an_emitted_module_reads_well(skill: str, tmp_path: Path) -> None:
    text = emitted(skill).source
    file = tmp_path / "emitted.py"
    file.write_text(text, encoding="utf-8")
    found = subprocess.run(
        [sys.executable, "-m", "ruff", "check", "--isolated", "--no-cache", str(file)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stdout + text
    assert max(map(len, text.splitlines())) <= 100
    imports = [line for line in text.splitlines() if line.startswith(("import", "from"))]
    assert len(set(imports)) == len(imports)
    for gone in ("import math", "UNUSED", "get_inputs", "__main__", "_small"):
        assert gone not in text
    assert f"by {skill} with some knobs\n@triton.jit" in text
    assert "\nWritten by kmem.\n" in ast.get_docstring(ast.parse(text))


@pytest.mark.parametrize("skill", CASES)
def test_other_constants_serve_another_size_with_the_same_kernels(skill: str) -> None:
    module = emitted(skill)
    small = swap_constants(module.source, module.constants["small"])
    assert small.partition(BEGIN)[0] == module.source.partition(BEGIN)[0]
    assert small.partition(END)[2] == module.source.partition(END)[2]
    init, forward, shape = CASES[skill]
    reference, _ = trace_source(PROBLEM.format(size=13, init=init, forward=forward, shape=shape))
    model, candidate = reference.Model(), None
    source = small.replace("SIZE = 24", "SIZE = 13")  # the reference's own, for its parameters
    candidate = import_source(source).ModelNew()
    candidate.load_state_dict(model.state_dict())
    x = reference.get_inputs()[0]
    with torch.no_grad(), warnings.catch_warnings():
        warnings.filterwarnings("error", "ModelNew runs the reference")
        torch.testing.assert_close(candidate(x), model(x))


def test_the_evidence_stands_in_the_docstring_and_nowhere_else() -> None:
    source = emitted("row-norm").source
    said = "Run r1: 0.5 ms (measured), 2.5 times as fast as compile; evidence/abc.json holds it."
    changed = with_evidence(source, said)
    tree, before = parse_python(changed), parse_python(source)
    told = ast.get_docstring(tree)
    assert told is not None and said in " ".join(told.split())
    assert max(map(len, changed.splitlines())) <= 100
    assert ast.dump(ast.Module(tree.body[1:])) == ast.dump(ast.Module(before.body[1:]))
    assert with_evidence("# another's kernel\n", said) == "# another's kernel\n"


def test_launches_pass_tensors_alone() -> None:
    text = emitted("row-norm").source
    assert "    _layer_norm_norm_registers(key, p0, p1, p2, q0)\n" in text
    assert "\ndef kmem_layer_norm_norm_registers(p0, p1, p2, q0):\n" in text


def test_kernels_stand_in_a_module_as_their_recipe_wrote_them() -> None:
    recipe = load_recipe(load_skill(SKILLS / "tile-matmul"))
    init, forward, shape = CASES["tile-matmul"]
    source = PROBLEM.format(size=24, init=init, forward=forward, shape=shape)
    _, graph = trace_source(source)
    (site, *_) = recipe.match(graph, Contract())
    setting = recipe.space(site, named_target("h200")).settings()[0]
    text = emit_source(source, graph, [(recipe, site, setting)])
    kernels = dict(recipe.emit(site, setting).kernels)
    launched = next(name for name in kernels if name.startswith("kmem_tile_matmul"))
    assert kernels[launched].strip() in text
    entry = text.partition("\ndef kmem_linear_tile_matmul(")[2].partition("\n\n\n")[0]
    assert entry.startswith("a, b, out, extra_0):\n    " + launched + "(")
    assert "K=LINEAR_K" in entry and "TRIANGLE='none'" in entry and "BEFORE_A=None" in entry
    # one split of K: nothing launches what would sum several
    assert "reduce_splits" in " ".join(kernels) and "reduce_splits" not in text


ALIKE = """
import torch
class Model(torch.nn.Module):
    def forward(self, x, y):
        return x @ x @ x, x @ y
def get_inputs():
    return [torch.randn(24, 24), torch.randn(24, 40)]
"""


def test_launches_that_know_the_same_go_through_one_entry() -> None:
    recipe = load_recipe(load_skill(SKILLS / "tile-matmul"))
    _, graph = trace_source(ALIKE)
    sites = recipe.match(graph, Contract())
    setting = recipe.space(sites[0], named_target("h200")).settings()[0]
    text = emit_source(ALIKE, graph, [(recipe, site, setting) for site in sites])
    entries = [line for line in text.splitlines() if line.startswith("def kmem_matmul_")]
    assert len(sites) == 3 and len(entries) == 2
    assert text.count("\ndef kmem_tile_matmul(") == 1


def test_scratch_is_one_allocation() -> None:
    text = emitted("split-fp16-matmul").source
    launcher = text.partition("def _launch_")[2].partition("\ndef ")[0]
    assert launcher.count("torch.empty(") == 1 and "_parts(scratch" in launcher


TWO_PRODUCTS = """
import torch
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a = torch.nn.Linear(40, 33)
        self.b = torch.nn.Linear(33, 21)
    def forward(self, x):
        return self.b(torch.relu(self.a(x)))
def get_inputs():
    return [torch.randn(19, 40)]
"""


def test_sites_have_their_scratch_in_one_allocation() -> None:
    """The second product begins when the first is done with it."""
    recipe = load_recipe(load_skill(SKILLS / "split-fp16-matmul"))
    problem, graph = trace_source(TWO_PRODUCTS)
    sites = recipe.match(graph, Contract())
    settings = [recipe.space(site, named_target("h200")).settings()[0] for site in sites]
    chosen = list(zip([recipe] * 2, sites, settings, strict=True))
    source = emit_source(TWO_PRODUCTS, graph, chosen)
    called = source.partition("\ndef _forward(")[2]
    assert called.count("torch.empty(SCRATCH_BYTES") == source.count("dtype=torch.uint8") == 1
    assert called.count("kmem_scratch\n") == 2
    reference, new = problem.Model(), import_source(source).ModelNew()
    new.load_state_dict(reference.state_dict())
    (x,) = problem.get_inputs()
    with torch.no_grad():
        torch.testing.assert_close(new(x), reference(x), rtol=1e-5, atol=1e-6)
    alone = emit_source(TWO_PRODUCTS, graph, chosen[:1])
    assert "SCRATCH_BYTES, dtype" in alone and "kmem_scratch" not in alone


TWO_CONVOLUTIONS = """
import torch
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a = torch.nn.Conv2d(16, 24, 3, padding=1)
        self.b = torch.nn.Conv2d(24, 16, 3)
    def forward(self, x):
        return self.b(torch.relu(self.a(x)))
def get_inputs():
    return [torch.randn({images}, 16, 12, 12)]
"""


@pytest.mark.parametrize("images", [2, 4096])
def test_staged_images_lie_in_scratch_unless_they_are_large(images: int) -> None:
    """Large ones are not held for a whole forward; what else is scratch has one place as before."""
    text = TWO_CONVOLUTIONS.format(images=images)
    recipe = load_recipe(load_skill(SKILLS / "staged-half-conv"))
    problem, graph = trace_source(text)
    sites = recipe.match(graph, Contract())
    settings = [
        next(
            each
            for each in recipe.space(site, named_target("h200")).settings()
            if each["terms"] == 1
        )
        for site in sites
    ]
    source = emit_source(text, graph, list(zip([recipe] * 2, sites, settings, strict=True)))
    launcher = source.partition("\ndef _launch_conv_1(")[2].partition("\ndef ")[0]
    assert "_parts(scratch" in launcher
    on_the_device = launcher.replace("if x.is_cpu:\n        high = torch.empty", "")
    assert ("high = torch.empty(" in on_the_device) == (images > 2)
    if images > 2:
        return
    reference, new = problem.Model(), import_source(source).ModelNew()
    new.load_state_dict(reference.state_dict())
    (x,) = problem.get_inputs()
    with torch.no_grad():
        torch.testing.assert_close(new(x), reference(x), rtol=1e-5, atol=1e-6)


def test_a_part_of_scratch_with_a_staged_ones_type_is_as_wide_on_the_cpu() -> None:
    """Its dtype is that of memory which the interpreter has for itself."""
    half = "dtype=torch.float32 if x.is_cpu else torch.float16"
    text = f"""
def launch(x, out):
    high = torch.empty(8, {half}, device=x.device)
    low = torch.empty(8, dtype=high.dtype, device=x.device)
    kernel[(1,)](x, high, low, out)
    return out
"""
    (function,) = parse_python(text).body
    parts = _scratch(function)
    assert [(part.dtype, part.is_wide_on_cpu) for part in parts.values()] == [
        ("torch.float16", True)
    ] * 2


def test_sizes_whose_text_differs_have_no_constants(caplog: pytest.LogCaptureFixture) -> None:
    head = "import torch\nclass Model(torch.nn.Module):\n"
    text = head + "    def forward(self, x):\n        return {}\n"
    inputs = "def get_inputs():\n    return [torch.randn(3, 4)]\n"
    graphs = [trace_source(text.format(how) + inputs)[1] for how in ("x.cumsum(0)", "x.sum(0)")]
    plans = [WorkloadPlan(n, g, ()) for n, g in zip(("full", "small"), graphs, strict=True)]
    assemble._say_once.cache_clear()
    for _ in range(2):
        module = assemble_module("two programs", text.format("x.cumsum(0)"), plans)
        assert module.constants == {}
    assert caplog.text.count("no form of this module for small sizes") == 1
    with pytest.raises(Misaligned):
        align([parse_python("f(1, 2)"), parse_python("f(1)")], lambda nodes: "N")


class Driver:
    """What launches ask of Triton's driver."""

    def get_current_device(self) -> int:
        return 3

    def get_current_stream(self, device: int) -> str:
        return f"stream of {device}"


class Kernel:
    """A jitted function, and the compiled kernel that a launch of it gives."""

    function, packed_metadata = "function", "metadata"

    def __init__(self) -> None:
        self.compiled: list[tuple] = []
        self.run_with: list[tuple] = []

    def __getitem__(self, grid: tuple[int, ...]):
        def launch(*arguments: object, **options: object) -> "Kernel":
            self.compiled.append((grid, arguments, options))
            return self

        return launch

    def run(self, *arguments: object) -> None:
        self.run_with.append(arguments)


@pytest.fixture
def runtime() -> dict:
    """The functions that emitted modules launch through, with a driver of our own."""
    driver = SimpleNamespace(active=Driver())
    names = {"torch": torch, "_INTERPRETED": False}
    names["triton"] = SimpleNamespace(runtime=SimpleNamespace(driver=driver))
    exec(RUNTIME + SCRATCH, names)
    return names


def test_the_first_launch_compiles_and_later_ones_go_through_the_handle(runtime: dict) -> None:
    kernel = Kernel()
    launch = runtime["_Launch"](kernel, (7,), num_warps=2)
    x, half = torch.zeros(8), torch.zeros(8, dtype=torch.float16)
    for value in (x, x, half, x[1:], x):
        launch(runtime["_key"](value), value)
    compiled = [(grid, arguments[0].dtype, options) for grid, arguments, options in kernel.compiled]
    assert compiled == [
        ((7,), torch.float32, {"num_warps": 2}),
        ((7,), torch.float16, {"num_warps": 2}),
        ((7,), torch.float32, {"num_warps": 2}),  # it does not start at 16 bytes
    ]
    expected = (7, 1, 1, "stream of 3", "function", "metadata", None, None, None)
    assert [arguments[:-1] for arguments in kernel.run_with] == [expected] * 2
    assert all(arguments[-1] == x.data_ptr() for arguments in kernel.run_with)
    assert runtime["_key"](torch.empty(4, device="meta")) is None


def test_parts_of_scratch_lie_where_the_layout_says(runtime: dict) -> None:
    scratch = torch.zeros(512, dtype=torch.uint8)
    layout = ((0, 16, torch.float32), (256, 264, torch.int32))
    first, second = runtime["_parts"](scratch, layout, (3,))
    assert (first.data_ptr(), first.dtype) == (scratch.data_ptr(), torch.float32)
    assert (second.data_ptr(), second.dtype) == (scratch.data_ptr() + 256, torch.int32)
    first, second = runtime["_parts"](scratch, layout, None)
    assert (first.shape, first.dtype) == ((4,), torch.float32)
    assert (second.shape, second.data_ptr()) == ((2,), scratch.data_ptr() + 256)
