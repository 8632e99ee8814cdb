"""Text of the passes over a row: what is read, reduced, handed to other programs, and stored.

bodies.py joins these lines into the bodies of kernels, and kernel.py into kernels. Lines
carry no indentation: the code that puts them into a loop or a condition adds it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from kmem.codegen.regions.reduction import BY_ROW, TO_SCALAR
from kmem.codegen.regions.reductions import REDUCTIONS
from kmem.codegen.regions.region import Load, Map, Reduce, Region, Store
from kmem.codegen.rows.access import RowAccess
from kmem.codegen.rows.launching import indent
from kmem.problem.operators.expressions import Helper

#: Strategies under which several programs write the elements of one row.
SHARING = ("shared", "split", "pipelined")


@dataclass(frozen=True, slots=True)
class State:
    """One state of one reduction, as programs hand it to each other."""

    name: str  # the variable
    is_index: bool
    place: str  # "<pass>_<number within the pass>"

    @property
    def dtype(self) -> str:
        """The torch and Triton type in memory."""
        return "int32" if self.is_index else "float32"

    @property
    def parts(self) -> str:
        """The pointer to what each program of a row left."""
        return f"s{self.place}"

    @property
    def combined(self) -> str:
        """The pointer to what a kernel made of the parts of each row."""
        return f"c{self.place}"


@dataclass
class RowPasses:
    """Lines of one region's passes.

    Args:
        strategy: as in kernel.py, with "split" for "classes".
        single: whether a program takes one row.
        offsets: what writes loads and stores.
    """

    region: Region
    strategy: str
    single: bool
    offsets: RowAccess
    helpers: set[Helper] = field(default_factory=set)  # of the expressions written so far

    def __post_init__(self) -> None:
        self.levels = self.region.levels()
        self.stages = self.region.passes()
        self.reduces = [item for item in self.region.statements if isinstance(item, Reduce)]
        self.pass_count = max(self.stages[item.names[0]] for item in self.reduces)
        self.apart = self._find_apart()
        for item in self.reduces:
            self.helpers.update(REDUCTIONS[item.kind].helpers)

    # --- what a pass consists of

    def reduces_of(self, number: int) -> list[Reduce]:
        """The reductions of one pass."""
        return [item for item in self.reduces if self.stages[item.names[0]] == number + 1]

    def states(self, number: int) -> list[State]:
        """The states that one pass leaves."""
        found = [
            (name, state in REDUCTIONS[item.kind].index_states)
            for item in self.reduces_of(number)
            for name, state in zip(item.names, REDUCTIONS[item.kind].states, strict=True)
        ]
        return [
            State(name, is_index, f"{number}_{index}")
            for index, (name, is_index) in enumerate(found)
        ]

    def all_states(self) -> list[State]:
        """The states of all passes."""
        return [state for number in range(self.pass_count) for state in self.states(number)]

    def closure(self, targets: Iterable[str]) -> list[Load | Map]:
        """Element-level statements needed for some values, in order."""
        needed = set(targets)
        found = []
        for item in reversed(self.region.statements):
            if not isinstance(item, Reduce) and item.name in needed and self.levels[item.name]:
                found.append(item)
                needed.update(item.reads if isinstance(item, Map) else ())
        return found[::-1]

    def early_loads(self) -> list[Load | Map]:
        """Loads for element stores that do not fill a tile, as of a layer norm's weights.

        They take few registers, while a tile more would take as many as the row itself: too many
        but where there is a single row.
        """
        wanted = self.closure(store.value for store in self.element_stores())
        return [
            item
            for item in wanted
            if isinstance(item, Load)
            and not (self.region.kept and self.offsets.covers_tile(item.strides))
        ]

    def element_stores(self) -> list[Store]:
        """The stores of values that change along the row."""
        return [store for store in self.region.stores if not store.is_row]

    def _find_apart(self) -> list[Load | Map]:
        """Row-level statements that nothing needs but buffers which a forward changes.

        Where several programs write a row one changes the buffer, and no other may load it.
        """
        if self.strategy not in SHARING or not self.region.has_element_output:
            return []
        changed = {store.value for store in self.region.stores if store.in_place}
        kept = {store.value for store in self.region.stores if not store.in_place}
        kept.update(self.region.total.values if self.region.total else ())
        found = []
        for item in reversed(self.region.statements):
            if isinstance(item, Reduce):
                kept.update(item.reads)
                continue
            reads = item.reads if isinstance(item, Map) else ()
            if item.name in kept:
                kept.update(reads)
            elif item.name in changed:
                changed.update(reads)
                found.append(item)
        return found[::-1]

    def _has_moments(self, number: int) -> bool:
        return any(item.kind == "moments" for item in self.reduces_of(number))

    # --- statements

    def write(self, item: Load | Map, hint: str, access: RowAccess | None = None) -> list[str]:
        """A load, with an eviction hint where it is streamed, or an expression."""
        if isinstance(item, Map):
            self.helpers.update(item.helpers)
            return [f"{item.name} = {item.text}"]
        is_streamed = self.levels[item.name] and hint and self.offsets.covers_tile(item.strides)
        policy = f', eviction_policy="{hint}"' if is_streamed else ""
        return (access or self.offsets).load(item, policy)

    def write_all(self, items: Iterable[Load | Map], hint: str) -> list[str]:
        """Several of them."""
        return [line for item in items for line in self.write(item, hint)]

    def row_lines(self, stage: int) -> list[str]:
        """Row-level loads and maps that become known when `stage` passes have finished."""
        return self.write_all(
            (
                item
                for item in self.region.statements
                if not isinstance(item, Reduce)
                and not self.levels[item.name]
                and self.stages[item.name] == stage
                and item not in self.apart
            ),
            "",
        )

    def store(self, store: Store) -> str:
        """A store; L2 is for what is read again."""
        is_streamed = self.strategy == "pipelined" and not store.is_row
        return self.offsets.store(store, ', cache_modifier=".cs"' if is_streamed else "")

    def _rereads_for_result(self) -> bool:
        """Whether the program that reduces a row reads it again to write elements."""
        return self.region.has_element_output and self.strategy in ("loop", "pipelined")

    def _lane_hint(self) -> str:
        """The eviction hint of a pass lane by lane: keep what will be read again."""
        if self.strategy == "split" and self.region.has_element_output:
            return ""
        return "evict_last" if self._rereads_for_result() else "evict_first"

    # --- reducing

    def lanes(self, number: int) -> list[str]:
        """One pass over elements begin..end of the row, lane by lane; leaves its states."""
        reduces = self.reduces_of(number)
        has_moments = self._has_moments(number)
        lines = [line for item in reduces for line in REDUCTIONS[item.kind].start(item.names)]
        lines += ["step = 0.0"] * has_moments
        inner, first = self.offsets.inner_tiles, "begin"
        if inner is not None:
            lines += [f"inner = {inner.end}"]
            lines += self._lane_loop(reduces, "begin", "inner", inner.access)
            first = "inner"
        lines += self._lane_loop(reduces, first, "end", self.offsets)
        if has_moments:
            left = "(end - begin - tl.arange(0, BR)[None, :] + BR - 1) // BR"
            lines += [
                "count = tl.maximum(end - begin, 1) * 1.0",  # a part may have no elements
                f"lane_count = tl.maximum({left}, 0).to(tl.float32)",
            ]
        return lines + [
            line for item in reduces for line in REDUCTIONS[item.kind].finish(item.names)
        ]

    def _lane_loop(
        self, reduces: Sequence[Reduce], first: str, last: str, access: RowAccess
    ) -> list[str]:
        """The lanes after the tiles between two places of a row."""
        body = access.columns("start", "end")
        body += ["step += 1.0"] * any(item.kind == "moments" for item in reduces)
        for item in self.closure(name for each in reduces for name in each.reads):
            body += self.write(item, self._lane_hint(), access)
        for item in reduces:
            body += REDUCTIONS[item.kind].update(item.read, item.named)
        return [f"for start in range({first}, {last}, BR):", *indent(body)]

    # --- handing states over

    def publish(self, number: int) -> list[str]:
        """Store what this program knows of a row."""
        return [
            f"tl.store({state.parts} + row * SPLIT + part, {state.name}, mask=k_valid)"
            for state in self.states(number)
        ]

    def combine(self, number: int) -> list[str]:
        """The states of whole rows from what all programs of a row published."""
        lines = [
            "part_index = tl.arange(0, SPLIT_TILE)[None, :]",
            "part_valid = part_index < SPLIT",
        ]
        if self._has_moments(number):
            left = f"tl.minimum(tl.maximum({self.offsets.left}, 0), SEGMENT)"
            lines.append(f"part_count = {left}.to(tl.float32)")
        for state in self.states(number):
            pointer = f"{state.parts} + row * SPLIT + part_index"
            mask = "mask=k_valid & part_valid"
            load = f'tl.load({pointer}, {mask}, cache_modifier=".cg")'
            lines.append(f"{state.name}_parts = {load}")
        over = TO_SCALAR if self.single else BY_ROW
        for item in self.reduces_of(number):
            lines += REDUCTIONS[item.kind].combine(item.names, over)
        if not self.single:
            return lines
        # As (1, 1) tensors they drag the parts' layout along: Triton 3.6 converts tiles in shared
        # memory and lets every thread load all parts. Source: H200, instance norm of 512 x 512
        # images, 32 programs a row: 60.6 ms so, 4.17 with scalars (a copy takes 3.54).
        return lines + [
            f"{state.name} = tl.full((BK, 1), {state.name}, tl.{state.dtype})"
            for state in self.states(number)
        ]

    def known_states(self, passes: int) -> list[str]:
        """Row-level values after the first `passes` passes, as combining kernels stored them."""
        lines = self.row_lines(0)
        for number in range(passes):
            lines += [
                f"{state.name} = tl.load({state.combined} + row, mask=k_valid)"
                for state in self.states(number)
            ]
            lines += self.row_lines(number + 1)
        return lines

    # --- results

    def write_elements(self) -> list[str]:
        """Element-level results of a tile."""
        stores = self.element_stores()
        lines = self.write_all(self.closure(store.value for store in stores), "evict_first")
        return lines + [self.store(store) for store in stores]

    def write_left_over(self, start: str, end: str) -> list[str]:
        """Element stores that a rotated row's tiles leave out.

        They are of few elements, loaded and computed once more.
        """
        rest = self.offsets.rest
        stores = self.element_stores()
        if rest is None or not stores:
            return []
        values = []
        for item in self.closure(store.value for store in stores):
            values += self.write(item, "") if isinstance(item, Map) else rest.load(item, "")
        return rest.columns(start, end) + values + [rest.store(store, "") for store in stores]

    def write_rows(self, *, only_first: bool) -> list[str]:
        """Row-level results; with `only_first` by the first program of a row alone."""
        lines = self.write_all(self.apart, "")
        lines += [self.store(store) for store in self.region.stores if store.is_row]
        totals = self.region.total.values if self.region.total else ()
        for index, value in enumerate(totals):
            own = f"tl.where(k_valid, tl.broadcast_to({value}, (BK, 1)), 0.0)"
            lines.append(f"tl.store(t{index} + block, tl.sum({own}))")
        return ["if part == 0:", *indent(lines)] if only_first and lines else lines
