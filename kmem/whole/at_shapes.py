"""A run for each of many shapes of a model, and one table of what they composed.

What varies is what the model is given, never the model: names of sizes are those of integers at the
top of its problem file, whose inputs alone are drawn at other sizes, or names that stand in the
brackets of `--input 'f32[batch, seq, 64]'`. A shape at which nothing is proved has no row, and the
reason is kept.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from kmem.errors import OutputError, ProblemError, first_line
from kmem.plugins import Registry
from kmem.problem.sizing.shapes import Shape, combine_sizes, label_of, problem_at, read_shapes
from kmem.records import Problem
from kmem.run.directory import RunDirectory, default_run_directory
from kmem.serialize import to_data
from kmem.whole.composing.bucket_table import write_table
from kmem.whole.graphs.capture import input_shapes
from kmem.whole.graphs.source import absolute_name, read_source
from kmem.whole.holding import Watch
from kmem.whole.optimizing import optimize_model
from kmem.whole.result import ModelResult
from kmem.whole.state import ModelSettings, read_kept

ASKED = "shapes.json"
_BRACKET = re.compile(r"\[[^\]]*\]")
_NAME = re.compile(r"(?<!\w)(?!x\b)[A-Za-z_]\w*")
_FILE = """{source}

# {label}: the model is the file's own; its inputs are drawn as the file has them at other sizes
_AT_OTHER_SIZES = {text!r}


def get_inputs():
    module = {{"__name__": "inputs", "__file__": __file__}}
    exec(_AT_OTHER_SIZES, module)
    return module["get_inputs"]()
"""


@dataclass(frozen=True, slots=True)
class AskedShapes:
    """What a run at many shapes is told; its minutes are those of all shapes."""

    settings: ModelSettings
    text: str  # of the shapes


@dataclass(frozen=True, slots=True)
class ShapedResult:
    """What came of each shape, by its label; a text is why there was no run at it."""

    directory: Path
    results: tuple[tuple[str, ModelResult | str], ...]

    @property
    def proved(self) -> dict[str, ModelResult]:
        """The shapes at which the model has kernels."""
        return {
            label: result
            for label, result in self.results
            if isinstance(result, ModelResult) and result.is_proved
        }

    @property
    def missing(self) -> dict[str, str]:
        """The others, and why."""
        return {
            label: result if isinstance(result, str) else f"no kernel ({result.state.finished})"
            for label, result in self.results
            if label not in self.proved
        }

    @property
    def is_faster(self) -> bool:
        """Whether the model is faster than the best other way to run it at any shape."""
        return any(result.is_faster for result in self.proved.values())

    def __str__(self) -> str:
        lines = [f"{len(self.proved)} of {len(self.results)} shapes have kernels"]
        lines += [f"{label}: {result}" for label, result in self.results]
        return "\n".join(lines)


def optimize_at_shapes(
    asked: AskedShapes, registry: Registry, watch: Watch, say: Callable[[str], None]
) -> ShapedResult:
    """Make a model fast at every shape, or go on with a run that its directory holds.

    Every shape gets an equal part of the minutes; what one finds memory recalls at the next.

    Raises ProblemError, TargetError, OutputError: if it cannot be begun, each with its remedy.
    """
    settings = replace(asked.settings, model=absolute_name(asked.settings.model))
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    name = re.sub(r"\W+", "_", Path(settings.model).stem)
    root = settings.piece.out or default_run_directory(f"{name}-shapes-{stamp}")
    directory = RunDirectory(root)
    at = _settings_at(settings, asked.text, directory)
    known = read_asked(root)
    if known is not None and known.text != asked.text:
        raise OutputError(
            f"{root} holds a run at {known.text}; begin one at other shapes in another directory "
            "with --out"
        )
    moved = replace(settings, piece=replace(settings.piece, out=None))  # it may be moved
    directory.write_text(ASKED, json.dumps(to_data(AskedShapes(moved, asked.text)), indent=1))
    _refuse_equal_inputs(at)
    results: dict[str, ModelResult | str] = {}
    for label, each in at.items():
        say(f"{label}:")
        place = replace(each.piece, out=root / label)
        within = None if settings.within is None else settings.within / len(at)
        share = replace(each, piece=place, minutes=settings.minutes / len(at), within=within)
        try:
            results[label] = optimize_model(share, registry, watch, say)
        except ProblemError as ex:  # of this shape; the others may do
            results[label] = first_line(ex)
        found = ShapedResult(root, tuple(results.items()))
        rows = {row: result.directory / "composed" for row, result in found.proved.items()}
        write_table(directory, rows, found.missing)
        say(str(results[label]))
    return found


def read_asked(directory: Path) -> AskedShapes | None:
    """What the run in a directory was told; None if it holds no run at many shapes.

    Raises OutputError: if there is one of another version.
    """
    return read_kept(AskedShapes, directory / ASKED)


def _settings_at(
    settings: ModelSettings, text: str, directory: RunDirectory
) -> dict[str, ModelSettings]:
    """The settings of a run at each shape, by its label."""
    names = {
        name.lower(): name
        for words in settings.inputs
        for bracket in _BRACKET.findall(words)
        for name in _NAME.findall(bracket)
    }
    if names:
        shapes = combine_sizes(text, names, "no name in the brackets of an --input")
        return {label_of(each): _with_inputs(settings, each) for each in shapes}
    problem = read_source(settings.model, settings.inputs, mode=settings.mode).problem
    if problem is None or settings.inputs:
        raise ProblemError(
            "No size of the inputs has a name; name them, as in --input 'f32[batch, seq, 64]' "
            "--shapes 'batch=1,8 seq=128..4096'"
        )
    found = {}
    for shape in read_shapes(text, problem):
        place = directory.write_text(
            f"problems/{problem.name}_{label_of(shape)}.py", _text_at(problem, shape)
        )
        found[label_of(shape)] = replace(settings, model=str(place))
    return found


def _text_at(problem: Problem, shape: Shape) -> str:
    text = problem_at(problem, shape)
    return _FILE.format(source=problem.source.rstrip(), label=label_of(shape), text=text)


def _with_inputs(settings: ModelSettings, shape: Shape) -> ModelSettings:
    sizes = {name.lower(): str(size) for name, size in shape}

    def sized(words: str) -> str:
        return _BRACKET.sub(
            lambda bracket: _NAME.sub(lambda name: _size(name[0], sizes), bracket[0]), words
        )

    return replace(settings, inputs=tuple(map(sized, settings.inputs)))


def _size(name: str, sizes: Mapping[str, str]) -> str:
    if name.lower() not in sizes:
        raise ProblemError(f"--shapes says nothing of {name}; give it sizes, as in {name}=1,8")
    return sizes[name.lower()]


def _refuse_equal_inputs(at: Mapping[str, ModelSettings]) -> None:
    """Two shapes at which the model is given the same, which no call could tell apart."""
    seen: dict[object, str] = {}
    for label, settings in at.items():
        source = read_source(settings.model, settings.inputs, mode=settings.mode)
        shapes = input_shapes(source, settings.piece.contract.precision)
        if shapes in seen:
            raise ProblemError(
                f"The inputs have the same shapes at {seen[shapes]} as at {label}; name sizes of "
                "the inputs, not of the model"
            )
        seen[shapes] = label
