"""Everything the kernels of one problem share in a compile process: inputs on meta, a recorder.

The Triton disk cache is warmed on the way. Its key (get_cache_key of triton.runtime.cache) is made
of Triton's own version, the kernel's source, first line number and globals, argument types with
divisibility by 16, constexpr values, the target with the ptxas version, the options (num_warps,
num_stages, ...) and TRITON_* variables: not of the file's path nor of the machine. Meta tensors
have data_ptr 0, which divides like the allocator's 512-byte aligned blocks; a view at an odd offset
is the one case that misses.
"""

import gc
import itertools
import linecache
import logging
import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from kmem.errors import ProblemError
from kmem.host.checked_text import import_text
from kmem.host.imitated_device import ImitatedDevice, imitate_cuda
from kmem.problem.source.load import build_inputs, execute_problem
from kmem.profile.build import build_model
from kmem.profile.compile.helpers import compiled_together
from kmem.profile.compile.recorder import Recorder, VendorOperators, record_launches
from kmem.profile.compile.target_driver import compute_capability, use_compile_only_driver
from kmem.profile.description import read_precision, read_problem
from kmem.records import Precision

logger = logging.getLogger(__name__)

#: Functions of a file from which on its kernels are compiled together.
_MANY_FUNCTIONS = 6
#: Numbers of this process's candidates: a file name used twice might find the byte code of the
#: first.
_numbers = itertools.count(1)


class CompileSession:
    """Compiles kernels of one problem until it is closed.

    Args:
        setup: what `CompilePool` says of the problem, the device and where to write.
    """

    def __init__(self, setup: dict[str, Any]) -> None:
        problem, workload = read_problem(setup)
        self._precision = read_precision(setup)
        self._directory = Path(setup["directory"])
        arch = setup["device"]["arch"]
        use_compile_only_driver(arch)
        imitate_cuda(setup["properties"])
        self._problem = execute_problem(problem, workload)
        self._inputs = _meta_inputs(self._problem, self._precision)
        self._recorder = Recorder(self._directory, compute_capability(arch))
        self._read_binaries = setup["read_binaries"]
        self._stop_recording = record_launches(self._recorder)
        self.first_launches: list[dict[str, Any]] = []  # of the last module's first call
        # the collection after each kernel walked through all of torch: a fifth of a second
        gc.freeze()

    @property
    def launches(self) -> list[dict[str, Any]]:
        """What the last module launched, also if it failed on the way.

        At a second call, where there was one: what a module makes of its weights once is no part of
        the calls that follow.
        """
        return self._recorder.launches

    def close(self) -> None:
        """Launch as before, so that another problem can be set up."""
        self._stop_recording()

    def compile(self, source: str, ask_for_cores: Callable[[int], int]) -> str:
        """Compile every kernel that one forward of this module file launches; the hash of them.

        Args:
            ask_for_cores: how many more cores, of so many, may be used just now.
        """
        if source.count("@triton.jit") >= _MANY_FUNCTIONS:
            try:
                return self._compile(source, compiled_together(ask_for_cores))
            # The module's own code may raise anything, or catch what a launch of its kernels raises
            # and go another way: what becomes of it is told by one launch after another.
            except Exception:  # noqa: BLE001
                logger.info("a module's kernels are compiled one after another", exc_info=True)
        return self._compile(source, nullcontext())

    def _compile(self, source: str, compiling: AbstractContextManager[None]) -> str:
        self._recorder.begin()
        self.first_launches = []
        name = f"kmem_candidate_{os.getpid()}_{next(_numbers)}"
        path = str(self._directory / f"{name}.py")  # for tracebacks: no such file is read
        try:
            with ImitatedDevice("meta"):
                module = import_text(name, path, source)
                model = build_model(module, self._problem, self._precision, "meta")
                tf32 = self._precision is Precision.TF32
                with torch.no_grad(), VendorOperators(self._recorder, tf32=tf32):
                    with compiling:
                        model(*self._inputs)
                    self._recorder.settle()
                    self.first_launches = self._recorder.launches
                    ptx_hash = self._recorder.ptx_hash
                    if any(launch["block"] for launch in self.first_launches):
                        self._recorder.begin()
                        model(*self._inputs)
        finally:
            sys.modules.pop(name, None)
            linecache.cache.pop(path, None)
            self._recorder.settle()
            if self._read_binaries:  # also of what was launched before it failed
                self._recorder.read_binaries()
            gc.collect()
        return ptx_hash


def _meta_inputs(problem: ModuleType, precision: Precision) -> list[object]:
    try:
        return build_inputs(problem, "meta", precision)
    except ProblemError:  # get_inputs looks at values: make them for once, then forget them
        return [
            value.to("meta") if isinstance(value, torch.Tensor) else value
            for value in build_inputs(problem, "cpu", precision)
        ]
