"""Every check of a package with one kernel, for tools/check_shipped.py.

Each compares what the kernel gives with the module in float64: called by itself, bound by
`kmem.apply`, under torch.compile(fullgraph=True) with and without backend="kmem", exported; on a
GPU also captured in a CUDA graph, under reduce-overhead, and as AOTInductor's library.
"""

import os
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from shipped_kernels import GPU

import kmem
from kmem.deploy.backend import compile_graph
from kmem.deploy.package import Package
from kmem.deploy.shipped.ops import operator
from kmem.deploy.shipped.sharing import holder_of
from kmem.deploy.shipped.table import Entry, load_original
from kmem.measure.oracle.running.copies import copy_module

DEVICE = "cuda" if GPU else "cpu"
#: How much larger than eager's own error against float64 a kernel's may be.
SLACK = 10.0
LEAST_ERROR = 2e-5
#: Bytes of inputs above which a winner is left out: several processes share the GPU, and each
#: holds a module's values in float64 too.
MOST_BYTES = 1 << 30


def check_package(package: Package, *, ahead_of_time_alone: bool = False) -> dict[str, Any]:
    """Every check of a package with one kernel, by name: its seconds, or FAILED and why.

    Nobody has judged the kernel: for one whose values are not right there is that alone, as
    `wrong`. AOTInductor's library may take the process with it, so that it is checked on request
    and by itself.
    """
    (entry,) = package.entries
    model, inputs = make_original(entry)
    given = sum(each.nbytes for each in inputs if isinstance(each, torch.Tensor))
    if given > MOST_BYTES:
        return {"skipped": f"its inputs are {given >> 20} MiB, and processes share the GPU"}
    with torch.no_grad():
        exact, expected = exact_values(model, inputs), model(*inputs)
    allowed = allowed_errors(expected, exact)
    checks: dict[str, Callable[[], Any]] = {
        "apply": lambda: applied(model, package, lambda: model(*inputs), served=True),
        "opcheck": lambda: check_operator(entry, model, inputs),
        "compile": lambda: applied(model, package, lambda: compiled(model, inputs)),
        "backend": lambda: compiled(
            model, inputs, backend=compile_graph, options={"packages": [package], "memory": False}
        ),
        "export": lambda: applied(
            model, package, lambda: torch.export.export(model, tuple(inputs)).module()(*inputs)
        ),
    }
    if GPU:
        checks |= {
            "capture": lambda: applied(model, package, lambda: captured(model, inputs)),
            "graphs": lambda: applied(
                model, package, lambda: compiled(model, inputs, mode="reduce-overhead")
            ),
        }
    row: dict[str, Any] = {"traced": operator(entry).is_traced}
    if ahead_of_time_alone:
        checks = {"aoti": lambda: applied(model, package, lambda: ahead_of_time(model, inputs))}
        row = {}
    for name, check in checks.items():
        began = time.perf_counter()
        try:
            with torch.no_grad():
                compare(check(), exact, allowed)
            row[name] = f"{time.perf_counter() - began:.2f}s"
        except WrongValues as ex:
            if name == "apply":
                return {"wrong": str(ex)}
            row[name] = f"FAILED({ex})"
        except torch._dynamo.exc.Unsupported as ex:
            refused = name == "backend" and is_refused(model, inputs)
            row[name] = ("no graph: " if refused else "FAILED: ") + telling(str(ex))
        except Exception as ex:  # noqa: BLE001  # the row says what failed; the others go on
            row[name] = f"FAILED({type(ex).__name__}: {telling(str(ex))})"
            traceback.print_exc()
    if not ahead_of_time_alone:
        reports = [str(each) for each in kmem.compile_report()]
        row["replaced"] = reports[-1] if reports else ""
    return row


def make_original(entry: Entry) -> tuple[torch.nn.Module, list[Any]]:
    """The module that an entry replaces, and inputs for it, on the device."""
    module = load_original(entry)
    torch.manual_seed(0)
    with torch.device(DEVICE):
        model = module.Model(*entry.init).train(entry.training)
        return model.to(DEVICE), module.get_inputs()


def exact_values(model: torch.nn.Module, inputs: Sequence[Any]) -> list[torch.Tensor]:
    """What a module computes in float64."""
    wide = [
        value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value
        for value in inputs
    ]
    return tensors_of(copy_module(model).double()(*wide))


def tensors_of(found: Any) -> list[torch.Tensor]:
    return [found] if isinstance(found, torch.Tensor) else list(found)


def errors(found: Any, exact: Sequence[torch.Tensor]) -> list[float]:
    """Relative errors of outputs, over all elements."""
    return [
        float((mine.double() - theirs.double()).norm() / theirs.double().norm().clamp_min(1e-30))
        for mine, theirs in zip(tensors_of(found), exact, strict=True)
    ]


def allowed_errors(own: Any, exact: Sequence[torch.Tensor]) -> list[float]:
    """What a kernel's errors may be, from the module's own."""
    return [max(SLACK * error, LEAST_ERROR) for error in errors(own, exact)]


class WrongValues(Exception):
    """An output is further off than what is allowed."""


def compare(found: Any, exact: Sequence[torch.Tensor], allowed: Sequence[float]) -> None:
    """Raise WrongValues if values differ by more than what is allowed; None is not compared."""
    if found is None:
        return
    for error, most in zip(errors(found, exact), allowed, strict=True):
        if not error <= most:
            raise WrongValues(f"relative error {error:.2g}, allowed {most:.2g}")


def check_operator(entry: Entry, model: torch.nn.Module, inputs: Sequence[Any]) -> None:
    places = [holder_of(model, each.name) for each in entry.state]
    tensors = [value for value in inputs if isinstance(value, torch.Tensor)]
    tensors += [holder[name].detach() for holder, name in places]
    known = operator(entry)
    torch.library.opcheck(known.overload, tuple(tensors))
    assert not known.fault, known.fault


def applied(
    model: torch.nn.Module, package: Package, call: Callable[[], Any], *, served: bool = False
) -> Any:
    """What a call gives while the package's kernels are bound to the model."""
    torch._dynamo.reset()
    with kmem.apply(model, package) as handle:
        assert handle.replaced == [""], str(handle)
        found = call()
        if served:
            assert handle.status()[0].served == 1, str(handle)
    return found


def compiled(model: torch.nn.Module, inputs: Sequence[Any], **how: Any) -> Any:
    """Three calls of a compiled model in one graph; a recompilation is an error."""
    torch._dynamo.reset()
    fast = torch.compile(model, fullgraph=True, **how)
    found = fast(*inputs)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for _ in range(2):
            found = fast(*inputs)
    return [each.clone() for each in tensors_of(found)]


def is_refused(model: torch.nn.Module, inputs: Sequence[Any]) -> bool:
    """Whether torch makes no graph of the module itself, without a kernel: of an LSTM, it does not.

    A backend never sees such a module.
    """
    try:
        compiled(model, inputs, backend="eager")
    except torch._dynamo.exc.Unsupported:
        return True
    return False


def telling(message: str) -> str:
    """The first line of a message, and the first that a compiler says after its command."""
    lines = message.splitlines() or [""]
    said = next((line for line in lines[1:] if "error:" in line or "error :" in line), "")
    return " | ".join(line[:200] for line in (lines[0], said.strip()) if line)


@contextmanager
def compiler_with_wheels() -> Iterator[None]:
    """Lets the g++ of PATH compile, and find the headers and libraries of CUDA that wheels brought.

    One that $CXX names may bring a libstdc++ of its own, linked statically: beside that of this
    process it ends torch's loader with a segmentation fault (in std::regex).
    """
    site = Path(torch.__file__).parent.parent
    found = {
        "CPATH": [*site.glob("nvidia/*/include"), site / "triton/backends/nvidia/include"],
        "LIBRARY_PATH": [*site.glob("nvidia/*/lib")],
    }
    with (
        pytest.MonkeyPatch.context() as environment,
        torch._inductor.config.patch({"cpp.cxx": (None, "g++")}),
    ):
        for name, places in found.items():
            environment.setenv(name, os.pathsep.join(map(str, places)), prepend=os.pathsep)
        yield


def captured(model: torch.nn.Module, inputs: Sequence[Any]) -> Any:
    """What a CUDA graph gives at its replay."""
    model(*inputs)  # compiles the kernels
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = model(*inputs)
    graph.replay()
    torch.cuda.synchronize()
    return found


def ahead_of_time(model: torch.nn.Module, inputs: Sequence[Any]) -> Any:
    """What AOTInductor's library gives, which needs no Python."""
    program = torch.export.export(model, tuple(inputs))
    with tempfile.TemporaryDirectory() as place, compiler_with_wheels():
        library = torch._inductor.aoti_compile_and_package(
            program, package_path=str(Path(place) / "model.pt2")
        )
        return torch._inductor.aoti_load_package(library)(*inputs)
