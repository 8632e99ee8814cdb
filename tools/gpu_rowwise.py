"""Time the settings of the row-wise, scan and pointwise recipes on a GPU.

They are compared with eager and the byte floor.

Needs torch, triton and this checkout, not the judge. For each problem it matches the recipes, ranks
the settings by their cost model, compiles and times the best `--cap` (some of every STRATEGY),
checks each against eager, and prints a table; rows go to $OUT/rowwise.json as well. Usage: python
tools/gpu_rowwise.py --minutes 3 [--only softmax norm] [--cap 10] [problem.py ...]
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402 - after the checkout is on the path
from triton.testing import do_bench  # noqa: E402

from kmem.devices import named_target  # noqa: E402
from kmem.problem.source.load import (  # noqa: E402
    build_inputs,
    build_model,
    execute_problem,
    load_problem,
)
from kmem.problem.tracing.trace import trace_problem  # noqa: E402
from kmem.recipes import Recipe, Settings, Site  # noqa: E402
from kmem.records import Contract, Problem  # noqa: E402
from kmem.skills import load_recipe, load_skill  # noqa: E402
from kmem.testing import emit_source, import_source  # noqa: E402

RECIPES = (
    "online-softmax",
    "row-norm",
    "batch-norm-training-statistics",
    "split-reduction",
    "fuse-loss-with-mean",
    "fused-cross-entropy",
    "row-similarity-one-pass",
    "blocked-row-scan",
    "scan-without-flip-copies",
    "fuse-pointwise-chain",
)
#: DRAM copy bandwidth of the H200, measured 2026-11-20.
COPY_BYTES_PER_S = 4.25e12
_TEMPLATE = """import torch
import torch.nn as nn
import torch.nn.functional as F

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        {setup}

    def forward(self, {parameters}):
        return {expression}

def get_inputs():
    return [{inputs}]
"""
#: name: (expression, input shapes, constructor statement). Sizes are those of KernelBench level 1.
CASES = {
    "softmax_long": ("torch.softmax(x, 1)", ["4096, 393216"], "pass"),
    "log_softmax_long": ("torch.log_softmax(x, 1)", ["4096, 393216"], "pass"),
    "softmax_8192": ("torch.softmax(x, 1)", ["65536, 8192"], "pass"),
    "softmax_64": ("torch.softmax(x, 1)", ["4194304, 64"], "pass"),
    "instance_norm": ("self.norm(x)", ["112, 64, 512, 512"], "self.norm = nn.InstanceNorm2d(64)"),
    "group_norm": ("self.norm(x)", ["112, 64, 512, 512"], "self.norm = nn.GroupNorm(8, 64)"),
    "rms_norm_channel": (
        "x / torch.sqrt(torch.mean(x ** 2, dim=1, keepdim=True) + 1e-5)",
        ["112, 64, 512, 512"],
        "pass",
    ),
    "frobenius_norm": ("x / torch.norm(x, p='fro')", ["112, 64, 512, 512"], "pass"),
    "l1_norm": ("x / torch.mean(torch.abs(x), dim=1, keepdim=True)", ["32768, 65535"], "pass"),
    "l2_norm": ("x / torch.norm(x, p=2, dim=1, keepdim=True)", ["32768, 65535"], "pass"),
    "layer_norm": (
        "self.norm(x)",
        ["16, 64, 256, 256"],
        "self.norm = nn.LayerNorm((64, 256, 256))",
    ),
    "sum_middle": ("torch.sum(x, dim=1, keepdim=True)", ["128, 4096, 4095"], "pass"),
    "max_middle": ("torch.max(x, dim=1)[0]", ["128, 4096, 4095"], "pass"),
    "argmax_middle": ("torch.argmax(x, dim=1)", ["128, 4096, 4095"], "pass"),
    "mse_loss": ("F.mse_loss(x, y)", ["32768, 32768", "32768, 32768"], "pass"),
    "hinge_loss": ("torch.mean(torch.clamp(1 - x * y, min=0))", ["32768, 32768", "32768"], "pass"),
    "kl_div": (
        "F.kl_div(torch.log(x), y, reduction='batchmean')",
        ["16384, 16384", "16384, 16384"],
        "pass",
    ),
    "triplet": (
        "F.triplet_margin_loss(x, y, y.flip(0).contiguous())",
        ["32768, 8192", "32768, 8192"],
        "pass",
    ),
    "batch_norm": ("self.norm(x)", ["64, 64, 512, 512"], "self.norm = nn.BatchNorm2d(64)"),
    "scan": ("torch.cumsum(x, 1)", ["32768, 32768"], "pass"),
    "scan_product": ("torch.cumprod(x, 1)", ["32768, 32768"], "pass"),
    "scan_reverse": ("torch.cumsum(x.flip(1), 1).flip(1)", ["32768, 32768"], "pass"),
    "scan_exclusive": (
        "torch.cat((torch.zeros_like(x[:, :1]), torch.cumsum(x[:, :-1], 1)), 1)",
        ["32768, 32768"],
        "pass",
    ),
    "scan_columns": ("torch.cumsum(x, 0)", ["32768, 32768"], "pass"),
    "swish": ("x * torch.sigmoid(x)", ["4096, 393216"], "pass"),
    "tanh": ("torch.tanh(x)", ["4096, 393216"], "pass"),
    "gelu": ("F.gelu(x)", ["4096, 393216"], "pass"),
}


def inline_problem(name: str) -> Problem:
    expression, shapes = CASES[name][:2]
    parameters = ", ".join("xy"[: len(shapes)])
    inputs = ", ".join(f"torch.rand({shape})" for shape in shapes)
    return Problem(
        name,
        f"<{name}>",
        _TEMPLATE.format(
            setup=CASES[name][2], parameters=parameters, expression=expression, inputs=inputs
        ),
    )


def choose_settings(recipe: Recipe, site: Site, cap: int) -> list[Settings]:
    """The cheapest settings by the cost model, and others.

    Half of them are the cheapest overall, the rest are spread over strategies, so that a wrong
    model shows.
    """
    device = named_target("h200")
    ranked = sorted(
        recipe.space(site, device).settings(),
        key=lambda settings: recipe.cost_ms(site, settings, device),
    )
    chosen = ranked[: cap // 2]
    by_strategy: dict[object, list[Settings]] = {}
    for settings in ranked[cap // 2 :]:
        by_strategy.setdefault(settings.get("STRATEGY"), []).append(settings)
    queues = list(by_strategy.values())
    while len(chosen) < cap and any(queues):
        for queue in queues:
            if queue and len(chosen) < cap:
                chosen.append(queue.pop(0) if len(queue) % 2 else queue.pop(len(queue) // 2))
    return chosen


def run_problem(
    problem: Problem, recipes: list[Recipe], cap: int, deadline: float
) -> list[dict[str, object]]:
    """Rows of results for one problem, by the first of the recipes that cover most nodes."""
    module = execute_problem(problem)
    graph = trace_problem(module)
    device = named_target("h200")
    matches = [
        (recipe, sites) for recipe in recipes if (sites := list(recipe.match(graph, Contract())))
    ]
    if not matches:
        return [{"problem": problem.name, "error": "no recipe matches"}]
    recipe, sites = max(matches, key=lambda match: sum(len(site.nodes) for site in match[1]))
    inputs, model = build_inputs(module, "cuda"), build_model(module, "cuda")
    rows = []
    with torch.no_grad():
        expected = model(*inputs)
        eager_ms = do_bench(lambda: model(*inputs), warmup=10, rep=40, return_mode="median")
        for settings in choose_settings(recipe, sites[0], cap):
            if time.monotonic() > deadline:
                break
            model_ms = sum(recipe.cost_ms(site, settings, device) for site in sites)
            row = {
                "problem": problem.name,
                "recipe": recipe.name,
                "settings": dict(settings),
                "eager_ms": eager_ms,
                "model_ms": model_ms,
            }
            row["floor_ms"] = 1e3 * sum(site.bytes for site in sites) / COPY_BYTES_PER_S
            try:
                emitted = import_source(
                    emit_source(problem.source, graph, [(recipe, site, settings) for site in sites])
                )
                candidate = emitted.ModelNew(
                    *(module.get_init_inputs() if hasattr(module, "get_init_inputs") else [])
                ).cuda()
                candidate.load_state_dict(model.state_dict())
                found = candidate(*inputs)
                row["error_vs_eager"] = relative_error(found, expected)
                del found
                row["ms"] = do_bench(
                    lambda candidate=candidate: candidate(*inputs),
                    warmup=10,
                    rep=40,
                    return_mode="median",
                )
            # one bad setting must not end the survey; the row says what happened
            except Exception as ex:  # noqa: BLE001
                row["error"] = f"{type(ex).__name__}: {str(ex)[:200]}"
            rows.append(row)
    return rows


def relative_error(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Frobenius norm of the difference over that of eager's result.

    For integers it is the share that differs. Row blocks bound the memory.
    """
    if not expected.is_floating_point():
        return float((found != expected).float().mean())
    difference = total = 0.0
    for mine, theirs in zip(
        found.reshape(-1).split(2**28), expected.reshape(-1).split(2**28), strict=True
    ):
        difference += float((mine.double() - theirs.double()).square().sum())
        total += float(theirs.double().square().sum())
    return (difference / max(total, 1e-300)) ** 0.5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("problems", nargs="*", help="problem files; without any, the inline cases")
    parser.add_argument(
        "--only", nargs="*", default=[], help="run only cases whose name holds one of these"
    )
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument("--cap", type=int, default=10, help="settings per problem")
    options = parser.parse_args()
    problems = [load_problem(path) for path in options.problems] or [
        inline_problem(name) for name in CASES
    ]
    problems = [
        problem
        for problem in problems
        if not options.only or any(word in problem.name for word in options.only)
    ]
    recipes = [load_recipe(load_skill(ROOT / "skills" / name)) for name in RECIPES]
    start = time.monotonic()
    results: list[dict[str, object]] = []
    for index, problem in enumerate(problems):
        left = options.minutes * 60 - (time.monotonic() - start)
        if left <= 0:
            print(f"out of time before {problem.name}", flush=True)
            break
        rows = run_problem(
            problem, recipes, options.cap, time.monotonic() + left / (len(problems) - index)
        )
        torch.cuda.empty_cache()
        for row in sorted(rows, key=lambda row: row.get("ms", float("inf"))):
            if "ms" in row:
                knobs = " ".join(f"{key}={value}" for key, value in row["settings"].items())
                print(
                    f"{row['problem']:18} {row['ms']:8.4f} ms  eager {row['eager_ms']:8.4f}  floor "
                    f"{row['floor_ms']:7.4f}"
                    f"  model {row['model_ms']:7.3f}  error {row['error_vs_eager']:.1e}  {knobs}",
                    flush=True,
                )
            else:
                print(
                    f"{row['problem']:18} {row.get('settings', '')} {row.get('error')}", flush=True
                )
        results += rows
    out = Path(os.environ.get("OUT", "."))
    (out / "rowwise.json").write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
