"""What a worker can be asked: one record for each command, the same in both processes.

Used on both sides (the worker runs from a copy of this file; standard library only). Every field is
something that JSON can carry. `key` names a loaded module, `inputs` and `outputs` name lists of
arguments that were attached before.

    worker.request(Unload(key), timeout_s=60.0)  # the judge
    command = decode_command(message)  # the worker: Unload(key) again
"""

from dataclasses import asdict, dataclass, field


@dataclass(frozen=True, slots=True)
class Attach:
    """Open a list of arguments under a name: descriptors of shared tensors, and plain values."""

    name: str
    values: list[object]


@dataclass(frozen=True, slots=True)
class Detach:
    """Let go of a list of arguments, and of the device memory that the allocator holds beyond need.

    A name that was never attached is no error.
    """

    name: str


@dataclass(frozen=True, slots=True)
class PrepareProfiler:
    """Have the GPU's profiler initialise itself, which takes seconds once in a process."""


@dataclass(frozen=True, slots=True)
class Load:
    """Import a text, construct its class and give the module its parameters.

    `source` is the text that was checked; `path` is what it is called in tracebacks.
    `state` holds [parameter, attached list, index in it] for each parameter and buffer. `dtype` is
    what the module is cast to, None to leave it. `compile_mode` is torch.compile's mode for a
    baseline, None for no torch.compile. `project` are the directories in which the file may find
    modules of its own project. `target` has the properties of the GPU that the file is meant for,
    where there is none.
    """

    key: str
    path: str
    source: str
    class_name: str
    init: list[object]
    state: list[list[object]]
    training: bool
    dtype: str | None = None
    tf32: bool = False
    compile_mode: str | None = None
    project: list[str] = field(default_factory=list)
    target: dict[str, object] | None = None


@dataclass(frozen=True, slots=True)
class Unload:
    """Let go of a module, of kept results and of free device memory."""

    key: str


@dataclass(frozen=True, slots=True)
class Run:
    """One forward, whose outputs are described and copied to `outputs`.

    `state` is given to the module before, as by `Load`; None leaves it as it is. With `replace` its
    tensors get other memory (`.data`), else they are written. With `suppress`
    Triton launches do nothing, with `shuffle` (a seed) their programs run in another order. With
    `mode` the forward is recorded for gradients ("grad") or under inference mode ("inference"),
    else under neither. With `keep` the worker holds on to the result
    under that name. With `observe` the answer names what was dispatched. `arguments` are
    given to Triton launches in place of their own, by name, by their number in the forward.
    """

    key: str
    inputs: str
    outputs: str | None
    seed: int
    suppress: bool = False
    keep: str | None = None
    state: list[list[object]] | None = None
    replace: bool = False
    shuffle: int | None = None
    mode: str = ""
    observe: bool = False
    arguments: dict[str, dict[str, object]] | None = None


@dataclass(frozen=True, slots=True)
class Reread:
    """Copy a kept result to `outputs` again: a later call must not have changed it."""

    keep: str
    outputs: str


@dataclass(frozen=True, slots=True)
class Forget:
    """Let go of all kept results."""


@dataclass(frozen=True, slots=True)
class State:
    """Copy the named parameters and buffers to `outputs`."""

    key: str
    outputs: str
    names: list[str]


@dataclass(frozen=True, slots=True)
class Operators:
    """Name the operators that one forward dispatches."""

    key: str
    inputs: str
    seed: int


@dataclass(frozen=True, slots=True)
class Kernels:
    """Name the GPU kernels of one forward with their times, and the file's own Triton kernels."""

    key: str
    inputs: str


@dataclass(frozen=True, slots=True)
class Time:
    """Time `count` forwards, by turns on each list of inputs, after `warmup` untimed ones.

    `host_count` more are timed by the host's clock. With `spots` a few elements of each result are
    left in the attached list of that name ({"shared": name, "shapes": [...]}). `turns` holds the
    directory and the GPU of the lease to take while Inductor tunes, None if nobody else is there.
    """

    key: str
    inputs: list[str]
    count: int
    warmup: int
    host_count: int
    l2_bytes: int
    spots: dict[str, object] | None = None
    turns: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True)
class TimeGraph:
    """Time `count` forwards that were captured as a CUDA graph, after `warmup` plain ones."""

    key: str
    inputs: str
    count: int
    warmup: int
    l2_bytes: int


@dataclass(frozen=True, slots=True)
class TimeHost:
    """Time by the host's clock how `count` forwards are issued, and how they follow one another."""

    key: str
    inputs: str
    count: int


Command = (
    Attach
    | Detach
    | PrepareProfiler
    | Load
    | Unload
    | Run
    | Reread
    | Forget
    | State
    | Operators
    | Kernels
    | Time
    | TimeGraph
    | TimeHost
)
_BY_NAME = {each.__name__: each for each in Command.__args__}


def encode_command(command: Command) -> dict[str, object]:
    """The command as a message of the channel."""
    return {"command": type(command).__name__, **asdict(command)}


def decode_command(message: dict[str, object]) -> Command:
    """The inverse of `encode_command`; JSON makes lists of tuples."""
    fields = dict(message)
    return _BY_NAME[fields.pop("command")](**fields)
