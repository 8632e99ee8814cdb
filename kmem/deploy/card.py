"""The README of a package: what is in it, how good it is, and whose it is."""

from collections.abc import Iterator, Sequence
from typing import Any

import kmem
from kmem.run.report.first_screen import FLAGS

_USE = """\
## Use

```python
import {name}

handle = {name}.apply(model)  # the modules that compute what these kernels compute
print(handle)  # what is active, what is not, and why
handle.undo()  # every module has the very forward that it had
```

Apply it to a model on its device and in the mode in which it will run. A call that a kernel does
not support runs the module's own code: other shapes, dtypes or strides, another device, gradients
recorded, autocast, tensor subclasses, transforms of `torch.func`, hooks on modules inside. Nothing
is tuned or timed at run time; the table decides, the same way in every process. A kernel compiles
at its first call, so call the model once before capturing it in a CUDA graph. If a driver or a
compiler is missing, there is one warning and the module's own code runs; `KMEM_STRICT=1` raises.

Under `torch.compile` and `torch.export` each kernel is one operator of `torch.library`
(`{name}.ops`), with exact strides in front of it and no backward; Inductor sees through it where
the launches can be traced. `{name}.inductor.KernelPass({name}.ENTRIES)` is a pass for
`torch._inductor.config.joint_custom_pre_pass`, which finds what the kernels compute in any graph.

`python -m pytest` tests the package on a GPU of the kind it was measured on (with
`TRITON_INTERPRET=1` small entries without one), `python benchmark.py` times it.
`kmem verify {name}/evidence/<file>.json` repeats a verdict.
"""
_HUB_USE = """\
---
library_name: kernels
license: apache-2.0
---
# {name}

Triton kernels for PyTorch modules, found and verified by kmem, for `kernels` 0.17 or newer.

```python
from pathlib import Path

from kernels import get_local_kernel

kernel = get_local_kernel(Path("{name}"))
handle = kernel.apply(model)  # handle.status() says what is active, handle.undo() takes it back
```

Layers for `kernelize` in inference mode: {layers}. They have no backward and are not for
`torch.compile`, where `kernel.apply` is. A call that a kernel does not support runs the module's
own code.
"""
_LICENCE = """\
## Licence

The code in `{name}/*.py` and the scripts are part of kmem, under Apache-2.0
(https://www.apache.org/licenses/LICENSE-2.0). The kernels in `{name}/kernels/` and the problems in
`{name}/evidence/` contain the modules that they replace, whose licence is that of their authors.
"""


def render_hub_card(name: str, entries: Sequence[dict[str, Any]]) -> str:
    """The card of a kernel repository of Hugging Face's `kernels`, as Markdown."""
    layers = ", ".join(
        "".join(part.capitalize() for part in entry["name"].split("_")) for entry in entries
    )
    lines = [
        _HUB_USE.format(name=name, layers=layers),
        *_evidence(entries),
        "",
        _LICENCE.format(name="build/torch-cuda"),
    ]
    return "\n".join(lines)


def render_card(name: str, entries: Sequence[dict[str, Any]]) -> str:
    """The card as Markdown.

    Args:
        name: of the package.
        entries: rows of its table.
    """
    plural = "" if len(entries) == 1 else "s"
    lines = [
        f"# {name}",
        "",
        f"{len(entries)} Triton kernel{plural} for PyTorch modules, found and verified by kmem "
        f"{kmem.__version__}. Needs torch and Triton.",
        "",
        _USE.format(name=name),
        *_evidence(entries),
        "",
        _LICENCE.format(name=name),
    ]
    return "\n".join(lines)


def _evidence(entries: Sequence[dict[str, Any]]) -> Iterator[str]:
    yield "## Evidence"
    yield ""
    if any(entry["timing"]["estimated"] for entry in entries):
        yield (
            "Times marked *est.* are estimates made without a GPU: such kernels were proved in the "
            "Triton interpreter on small sizes and never ran on the device."
        )
        yield ""
    yield "| kernel | device | inputs | precision | ms | baseline | speedup | error / allowed |"
    yield "|---|---|---|---|---|---|---|---|"
    for entry in entries:
        yield _row(entry)
    yield ""
    yield (
        "Errors are relative to float64, of the worst family of inputs, beside what the contract "
        "allows."
    )
    for entry in entries:
        for flag in entry["flags"]:
            yield f"- `{entry['name']}` is {flag}: {FLAGS.get(flag, 'not explained here')}"


def _row(entry: dict[str, Any]) -> str:
    timing, accuracy = entry["timing"], entry["accuracy"]
    mark = " est." if timing["estimated"] else ""
    baselines = sorted(timing["baselines_ms"].items(), key=lambda each: each[1])
    best = f"{baselines[0][0]} {baselines[0][1]:.4g}{mark}" if baselines else ""
    speedup = f"{timing['speedup']:.2f}x" if timing["speedup"] is not None else ""
    if timing["ratio_low"] is not None:
        speedup += f" ({timing['ratio_low']:.2f} to {timing['ratio_high']:.2f})"
    inputs = ", ".join(
        f"{'x'.join(map(str, each['shape'])) or 'scalar'} {each['dtype']}"
        if "shape" in each
        else repr(each["value"])
        for each in entry["inputs"]
    )
    cells = (
        f"`{entry['name']}`",
        entry["device"],
        inputs,
        entry["precision"],
        f"{timing['latency_ms']:.4g}{mark}",
        best,
        speedup,
        f"{accuracy['relative_error']:.2g} / {accuracy['allowed_error']:.2g}",
    )
    return f"| {' | '.join(cells)} |"
