"""What the judge reads off a launch of a compiled kernel, by whatever its pointers are given."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kmem.measure.pool.template import WORKER_FILES

SCRIPT = """
import json, sys
from collections import Counter
import torch, triton, triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from launches import LaunchCounter
from lineage import COMPUTED, FILLED, GIVEN, Lineage

@triton.jit
def carry(x, out, SIZE: tl.constexpr):
    place = tl.arange(0, SIZE)
    tl.store(out + place, tl.load(x + place))

@triton.jit
def double(x, out, SIZE: tl.constexpr):
    place = tl.arange(0, SIZE)
    tl.store(out + place, tl.load(x + place) * 2)

given = sys.argv[1]
origins = {}
for kernel in (carry, double):
    signature = {"x": "*fp32", "out": "*fp32", "SIZE": "constexpr"}
    source = ASTSource(kernel, signature, {"SIZE": 64})
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32))
    x = torch.zeros(64)
    counter = LaunchCounter.__new__(LaunchCounter)
    counter.compiled, counter.lineage = Counter(), Lineage(by_bytes=False)
    counter.lineage.begin()
    out = torch.empty(64)
    counter.lineage.note_operator(torch.ops.aten.empty.memory_format, ((64,),), {}, out)
    values = [x, out] if given == "tensors" else [x.data_ptr(), out.data_ptr()]
    counter._note_compiled(compiled, [*values, 64])
    found, = counter.lineage.end([out])
    names = {"computed": COMPUTED, "filled": FILLED, "given": GIVEN}
    origins[compiled.name] = [name for name, origin in names.items() if found & origin]
print(json.dumps(origins))
"""


@pytest.mark.parametrize("given", ["tensors", "addresses"])
def test_a_launch_hands_on_what_its_kernel_carries_and_computes(given: str, tmp_path: Path) -> None:
    """A launcher takes addresses too: what is stored there is followed all the same."""
    places = {str(path.parent) for path in map(Path, WORKER_FILES)}
    script = tmp_path / "script.py"  # Triton reads kernels from their file
    script.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, str(script), given],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sorted(places)), "TRITON_INTERPRET": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "carry": ["filled", "given"],
        "double": ["computed", "filled"],
    }
