"""What a user may name as a model, and the module and inputs behind the name.

- `problem.py`, or a directory with one: `Model`, `get_inputs()` and perhaps `get_init_inputs()`.
  `get_inputs` may also return a dictionary of keyword arguments, and either may be nested.
- `problem.py:factory(layers=2)` and `package.module:Class(256, heads=8)`: what is called returns a
  module, a module with its inputs, or a configuration of transformers. Arguments are literals.
- A `config.json` of Hugging Face transformers, or a directory with one: random weights.

Inputs that the source does not give are said in words, `f32[8, 3, 224, 224]` or
`input_ids=i64[1, 128]<32000`, the latter by keyword and below a number.
"""

import ast
import importlib
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

from kmem.errors import ProblemError, first_line
from kmem.problem.source.load import construct_model, execute_problem, load_problem
from kmem.records import Problem

#: What people call a dtype, and what torch does.
_DTYPES = {
    **dict.fromkeys(("f32", "fp32", "float32"), torch.float32),
    **dict.fromkeys(("f16", "fp16", "float16"), torch.float16),
    **dict.fromkeys(("bf16", "bfloat16"), torch.bfloat16),
    **dict.fromkeys(("i64", "int64"), torch.int64),
    **dict.fromkeys(("i32", "int32"), torch.int32),
    "bool": torch.bool,
}
_INPUT = re.compile(r"(?:(\w+)=)?(\w+)\[\s*(\d+(?:\s*[,x]\s*\d+)*)\s*\](?:<(\d+))?")
_CALL = re.compile(r"(?P<where>.+?):(?P<what>[A-Za-z_][\w.]*)(?P<call>\(.*\))?", re.DOTALL)
#: Tokens of the input that a model of transformers gets where none is said.
_TOKENS = 128


@dataclass(frozen=True, slots=True)
class Built:
    """A module with the arguments of one call."""

    module: nn.Module
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class InputWords:
    """One input in words: a tensor drawn anew."""

    name: str  # "" for one by position
    dtype: torch.dtype
    shape: tuple[int, ...]
    below: int | None  # of integers

    def draw(self) -> torch.Tensor:
        """The tensor, on the device of the context."""
        if self.dtype is torch.bool:
            return torch.ones(self.shape, dtype=torch.bool)
        if not self.dtype.is_floating_point:
            return torch.randint(0, self.below or 2, self.shape, dtype=self.dtype)
        return torch.randn(self.shape).to(self.dtype)


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model as it was named; `make` builds it anew, on fake tensors where the context says so."""

    text: str
    name: str
    make: Callable[[], Built]
    problem: Problem | None = None  # where the name is that of a problem file
    inputs: tuple[str, ...] = ()  # in words, as they were given
    mode: str | None = None


def read_source(text: str, inputs: Sequence[str] = (), *, mode: str | None = None) -> ModelSource:
    """The source behind a name.

    Args:
        text: as the module's docstring says.
        inputs: in words; none where the source gives its own.
        mode: train or eval; by default a problem file's own, and eval for any other source.

    Raises ProblemError: if there is nothing of that name, with the remedy.
    """
    found = _find_source(text, tuple(_read_input(each) for each in inputs), mode)
    return replace(found, inputs=tuple(inputs), mode=mode)


def absolute_name(text: str) -> str:
    """The name of a model with the whole path of its file, which holds in every directory."""
    if Path(text).exists():
        return str(Path(text).resolve())
    file = Path(text.partition(":")[0])
    return f"{file.resolve()}{text[len(str(file)) :]}" if file.is_file() else text


def _find_source(text: str, words: Sequence[InputWords], mode: str | None) -> ModelSource:
    place = Path(text)
    if _is_config(place):
        config = place.parent if place.is_file() else place
        return _of(text, config.resolve().name, lambda: _from_config(config), words, mode or "eval")
    if place.exists() or place.suffix == ".py" or ":" not in text:
        problem = load_problem(place)

        def make_from_file() -> object:
            module = execute_problem(problem)
            return construct_model(module, "cpu"), module.get_inputs()

        return _of(text, problem.name, make_from_file, words, mode, problem)
    match = _CALL.fullmatch(text)
    if match is None:
        raise ProblemError(
            f"{text} names no model; write problem.py:factory or package:Class(args)"
        )
    args, kwargs = _read_arguments(match["call"] or "()", text)

    def make_by_call() -> object:
        found: Any = _import(match["where"], text)
        for name in match["what"].split("."):
            if not hasattr(found, name):
                raise ProblemError(f"{match['where']} has no {name}; name a class or a function")
            found = getattr(found, name)
        return found if isinstance(found, nn.Module) else found(*args, **kwargs)

    name = match["what"].rpartition(".")[2]
    return _of(text, name, make_by_call, words, mode or "eval")


def _of(
    text: str,
    name: str,
    make: Callable[[], object],
    words: Sequence[InputWords],
    mode: str | None,
    problem: Problem | None = None,
) -> ModelSource:
    def build() -> Built:
        try:
            with redirect_stdout(sys.stderr):
                found = make()
                module, own = found if isinstance(found, tuple) else (found, None)
                if not isinstance(module, nn.Module):
                    module = _from_configuration(module, text)
                if mode is not None:
                    module.train(mode == "train")
                return Built(module, *_arguments(module, own, words, text))
        except (ProblemError, KeyboardInterrupt):
            raise
        except (Exception, SystemExit) as ex:
            raise ProblemError(
                f"{text} raised {first_line(ex)}; it must make a torch.nn.Module"
            ) from ex

    return ModelSource(text, name, build, problem)


def _arguments(
    module: nn.Module, own: object, words: Sequence[InputWords], text: str
) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    if words:
        named = {each.name: each.draw() for each in words if each.name}
        return tuple(each.draw() for each in words if not each.name), named
    if isinstance(own, Mapping):
        return (), dict(own)
    if isinstance(own, list | tuple):
        return tuple(own), {}
    if isinstance(own, torch.Tensor):
        return (own,), {}
    vocabulary = getattr(getattr(module, "config", None), "vocab_size", None)
    if vocabulary:
        return (), {"input_ids": torch.randint(0, int(vocabulary), (1, _TOKENS))}
    raise ProblemError(
        f"{text} gives no inputs; say them, as in --input 'f32[8, 3, 224, 224]', or let it return "
        "(module, inputs)"
    )


def _read_input(text: str) -> InputWords:
    match = _INPUT.fullmatch(text.strip())
    if match is None or match[2].lower() not in _DTYPES:
        raise ProblemError(
            f"{text!r} is no input; write f32[8, 3, 224, 224], or input_ids=i64[1, 128]<32000"
        )
    shape = tuple(map(int, re.split(r"\s*[,x]\s*", match[3])))
    below = int(match[4]) if match[4] else None
    return InputWords(match[1] or "", _DTYPES[match[2].lower()], shape, below)


def _read_arguments(call: str, text: str) -> tuple[list[Any], dict[str, Any]]:
    """The literals of a call."""
    try:
        tree = ast.parse(f"f{call}", mode="eval").body
        args = [ast.literal_eval(each) for each in tree.args]
        return args, {each.arg: ast.literal_eval(each.value) for each in tree.keywords}
    except (SyntaxError, ValueError, AttributeError, TypeError) as ex:
        raise ProblemError(f"{text}: the arguments {call} are no literals; write numbers") from ex


def _import(where: str, text: str) -> ModuleType:
    """The module of a file, or of an installed package."""
    if where.endswith(".py"):
        place = Path(where)
        if not place.is_file():
            raise ProblemError(f"{text}: there is no file {where}")
        source = place.read_text(encoding="utf-8")
        return execute_problem(Problem(place.stem, str(place.resolve()), source))
    try:
        return importlib.import_module(where)
    except ImportError as ex:
        raise ProblemError(
            f"{text}: cannot import {where} ({ex}); install it, or name a file"
        ) from ex


# --- Hugging Face transformers


def _is_config(place: Path) -> bool:
    file = place if place.is_file() else place / "config.json"
    return file.name == "config.json" and file.is_file()


def _transformers() -> ModuleType:
    try:
        return importlib.import_module("transformers")
    except ImportError as ex:
        raise ProblemError("a configuration needs transformers; pip install transformers") from ex


def _from_config(directory: Path) -> nn.Module:
    return _from_configuration(
        _transformers().AutoConfig.from_pretrained(str(directory)), str(directory)
    )


def _from_configuration(config: Any, text: str) -> nn.Module:
    """The architecture that a configuration names, with random weights."""
    if not hasattr(config, "model_type"):
        raise ProblemError(f"{text} makes a {type(config).__name__}; it must make a module")
    library = _transformers()
    config.use_cache = False  # the caches of a decode step are arguments of their own
    for name in getattr(config, "architectures", None) or ():
        if hasattr(library, name):
            return getattr(library, name)(config)
    return library.AutoModel.from_config(config)
