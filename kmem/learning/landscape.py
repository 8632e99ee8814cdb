"""A landscape: every recorded knob setting of one problem with what became of it.

While it is being recorded a landscape is `<problem>.jsonl`, its header first and one line per
setting as each is known, so that a kill loses at most the setting in flight. `LandscapeDirectory`
holds the files and packs a finished one into `<problem>.jsonl.xz`, the form that ships. Kernels'
texts are not kept: recipes write them again, and `source_hash` tells whether today's recipe still
writes the same.
"""

import json
import lzma
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path

from kmem.errors import LandscapeError
from kmem.explore.recipes.cover import SiteOption
from kmem.profile.compile.report import CompileReport, CompileStatus
from kmem.recipes import Operand, Settings
from kmem.records import (
    Contract,
    Device,
    Knob,
    Launch,
    Measurement,
    Problem,
    SiteChoice,
    Status,
    Timing,
    content_hash,
)
from kmem.serialize import from_data, to_data
from kmem.vocabulary import OPERATORS

FORMAT = 1
#: What is kept of a failure's log: its end says what went wrong.
_LOG_CHARACTERS = 600
Choices = tuple[SiteChoice, ...]
Knobs = tuple[tuple[str, Knob], ...]


@dataclass(frozen=True, slots=True)
class RecordedSite:
    """A site as its recipe matched it, with the recipe's knobs and their values in its order.

    This is enough to search the site without the recipe.
    """

    recipe: str
    name: str
    operator: str
    nodes: tuple[str, ...]
    inputs: tuple[Operand, ...]
    outputs: tuple[Operand, ...]
    bytes: int
    flops: float
    flags: tuple[str, ...]
    knobs: tuple[tuple[str, tuple[Knob, ...]], ...]


@dataclass(frozen=True, slots=True)
class Header:
    """What was measured on what.

    `seed` chose the settings and the judge's inputs; `estimated` means that no GPU was there.
    """

    format: int
    problem: Problem
    family: str  # operator class: vocabulary.FAMILIES
    operators: tuple[str, ...]
    sites: tuple[RecordedSite, ...]
    graph_hash: str
    structure_hash: str
    sizes: tuple[int, ...]
    device: Device
    contract: Contract
    estimated: bool
    seed: int
    # how many were asked for; a landscape of fewer points has no more, or is not finished
    settings: int
    versions: dict[str, str]
    created_at: str  # ISO 8601, UTC


@dataclass(frozen=True, slots=True)
class Point:
    """One setting: what the cost model said, how it compiled, and the verdict of the screening.

    No `choices` means the module as it is, every operator a vendor's: eager's time, raced with the
    others. `launches` is the static profile of the compile report. A module whose binaries and
    grids are those of an earlier point (`same_as`, its source hash) was not measured again and
    carries that point's verdict.
    """

    choices: Choices
    source_hash: str
    flags: tuple[str, ...]
    estimated_ms: float | None
    compile_status: CompileStatus
    ptx_hash: str | None
    launches: tuple[Launch, ...]
    status: Status
    timing: Timing | None
    log: str = ""
    same_as: str | None = None

    def __post_init__(self) -> None:
        if (self.status is Status.PASSED) != (self.timing is not None):
            raise ValueError(
                f"status {self.status.value} with timing {self.timing}: a timing is set if and "
                "only if passed"
            )

    @property
    def latency_ms(self) -> float | None:
        return self.timing.latency_ms if self.timing else None


@dataclass(frozen=True, slots=True)
class Landscape:
    """One problem's record."""

    header: Header
    points: tuple[Point, ...]

    @property
    def name(self) -> str:
        return self.header.problem.name

    @property
    def eager(self) -> Point | None:
        """The module as it is; None if it was not timed."""
        return next((point for point in self.points if not point.choices), None)

    @property
    def settings(self) -> dict[Choices, Point]:
        """Every setting that has its verdict, by its choices, without the module as it is.

        Settings without a verdict are as if they did not exist.
        """
        return {
            point.choices: point
            for point in self.points
            if point.choices and point.status is not Status.INTERRUPTED
        }

    @property
    def is_searchable(self) -> bool:
        """Whether there is anything to find: a setting that passed."""
        return any(point.timing is not None for point in self.settings.values())

    @property
    def best(self) -> Point:
        """The fastest setting that passed.

        Raises:
            LandscapeError: if none did.
        """
        passed = [point for point in self.settings.values() if point.timing is not None]
        if not passed:
            raise LandscapeError(
                f"No setting of {self.name} passed; record it again, or remove it from the "
                "directory"
            )
        return min(passed, key=lambda point: (point.timing.latency_ms, point.source_hash))


def knobs_of(settings: Settings) -> Knobs:
    """Settings as they are kept: knobs in order of their names."""
    return tuple(sorted(settings.items()))


def make_point(
    kernel_hash: str,
    choices: Choices,
    flags: tuple[str, ...],
    estimated_ms: float | None,
    report: CompileReport,
) -> Point:
    """A setting that is compiled but not judged yet.

    It is INTERRUPTED, or BUILD_FAILED if it did not compile.
    """
    status = Status.BUILD_FAILED if report.status is CompileStatus.FAILED else Status.INTERRUPTED
    log = report.log[-_LOG_CHARACTERS:] if status is Status.BUILD_FAILED else ""
    return Point(
        choices,
        kernel_hash,
        flags,
        estimated_ms,
        report.status,
        report.ptx_hash,
        report.launches,
        status,
        None,
        log,
    )


def judged(point: Point, measurement: Measurement) -> Point:
    """The point with the verdict of its measurement."""
    return replace(
        point,
        status=measurement.status,
        timing=measurement.timing,
        log=measurement.log[-_LOG_CHARACTERS:],
    )


def same_verdict(point: Point, twin: Point) -> Point:
    """The point with the verdict of one that compiled to the same binaries and grids."""
    return replace(
        point, status=twin.status, timing=twin.timing, log=twin.log, same_as=twin.source_hash
    )


def record_sites(options: Sequence[SiteOption]) -> tuple[RecordedSite, ...]:
    """What is kept of the sites of a problem."""
    return tuple(
        RecordedSite(
            option.recipe.name,
            option.site.name,
            option.site.operator,
            option.site.nodes,
            option.site.inputs,
            option.site.outputs,
            option.site.bytes,
            option.site.flops,
            option.site.flags,
            tuple(option.space.knobs.items()),
        )
        for option in options
    )


def operator_family(sites: Sequence[RecordedSite]) -> str:
    """The operator class of a problem: that of the site that covers most of the graph.

    Bytes decide between equals.
    """
    if not sites:
        return OPERATORS["opaque"]
    return OPERATORS[max(sites, key=lambda site: (len(site.nodes), site.bytes)).operator]


#: The operator classes of which landscapes were recorded first, as they were halved then.
_FITTED_FIRST = frozenset({"conv_transpose", "matmul", "pointwise", "reduction"})
_ASIDE_FIRST = frozenset({"convolution", "norm", "pooling", "softmax"})


def is_set_aside(family: str) -> bool:
    """Whether landscapes of an operator class are kept from fitting constants, to report on.

    Any further class belongs to the half that its name's hash says.
    """
    if family in _FITTED_FIRST | _ASIDE_FIRST:
        return family in _ASIDE_FIRST
    return int(content_hash(family)[:8], 16) % 2 == 1


class LandscapeDirectory:
    """The landscapes of a suite, one file each, written a line at a time."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def read(self, only: Sequence[str] = ()) -> tuple[Landscape, ...]:
        """Every landscape, by name; with shell patterns those whose name matches one of them.

        Raises:
            LandscapeError: if there is none, or one cannot be read.
        """
        files = self.root.glob("*.jsonl*") if self.root.is_dir() else ()
        recorded = sorted({path.name.split(".")[0] for path in files})
        names = [
            name
            for name in recorded
            if not only or any(fnmatchcase(name, pattern) for pattern in only)
        ]
        if recorded and not names:
            raise LandscapeError(
                f"None of the {len(recorded)} landscapes in {self.root} matches "
                f"{' or '.join(only)}; they are {', '.join(recorded)}"
            )
        if not names:
            raise LandscapeError(
                f"No landscapes in {self.root}; record some with kmem bench SUITE --record "
                f"{self.root}"
            )
        return tuple(landscape for name in names if (landscape := self.find(name)) is not None)

    def find(self, name: str) -> Landscape | None:
        """One landscape, finished or not; None if there is no such file.

        Raises:
            LandscapeError: if it is damaged.
        """
        open_, packed = self._path(name), self._path(name, packed=True)
        place = open_ if open_.is_file() else packed
        if not place.is_file():
            return None
        try:
            lines = list(_lines(place))
            data = [json.loads(line) for line in lines]
            header = from_data(Header, data[0])
            if header.format != FORMAT:
                raise LandscapeError(
                    f"{place} has format {header.format}, this kmem reads {FORMAT}; record it again"
                )
            # the last word on each
            points = {
                point.choices: point for point in (from_data(Point, entry) for entry in data[1:])
            }
        except (OSError, lzma.LZMAError, ValueError, IndexError) as ex:
            raise LandscapeError(
                f"Landscape {place} cannot be read ({str(ex).splitlines()[0]}); record it again"
            ) from ex
        return Landscape(header, tuple(points.values()))

    def is_finished(self, name: str) -> bool:
        """Whether a landscape is packed: nothing will be added to it."""
        return self._path(name, packed=True).is_file()

    def begin(self, header: Header) -> None:
        """Start a landscape over.

        Raises:
            LandscapeError: if the directory cannot be written.
        """
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            self._path(header.problem.name, packed=True).unlink(missing_ok=True)
            self._path(header.problem.name).write_text(
                json.dumps(to_data(header), sort_keys=True) + "\n", encoding="utf-8"
            )
        except OSError as ex:
            raise LandscapeError(
                f"Cannot write landscapes to {self.root}: {ex.strerror or ex}; choose another "
                "with --record"
            ) from ex

    def append(self, name: str, point: Point) -> None:
        """Add a setting; on return it is with the operating system.

        Raises:
            LandscapeError: if it cannot be written.
        """
        try:
            with open(self._path(name), "a", encoding="utf-8") as file:
                file.write(json.dumps(to_data(point), sort_keys=True) + "\n")
        except OSError as ex:
            raise LandscapeError(
                f"Cannot write {self._path(name)}: {ex.strerror or ex}; free some space and run "
                "again"
            ) from ex

    def pack(self, name: str) -> Path:
        """Compress a finished landscape, each setting once, and remove its open file."""
        landscape = self.find(name)
        assert landscape is not None, f"{name} was recorded"
        records = (landscape.header, *landscape.points)
        text = "".join(json.dumps(to_data(record), sort_keys=True) + "\n" for record in records)
        packed = self._path(name, packed=True)
        partial = packed.with_name(packed.name + ".partial")
        partial.write_bytes(lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))
        partial.replace(packed)
        self._path(name).unlink(missing_ok=True)
        return packed

    def _path(self, name: str, *, packed: bool = False) -> Path:
        return self.root / f"{name}.jsonl{'.xz' if packed else ''}"


def _lines(place: Path) -> Iterator[str]:
    """The lines of a file.

    A last line without its end was being written when the recording was killed, and is left out.
    """
    data = lzma.decompress(place.read_bytes()) if place.suffix == ".xz" else place.read_bytes()
    for line in data.decode().splitlines(keepends=True):
        if line.endswith("\n"):
            yield line
