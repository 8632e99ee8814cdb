"""Try the compiler on a kernel of three lines, for `kmem doctor`.

The kernel is compiled in a process of its own: an interpreter that was chosen for this process
(TRITON_INTERPRET) does not count there, and a crash of the compiler is an answer. It loads no
torch, which would be most of the time.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from kmem.errors import ProfilerError
from kmem.records import Device

_TIMEOUT_S = 120.0

#: Compiles for the compute capability that it is given and prints the size of the machine code.
_SCRIPT = """
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


def try_compiling(device: Device) -> str:
    """Compile for a device, with an empty cache, and say what came out.

    Raises:
        ProfilerError: if it does not work, with the compiler's last line.
    """
    started = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="kmem-selftest-") as place:
        script = Path(place) / "add_one.py"
        script.write_text(_SCRIPT, encoding="utf-8")
        kept = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
        try:
            done = subprocess.run(
                [sys.executable, "-P", str(script), device.arch.removeprefix("sm_")],
                capture_output=True,
                text=True,
                timeout=_TIMEOUT_S,
                check=False,
                env={**kept, "TRITON_CACHE_DIR": place},
            )
        except subprocess.TimeoutExpired as ex:
            raise ProfilerError(
                f"Compiling for {device.name} takes more than {_TIMEOUT_S:g} s"
            ) from ex
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise ProfilerError(f"Compiling for {device.name} fails: {lines[-1]}")
    return (
        f"compiles for {device.name} ({device.arch}) without a GPU: {int(done.stdout)} bytes of "
        f"code for a test kernel, {time.perf_counter() - started:.1f} s"
    )
