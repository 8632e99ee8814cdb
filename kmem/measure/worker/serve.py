"""The worker: runs one module at a time for the judge, in a process of its own.

Started as a script from a copy; never imports kmem.

It is told a file, constructor arguments, parameters and inputs, and gives back outputs and
observations. It knows neither problem file nor tolerance nor reference. Commands are JSON objects
on the private channel; whatever a candidate raises becomes a `failed` answer.

In order: the command table, loading, running, observing.
"""

import hashlib
import importlib.util
import os
import socket
import sys
import traceback

#: Beyond this the allocator's free blocks go back to the driver after a call: the judge has use for
#: the memory.
RESERVED_AT_MOST = 2**30


class CandidateFailed(Exception):
    """Something a candidate's code raised, with the stage it happened in."""

    def __init__(self, stage: str, cause: BaseException) -> None:
        self.stage, self.cause = stage, cause


class Worker:
    """Holds the loaded modules and attached tensors, by the names the judge gave them."""

    def __init__(self, device: str) -> None:
        import observe
        import tensors
        import torch

        self.torch = torch
        self.tensors = tensors
        self.observe = observe
        self.device = torch.device(device)
        self.launches = observe.LaunchCounter()
        self.models: dict = {}
        self.attached: dict = {}
        self.kept: dict = {}
        self.clock = None
        self.reserved_bytes = 0  # by the allocator, after the last call
        sys.modules["kmem"] = None  # importing the judge fails
        if self.device.type == "cuda":
            torch.cuda.init()
        self.integrity = observe.Integrity()

    def prepare_profiler(self) -> None:
        """Have the GPU's profiler initialise itself now: once in a process that takes seconds, and
        a verdict would wait for it.
        """
        if self.device.type == "cuda":
            self.observe.gpu_kernels(lambda: self.torch.zeros(1, device=self.device))

    # ---- tensors and modules

    def attach(self, name: str, values: list) -> dict:
        """Open a list of arguments: shared tensors and plain values."""
        self.attached[name] = [
            self.tensors.open_shared(item["tensor"])
            if isinstance(item, dict) and "tensor" in item
            else self.tensors.decode_value(item)
            for item in values
        ]
        return {}

    def detach(self, name: str) -> dict:
        """Let go of a list, and of what the allocator holds beyond need."""
        self.attached.pop(name, None)
        self._give_back()
        return {}

    def load(
        self,
        key: str,
        path: str,
        class_name: str,
        init: list,
        state: list,
        training: bool,
        dtype: str | None,
        tf32: bool,
        compile_mode: str | None,
    ) -> dict:
        """Import a file, construct its module and give it the parameters of the attached list
        `state` ([name, attached name, index]).
        """
        torch = self.torch
        torch.backends.cuda.matmul.allow_tf32 = tf32
        torch.backends.cudnn.allow_tf32 = True
        name = os.path.splitext(os.path.basename(path))[0]
        spec = importlib.util.spec_from_file_location(name, path)
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module  # triton.jit and dataclasses look their module up
        self._guarded("import", spec.loader.exec_module, module)
        factory = getattr(module, class_name, None)
        if factory is None:
            raise CandidateFailed("contract", AttributeError(f"the file defines no {class_name}"))

        def construct():
            with torch.device(self.device):
                return factory(*[self.tensors.decode_value(value) for value in init])

        model = self._guarded("construct", construct)
        if not isinstance(model, torch.nn.Module):
            raise CandidateFailed(
                "contract",
                TypeError(f"{class_name} is a {type(model).__name__}, not a torch.nn.Module"),
            )

        def align():
            moved = model.to(self.device)
            if dtype:
                moved = moved.to(getattr(torch, dtype))
            for shared in (self.attached[place][index] for _, place, index in state):
                shared.fetch()
            moved.load_state_dict(
                {target: self.attached[place][index].value for target, place, index in state}
            )
            return moved.train(training)

        model = self._guarded("state_dict", align)
        if compile_mode is not None:
            model = torch.compile(
                model, mode=None if compile_mode == "default" else compile_mode, dynamic=False
            )
        self.models[key] = (model, module)
        return {}

    def unload(self, key: str) -> dict:
        self.models.pop(key, None)
        self.kept.clear()
        if self.device.type == "cuda":
            self.torch.cuda.empty_cache()
        return {}

    # ---- running

    def run(
        self,
        key: str,
        inputs: str,
        outputs: str | None,
        seed: int,
        suppress: bool,
        keep: str | None,
    ) -> dict:
        """One forward.

        Outputs are described and, where they fit, copied to the attached list `outputs`,
        unsynchronised.
        """
        targets = self.attached[outputs] if outputs else []
        layouts = [(tuple(target.value.shape), target.value.dtype) for target in targets]
        self.observe.poison_free_memory(layouts, self.device, self.reserved_bytes)
        self.torch.manual_seed(seed)
        self.launches.count, self.launches.suppressed = 0, suppress
        try:
            result = self._guarded("forward", self._call(key, inputs))
        finally:
            self.launches.suppressed = False
        described = self._deliver(result, targets)
        if keep:
            self.kept[keep] = result
        del result  # before the device is joined: whatever its end sets off belongs to this call
        self._publish(inputs)
        self._give_back()
        return {**described, "launches": self.launches.count, "patched": self.integrity.changed()}

    def reread(self, keep: str, outputs: str) -> dict:
        """Copy a kept result again: a later call must not have changed it."""
        return self._deliver(self.kept[keep], self.attached[outputs])

    def forget(self, keep: str) -> dict:
        """Let go of a kept result."""
        self.kept.pop(keep, None)
        self._give_back()
        return {}

    def state(self, key: str, outputs: str, names: list) -> dict:
        """Copy named parameters and buffers to the attached list `outputs`."""
        current = dict(self.models[key][0].state_dict())
        values = [current.get(name) for name in names]
        return self._deliver(tuple(values), self.attached[outputs])

    def _give_back(self) -> None:
        if self.device.type == "cuda":
            self.reserved_bytes = self.torch.cuda.memory_reserved()
            if self.reserved_bytes > RESERVED_AT_MOST:
                self.torch.cuda.empty_cache()

    def _call(self, key: str, inputs: str):
        """A forward of what the inputs hold now."""
        self._fetch(inputs)
        model, values = self.models[key][0], self._values(inputs)
        torch = self.torch

        def call():
            with torch.no_grad():
                return model(*values)

        return call

    def _values(self, name: str) -> list:
        return [
            item.value if isinstance(item, self.tensors.SharedTensor) else item
            for item in self.attached[name]
        ]

    def _fetch(self, name: str) -> None:
        for item in self.attached[name]:
            if isinstance(item, self.tensors.SharedTensor):
                item.fetch()

    def _publish(self, name: str) -> None:
        for item in self.attached[name]:
            if isinstance(item, self.tensors.SharedTensor) and item.host is not None:
                item.publish()
        self._join()

    def _join(self) -> None:
        """Wait for the device: the judge overwrites inputs as soon as it has its answer."""
        if self.device.type == "cuda":
            self._guarded("forward", self.torch.cuda.synchronize)

    def _deliver(self, result: object, targets: list) -> dict:
        """Copy the tensors of a result to their targets, those that are what the judge expects; the
        description of all.
        """
        described = self._describe(result)
        for leaf, target in zip(_leaves(result), targets):  # noqa: B905 - what is missing is described
            if (
                self._is_plain(leaf)
                and leaf.shape == target.value.shape
                and leaf.dtype == target.value.dtype
            ):
                self._guarded("forward", target.value.copy_, leaf)
                self._guarded("forward", target.publish)
        return described

    def _describe(self, result: object) -> dict:
        outputs = []
        for leaf in _leaves(result):
            if type(leaf) not in (self.torch.Tensor, self.torch.nn.Parameter):
                outputs.append({"type": f"{type(leaf).__module__}.{type(leaf).__name__}"})
                continue
            expanded = any(step == 0 and size > 1 for size, step in zip(leaf.shape, leaf.stride()))  # noqa: B905
            outputs.append(
                {
                    "type": "tensor",
                    "shape": list(leaf.shape),
                    "dtype": str(leaf.dtype),
                    "device": leaf.device.type,
                    "expanded": expanded,
                }
            )
        return {
            "structure": type(result).__name__ if isinstance(result, list | tuple) else "tensor",
            "outputs": outputs,
        }

    def _is_plain(self, leaf: object) -> bool:
        return (
            type(leaf) in (self.torch.Tensor, self.torch.nn.Parameter)
            and leaf.device.type == self.device.type
        )

    # ---- observing

    def operators(self, key: str, inputs: str, seed: int) -> dict:
        """Operators that one forward dispatches."""
        self.torch.manual_seed(seed)
        call = self._call(key, inputs)
        log = self.observe.OperatorLog()
        with log:
            self._guarded("forward", call)
        self._join()
        return {"operators": log.counts}

    def kernels(self, key: str, inputs: str) -> dict:
        """GPU kernels of one forward, the names of the Triton functions the file defines, and the
        SHA-256 of the PTX of each.
        """
        from triton.runtime.autotuner import Autotuner, Heuristics

        ran = self._guarded("forward", self.observe.gpu_kernels, self._call(key, inputs))
        own, binaries = [], {}
        for value in vars(self.models[key][1]).values():
            while isinstance(value, Autotuner | Heuristics):
                value = value.fn
            if type(value).__name__ in ("JITFunction", "InterpretedFunction"):
                own.append(value.fn.__name__)
                texts = self.observe.compiled_ptx(value)
                if texts:
                    binaries[value.fn.__name__] = hashlib.sha256(
                        "".join(sorted(texts)).encode()
                    ).hexdigest()
        return {"kernels": ran, "own": own, "binaries": binaries}

    def time(
        self,
        key: str,
        inputs: list,
        count: int,
        warmup: int,
        l2_bytes: int,
        graph: bool,
        host_count: int,
        spots: dict | None,
        turns: list | None,
    ) -> dict:
        """Times of `count` forwards over a rotating list of attached inputs, after `warmup` untimed
        ones; with `spots` also what they returned, described, and a few elements of each in the
        attached list of that name. `turns`: directory and GPU of the lease to take while Inductor
        tunes.
        """
        if self.clock is None:
            self.clock = self.observe.EventClock(l2_bytes)
        calls = [self._call(key, name) for name in inputs]
        with self.observe.tuning_in_turn(turns):
            for index in range(warmup):
                self._guarded("forward", calls[index % len(calls)])
        if graph:
            return {"event_ms": self._guarded("forward", self.clock.time_graph, calls[0], count)}
        if spots is None:
            return self._guarded("forward", self.clock.time_calls, calls, count, host_count)
        self._fetch(spots["shared"])
        shared = self.attached[spots["shared"]]
        targets = [
            (tuple(shape), tuple(places.value), values.value)
            for shape, places, values in zip(spots["shapes"], shared[::2], shared[1::2])  # noqa: B905
        ]
        described = []

        def look(index: int, result: object) -> None:
            described.append(self._describe(result))
            for leaf, (shape, places, values) in zip(_leaves(result), targets):  # noqa: B905 - what is missing is described
                if self._is_plain(leaf) and leaf.shape == shape and leaf.dtype == values.dtype:
                    values[index].copy_(leaf.detach()[places])

        times = self._guarded("forward", self.clock.time_calls, calls, count, host_count, look)
        self._publish(spots["shared"])
        return {**times, "results": described}

    def settle(self) -> None:
        """After a failure: what the call had launched before it failed must not run into the next
        candidate's inputs.
        """
        if self.device.type == "cuda":
            try:
                self.torch.cuda.synchronize()
            # the failure itself, once more: it has been caught and is on its way to the judge
            except RuntimeError as ex:
                print(f"after the failure: {ex}", file=sys.stderr)

    def _guarded(self, stage: str, function, *args):
        try:
            return function(*args)
        except CandidateFailed:
            raise
        except BaseException as ex:  # noqa: BLE001 - a candidate may raise anything, SystemExit included; it is reported, never swallowed
            raise CandidateFailed(stage, ex) from ex


def _leaves(result: object) -> list:
    return list(result) if isinstance(result, list | tuple) else [result]


def serve(channel, worker: Worker, closed: type[Exception]) -> None:
    """Answer commands until the judge is gone.

    A failure of this file itself ends the process with its traceback in the log.
    """
    commands = {
        name: getattr(worker, name)
        for name in (
            "attach",
            "detach",
            "load",
            "unload",
            "run",
            "reread",
            "forget",
            "state",
            "operators",
            "kernels",
            "time",
        )
    }
    while True:
        try:
            request = channel.receive()
        except closed:
            return
        nonce = request.pop("nonce")
        try:
            answer = commands[request.pop("command")](**request)
        except CandidateFailed as failure:
            cause = failure.cause
            worker.settle()
            answer = {
                "failed": failure.stage,
                "type": type(cause).__name__,
                "bases": [base.__name__ for base in type(cause).__mro__],
                "message": str(cause)[:4000],
                "traceback": "".join(traceback.format_exception(cause))[-6000:],
            }
        channel.send({**answer, "nonce": nonce})


def main() -> None:
    """argv: file descriptor of the channel."""
    import channel as channel_module
    import confinement

    link = channel_module.Channel(socket.socket(fileno=int(sys.argv[1])))
    options = link.receive()
    confinement.restrict_process(options)
    worker = Worker(options["device"])
    torch = worker.torch
    if options["hostile"]:  # kernels of baselines are nobody's question
        worker.prepare_profiler()
    versions = {
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "triton": worker.observe.triton.__version__,
    }
    link.send({"ready": versions, "nonce": options["nonce"]})
    serve(link, worker, channel_module.ChannelClosed)


if __name__ == "__main__":
    main()
