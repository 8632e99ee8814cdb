"""Carries commands out: holds loaded modules and attached tensors, runs and observes forwards.

Runs inside the worker, from a copy of this file. It knows neither the problem's file nor the
reference nor a tolerance. Everything it uses is imported before any candidate is.

In order: tensors and modules, running, observing.
"""

import gc
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from types import ModuleType

import clocks
import commands
import torch
from checked_text import import_text
from failures import CandidateFailed, guarded
from free_memory import poison_free_memory
from imitated_device import ImitatedDevice, imitate_cuda
from integrity import Integrity
from interpreting import imitate_driver, prepare_interpreter
from kernel_identity import find_own
from launches import Change, LaunchCounter, binary_digest, find_triton_functions, gpu_kernels
from lease import GpuLease
from operators import OperatorLog
from overlap import describe_places
from own_operators import own_body
from project_modules import use_project
from results import Result, SpotCopies, deliver_result, is_plain, read_result
from tensors import SharedTensor, decode_value, open_shared
from tuning import tuning_in_turn

_no_grad = torch.no_grad
_MODES = {"": _no_grad, "grad": torch.enable_grad, "inference": torch.inference_mode}
_copy, _equal = torch.Tensor.copy_, torch.equal
_clone, _set_data = torch.Tensor.clone, torch.Tensor.data.__set__
_synchronize = torch.cuda.synchronize
# torch.manual_seed takes a millisecond: it notes where it was called
_seed_cpu, _seed_cuda = torch.default_generator.manual_seed, torch.cuda.manual_seed_all
#: Beyond this the allocator's free blocks go back to the driver after a call: the judge has use for
#: the memory.
RESERVED_AT_MOST = 2**30
#: Launches of one forward that are named to the judge.
_NAMES = 4096
_OWN_DIRECTORY = os.path.dirname(os.path.abspath(__file__))


def _seed_all(seed: int) -> None:
    _seed_cpu(seed)
    _seed_cuda(seed)


def registered_state(
    module: torch.nn.Module, prefix: str = ""
) -> Iterator[tuple[str, torch.Tensor | None]]:
    """Parameters and buffers by name as they are registered; no method of the module is called.

    A method that a candidate wrote could work them out only when somebody asks.
    """
    held = object.__getattribute__(module, "__dict__")
    for kind in ("_parameters", "_buffers"):
        for name, value in dict.items(held[kind]):
            yield prefix + name, value
    for name, child in dict.items(held["_modules"]):
        if child is not None:
            yield from registered_state(child, f"{prefix}{name}.")


def _own_parts() -> list[object]:
    """What of the worker itself must stay as it is: its modules and their classes."""
    own = [
        module
        for module in list(sys.modules.values())
        if os.path.dirname(getattr(module, "__file__", None) or "") == _OWN_DIRECTORY
    ]
    return own + [
        value
        for module in own
        for value in vars(module).values()
        if isinstance(value, type) and value.__module__ == module.__name__
    ]


class Runner:
    """Holds the loaded modules and attached tensors, by the names that the judge gave them.

    Each method that takes a command answers it with what the judge is told.
    """

    def __init__(self, device: str, *, hostile: bool = True) -> None:
        """Nothing is loaded yet.

        Args:
            hostile: candidates will be loaded, not baselines.
        """
        self.device = torch.device(device)
        self.launches = LaunchCounter()
        self.models: dict[str, tuple[torch.nn.Module, ModuleType]] = {}
        self.attached: dict[str, list[object]] = {}
        self.kept: dict[str, Result] = {}
        self.clock: clocks.EventClock | None = None
        self.reserved_bytes = 0  # by the allocator, after the last call
        if self.device.type == "cuda":
            torch.cuda.init()
        on_cpu = self.device.type == "cpu"
        self._seed = _seed_cpu if on_cpu else _seed_all
        # where kernels are interpreted there is no GPU, but candidates are written for one
        self._target: dict[str, object] | None = None
        self._as_on_gpu: Callable[[], AbstractContextManager] = nullcontext
        if on_cpu and hostile:
            prepare_interpreter()
            self._as_on_gpu = partial(ImitatedDevice, "cpu")
        self.integrity = Integrity(_own_parts)
        gc.freeze()  # what candidates bring is looked through for tensors, again and again

    def prepare_profiler(self, command: commands.PrepareProfiler) -> dict[str, object]:
        if self.device.type == "cuda":
            gpu_kernels(lambda: torch.zeros(1, device=self.device))
        return {}

    def _imitate(self, target: dict[str, object]) -> None:
        """Answer questions about the GPU as this one would, from now on."""
        imitate_cuda(target)
        imitate_driver(target)
        self._target = target
        self.integrity = Integrity(_own_parts)

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
        self.models.pop(command.key, None)  # one that is loaded again is not held twice
        torch.backends.cuda.matmul.allow_tf32 = command.tf32
        torch.backends.cudnn.allow_tf32 = True
        use_project(command.project)
        if command.target and command.target != self._target:
            self._imitate(command.target)
        self.integrity.note_flags()  # that this was said is no fault of what comes now
        name = os.path.splitext(os.path.basename(command.path))[0]
        with self._as_on_gpu():
            module = guarded("import", import_text, name, command.path, command.source)
        factory = getattr(module, command.class_name, None)
        if factory is None:
            raise CandidateFailed(
                "contract", AttributeError(f"the file defines no {command.class_name}")
            )

        def construct() -> object:
            with self._as_on_gpu(), torch.device(self.device):
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

    def _align(self, model: torch.nn.Module, command: commands.Load) -> torch.nn.Module:
        """Give a module the reference's device, dtype, parameters and mode."""
        moved = model.to(self.device)
        if command.dtype:
            moved = moved.to(getattr(torch, command.dtype))
        state = self._shared_state(command.state)
        own = dict(registered_state(moved))
        parameters = {name for name, _ in moved.named_parameters(remove_duplicate=False)}
        if missing := [name for name in state if own.get(name) is None]:
            raise KeyError(f"it has no {', '.join(missing[:5])}, which the module has")
        if added := sorted(parameters - state.keys()):
            raise KeyError(f"it has {', '.join(added[:5])}, which the module has not")
        # whoever packs parameters may do it when they are loaded
        with self._as_on_gpu():
            moved.load_state_dict(state, strict=False)
        self._give_state(moved, state)
        return moved.train(command.training)

    def _shared_state(self, places: list[list[object]]) -> dict[str, torch.Tensor]:
        state = {target: self.attached[name][index] for target, name, index in places}
        for shared in state.values():
            shared.fetch()
        return {target: shared.value for target, shared in state.items()}

    def _give_state(
        self, model: torch.nn.Module, state: dict[str, torch.Tensor], replace: bool = False
    ) -> None:
        """Write parameters and buffers, or `replace` their memory; also those of no state_dict."""
        own = dict(registered_state(model))
        with _no_grad():
            for name, value in state.items():
                target = own.get(name)
                if target is None or _equal(target, value):
                    continue
                _set_data(target, _clone(value)) if replace else _copy(target, value)

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
        if command.state is not None:
            model, state = self.models[command.key][0], self._shared_state(command.state)
            guarded("state_dict", self._give_state, model, state, command.replace)
        self._seed(command.seed)
        forward = self._forward(command.key, command.inputs, mode=command.mode)
        call = clocks.Timed(forward, on_gpu=self.device.type == "cuda")
        log = OperatorLog(self.launches.is_running, self.launches.lineage, own_body)
        change = Change(command.suppress, command.shuffle, command.arguments or {})
        with self.launches.observing(change):
            run = log.observe if command.observe else log.ignore
            result, origins = guarded("forward", run, call)
        described = deliver_result(result, targets, self.device)
        described.update(self._places(result, command.inputs))
        if command.keep:
            self.kept[command.keep] = result
        del result  # before the device is joined: whatever its end sets off belongs to this call
        self._publish(command.inputs)
        self._give_back()
        seen = self.launches
        return {
            **described,
            "launches": seen.count,
            "names": seen.names[:_NAMES],
            "described": seen.described,
            "races": seen.races,
            "operators": log.counts,
            "origins": origins,
            "seconds": call.seconds,
        }

    def reread(self, command: commands.Reread) -> dict[str, object]:
        return deliver_result(self.kept[command.keep], self.attached[command.outputs], self.device)

    def forget(self, command: commands.Forget) -> dict[str, object]:
        self.kept.clear()
        self._give_back()
        return {}

    def state(self, command: commands.State) -> dict[str, object]:
        current = dict(registered_state(self.models[command.key][0]))
        values = tuple(current.get(name) for name in command.names)
        targets = self.attached[command.outputs]
        return deliver_result(Result("tuple", values), targets, self.device)

    def _give_back(self) -> None:
        if self.device.type == "cuda":
            self.reserved_bytes = torch.cuda.memory_reserved()
            if self.reserved_bytes > RESERVED_AT_MOST:
                torch.cuda.empty_cache()

    def _places(self, result: Result, inputs: str) -> dict[str, object]:
        """Where the outputs lie, if they are what the judge expects."""
        if not all(is_plain(leaf, self.device) for leaf in result.leaves):
            return {}
        given = [value for value in self._values(inputs) if isinstance(value, torch.Tensor)]
        return {"places": describe_places(result.leaves, given)}

    def _forward(self, key: str, inputs: str, *, mode: str = "") -> Callable[[], Result]:
        """A forward of what the inputs hold now; its result is read within the call."""
        self._fetch(inputs)
        model, values = self.models[key][0], self._values(inputs)
        entered = _MODES[mode]

        def call() -> Result:
            with entered():
                return read_result(model(*values))

        def call_as_on_gpu() -> Result:
            with self._as_on_gpu():
                return call()

        return call if self.device.type == "cuda" else call_as_on_gpu

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
            guarded("forward", _synchronize)

    # ---- observing

    def operators(self, command: commands.Operators) -> dict[str, object]:
        self._seed(command.seed)
        call = self._forward(command.key, command.inputs)
        log = OperatorLog(self.launches.is_running, self.launches.lineage, own_body)
        origins = guarded("forward", log.observe, call)[1]
        self._join()
        return {"operators": log.counts, "origins": origins}

    def kernels(self, command: commands.Kernels) -> dict[str, object]:
        compiled = self.launches.compiled
        call = self._forward(command.key, command.inputs)
        ran = guarded("forward", gpu_kernels, call, compiled.clear)
        module = self.models[command.key][1]
        functions = dict(find_triton_functions(module))
        own, launched = find_own(compiled, vars(module), functions)
        binaries = {
            name: digest
            for name, function in own.items()
            if (digest := binary_digest(function)) is not None
        }
        return {"kernels": ran, "own": launched, "binaries": binaries}

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
        """Wait for what a failed call had launched: it could run into the next one's inputs."""
        if self.device.type == "cuda":
            try:
                _synchronize()
            # the failure itself, once more: it has been caught and is on its way to the judge
            except RuntimeError as ex:
                print(f"after the failure: {ex}", file=sys.stderr)
