"""What a worker can be asked: one record for each command, the same in both processes.

Used on both sides (the worker runs from a copy of this file; standard library only). Every field is
something that JSON can carry. `key` names a loaded module, `inputs` and `outputs` name lists of
arguments that were attached before.

    worker.request(Unload(key), timeout_s=60.0)  # the judge
    command = decode_command(message)  # the worker: Unload(key) again
"""

from dataclasses import asdict, dataclass


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
class Load:
    """Import a file, construct its class and give the module its parameters.

    `state` holds [parameter, attached list, index in it] for each parameter and buffer. `dtype` is
    what the module is cast to, None to leave it. `compile_mode` is torch.compile's mode for a
    baseline, None for no torch.compile.
    """

    key: str
    path: str
    class_name: str
    init: list[object]
    state: list[list[object]]
    training: bool
    dtype: str | None = None
    tf32: bool = False
    compile_mode: str | None = None


@dataclass(frozen=True, slots=True)
class Unload:
    """Let go of a module, of kept results and of free device memory."""

    key: str


@dataclass(frozen=True, slots=True)
class Run:
    """One forward, whose outputs are described and copied to `outputs`.

    With `suppress` Triton launches do nothing. With `keep` the worker holds on to the result under
    that name.
    """

    key: str
    inputs: str
    outputs: str | None
    seed: int
    suppress: bool = False
    keep: str | None = None


@dataclass(frozen=True, slots=True)
class Reread:
    """Copy a kept result to `outputs` again: a later call must not have changed it."""

    keep: str
    outputs: str


@dataclass(frozen=True, slots=True)
class Forget:
    """Let go of a kept result."""

    keep: str


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
