"""How much of a GPU processes take: while a block runs, and for one forward of a problem."""

import json
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parent.parent


class PeakMemory:
    """Samples how much of the GPU is taken, by whatever process, while a block runs.

    `bytes` is the peak over what was taken before.
    """

    def __enter__(self) -> "PeakMemory":
        torch.cuda.empty_cache()
        self._free = self._least = torch.cuda.mem_get_info()[0]
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def _watch(self) -> None:
        while not self._stop.wait(0.01):
            self._least = min(self._least, torch.cuda.mem_get_info()[0])

    def __exit__(self, *exc_info: object) -> None:
        self._stop.set()
        self._thread.join()
        self.bytes = self._free - self._least


_ONE_FORWARD = """
import gc, json, sys, torch
from pathlib import Path
from kmem.problem.source.load import build_inputs, build_model, execute_problem, load_problem
from kmem.records import Precision
free = int(sys.argv[1])
for place in sys.argv[2:]:
    module = execute_problem(load_problem(Path(place)))
    model = build_model(module, torch.device("cuda"), Precision.MATCH)
    values = build_inputs(module, torch.device("cuda"), Precision.MATCH)
    torch.cuda.reset_peak_memory_stats()
    with torch.no_grad():
        outputs = model(*values)
    torch.cuda.synchronize()
    outputs = outputs if isinstance(outputs, (list, tuple)) else [outputs]
    found = torch.cuda.max_memory_allocated(), sum(value.nbytes for value in outputs)
    del module, model, values, outputs
    gc.collect()
    torch.cuda.empty_cache()
    print(json.dumps([*found, free - torch.cuda.mem_get_info()[0] - torch.cuda.memory_reserved()]))
"""


def own_memory(names: Sequence[str]) -> list[tuple[int, int, int]]:
    """Of each problem, bytes of one eager forward, of its outputs, and of a process's context.

    The first is the peak with inputs and parameters, the last what a CUDA process takes beside its
    tensors.
    """
    torch.cuda.empty_cache()
    arguments = [
        str(torch.cuda.mem_get_info()[0]),
        *(str(ROOT / "problems" / name) for name in names),
    ]
    done = subprocess.run(
        [sys.executable, "-c", _ONE_FORWARD, *arguments], capture_output=True, text=True, check=True
    )
    return [tuple(json.loads(line)) for line in done.stdout.splitlines()]
