"""Carries commands out: holds loaded modules and attached tensors, runs and observes forwards.

Runs inside the worker, from a copy of this file. It knows neither the problem's file nor the
reference nor a tolerance. Everything it uses is imported before any candidate is.

In order: tensors and modules, running, observing.
"""

import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import clocks
import commands
import torch
from failures import CandidateFailed, guarded
from free_memory import poison_free_memory
from integrity import Integrity
from launches import LaunchCounter, binary_digest, find_triton_functions, gpu_kernels
from lease import GpuLease
from operators import OperatorLog
from results import SpotCopies, deliver_result
from tensors import SharedTensor, decode_value, open_shared
from tuning import tuning_in_turn

#: Beyond this the allocator's free blocks go back to the driver after a call: the judge has use for
#: the memory.
RESERVED_AT_MOST = 2**30


class Runner:
    """Holds the loaded modules and attached tensors, by the names that the judge gave them.

    Each method that takes a command answers it with what the judge is told.
    """

    def __init__(self, device: str) -> None:
        self.device = torch.device(device)
        self.launches = LaunchCounter()
        self.models: dict[str, tuple[torch.nn.Module, ModuleType]] = {}
        self.attached: dict[str, list[object]] = {}
        self.kept: dict[str, object] = {}
        self.clock: clocks.EventClock | None = None
        self.reserved_bytes = 0  # by the allocator, after the last call
        if self.device.type == "cuda":
            torch.cuda.init()
        self.integrity = Integrity()

    def prepare_profiler(self) -> None:
        """Have the GPU's profiler initialise itself now, so that no verdict waits for it.

        The first use in a process takes seconds.
        """
        if self.device.type == "cuda":
            gpu_kernels(lambda: torch.zeros(1, device=self.device))

    # ---- tensors and modules

    def attach(self, command: commands.Attach) -> dict[str, object]:
        self.attached[command.name] = [
            open_shared(item["tensor"])
            if isinstance(item, dict) and "tensor" in item
            else decode_value(item)
            for item in command.values
        ]
        return {}

    def detach(self, command: commands.Detach) -> dict[str, object]:
        self.attached.pop(command.name, None)
        self._give_back()
        return {}

    def load(self, command: commands.Load) -> dict[str, object]:
        torch.backends.cuda.matmul.allow_tf32 = command.tf32
        torch.backends.cudnn.allow_tf32 = True
        module = self._import(command.path)
        factory = getattr(module, command.class_name, None)
        if factory is None:
            raise CandidateFailed(
                "contract", AttributeError(f"the file defines no {command.class_name}")
            )

        def construct() -> object:
            with torch.device(self.device):
                return factory(*[decode_value(value) for value in command.init])

        model = guarded("construct", construct)
        if not isinstance(model, torch.nn.Module):
            raise CandidateFailed(
                "contract",
                TypeError(
                    f"{command.class_name} is a {type(model).__name__}, not a torch.nn.Module"
                ),
            )
        model = guarded("state_dict", self._align, model, command)
        if command.compile_mode is not None:
            mode = None if command.compile_mode == "default" else command.compile_mode
            model = torch.compile(model, mode=mode, dynamic=False)
        self.models[command.key] = (model, module)
        return {}

    def _import(self, path: str) -> ModuleType:
        name = os.path.splitext(os.path.basename(path))[0]
        spec = importlib.util.spec_from_file_location(name, path)
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module  # triton.jit and dataclasses look their module up
        guarded("import", spec.loader.exec_module, module)
        return module

    def _align(self, model: torch.nn.Module, command: commands.Load) -> torch.nn.Module:
        """Give a module the reference's device, dtype, parameters and mode."""
        moved = model.to(self.device)
        if command.dtype:
            moved = moved.to(getattr(torch, command.dtype))
        state = {target: self.attached[name][index] for target, name, index in command.state}
        for shared in state.values():
            shared.fetch()
        moved.load_state_dict({target: shared.value for target, shared in state.items()})
        return moved.train(command.training)

    def unload(self, command: commands.Unload) -> dict[str, object]:
        self.models.pop(command.key, None)
        self.kept.clear()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        return {}

    # ---- running

    def run(self, command: commands.Run) -> dict[str, object]:
        targets = self.attached[command.outputs] if command.outputs else []
        layouts = [(tuple(target.value.shape), target.value.dtype) for target in targets]
        poison_free_memory(layouts, self.device, self.reserved_bytes)
        torch.manual_seed(command.seed)
        self.launches.count, self.launches.suppressed = 0, command.suppress
        try:
            result = guarded("forward", self._forward(command.key, command.inputs))
        finally:
            self.launches.suppressed = False
        described = deliver_result(result, targets, self.device)
        if command.keep:
            self.kept[command.keep] = result
        del result  # before the device is joined: whatever its end sets off belongs to this call
        self._publish(command.inputs)
        self._give_back()
        return {**described, "launches": self.launches.count, "patched": self.integrity.changed()}

    def reread(self, command: commands.Reread) -> dict[str, object]:
        return deliver_result(self.kept[command.keep], self.attached[command.outputs], self.device)

    def forget(self, command: commands.Forget) -> dict[str, object]:
        self.kept.pop(command.keep, None)
        self._give_back()
        return {}

    def state(self, command: commands.State) -> dict[str, object]:
        current = dict(self.models[command.key][0].state_dict())
        values = tuple(current.get(name) for name in command.names)
        return deliver_result(values, self.attached[command.outputs], self.device)

    def _give_back(self) -> None:
        if self.device.type == "cuda":
            self.reserved_bytes = torch.cuda.memory_reserved()
            if self.reserved_bytes > RESERVED_AT_MOST:
                torch.cuda.empty_cache()

    def _forward(self, key: str, inputs: str) -> Callable[[], object]:
        """A forward of what the inputs hold now."""
        self._fetch(inputs)
        model, values = self.models[key][0], self._values(inputs)

        def call() -> object:
            with torch.no_grad():
                return model(*values)

        return call

    def _values(self, name: str) -> list[object]:
        return [
            item.value if isinstance(item, SharedTensor) else item for item in self.attached[name]
        ]

    def _fetch(self, name: str) -> None:
        for item in self.attached[name]:
            if isinstance(item, SharedTensor):
                item.fetch()

    def _publish(self, name: str) -> None:
        for item in self.attached[name]:
            if isinstance(item, SharedTensor) and item.host is not None:
                item.publish()
        self._join()

    def _join(self) -> None:
        """Wait for the device: the judge overwrites inputs as soon as it has its answer."""
        if self.device.type == "cuda":
            guarded("forward", torch.cuda.synchronize)

    # ---- observing

    def operators(self, command: commands.Operators) -> dict[str, object]:
        torch.manual_seed(command.seed)
        call = self._forward(command.key, command.inputs)
        log = OperatorLog()
        with log:
            guarded("forward", call)
        self._join()
        return {"operators": log.counts}

    def kernels(self, command: commands.Kernels) -> dict[str, object]:
        ran = guarded("forward", gpu_kernels, self._forward(command.key, command.inputs))
        own = find_triton_functions(self.models[command.key][1])
        binaries = {
            name: digest
            for name, function in own
            if (digest := binary_digest(function)) is not None
        }
        return {"kernels": ran, "own": [name for name, _ in own], "binaries": binaries}

    def time(self, command: commands.Time) -> dict[str, object]:
        clock = self._event_clock(command.l2_bytes)
        calls = [self._forward(command.key, name) for name in command.inputs]
        with tuning_in_turn(self._lease_of(command.turns)):
            for index in range(command.warmup):
                guarded("forward", calls[index % len(calls)])
        if command.spots is None:
            return guarded("forward", clock.time_calls, calls, command.count, command.host_count)
        shared = command.spots["shared"]
        self._fetch(shared)
        copies = SpotCopies(self.attached[shared], command.spots["shapes"], self.device)
        times = guarded(
            "forward", clock.time_calls, calls, command.count, command.host_count, copies.take
        )
        self._publish(shared)
        return {**times, "results": copies.described}

    def time_graph(self, command: commands.TimeGraph) -> dict[str, object]:
        clock = self._event_clock(command.l2_bytes)
        call = self._forward(command.key, command.inputs)
        for _ in range(command.warmup):
            guarded("forward", call)
        return {"event_ms": guarded("forward", clock.time_graph, call, command.count)}

    def time_host(self, command: commands.TimeHost) -> dict[str, object]:
        call = self._forward(command.key, command.inputs)
        guarded("forward", call)
        return guarded("forward", clocks.time_host, call, command.count)

    def _event_clock(self, l2_bytes: int) -> clocks.EventClock:
        if self.clock is None:
            self.clock = clocks.EventClock(l2_bytes)
        return self.clock

    def _lease_of(self, turns: list[str] | None) -> GpuLease | None:
        return GpuLease(Path(turns[0]), turns[1], lambda text: None) if turns else None

    def settle(self) -> None:
        """After a failure: wait for what the call had launched before it failed.

        Else that could run into the next candidate's inputs.
        """
        if self.device.type == "cuda":
            try:
                torch.cuda.synchronize()
            # the failure itself, once more: it has been caught and is on its way to the judge
            except RuntimeError as ex:
                print(f"after the failure: {ex}", file=sys.stderr)
