"""The entries of table.json: which kernel serves which inputs on which device."""

import ast
import hashlib
import importlib.util
import json
import linecache
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias

import torch

#: Raised when a field changes its meaning.
FORMAT = 1
#: The lines around the constants of a kernel's file.
BEGIN = "# --- constants: sizes, strides and tiles\n"
END = "# --- end of constants\n"

#: A piece of a text as it is, or a formula of a size: see `between.text_at`.
Part: TypeAlias = str | tuple[int, int, int, int]


class PackageError(Exception):
    """A package is damaged, or of another format; the message names the remedy."""


@dataclass(frozen=True)
class Input:
    """One argument of a forward: a tensor of one layout, or a number that is always the same."""

    shape: tuple[int, ...] | None
    stride: tuple[int, ...] | None
    dtype: torch.dtype | None
    value: Any = None

    @property
    def is_tensor(self) -> bool:
        return self.shape is not None


@dataclass(frozen=True)
class State:
    """One parameter or buffer that a forward reads, by its name in state_dict."""

    name: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True)
class Call:
    """One ATen call of a module's forward."""

    text: str  # the operator and its arguments
    #: A tensor or a plain value as `Input`, the name of an argument that is returned, or a list of
    #: such; None for the return of the forward.
    made: Any


@dataclass(frozen=True)
class Between:
    """Sizes around an entry's own at which the same code serves with other constants."""

    size: str  # the constant of the problem's file that varies
    low: int
    high: int
    judged: tuple[int, ...]  # sizes at which the judge has passed the kernel
    small_constants: tuple[str, ...]  # for the judge without a GPU, at each of them; may be empty
    place: "Place"
    shapes: tuple[Part, ...]  # inputs, outputs and calls, as JSON
    kernel: Path  # written for sizes of which no tile is a divisor: it masks what is beyond
    kernel_sha256: str
    constants: tuple[Part, ...]  # of that file


@dataclass(frozen=True)
class Place:
    """Where inputs tell a size: the extent there is factor * size + summand."""

    input: int
    axis: int
    factor: int
    summand: int


@dataclass(frozen=True)
class Entry:
    """One kernel: what it computes, for which inputs, and where it was measured."""

    name: str
    graph: str  # fingerprint of the module that it replaces
    calls: tuple[Call, ...]  # of that module; empty where they do not tell what it computes
    inputs: tuple[Input, ...]
    outputs: tuple[Input, ...]
    returns_tuple: bool
    state: tuple[State, ...]
    parameters: tuple[str, ...]  # names of all parameters of the module
    training: bool
    init: tuple[Any, ...]  # arguments of ModelNew
    device: str  # "NVIDIA H200"
    kernel: Path
    kernel_sha256: str
    evidence: Path  # the bundle behind its verdict, which holds the module that it replaces
    evidence_sha256: str
    between: tuple[Between, ...] = ()
    constants: str = ""  # in the place of those in the kernel's file; empty: they stay
    changes: tuple[str, ...] = ()  # names of the state that a forward writes to; no table has such


def read_table(path: Path) -> tuple[Entry, ...]:
    """The entries of a table.

    Raises PackageError: if the file is missing, damaged or of another format.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if data["format"] != FORMAT:
            raise PackageError(
                f"{path} is of format {data['format']}, this code reads {FORMAT}; export it again"
            )
        return tuple(read_entry(entry, path.parent) for entry in data["entries"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as ex:
        raise PackageError(f"{path} is damaged ({ex}); export the package again") from ex


def read_entry(data: dict[str, Any], root: Path) -> Entry:
    """An entry from its row in a table whose files lie below `root`."""
    return Entry(
        data["name"],
        data["graph"],
        read_calls(data["calls"]),
        tuple(read_input(each) for each in data["inputs"]),
        tuple(read_input(each) for each in data["outputs"]),
        data["returns_tuple"],
        tuple(
            State(
                each["name"],
                tuple(each["shape"]),
                tuple(each["stride"]),
                getattr(torch, each["dtype"]),
            )
            for each in data["state"]
        ),
        tuple(data["parameters"]),
        data["training"],
        tuple(ast.literal_eval(data["init"])),
        data["device"],
        root / data["kernel"],
        data["kernel_sha256"],
        root / data["evidence"],
        data["evidence_sha256"],
        tuple(_read_between(each, root) for each in data["between"]),
    )


def _read_between(data: dict[str, Any], root: Path) -> Between:
    shapes, constants = (
        tuple(part if isinstance(part, str) else tuple(part) for part in data[name])
        for name in ("shapes", "constants")
    )
    return Between(
        data["size"],
        data["low"],
        data["high"],
        tuple(data["judged"]),
        tuple(data["small_constants"]),
        Place(*data["place"]),
        shapes,
        root / data["kernel"],
        data["kernel_sha256"],
        constants,
    )


def read_input(data: dict[str, Any]) -> Input:
    """An argument from its row: a tensor's layout, or a value."""
    if "value" in data:
        return Input(None, None, None, data["value"])
    return Input(tuple(data["shape"]), tuple(data["stride"]), getattr(torch, data["dtype"]))


def read_calls(data: list[Any]) -> tuple[Call, ...]:
    """Calls from their pairs of a text and what each made."""
    return tuple(Call(text, _read_made(made)) for text, made in data)


def _read_made(data: Any) -> Any:
    if isinstance(data, list):
        return [_read_made(each) for each in data]
    return read_input(data) if isinstance(data, dict) else data


def load_kernel(entry: Entry) -> type[torch.nn.Module]:
    """The class ModelNew of an entry's file; loaded once in a process.

    Raises PackageError: if the file is missing or is not the one that was verified.
    """
    return load_module(entry, "kernel").ModelNew


def load_module(entry: Entry, purpose: str) -> ModuleType:
    """The module of an entry's file, loaded once in a process for each purpose.

    Raises PackageError: as `load_kernel` does.
    """
    name = f"kmem_{purpose}_{entry.kernel_sha256[:16]}"
    if entry.constants:
        name += f"_{hashlib.sha256(entry.constants.encode()).hexdigest()[:16]}"
    if name in sys.modules:
        return sys.modules[name]
    text = read_verified(entry.kernel, entry.kernel_sha256, "kernel")
    if entry.constants:
        return _load_with(entry, text.decode(), name)
    spec = importlib.util.spec_from_file_location(name, entry.kernel)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _load_with(entry: Entry, text: str, name: str) -> ModuleType:
    """A kernel's file with the constants of an entry in the place of its own."""
    text = with_constants(text, entry.constants)
    place = f"{entry.kernel}:{entry.name}"
    module = ModuleType(name)
    # Triton reads the text of a function there
    linecache.cache[place] = len(text), None, text.splitlines(keepends=True), place
    sys.modules[name] = module
    try:
        exec(compile(text, place, "exec"), vars(module))
    except BaseException:
        del sys.modules[name]
        raise
    return module


def with_constants(text: str, constants: str) -> str:
    """A kernel's file with other constants in the place of its own."""
    head, rest = text.split(BEGIN, 1)
    return f"{head}{BEGIN}{constants}{END}{rest.split(END, 1)[1]}"


def load_original(entry: Entry) -> ModuleType:
    """The problem that an entry's kernel was made for, from its evidence: Model and get_inputs.

    A kernel's file that holds both is its own evidence.

    Raises PackageError: if the evidence is missing or is not what the table names.
    """
    if entry.evidence == entry.kernel:
        return load_module(entry, "kernel")
    name = f"kmem_original_{entry.evidence_sha256[:16]}"
    if name not in sys.modules:
        text = read_verified(entry.evidence, entry.evidence_sha256, "evidence")
        problem = json.loads(text)["problem"]
        module = ModuleType(name)
        exec(compile(problem["source"], problem["name"], "exec"), vars(module))
        sys.modules[name] = module
    return sys.modules[name]


def read_verified(place: Path, digest: str, what: str) -> bytes:
    """A file that has this SHA-256. Raises PackageError: if it has not, or cannot be read."""
    try:
        text = place.read_bytes()
    except OSError as ex:
        raise PackageError(f"{place} cannot be read ({ex}); export it again") from ex
    if hashlib.sha256(text).hexdigest() != digest:
        raise PackageError(
            f"{place} is not the {what} that was verified: its hash is another; export the "
            "package again"
        )
    return text
