"""Compiles kernels for sm_90 without a GPU: one process for all tests of a session that compile.

The process must be one of its own, for tests run under TRITON_INTERPRET=1, where nothing is
compiled. It is started by the first question, imports torch and triton once, and ends with the
session. A question is one JSON line, and so is its answer.
"""

import atexit
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import cache
from pathlib import Path
from types import ModuleType, SimpleNamespace

import torch
import triton
from triton.backends.nvidia.compiler import CUDABackend
from triton.runtime import JITFunction

from kmem.host.imitated_device import ImitatedDevice
from kmem.problem.graph import OpGraph
from kmem.problem.source.load import execute_problem, load_problem
from kmem.profile.compile.sass import disassemble
from kmem.profile.compile.target_driver import tool_paths, use_compile_only_driver
from kmem.records import Contract, Precision
from kmem.skills import load_recipe, load_skill
from kmem.testing import import_source, trace_source

SKILLS = Path(__file__).parent.parent / "skills"
#: What is asked of kernels of which nothing is compiled after the first stage.
FIRST_STAGE = ("ttir", "grid")
#: How long one question may take, in seconds.
LIMIT_S = 300.0


def compile_jobs(
    jobs: Sequence[Sequence[object]], *stages: str, read_binaries: bool = True
) -> list[list[dict]]:
    """What became of the kernels of each job, in order of launch.

    Args:
        jobs: skill, problem source, precision and settings of each.
        stages: the texts wanted of each kernel: "ttir", "ttgir", "ptx", and "ptxas", which is what
            that program says of the PTX when it is asked to be verbose; and "grid", its programs.
        read_binaries: whether to count registers, stack and instructions, which takes longer than
            compiling.
    """
    return _ask({"jobs": jobs, "stages": stages, "read_binaries": read_binaries})


def compile_examples(files: Sequence[Path]) -> dict[str, list[dict]]:
    """By file, the "ttir" of every kernel that a module's forward launches in float64."""
    return _ask({"examples": [str(file) for file in files]})


def _ask(question: Mapping[str, object]) -> object:
    process, errors = _compiler()
    alarm = threading.Timer(LIMIT_S, process.kill)
    alarm.start()
    try:
        process.stdin.write(json.dumps(question) + "\n")
        process.stdin.flush()
        line = process.stdout.readline()
    finally:
        alarm.cancel()
    if not line:
        _compiler.cache_clear()
        raise AssertionError(f"the compile process ended: {errors.read_text()[-2000:]}")
    answer = json.loads(line)
    assert "fault" not in answer, answer["fault"]
    return answer["found"]


@cache
def _compiler() -> tuple[subprocess.Popen, Path]:
    """The process and the file of its errors."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    handle, name = tempfile.mkstemp(prefix="kmem-compile-", suffix=".stderr")
    process = subprocess.Popen(
        [sys.executable, __file__],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=handle,
        text=True,
    )
    os.close(handle)
    atexit.register(_end, process, Path(name))
    return process, Path(name)


def _end(process: subprocess.Popen, errors: Path) -> None:
    process.kill()
    process.wait()
    errors.unlink(missing_ok=True)


# --- in that process


class _Compiled(Exception):
    """Ends a compilation after its first stage, with what that made."""


@contextmanager
def first_stage_alone() -> Iterator[None]:
    """While this lasts, compilations end after their first stage, and none is kept in a cache."""
    further = vars(CUDABackend)["make_ttgir"]  # static, which an attribute's value is not

    def end(module: object, *more: object) -> None:
        raise _Compiled(str(module))

    CUDABackend.make_ttgir = staticmethod(end)
    try:
        yield
    finally:
        CUDABackend.make_ttgir = further


class _Warm:
    """Stands in for a kernel in a launcher: compiles, keeps the result, runs nothing."""

    def __init__(self, kernel: JITFunction, compiled: list) -> None:
        self.kernel, self.compiled = kernel, compiled

    def __getitem__(self, grid: object):  # noqa: ANN204 - the launch, as Triton has it
        def launch(*args: object, **options: object) -> None:
            try:
                made = self.kernel.warmup(*args, grid=(1,), **options)
            except _Compiled as ex:
                name = SimpleNamespace(name=self.kernel.__name__)
                made = SimpleNamespace(asm={"ttir": str(ex)}, metadata=name)
            made.launched_grid = grid
            self.compiled.append(made)

        return launch


def warm_launches(module: ModuleType, text: str) -> list:
    """Put a stand-in in place of every kernel that the text launches.

    Returns: A list to which each launch appends what was compiled.
    """
    compiled: list = []
    for name, value in list(vars(module).items()):
        if isinstance(value, JITFunction) and re.search(rf"\b{name}\[", text):
            setattr(module, name, _Warm(value, compiled))
    return compiled


def compile_site(graph: OpGraph, skill: str, precision: str, settings: dict) -> list:
    """What Triton made of every launch of the first site that a skill finds."""
    recipe = load_recipe(load_skill(SKILLS / skill))
    site = recipe.match(graph, Contract(Precision(precision)))[0]
    emission = recipe.emit(site, settings)
    header = "import torch\nimport triton\nimport triton.language as tl\n"
    kernels = (text for _, text in emission.kernels)
    module = import_source("\n".join([header, *kernels, emission.launcher]))
    compiled = warm_launches(module, emission.launcher)
    # which has what a GPU's library has; a launcher that asks for the GPU itself is told of none
    calls_library = "torch.cudnn_" in emission.launcher
    with ImitatedDevice("meta") if calls_library else nullcontext():
        module.launch(*(_on_meta(operand.spec) for operand in site.inputs))
    return compiled


def _describe(kernel, question: Mapping) -> dict:  # noqa: ANN001 - what Triton's warmup returns
    told = {"name": kernel.metadata.name}
    return told | {stage: _text(kernel, stage) for stage in question["stages"]}


def _text(kernel, stage: str) -> object:  # noqa: ANN001 - what Triton's warmup returns
    if stage == "grid":
        return kernel.launched_grid
    if stage != "ptxas":
        return kernel.asm[stage]
    tools = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    newest = tools / "ptxas-blackwell"  # Triton's PTX is too new for the other
    ptxas = newest if newest.exists() else tools / "ptxas"
    with tempfile.TemporaryDirectory() as place:
        source, binary = Path(place) / "kernel.ptx", Path(place) / "kernel.cubin"
        source.write_text(kernel.asm["ptx"])
        command = [ptxas, "-v", "-arch=sm_90a", source, "-o", binary]
        return subprocess.run(command, capture_output=True, text=True, check=True).stderr


def _on_meta(spec) -> torch.Tensor:  # noqa: ANN001 - a TensorSpec
    dtype = getattr(torch, spec.dtype)
    return torch.empty_strided(spec.shape, spec.stride, dtype=dtype, device="meta")


def _read_binaries(kernels: Sequence) -> list[dict]:
    """What the binaries hold of kernels that Triton's warmup returned."""
    if not kernels:
        return []
    cuobjdump, nvdisasm = tool_paths()
    cubins = [kernel.asm["cubin"] for kernel in kernels]
    with tempfile.TemporaryDirectory() as place:
        file = Path(place) / "kernels"
        listings = disassemble(cubins, 90, nvdisasm, file)
        usages = []
        for cubin in cubins:
            file.write_bytes(cubin)
            usages.append(_output(cuobjdump, "-res-usage", str(file)))
    return [
        {
            "stack": int(re.search(r"STACK:(\d+)", usage)[1]),
            "local": int(re.search(r"LOCAL:(\d+)", usage)[1]),
            "registers": int(re.search(r"REG:(\d+)", usage)[1]),
            "shared": kernel.metadata.shared,
            "hgmma": sass.count("HGMMA"),
            "async_copies": sass.count("LDGSTS"),
            "wide_loads": len(re.findall(r"LDG\.E\S*\.128", sass)),
        }
        for kernel, usage, sass in zip(kernels, usages, listings, strict=True)
    ]


def _output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def compile_example(file: str) -> list[dict]:
    """Compile every launch of a module's forward on float64 inputs."""
    problem = load_problem(file)
    module = execute_problem(problem)
    compiled = warm_launches(module, problem.source)
    with torch.device("meta"), torch.no_grad():
        model = module.Model(*(getattr(module, "get_init_inputs", list)()))
        model.double()(*(_in_float64(value) for value in module.get_inputs()))
    return [{"name": kernel.metadata.name, "ttir": kernel.asm["ttir"]} for kernel in compiled]


def _in_float64(value: torch.Tensor) -> torch.Tensor:
    return value.double() if value.is_floating_point() else value


def _answer(question: Mapping) -> object:
    if "examples" in question:
        return {file: compile_example(file) for file in question["examples"]}
    found, every = [], []
    for skill, source, precision, settings in question["jobs"]:
        _, graph = trace_source(source, Precision(precision))
        is_enough = tuple(question["stages"]) == FIRST_STAGE and not question["read_binaries"]
        with first_stage_alone() if is_enough else nullcontext():
            kernels = compile_site(graph, skill, precision, settings)
        found.append([_describe(kernel, question) for kernel in kernels])
        every += kernels
    if question["read_binaries"]:
        told = iter(_read_binaries(every))
        found = [[{**kernel, **next(told)} for kernel in kernels] for kernels in found]
    return found


def main() -> None:
    use_compile_only_driver("sm_90")
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what others print must not look like an answer
    for line in sys.stdin:
        try:
            answer = {"found": _answer(json.loads(line))}
        except Exception:  # noqa: BLE001 - the fault of one question must not end the process
            answer = {"fault": traceback.format_exc()}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
