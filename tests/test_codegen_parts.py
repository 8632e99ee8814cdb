"""Chains around concatenations: rotary embeddings, and whatever else is put together from parts."""

import re
from pathlib import Path

import pytest
import torch
from compile_sm90 import FIRST_STAGE, compile_jobs
from wide_offsets import overflows

from kmem.codegen.regions.matching import find_pointwise_regions
from kmem.codegen.rows.recipe import PointwiseRecipe
from kmem.devices import named_target
from kmem.explore.recipes.cover import cover_graph, find_options
from kmem.records import Contract
from kmem.skills import load_recipe, load_skill
from kmem.testing import check_recipe, emit_source, import_source, trace_source

H200 = named_target("h200")
SETTING = {"BLOCK": 512, "num_warps": 4, "HINT": "stream"}
ROTATED = """
def rotated(x):
    half = x.shape[-1] // 2
    return torch.cat((-x[..., half:], x[..., :half]), -1)
"""


def problem(body: str, *inputs: str, parameters: str = "x, c, s") -> str:
    """A module whose forward is these lines, the last of them its result."""
    *lines, result = body.strip().split("\n")
    indented = "".join(f"        {line.strip()}\n" for line in lines)
    return (
        f"import torch\nimport torch.nn.functional as F\n\n{ROTATED}\n\n"
        f"class Model(torch.nn.Module):\n    def forward(self, {parameters}):\n"
        f"{indented}        return {result.strip()}\n\n"
        f"def get_inputs():\n    return [{', '.join(inputs)}]\n"
    )


TABLES = "torch.randn(5, 12)", "torch.randn(5, 12)"
HALVES = """
left, right = x.chunk(2, dim=-1)
x * c + torch.cat((-right, left), dim=-1) * s
"""
TRANSPOSED = f"""
x = x.view(2, 5, 3, -1).transpose(1, 2)
{HALVES.strip()}
"""
PAIRS = """
even, odd = x[..., ::2], x[..., 1::2]
torch.stack([even * c - odd * s, even * s + odd * c], dim=-1).flatten(-2)
"""
HALF_TABLES = "torch.randn(5, 6)", "torch.randn(5, 6)"
#: What a module computes, of which inputs, and how many spaces its kernel goes over.
FORMS = {
    "halves": (HALVES, ("torch.randn(2, 3, 5, 12)", *TABLES), 1),
    "halves of a transposed product": (TRANSPOSED, ("torch.randn(2, 5, 36)", *TABLES), 1),
    "halves by slices, tables unsqueezed": (
        "x * c.unsqueeze(1) + rotated(x) * s.unsqueeze(1)",
        ("torch.randn(2, 3, 5, 12)", "torch.randn(2, 5, 12)", "torch.randn(2, 5, 12)"),
        1,
    ),
    "pairs": (PAIRS, ("torch.randn(2, 3, 5, 12)", *HALF_TABLES), 1),
    "pairs of a transposed product": (
        f"x = x.view(2, 5, 3, -1).transpose(1, 2)\n{PAIRS.strip()}",
        ("torch.randn(2, 5, 36)", *HALF_TABLES),
        1,
    ),
    "pairs by unbind, written where they are copied": (
        """
        a, b = x.reshape(2, 3, 5, 6, 2).unbind(-1)
        y = torch.stack((a * c - b * s, b * c + a * s), -1).reshape(x.shape)
        y.transpose(1, 2).contiguous()
        """,
        ("torch.randn(2, 3, 5, 12)", *HALF_TABLES),
        1,
    ),
    "neighbours swapped, then tables": (
        "x * c + torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2) * s",
        ("torch.randn(2, 3, 5, 12)", *TABLES),
        1,
    ),
    "neighbours swapped, the second first": (
        "torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2) * s",
        ("torch.randn(2, 3, 5, 12)", *TABLES),
        1,
    ),
    "partial": (
        """
        turned, rest = x[..., :12], x[..., 12:]
        torch.cat((turned * c + rotated(turned) * s, rest), -1)
        """,
        ("torch.randn(2, 3, 5, 20)", *TABLES),
        2,
    ),
    "partial by split": (
        """
        rest, turned = x.split([8, 12], -1)
        torch.cat((rest, turned * c + rotated(turned) * s), -1) * 2
        """,
        ("torch.randn(2, 3, 5, 20)", *TABLES),
        2,
    ),
}
OTHERS = {
    "three parts": ("torch.cat((F.relu(x), c, s * 2), 1)", 3),
    "three parts of one size": (
        "torch.relu(torch.cat((x[:, :3], x[:, 3:6], x[:, 4:7] + 1), 1))",
        3,
    ),
    "the first dimension": ("torch.cat((x, torch.sigmoid(x)), 0)", 1),
    "a part twice": ("y = torch.tanh(x)\ntorch.cat((y, y, x), -1)", 1),
    "a stack in the middle": ("torch.stack((x * 2, x + 1, -x), 1)", 1),
    "a stack of three at the end": ("torch.stack((x * 2, x + 1, -x), -1).flatten(1)", 1),
    "a stack of four at the end": ("torch.stack((x * 2, x + 1, -x, x), -1)", 1),
    "a stack at the front": ("torch.stack((x, x * x)).sum(0) + x", None),
    "what is put together is taken apart": (
        "a, b = torch.cat((x * 2, x + 1), -1).chunk(2, 1)\na * b.exp()",
        None,
    ),
    "an empty part": ("torch.cat((x[:, :0], F.relu(x), torch.empty(0)), 1)", 1),
    "rolled": ("torch.cat((x[:, 1:], x[:, :1]), 1) * x", 2),
    "several results": ("y = torch.cat((x * 2, -x), 1)\n(y + 1, y.relu())", None),
    "a mask": ("torch.cat((x > 0, x[:, :2] < 0), 1)", 2),
    "a mask among numbers": ("torch.cat((x > 0, x), 1)", 1),
    "a transposed part": ("torch.cat((x.t(), x.t().exp()), 1)", 1),
    "in cats of cats": ("torch.cat((torch.cat((x, -x), 1), torch.cat((x * 2, x), 1)), 0)", None),
    "of one element": ("torch.cat((x.flatten()[:1], x.flatten()[3:4] + 1))", None),
    "reshaped within": ("torch.cat((x * 2, x), 0).view(2, -1).t() + 1", None),
    "expanded": ("torch.cat((x[:, :1].expand(4, 9), x), 1) * 2", 2),
    "zeros in front": ("torch.cat((torch.zeros_like(x[:, :2]), x), 1) * 2 + 1", 2),
    "numbers behind": ("torch.cat((x, torch.full((4, 3), 0.5), torch.ones(4, 1)), 1).exp()", 3),
    "padded": ("F.pad(x * 2, (2, 1)) + 1", 3),
    "padded in two dimensions": ("F.pad(torch.sigmoid(x), (2, 0, 1, 3), value=-1.5) * 2", 4),
    "padded, then computed": ("F.pad(x, (0, 0, 1, 1)).exp()", 3),
    "padded with infinity": ("F.pad(x, (1, 0), value=float('-inf')).exp()", 2),
    "a short filter": ("y = F.pad(x, (2, 0))\ny[:, :-2] * 0.5 + y[:, 1:-1] * 0.3 + y[:, 2:]", 2),
    "a cut that reads no padding": ("F.pad(x * 3, (2, 2))[:, 2:-2] + 1", 1),
    "nearest": ("F.interpolate((x * 2)[None, None], scale_factor=2, mode='nearest') + 1", 1),
    "nearest by four along rows": (
        "F.interpolate(x[None].exp(), scale_factor=4) * c[:, 0, None]",
        1,
    ),
    "nearest, then beside": (
        "y = F.interpolate(x[None], size=18)[0]\ntorch.cat((y.tanh(), torch.cat((x, x), 1)), 0)",
        None,
    ),
    "shuffled": ("F.pixel_shuffle(x[:, :8].reshape(8, 2, 2) + 1, 2).relu()", None),
    "unshuffled": ("F.pixel_unshuffle((x[:, :8] * 2).reshape(2, 4, 4), 2).exp()", None),
    "shuffled by three": ("F.pixel_shuffle(x.reshape(9, 2, 2), 3) * -1", None),
}


def run_emitted(source: str) -> tuple[object, object, int]:
    """What the module returns, what its emitted form does, and how many kernels that launches."""
    recipe = PointwiseRecipe()
    _, graph = trace_source(source)
    sites = recipe.match(graph, Contract())
    emitted = emit_source(source, graph, [(recipe, site, SETTING) for site in sites])
    space: dict = {}
    exec(compile(source, "problem", "exec"), space)  # noqa: S102 - sources of this file
    torch.manual_seed(3)
    inputs = space["get_inputs"]()
    with torch.no_grad():
        return space["Model"]()(*inputs), import_source(emitted).ModelNew()(*inputs), len(sites)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("form", FORMS)
def test_a_rotary_embedding_is_one_launch_and_as_exact_as_eager(form: str, dtype: str) -> None:
    body, inputs, spaces = FORMS[form]
    source = problem(body, *(f"{each}.to(torch.{dtype})" for each in inputs))
    errors = check_recipe(
        PointwiseRecipe(),
        source,
        H200,
        settings=[SETTING],
        tolerance=1e-6 if dtype == "float32" else 5e-3,
    )
    assert len(errors) == 1
    _, graph = trace_source(source)
    (found,) = find_pointwise_regions(graph)
    assert 1 + len(found.region.beside) == spaces


@pytest.mark.parametrize("case", OTHERS)
def test_whatever_is_put_together_is_computed_where_it_goes(case: str) -> None:
    body, spaces = OTHERS[case]
    source = problem(body, "torch.randn(4, 9)", "torch.randn(4, 2)", "torch.randn(4, 1)")
    expected, found, launches = run_emitted(source)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
    if spaces is not None:
        _, graph = trace_source(source)
        (region,) = find_pointwise_regions(graph)
        assert (launches, 1 + len(region.region.beside)) == (1, spaces)


def test_nan_and_infinities_stay_in_their_parts() -> None:
    body = "torch.cat((x.log(), x / 0, -x), 1) * 1"
    expected, found, launches = run_emitted(problem(body, "torch.randn(4, 9)", parameters="x"))
    assert launches == 1 and expected.isnan().any() and expected.isinf().any()
    torch.testing.assert_close(found, expected, equal_nan=True)


#: What is not one kernel, and which nodes kernels write.
APART = {
    "copies alone": ("torch.cat((x, c), 1)", []),
    "more parts than are told apart": ("torch.stack([x] * 20) * 2", [["mul"]]),
    "a concatenation of integers": ("torch.cat((x.long(), c.long()), 1) * 2.5", []),
    "rows that a reshape cuts across": (
        "torch.cat((x * 2, x), 1).reshape(9, 8) + 1",
        [["mul", "cat"], ["add"]],
    ),
    "other paddings": ("F.pad((x * 2)[None], (2, 1), mode='reflect') + 1", [["mul"], ["add"]]),
    "less than nothing around": ("F.pad(x * 2, (-1, 2)) + 1", [["mul"], ["add"]]),
    "nearest by three": ("F.interpolate((x * 2)[None], scale_factor=3) + 1", [["mul"], ["add"]]),
    "padding alone": ("F.pad(x, (1, 1))", []),
    "a part that its maker writes in its place": (
        "torch.cat((torch.relu(x), x @ x.t() @ x), 0)",
        [["relu"]],
    ),
}


@pytest.mark.parametrize("case", APART)
def test_what_saves_no_copy_is_left_as_it_was(case: str) -> None:
    body, expected = APART[case]
    _, graph = trace_source(
        problem(body, "torch.randn(4, 9)", "torch.randn(4, 2)", "torch.ones(1)")
    )
    assert [[*found.nodes] for found in find_pointwise_regions(graph)] == expected


@pytest.mark.parametrize(
    "body",
    [
        "y = x + 0\na = y[:, :2]\nz = torch.cat((a, -a), 1)\ny.add_(1)\ntorch.cat((a, z), 1) * 2",
        "y = torch.cat((x * 2, x), 1)\ny[:, :3].relu_()\ny + 1",
        "y = torch.cat(((x * 2).relu_(), x), 1)\ny + 1",
        "y = x * 2\ny[:, :3].relu_()\ntorch.sigmoid(y + 1)",  # of no parts
        "y = x * 2\nz = y - 1\ny[:, :3].add_(1)\ntorch.sigmoid(y) + z",
        "y = x + 0\na = y[:, :2]\nz = -a\ny.add_(1)\na * z",
    ],
)
def test_memory_that_is_changed_in_between_is_read_when_eager_reads_it(body: str) -> None:
    expected, found, _ = run_emitted(problem(body, "torch.randn(4, 9)", parameters="x"))
    torch.testing.assert_close(found, expected)


def test_what_a_part_reads_is_counted_once_and_slices_as_slices() -> None:
    _, graph = trace_source(problem(*FORMS["partial"][:1], *FORMS["partial"][1]))
    (site,) = PointwiseRecipe().match(graph, Contract())
    assert site.bytes == 4 * (2 * 3 * 5 * 20 * 2 + 2 * 5 * 12)
    _, graph = trace_source(
        problem(
            "torch.cat((x[:, :2], -c), 1)",
            "torch.ones(4, 9)",
            "torch.ones(4, 2)",
            parameters="x, c",
        )
    )
    (site,) = PointwiseRecipe().match(graph, Contract())
    assert site.bytes == 4 * (4 * 2 + 4 * 2 + 4 * 4)


LARGE = {
    "halves": (
        HALVES,
        ("torch.ones(2, 8, 512, 128)", "torch.ones(512, 128)", "torch.ones(512, 128)"),
        6,
    ),
    "halves of a transposed product": (
        TRANSPOSED.replace("2, 5, 3", "2, 512, 8"),
        ("torch.ones(2, 512, 1024)", "torch.ones(512, 128)", "torch.ones(512, 128)"),
        6,
    ),
    "pairs": (
        PAIRS,
        ("torch.ones(2, 8, 512, 128)", "torch.ones(512, 64)", "torch.ones(512, 64)"),
        1,
    ),
}


@pytest.mark.slow
def test_rotary_embeddings_move_whole_vectors_and_spill_nothing() -> None:
    jobs = []
    for body, inputs, _ in LARGE.values():
        source = problem(body, *(f"{each}.bfloat16()" for each in inputs))
        _, graph = trace_source(source)
        recipe = PointwiseRecipe()
        (site,) = recipe.match(graph, Contract())
        legal = recipe.space(site, H200).settings()
        best = min(legal, key=lambda each: recipe.cost_ms(site, each, H200))
        jobs.append(("fuse-pointwise-chain", source, "match", best))
    kernels = [kernel for (kernel,) in compile_jobs(jobs, "ttgir")]
    for kernel, (_, _, wide_loads) in zip(kernels, LARGE.values(), strict=True):
        assert kernel["stack"] == kernel["local"] == kernel["shared"] == 0
        assert kernel["registers"] <= 64
        assert kernel["wide_loads"] == wide_loads
        assert "convert_layout" not in kernel["ttgir"] and "i64" not in kernel["ttgir"]


ELSEWHERE = {
    "a short filter": (
        """
        u, z = x.chunk(2, -1)
        p = F.pad(u, (0, 0, 3, 0))
        y = p[:, :-3] * c[:, 0] + p[:, 1:-2] * c[:, 1] + p[:, 2:-1] * c[:, 2] + u * c[:, 3]
        F.silu(y) * F.silu(z)
        """,
        ("torch.ones(8, 512, 3072)", "torch.ones(1536, 4)"),
    ),
    "shuffled": (
        "F.leaky_relu(F.pixel_shuffle(x, 2), 0.1) * c",
        ("torch.ones(8, 256, 64, 64)", "torch.ones(1)"),
    ),
    "nearest": (
        "F.silu(F.interpolate(x, scale_factor=2)) * c",
        ("torch.ones(8, 64, 64, 64)", "torch.ones(1)"),
    ),
    "padded": ("F.pad(x * 2, (1, 1, 1, 1)) + c", ("torch.ones(8, 64, 64, 64)", "torch.ones(1)")),
}


@pytest.mark.slow
def test_what_goes_elsewhere_is_written_in_few_registers_at_offsets_of_32_bits() -> None:
    jobs = []
    for body, inputs in ELSEWHERE.values():
        source = problem(body, *inputs, parameters="x, c")
        (site,) = PointwiseRecipe().match(trace_source(source)[1], Contract())
        settings = PointwiseRecipe().space(site, H200).settings()
        best = min(settings, key=lambda each: PointwiseRecipe().cost_ms(site, each, H200))
        jobs.append(("fuse-pointwise-chain", source, "match", best))
    for (kernel,) in compile_jobs(jobs, "ttgir"):
        assert kernel["stack"] == kernel["local"] == 0
        assert kernel["registers"] <= 64 and "i64" not in kernel["ttgir"]


@pytest.mark.slow
def test_the_cut_of_a_llama_block_rotates_queries_and_keys_in_a_launch_each() -> None:
    source = (Path(__file__).parents[1] / "problems" / "models" / "llama.py").read_text()
    for name, size in {"LENGTH": 64, "WIDTH": 256, "HEADS": 4, "GROUPS": 2, "HIDDEN": 512}.items():
        source = re.sub(rf"^{name} = \d+$", f"{name} = {size}", source, flags=re.M)
    _, graph = trace_source(source.replace("BLOCKS = 4", "BLOCKS = 1"))
    skills = Path(__file__).parents[1] / "skills"
    recipes = {
        name: load_recipe(load_skill(skills / name))
        for name in ("fuse-pointwise-chain", "row-norm")
    }
    options = find_options({"full": graph}, recipes, Contract(), H200)
    chosen = cover_graph(graph, options, Contract(), H200)
    rotating = [
        {
            graph.node(name).target.split(".")[1]
            for name in option.site.nodes
            if "getitem" not in name
        }
        for option in chosen
        if any("cat" in name for name in option.site.nodes)
    ]
    assert rotating == [{"chunk", "neg", "cat", "mul", "add"}] * 2


#: Where a flat index of pairs, or an offset behind others, passes 32 bits; and where none does.
WIDE = {
    "pairs of a table for many rows": (
        "torch.cat((x * c[::2] * c[1::2], s), 0)",
        ("torch.ones(300001, 4096)", "torch.ones(8192)", "torch.ones(1, 4096)"),
        True,
    ),
    "halves": (
        HALVES,
        ("torch.ones(9, 8, 300001, 128)", "torch.ones(300001, 128)", "torch.ones(300001, 128)"),
        True,
    ),
    "halves of fewer": (
        HALVES,
        ("torch.ones(2, 8, 3001, 128)", "torch.ones(3001, 128)", "torch.ones(3001, 128)"),
        False,
    ),
}


@pytest.mark.slow
def test_offsets_of_parts_are_as_wide_as_they_must_be() -> None:
    jobs = [
        ("fuse-pointwise-chain", problem(body, *inputs), "match", SETTING)
        for body, inputs, _ in WIDE.values()
    ]
    compiled = compile_jobs(jobs, *FIRST_STAGE, read_binaries=False)
    for (kernel,), (_, _, is_wide) in zip(compiled, WIDE.values(), strict=True):
        assert overflows(kernel["ttir"], kernel["grid"]) == []
        narrow = overflows(kernel["ttir"].replace("i64", "i32"), kernel["grid"])
        assert bool(narrow) is is_wide
