"""Try the compiler and the interpreter on kernels of a few lines, for `kmem doctor`.

Each kernel is tried in a process of its own: an interpreter that was chosen for this process
(TRITON_INTERPRET) does not count there, and a crash of the compiler is an answer. The compiler's
process loads no torch, which would be most of the time.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from kmem.errors import ProfilerError
from kmem.records import Device

_TIMEOUT_S = 120.0

#: Compiles for the compute capability that it is given and prints the size of the machine code.
_COMPILED = """
import sys

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

@triton.jit
def add_one(source, result, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(result + offsets, tl.load(source + offsets) + 1)

types = {"source": "*fp32", "result": "*fp32", "BLOCK": "constexpr"}
target = GPUTarget("cuda", int(sys.argv[1]), 32)
print(len(triton.compile(ASTSource(add_one, types, {"BLOCK": 128}), target=target).asm["cubin"]))
"""

#: Sums a row in a loop whose end is computed in the kernel: with NumPy 2.4 and Triton 3.6 no such
#: loop runs.
_INTERPRETED = """
import torch
import triton
import triton.language as tl

@triton.jit
def sum_row(source, result, COLUMNS: tl.constexpr, BLOCK: tl.constexpr):
    total = tl.zeros((BLOCK,), tl.float32)
    end = (tl.program_id(0) + 1) * COLUMNS
    for start in range(tl.program_id(0) * COLUMNS, end, BLOCK):
        total += tl.load(source + start + tl.arange(0, BLOCK))
    tl.store(result + tl.program_id(0), tl.sum(total, 0))

source = torch.arange(64.0).reshape(2, 32)
result = torch.empty(2)
sum_row[(2,)](source, result, 32, 8)
assert torch.equal(result, source.sum(1)), f"{result.tolist()} is not the sum"
"""


def try_compiling(device: Device) -> str:
    """Compile for a device, with an empty cache, and say what came out.

    Raises:
        ProfilerError: if it does not work, with the compiler's last line.
    """
    started = time.perf_counter()
    size = _try_script(
        _COMPILED, f"Compiling for {device.name}", [device.arch.removeprefix("sm_")], {}
    )
    return (
        f"compiles for {device.name} ({device.arch}) without a GPU: {int(size)} bytes of "
        f"code for a test kernel, {time.perf_counter() - started:.1f} s"
    )


def try_interpreting() -> str:
    """Run a kernel with a loop in Triton's interpreter, and say that it is right.

    Raises:
        ProfilerError: if it is not, with the interpreter's last line.
    """
    _try_script(_INTERPRETED, "Triton's interpreter", [], {"TRITON_INTERPRET": "1"})
    return "Triton's interpreter proves kernels where there is no GPU"


def _try_script(text: str, what: str, arguments: list[str], environment: Mapping[str, str]) -> str:
    """What a script prints. Raises ProfilerError."""
    with tempfile.TemporaryDirectory(prefix="kmem-selftest-") as place:
        script = Path(place) / "trial.py"
        script.write_text(text, encoding="utf-8")
        kept = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
        try:
            done = subprocess.run(
                [sys.executable, "-P", str(script), *arguments],
                capture_output=True,
                text=True,
                timeout=_TIMEOUT_S,
                check=False,
                env={**kept, "TRITON_CACHE_DIR": place, **environment},
            )
        except subprocess.TimeoutExpired as ex:
            raise ProfilerError(f"{what} takes more than {_TIMEOUT_S:g} s") from ex
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise ProfilerError(f"{what} fails: {lines[-1]}")
    return done.stdout
