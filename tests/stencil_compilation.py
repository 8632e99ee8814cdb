"""Run as a script by the recipe tests: compile emissions for an H200 without a GPU and print what
the compiler made of each as JSON.

    python tests/stencil_compilation.py '[[SKILL, CALL, SHAPE, DTYPE, SETTING], ...]'    (one line
    of output for each, in order)

It must be a process of its own: tests run with TRITON_INTERPRET=1, under which nothing is compiled.
"""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import triton
from triton.backends.compiler import GPUTarget

from kmem.devices import named_target
from kmem.recipes import check_settings
from kmem.records import Contract
from kmem.skills import load_recipe, load_skill
from kmem.testing import import_source, trace_source

ROOT = Path(__file__).resolve().parent.parent


class TargetWithoutGpu:
    """The part of Triton's driver that compilation asks."""

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


class Compiled:
    """Stands for a kernel: a launch compiles it and keeps the result."""

    def __init__(self, kernel) -> None:
        self.kernel, self.result = kernel, None

    def __getitem__(self, grid):
        def compile_only(*args, **options):
            self.result = self.kernel.warmup(*args, grid=(1,), **options)

        return compile_only


def compile_case(
    skill: str, call: str, shape: list[int], dtype: str, setting: dict
) -> dict[str, int]:
    """Resources and instruction counts of an emission's last kernel."""
    source = (
        "import torch, torch.nn as nn\nclass Model(nn.Module):\n    def __init__(self):\n"
        "        super().__init__()\n"
        f"        self.op = nn.{call}\n    def forward(self, x):\n        return self.op(x)\n"
        f"def get_inputs():\n    return [torch.empty({tuple(shape)}, dtype=torch.{dtype})]\n"
    )
    _, graph = trace_source(source)
    recipe = load_recipe(load_skill(ROOT / "skills" / skill))
    (site,) = recipe.match(graph, Contract())
    check_settings(recipe.space(site, named_target("h200")), setting)
    emission = recipe.emit(site, setting)
    with tempfile.TemporaryDirectory() as place:
        text = "\n\n".join(kernel for _, kernel in emission.kernels)
        module = import_source(
            (
                f"import torch\nimport triton\nimport triton.language as tl\n\n{text}\n\n"
                f"{emission.launcher}"
            ),
            place,
        )
        launched = {
            name: Compiled(getattr(module, name))
            for name, _ in emission.kernels
            if f"{name}[(" in emission.launcher
        }
        vars(module).update(launched)
        module.launch(
            *(
                torch.empty(
                    operand.spec.shape, dtype=getattr(torch, operand.spec.dtype), device="meta"
                )
                for operand in site.inputs
            )
        )
        kernel = launched[emission.kernels[-1][0]].result
        cubin = Path(place) / "kernel.cubin"
        cubin.write_bytes(kernel.asm["cubin"])
        tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
        usage = subprocess.run(
            [tool, "--dump-resource-usage", cubin], capture_output=True, text=True, check=True
        ).stdout
    ptx = kernel.asm["ptx"]
    return {
        "registers": int(re.search(r"REG:(\d+)", usage)[1]),
        "local_bytes": int(re.search(r"LOCAL:(\d+)", usage)[1])
        + int(re.search(r"STACK:(\d+)", usage)[1]),
        "wide_loads": len(re.findall(r"ld\.global\S*v4", ptx)),
        "loads": len(re.findall(r"ld\.global", ptx)),
        "copies": len(re.findall(r"cp\.async\.c[ag]\.shared", ptx)),
        "shuffles": len(re.findall(r"shfl\.sync", ptx)),
        "barriers": len(re.findall(r"bar\.sync", ptx)),
        "wgmma": len(re.findall(r"wgmma\.mma_async", ptx)),
    }


def main() -> None:
    triton.runtime.driver.set_active(TargetWithoutGpu())
    for case in json.loads(sys.argv[1]):
        print(json.dumps(compile_case(*case)))


if __name__ == "__main__":
    main()
