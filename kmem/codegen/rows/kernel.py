"""Kernels for regions with reductions, under one of several strategies.

Strategies (the STRATEGY knob):

- "registers": one program holds BK whole rows; every input is read once.
- "loop": one program goes over BK rows once per pass and once more to write; what a pass re-reads
  may still be in L2.
- "shared": SPLIT programs hold one row together in registers, publish their partial states and wait
  for each other; inputs are read once.
- "split": per pass, one kernel leaves SPLIT partial states per row and one combines them; the last
  kernel writes, one tile per program.
- "classes": as "split", where a part takes the elements that lie alike beside 16 bytes (see
  access.py).
- "pipelined": one kernel whose programs take turns: even ones leave partial states of a segment,
  odd ones write a segment of the row LEAD rows back, which L2 still holds. Writers wait only for
  programs with lower tickets, none of which waits, so any device will do.

In "shared", waiting is safe because programs take their number from a ticket counter in the order
in which they start. Let row b be the lowest unfinished one: rows below have left, and no program of
a row above has started unless all of b's have. So while b is incomplete, fewer than SPLIT programs
of this launch hold a place and wait. Two launches on two streams then hold fewer than 2 SPLIT
places, and one of them goes on as long as the device has as many: the launcher waits only if
2 SPLIT <= places (of a multiprocessor, an idle one too, those that space.sharing_places
counts). Otherwise, as for tensors of the CPU, for which the interpreter runs programs one by one,
the launcher runs the kernel once per pass and once more. The judge's interpreter, whose tensors
pass for a GPU's, takes waiting programs in turns.

Partial results combine in a fixed order: results repeat bitwise. The tile is (BK rows along the
innermost kept axis, BR elements of the row). Sizes and strides are constexpr arguments. The lines
of passes are passes.py's, the bodies of kernels bodies.py's.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kmem.codegen.regions.reductions import REDUCTIONS
from kmem.codegen.regions.region import Region
from kmem.codegen.rows.access import RowAccess, run_elements
from kmem.codegen.rows.bodies import NUMBER, TICKET, RowBodies
from kmem.codegen.rows.launching import allocations, assignments, indent
from kmem.codegen.rows.passes import SHARING, RowPasses
from kmem.codegen.rows.rotated import row_access
from kmem.codegen.rows.space import (
    LOOPS,
    fit_settings,
    has_ladder,
    is_compensated,
    waiting,
)
from kmem.codegen.rows.total import emit_total
from kmem.codegen.text.accumulate import COMPENSATION
from kmem.codegen.text.calls import write_launch_function
from kmem.codegen.text.definitions import define
from kmem.problem.operators.expressions import order_helpers
from kmem.problem.sizes import next_power_of_two
from kmem.recipes import Emission, Settings

#: Partial states that a program combines at once where it combines several rows, and its warps: 16
#: to a thread, as in the prototype of space.CLASSED_TILE.
_COMBINED, _COMBINING_WARPS = 4096, 8

#: What a program of each kernel does, as the kernels say it themselves.
_SAYS = {
    "registers": "Whole rows, BK at a time: read once, reduced and written.",
    "loop": "BK rows, tile by tile: once for each reduction, once more to write.",
    "shared": "A part of a row: programs of one row share what they have and wait for each other.",
    "pipelined": "A segment of a row: even programs reduce it, odd ones write a complete one.",
    "partial": "Reduce a part of a row into scratch.",
    "combine": "What the parts of a row left, as one.",
    "apply": "Write a tile of a row, whose reductions are complete.",
}

_PART = ("block = pid // SPLIT", "part = pid % SPLIT")


def emit_rows(
    region: Region, settings: Settings, purpose: str, like: Region | None = None
) -> Emission:
    """The kernels and launcher for a region at one setting.

    Args:
        settings: STRATEGY, BK, BR, SPLIT, num_warps, as `row_space` offers them.
        purpose: the first word of the kernels' names, for profiles: "softmax", "norm", "reduce".
        like: the region at other sizes whose text this one shares.
    """
    shaped = fit_settings(like or region, settings)
    if shaped["STRATEGY"] != settings["STRATEGY"]:
        settings = {**settings, **{name: shaped[name] for name in ("STRATEGY", "BR", "SPLIT")}}
    settings = fit_settings(region, settings, shaped["LINED"])
    strategy = "split" if settings["STRATEGY"] == "classes" else str(settings["STRATEGY"])
    access = row_access(region, shaped, like)
    passes = RowPasses(region, strategy, settings["BK"] == 1, access)
    return _Writer(passes, settings, purpose, access.constants(settings)).emit()


@dataclass
class _Writer:
    """The kernels of one region at one fitted setting, and the lines of the launcher."""

    passes: RowPasses
    settings: Settings
    purpose: str
    constants: dict[str, object]
    kernels: list[tuple[str, str]] = field(default_factory=list)
    launches: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        region = self.passes.region
        self.bodies = RowBodies(self.passes)
        self.inputs = [f"p{index}" for index in range(len(region.inputs))]
        self.outputs = [f"q{index}" for index in range(len(region.outputs))]
        totals = region.total.values if region.total else ()
        self.totals = [f"t{index}" for index in range(len(totals))]
        self.totalled = self.constants["BLOCKS"]  # programs that leave a sum each
        self.pointers = [*self.inputs, *self.outputs, *self.totals]
        self.parts = [state.parts for state in self.passes.all_states()]
        rounds = any(REDUCTIONS[kind].wants_rounded_values for kind in region.kinds_of_computed)
        self.options = {"enable_fp_fusion": False} if rounds else {}
        if self.passes.strategy in LOOPS and has_ladder(region):
            self.constants |= {"COMPENSATED": is_compensated(region, self.settings)}
            self.passes.helpers.add(COMPENSATION)
        if self.passes.strategy in LOOPS and any(
            REDUCTIONS[item.kind].reduces_runs for item in self.passes.reduces
        ):
            tile = int(self.settings["BK"]) * int(self.settings["BR"])
            run = run_elements(region, tile, int(self.settings["num_warps"]))
            self.constants |= {"RUN": min(run, int(self.settings["BR"]))}

    def emit(self) -> Emission:
        write = {
            "registers": self._in_registers,
            "loop": self._in_loop,
            "shared": self._shared,
            "pipelined": self._pipelined,
            "split": self._split,
        }
        write[self.passes.strategy]()
        if self.passes.region.total:
            self.passes.helpers.add(COMPENSATION)
            kernel, launch = emit_total(self.passes.region, self.purpose, int(self.totalled))
            self.kernels.append(kernel)
            self.launches.append(launch)
        return Emission(
            (*order_helpers(self.passes.helpers), *self.kernels),
            write_launch_function(self.inputs, self._launcher()),
        )

    def _add(
        self,
        name: str,
        pointers: Sequence[str],
        body: Sequence[str],
        grid: str,
        own: Mapping[str, object] | None = None,
    ) -> None:
        """One more kernel and its launch.

        Args:
            own: arguments, and a grid, whose values are not the launcher's variables of that name.
        """
        own = own or {}
        says = _SAYS[name.rstrip("0123456789")]
        kernel = define(f"{self.purpose}_{name}", pointers, self.constants, body, says)
        options = {"num_warps": own.get("num_warps", self.settings["num_warps"]), **self.options}
        self.kernels.append(kernel.kernel)
        self.launches.append(kernel.write_launch(str(own.get(grid, grid)), own, options))

    # --- one kernel

    def _in_registers(self) -> None:
        self._add_whole("registers", self.bodies.tile(shared=False))

    def _in_loop(self) -> None:
        self._add_whole("loop", self.bodies.loop())

    def _add_whole(self, name: str, body: Sequence[str]) -> None:
        """A kernel whose programs take whole rows."""
        rows = self.passes.offsets.rows()
        self._add(name, self.pointers, [NUMBER, "block = pid", *rows, "part = 0", *body], "BLOCKS")

    def _shared(self) -> None:
        self.constants |= {"WAIT": "wait"}
        rows, tile = self.passes.offsets.rows(), self.bodies.tile(shared=True)
        body = [NUMBER, "if WAIT:", f"    {TICKET}", *_PART, *rows, *tile]
        pointers = [*self.pointers, *self.parts, "arrived"]
        self._add("shared", pointers, body, "BLOCKS * SPLIT", {"WAIT": "wait"})
        repeat = "for _ in range(1 if wait else PASSES + 1):"
        self.launches = [repeat, *indent(self.launches)]

    def _pipelined(self) -> None:
        self.constants |= {"LEAD": self.settings["LEAD"]}
        body = [
            TICKET,
            "turn = pid // (2 * SPLIT)",
            "part = pid % (2 * SPLIT) // 2",
            *self.bodies.pipelined(),
        ]
        pointers = [*self.pointers, *self.parts, "arrived"]
        self._add("pipelined", pointers, body, "2 * SPLIT * (BLOCKS + LEAD)")

    # --- several kernels

    def _split(self) -> None:
        combined = [state.combined for state in self.passes.all_states()]
        everything = [*self.pointers, *self.parts, *combined]
        rows = self.passes.offsets.rows()
        combining = RowAccess(self.passes.region)
        own = {} if self.passes.single else self._combining_sizes(combining)
        if not self.passes.region.has_element_output:  # else who writes elements leaves sums
            self.totalled = own.get("BLOCKS", self.totalled)
        for number in range(self.passes.pass_count):
            body = [NUMBER, *_PART, *rows, *self.bodies.partial(number)]
            self._add(f"partial{number}", everything, body, "BLOCKS * SPLIT")
            body = [NUMBER, "block = pid", *combining.rows(), *self.bodies.combine(number)]
            self._add(f"combine{number}", everything, body, "BLOCKS", own)
        if self.passes.region.has_element_output:
            body = [
                NUMBER,
                "block = pid % (BLOCKS * SPLIT) // SPLIT",
                "part = pid % SPLIT",
                *rows,
                *self.bodies.apply(),
            ]
            self._add("apply", everything, body, "BLOCKS * SPLIT * STEPS")

    def _combining_sizes(self, combining: RowAccess) -> dict[str, object]:
        """Arguments of a kernel that combines the parts of several rows at once, see _COMBINED."""
        axes = self.passes.region.axes
        inner = axes[combining.inner].size if combining.inner is not None else 1
        split = next_power_of_two(int(self.settings["SPLIT"]))
        rows = max(1, min(_COMBINED // split, next_power_of_two(inner)))
        constants = combining.constants({**self.settings, "BK": rows})
        sizes = {name: constants[name] for name in ("BK", "INNER_BLOCKS", "BLOCKS", "EVEN_K")}
        return sizes | {"num_warps": _COMBINING_WARPS}

    # --- the launcher

    def _launcher(self) -> list[str]:
        strategy, states = self.passes.strategy, self.passes.all_states()
        known = {key: value for key, value in self.constants.items() if key != "WAIT"}
        lines = assignments(known) + allocations(self.passes.region)
        lines += [_scratch(name, str(self.totalled), "torch.float32") for name in self.totals]
        if strategy in SHARING:
            lines += [
                _scratch(state.parts, "ROWS * SPLIT", f"torch.{state.dtype}") for state in states
            ]
        if strategy == "split":
            lines += [_scratch(state.combined, "ROWS", f"{state.parts}.dtype") for state in states]
        if strategy == "shared":
            lines += waiting(int(self.settings["num_warps"]))
        if strategy in ("shared", "pipelined"):
            counters = "torch.zeros(PASSES * BLOCKS + 1, dtype=torch.int32, device=p0.device)"
            lines.append(f"arrived = {counters}")
        return [*lines, *self.launches, f"return {', '.join(self.outputs)}"]


def _scratch(name: str, size: str, dtype: str) -> str:
    """A line that makes device memory that only the kernels of one launch share."""
    return f"{name} = torch.empty({size}, dtype={dtype}, device=p0.device)"
