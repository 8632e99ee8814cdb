"""Compiles recipes' launches for sm_90 without a GPU: `compile_jobs` runs this file in a process
without TRITON_INTERPRET.

argv of that process: JSON list of [skill, problem source, precision, settings], then the stages of
which the text is wanted.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch
import triton
from triton.backends.compiler import GPUTarget

from kmem.problem.graph import OpGraph
from kmem.records import Contract, Precision
from kmem.skills import load_recipe, load_skill
from kmem.testing import import_source, trace_source

SKILLS = Path(__file__).parent.parent / "skills"
TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"


def compile_jobs(jobs: Sequence[Sequence[object]], *stages: str) -> list[list[dict]]:
    """What became of the kernels of each job, in order of launch, with the text of each at these
    stages ("ttgir", "ptx").
    """
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    command = [sys.executable, __file__, json.dumps(jobs), *stages]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


class _Driver:
    """Stands in for a CUDA driver: enough for JITFunction.warmup."""

    def get_current_target(self):
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self):
        return 0

    def get_current_stream(self, device=None):
        return 0


class _Warm:
    """Stands in for a kernel in a launcher: compiles, keeps the result, runs nothing."""

    def __init__(self, kernel, compiled: list):
        self.kernel, self.compiled = kernel, compiled

    def __getitem__(self, grid):
        return lambda *args, **kwargs: self.compiled.append(
            self.kernel.warmup(*args, grid=grid, **kwargs)
        )


def compile_site(
    graph: OpGraph, skill: str, precision: str, settings: dict, stages: Sequence[str]
) -> list[dict]:
    recipe = load_recipe(load_skill(SKILLS / skill))
    site = recipe.match(graph, Contract(Precision(precision)))[0]
    emission = recipe.emit(site, settings)
    header = "import torch\nimport triton\nimport triton.language as tl\n"
    module = import_source(
        "\n".join(
            [
                header,
                *(text for _, text in emission.kernels),
                re.sub(r"(kmem_\w+)\[\(", r"_warm(\1)[(", emission.launcher),
            ]
        )
    )
    compiled: list = []
    module._warm = lambda kernel: _Warm(kernel, compiled)
    specs = [operand.spec for operand in site.inputs]
    module.launch(
        *(
            torch.empty_strided(
                spec.shape, spec.stride, dtype=getattr(torch, spec.dtype), device="meta"
            )
            for spec in specs
        )
    )
    return [
        _describe(kernel) | {stage: kernel.asm[stage] for stage in stages} for kernel in compiled
    ]


def _describe(kernel) -> dict:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        usage = subprocess.run(
            [TOOLS / "cuobjdump", "-res-usage", file.name],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        sass = subprocess.run(
            [TOOLS / "nvdisasm", "-c", file.name], capture_output=True, text=True, check=True
        ).stdout
    return {
        "name": kernel.metadata.name,
        "stack": int(re.search(r"STACK:(\d+)", usage)[1]),
        "registers": int(re.search(r"REG:(\d+)", usage)[1]),
        "shared": kernel.metadata.shared,
        "hgmma": sass.count("HGMMA"),
        "async_copies": sass.count("LDGSTS"),
        "wide_loads": len(re.findall(r"LDG\.E\S*\.128", sass)),
    }


def main() -> None:
    triton.runtime.driver.set_active(_Driver())
    results = []
    for skill, source, precision, settings in json.loads(sys.argv[1]):
        _, graph = trace_source(source, Precision(precision))
        results.append(compile_site(graph, skill, precision, settings, sys.argv[2:]))
    print(json.dumps(results))


if __name__ == "__main__":
    main()
