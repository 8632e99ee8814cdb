"""The process that compiles kernels without a GPU: one JSON line in per kernel, one JSON line out.

Started by compile.py only.

A line with a problem sets it up; the kernels that follow are of that problem, until the next one.
The process imports a candidate's file, builds the problem's module state and inputs on the meta
device, and runs one forward in which every Triton launch becomes a compilation for the target (and
is recorded), and every library operator only computes shapes. Launches of `triton.autotune` kernels
compile their first configuration: choosing among them needs a GPU.

The Triton disk cache is warmed on the way. Its key (triton/runtime/cache.py, get_cache_key) is made
of Triton's own version, the kernel's source, first line number and globals, argument types with
divisibility by 16, constexpr values, the target with the ptxas version, the options (num_warps,
num_stages, ...) and TRITON_* variables: not of the file's path nor of the machine. Meta tensors
have data_ptr 0, which divides like the allocator's 512-byte aligned blocks; a view at an odd offset
is the one case that misses.

Covered: anything a candidate can raise or print. Not covered: a candidate that patches torch or
triton for those after it in this process; its figures are estimates for ranking and never a
verdict.
"""

import gc
import hashlib
import importlib.util
import itertools
import json
import os
import re
import signal
import sys
import threading
import time
import traceback
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

import torch
import torch._dynamo  # which a forward under a dispatch mode would import, while somebody waits
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from kmem.errors import ProblemError
from kmem.problem.load import build_inputs, execute_problem
from kmem.profile.sass import read_instructions, read_resources
from kmem.profile.target_driver import tool_paths, use_compile_only_driver
from kmem.profile.ttir import count_program_work
from kmem.records import Precision, Problem, Workload

#: Longest text kept of a compiler's or a candidate's error.
LOG_LIMIT = 4000
#: Numbers of this process's candidates: a file name used twice might find the byte code of the
#: first.
_numbers = itertools.count(1)
#: Operators that launch no kernel: they allocate, alias or ask.
_FREE_OPERATORS = frozenset(
    "aten." + name
    for name in [
        "empty",
        "empty_like",
        "empty_strided",
        "new_empty",
        "new_empty_strided",
        "detach",
        "alias",
        "view",
        "_unsafe_view",
        "_reshape_alias",
        "as_strided",
        "t",
        "transpose",
        "permute",
        "expand",
        "slice",
        "select",
        "unsqueeze",
        "squeeze",
        "split",
        "split_with_sizes",
        "chunk",
        "unbind",
        "lift_fresh",
        "is_pinned",
        "sym_size",
        "sym_stride",
        "sym_numel",
        "narrow",
        "unfold",
    ]
)


class _Recorder(TorchDispatchMode):
    """Notes every library operator that would launch a kernel, with its bytes and FLOPs."""

    def __init__(self, session: "CompileSession") -> None:
        super().__init__()
        self.session = session

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # noqa: ANN001, ANN204 - torch's own signature
        result = func(*args, **(kwargs or {}))
        packet = str(func.overloadpacket)
        if packet not in _FREE_OPERATORS:
            tensors = {
                id(leaf): leaf
                for leaf in _leaves([args, kwargs, result])
                if isinstance(leaf, torch.Tensor)
            }
            metrics = {
                "static__library": 1.0,
                "static__argument_bytes": float(
                    sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
                ),
            }
            counter = flop_registry.get(func.overloadpacket)
            if counter is not None:
                metrics["static__flops"] = float(counter(*args, **(kwargs or {}), out_val=result))
                floating = next(
                    (tensor for tensor in tensors.values() if tensor.is_floating_point()), None
                )
                metrics["static__item_bytes"] = (
                    float(floating.element_size()) if floating is not None else 4.0
                )
            self.session.note(
                {"name": str(func), "grid": None, "block": None, "metrics": metrics},
                str(func),
                [str(leaf) for leaf in _scalars(args, kwargs)],
            )
        return result


def _leaves(value: object) -> list[object]:
    if isinstance(value, list | tuple):
        return [leaf for item in value for leaf in _leaves(item)]
    if isinstance(value, dict):
        return [leaf for item in value.values() for leaf in _leaves(item)]
    return [value]


def strip_debug(ptx: str) -> str:
    """PTX without comments, source lines and debug sections, which name the candidate's file and
    differ where the code does not.
    """
    code = re.sub(
        r"^\s*\.section\s+\.debug_\w+\s*\{.*?^\s*\}", "", ptx, flags=re.MULTILINE | re.DOTALL
    )
    code = re.sub(r"^\s*\.(loc|file)\b.*$", "", code, flags=re.MULTILINE)
    code = re.sub(r"//.*$|^\$L__tmp\d+:$", "", code, flags=re.MULTILINE)
    return "\n".join(line.strip() for line in code.splitlines() if line.strip())


def _scalars(*values: object) -> list[object]:
    return [leaf for leaf in _leaves(list(values)) if not isinstance(leaf, torch.Tensor)]


class CompileSession:
    """Everything the kernels of one problem share: inputs on meta, the recording hook, the
    disassembler's cache.
    """

    def __init__(self, setup: dict[str, Any]) -> None:
        self.directory = Path(setup["directory"])
        self.precision = Precision(setup["precision"])
        self.read_binaries = setup["read_binaries"]
        workload = Workload(
            setup["workload"]["name"],
            tuple((name, value) for name, value in setup["workload"]["constants"]),
            setup["workload"]["small_inputs"],
        )
        use_compile_only_driver(setup["device"]["arch"])
        _imitate_device(setup["device"])
        self.problem = execute_problem(Problem(**setup["problem"]), workload)
        self.inputs = _meta_inputs(self.problem, self.precision)
        self.launches: list[dict[str, Any]] = []
        self.digest = hashlib.sha256()
        self.figures: dict[str, dict[str, float]] = {}
        self._stop_recording = _record_launches(self)
        # the collection after each kernel walked through all of torch: a fifth of a second
        gc.freeze()

    def close(self) -> None:
        """Launch as before, so that another problem can be set up."""
        self._stop_recording()

    def compile(self, source: str) -> dict[str, Any]:
        """Compile every kernel that one forward of this module file launches."""
        self.launches, self.digest = [], hashlib.sha256()
        name = f"kmem_candidate_{os.getpid()}_{next(_numbers)}"
        file = self.directory / f"{name}.py"
        file.write_text(source, encoding="utf-8")
        try:
            spec = importlib.util.spec_from_file_location(name, file)
            module = importlib.util.module_from_spec(spec)
            sys.modules[name] = module
            spec.loader.exec_module(module)
            init_inputs = (
                list(self.problem.get_init_inputs())
                if hasattr(self.problem, "get_init_inputs")
                else []
            )
            with torch.device("meta"):
                model = module.ModelNew(*init_inputs).to("meta")
            if self.precision is Precision.BF16:
                model = model.to(torch.bfloat16)
            with torch.no_grad(), _Recorder(self):
                model(*self.inputs)
        finally:
            sys.modules.pop(name, None)
            gc.collect()
        return {"ptx_hash": self.digest.hexdigest()}

    def note(self, launch: dict[str, Any], code: str, scalars: list[str]) -> None:
        """Add a launch, and what makes it different from others to the hash: code, sizes and scalar
        arguments.
        """
        self.launches.append(launch)
        self.digest.update(
            json.dumps(
                [code, launch["grid"], launch["metrics"]["static__argument_bytes"], scalars]
            ).encode()
        )

    def record(
        self, function: Any, kernel: Any, grid: tuple[int, ...], arguments: dict[str, Any]
    ) -> None:
        """Note one launch of a compiled kernel."""
        warps = kernel.metadata.num_warps
        storages: dict[int, int] = {}
        for value in arguments.values():
            if isinstance(value, torch.Tensor):
                size = value.numel() * value.element_size()
                storages[value.untyped_storage()._cdata] = max(
                    size, storages.get(value.untyped_storage()._cdata, 0)
                )
        metrics = (
            {**self._analyse(kernel), **count_program_work(kernel.asm["ttir"])}
            if self.read_binaries
            else {}
        )
        metrics["static__shared_bytes_per_block"] = float(kernel.metadata.shared)
        metrics["static__argument_bytes"] = float(sum(storages.values()))
        metrics["static__num_warps"] = float(warps)
        metrics["static__num_stages"] = float(kernel.metadata.num_stages)
        for parameter in function.params:
            value = arguments.get(parameter.name)
            if parameter.is_constexpr and isinstance(value, int | float):
                metrics[f"constexpr__{parameter.name}"] = float(value)
        padded = (*grid, 1, 1, 1)[:3]
        launch = {
            "name": kernel.metadata.name,
            "grid": padded,
            "block": (warps * 32, 1, 1),
            "metrics": metrics,
        }
        self.note(
            launch,
            strip_debug(kernel.asm["ptx"]),
            [repr(value) for value in arguments.values() if isinstance(value, int | float)],
        )

    def _analyse(self, kernel: Any) -> dict[str, float]:
        cubin = kernel.asm["cubin"]
        key = hashlib.sha256(cubin).hexdigest()
        if key not in self.figures:
            cuobjdump, nvdisasm = tool_paths()
            file = self.directory / f"kernel_{os.getpid()}.cubin"
            file.write_bytes(cubin)
            self.figures[key] = {
                **read_resources(file, cuobjdump),
                **read_instructions(file, nvdisasm),
            }
            file.unlink()
        return self.figures[key]


def _meta_inputs(problem: types.ModuleType, precision: Precision) -> list[object]:
    try:
        return build_inputs(problem, "meta", precision)
    except ProblemError:  # get_inputs looks at values: make them for once, then forget them
        return [
            value.to("meta") if isinstance(value, torch.Tensor) else value
            for value in build_inputs(problem, "cpu", precision)
        ]


def _record_launches(session: CompileSession) -> Callable[[], None]:
    """Turn every launch of this process into a compilation that is recorded.

    Returns what undoes it.
    """
    from triton.runtime.autotuner import Autotuner
    from triton.runtime.jit import JITFunction

    original, original_autotuner = JITFunction.run, Autotuner.run

    def run(self: Any, *args: Any, grid: Any, warmup: bool = False, **kwargs: Any) -> Any:
        kernel = original(self, *args, grid=grid, warmup=True, **kwargs)
        named = {name: value for name, value in kwargs.items() if name in self.signature.parameters}
        bound = self.signature.bind_partial(*args, **named)
        bound.apply_defaults()
        arguments = dict(bound.arguments)
        resolved = grid(arguments) if callable(grid) else grid
        session.record(self, kernel, tuple(int(size) for size in resolved), arguments)
        return kernel

    def run_first_configuration(self: Any, *args: Any, **kwargs: Any) -> Any:
        return self.fn.run(*args, **{**self.configs[0].all_kwargs(), **kwargs})

    def restore() -> None:
        JITFunction.run, Autotuner.run = original, original_autotuner

    JITFunction.run, Autotuner.run = run, run_first_configuration
    return restore


def _imitate_device(device: dict[str, Any]) -> None:
    """Answer the questions kernels ask about their GPU (how many multiprocessors) for the target
    instead of failing without one.
    """
    properties = types.SimpleNamespace(
        name=device["full_name"],
        multi_processor_count=device["sm_count"],
        total_memory=device["memory_bytes"],
        L2_cache_size=device["l2_bytes"],
        warp_size=device["warp_size"],
        max_threads_per_multi_processor=device["max_threads_per_sm"],
        shared_memory_per_block_optin=device["shared_bytes_per_block"],
        shared_memory_per_multiprocessor=device["shared_bytes_per_sm"],
        regs_per_multiprocessor=device["registers_per_sm"],
        major=int(device["arch"].removeprefix("sm_")) // 10,
        minor=int(device["arch"].removeprefix("sm_")) % 10,
    )
    torch.cuda.get_device_properties = lambda device=None: properties
    torch.cuda.get_device_capability = lambda device=None: (properties.major, properties.minor)
    torch.cuda.current_device = lambda: 0


def serve(requests: TextIO, answers: TextIO) -> None:
    """Answer each line with one line: a set-up line first, then kernels of that problem.

    Ends where a problem cannot be set up.
    """
    session: CompileSession | None = None
    for line in requests:
        request = json.loads(line)
        if "problem" in request:
            if session is not None:
                session.close()
            try:
                session = CompileSession(request)
            except Exception:  # noqa: BLE001 - the problem's own code runs here and may raise anything; the parent reports it
                _answer(answers, {"status": "failed", "log": _shorten(traceback.format_exc())})
                return
            _answer(answers, {"status": "ready"})
            continue
        start = time.monotonic()
        try:
            answer = {"status": "ok", "log": "", **session.compile(request["source"])}
        except BaseException as ex:  # noqa: BLE001 - candidate code may raise anything, SystemExit and KeyboardInterrupt included; it is its report
            answer = {
                "status": "needs_values" if _needs_values(ex) else "failed",
                "log": _shorten(traceback.format_exc()),
            }
        _answer(
            answers, {**answer, "launches": session.launches, "seconds": time.monotonic() - start}
        )


def _needs_values(ex: BaseException) -> bool:
    """Whether a forward stopped only because meta tensors hold no data.

    Source: messages of torch 2.11-2.13 for item(), copies and missing Meta kernels.
    """
    return isinstance(ex, RuntimeError | NotImplementedError) and any(
        text in str(ex)
        for text in ("meta tensor", "Meta tensor", "'Meta' backend", "DataDependent")
    )


def _answer(answers: TextIO, message: dict[str, Any]) -> None:
    answers.write(json.dumps(message) + "\n")
    answers.flush()


def _shorten(text: str) -> str:
    return (
        text
        if len(text) <= LOG_LIMIT
        else f"{text[: LOG_LIMIT // 4]}\n[...]\n{text[-LOG_LIMIT * 3 // 4 :]}"
    )


def _end_with(parent: int) -> None:
    """Kill this process and its children (ptxas) once the parent is gone: a killed run must not
    leave compilers behind.
    """
    while os.getppid() == parent:
        time.sleep(0.5)
    os.killpg(os.getpgrp(), signal.SIGKILL)


if __name__ == "__main__":
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    # A candidate that prints must not write into the answers: they get the real stdout under
    # another number, stdout becomes stderr.
    channel = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    serve(sys.stdin, channel)
