"""Kernels for regions with reductions: a row in registers, a loop over a row, a row shared by
several programs, or two kernels.

Strategies (the STRATEGY knob):
- "registers": one program holds BK whole rows; every input is read once.
- "loop": one program goes over BK rows once per pass and once more to write; what a pass re-reads
  may still be in L2.
- "shared": SPLIT programs hold one row together in registers, publish their partial states and wait
  for each other; inputs are read once.
- "split": per pass, one kernel leaves SPLIT partial states per row and one combines them; the last
  kernel writes, one tile per program.
- "classes": as "split", where a part takes the elements that lie alike beside 16 bytes (see
  rowwise_access.py).
- "pipelined": one kernel whose programs take turns: even ones leave partial states of a segment,
  odd ones write a segment of the row LEAD rows back, which L2 still holds. Writers wait only for
  programs with lower tickets, none of which waits, so any device will do. In "shared", waiting is
  safe because programs take their number from a ticket counter in the order in which they start.
  Let row b be the lowest unfinished one: rows below have left, and no program of a row above has
  started unless all of b's have. So while b is incomplete, fewer than SPLIT programs of this launch
  hold a place and wait. Two launches on two streams then hold fewer than 2 SPLIT places, and one of
  them goes on as long as the device has as many: the launcher waits only if 2 SPLIT <= places (of a
  multiprocessor, an idle one too, those that rowwise_space.sharing_places counts), and otherwise,
  as in the interpreter, which runs programs one by one, runs the kernel once per pass and once
  more. Partial results combine in a fixed order: results repeat bitwise. The tile is (BK rows along
  the innermost kept axis, BR elements of the row). Sizes and strides are constexpr arguments.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from kmem.codegen.launching import allocations, entry, next_power_of_two
from kmem.codegen.pointwise import HELPERS
from kmem.codegen.reductions import BY_ROW, MULTIPLY, REDUCTIONS, TO_SCALAR
from kmem.codegen.region import Load, Map, Reduce, Region, Store
from kmem.codegen.rowwise_access import RowAccess, row_access
from kmem.codegen.rowwise_space import fit_settings, waiting
from kmem.codegen.rowwise_total import emit_total
from kmem.recipes import Emission, Settings
from kmem.records import content_hash

#: Partial states that a program combines at once where it combines several rows, and its warps: 16
#: to a thread, as in the prototype of rowwise_space._CLASSED_TILE.
_COMBINED, _COMBINING_WARPS = 4096, 8

_NUMBER = "pid = tl.program_id(0)"
_TICKET = "pid = tl.atomic_add(arrived + PASSES * BLOCKS, 1, sem='relaxed', scope='gpu')"


def emit_rows(region: Region, settings: Settings, purpose: str) -> Emission:
    """The kernels and launcher for a region at one setting.

    Args:
        settings: STRATEGY, BK, BR, SPLIT, num_warps, as `row_space` offers them.
        purpose: first word of the kernels' names, for profiles: "softmax", "norm", "reduce".
    """
    settings = fit_settings(region, settings)
    strategy = "split" if settings["STRATEGY"] == "classes" else str(settings["STRATEGY"])
    return _Writer(region, strategy, settings["BK"] == 1, row_access(region, settings)).emit(
        settings, purpose
    )


@dataclass
class _Writer:
    """Text of one region's kernels. Indentation is added when a body is wrapped."""

    region: Region
    strategy: str
    single: bool  # one row a program
    offsets: RowAccess

    def __post_init__(self) -> None:
        self.levels = self.region.levels()
        self.stages = self.region.passes()
        self.reduces = [item for item in self.region.statements if isinstance(item, Reduce)]
        self.pass_count = max(self.stages[item.names[0]] for item in self.reduces)
        rounds = any(
            REDUCTIONS[kind].wants_rounded_values for kind in self.region.kinds_of_computed
        )
        self.options = ", enable_fp_fusion=False" if rounds else ""

    def _closure(self, targets: Sequence[str]) -> list[Load | Map]:
        """Element-level statements needed for some values, in order."""
        needed = set(targets)
        found = []
        for item in reversed(self.region.statements):
            if not isinstance(item, Reduce) and item.name in needed and self.levels[item.name]:
                found.append(item)
                needed.update(item.reads if isinstance(item, Map) else ())
        return found[::-1]

    def _tile_hint(self) -> str:
        """Eviction hint of loads in a pass over rows that one program re-reads: keep them if
        elements are written as well.
        """
        return (
            "evict_last"
            if self.region.has_element_output and self.strategy in ("loop", "pipelined")
            else "evict_first"
        )

    def _write(self, item: Load | Map, hint: str) -> list[str]:
        if isinstance(item, Map):
            return [f"{item.name} = {item.text}"]
        is_streamed = self.levels[item.name] and hint and self.offsets.covers_tile(item.strides)
        return self.offsets.load(item, f', eviction_policy="{hint}"' if is_streamed else "")

    def _row_lines(self, stage: int) -> list[str]:
        """Row-level loads and maps that become known when `stage` passes have finished."""
        return [
            line
            for item in self.region.statements
            if not isinstance(item, Reduce)
            and not self.levels[item.name]
            and self.stages[item.name] == stage
            for line in self._write(item, "")
        ]

    def _reduces_of(self, number: int) -> list[Reduce]:
        return [item for item in self.reduces if self.stages[item.read] == number]

    def _states(self, number: int) -> list[tuple[str, bool]]:
        """(state variable, is an index) of one pass."""
        return [
            (name, state in REDUCTIONS[item.kind].index_states)
            for item in self._reduces_of(number)
            for name, state in zip(item.names, REDUCTIONS[item.kind].states, strict=True)
        ]

    def _store(self, store: Store) -> str:
        # L2 is for what is read again
        is_streamed = self.strategy == "pipelined" and not store.is_row
        return self.offsets.store(store, ', cache_modifier=".cs"' if is_streamed else "")

    def _lanes(self, number: int) -> list[str]:
        """One pass over elements begin..end of the row, lane by lane; leaves its states."""
        reduces = self._reduces_of(number)
        lines = [line for item in reduces for line in REDUCTIONS[item.kind].start(item.names)]
        if any(item.kind == "moments" for item in reduces):
            lines += ["step = 0.0"]
        lines += ["for start in range(begin, end, BR):"]
        body = self.offsets.columns("start", "end")
        if any(item.kind == "moments" for item in reduces):
            body += ["step += 1.0"]
        body += [
            line
            for item in self._closure([item.read for item in reduces])
            for line in self._write(
                item,
                ""
                if self.strategy == "split" and self.region.has_element_output
                else self._tile_hint(),
            )
        ]
        body += [
            line for item in reduces for line in REDUCTIONS[item.kind].update(item.read, item.names)
        ]
        lines += [f"    {line}" for line in body]
        if any(item.kind == "moments" for item in reduces):
            lines += [
                "count = tl.maximum(end - begin, 1) * 1.0",  # a part may have no elements
                (
                    "lane_count = tl.maximum((end - begin - tl.arange(0, BR)[None, :] + BR - 1) // "
                    "BR, 0).to(tl.float32)"
                ),
            ]
        return lines + [
            line for item in reduces for line in REDUCTIONS[item.kind].finish(item.names)
        ]

    def _publish(self, number: int) -> list[str]:
        return [
            f"tl.store(s{number}_{index} + row * SPLIT + part, {name}, mask=k_valid)"
            for index, (name, _) in enumerate(self._states(number))
        ]

    def _combine(self, number: int) -> list[str]:
        lines = [
            "part_index = tl.arange(0, SPLIT_TILE)[None, :]",
            "part_valid = part_index < SPLIT",
        ]
        if any(item.kind == "moments" for item in self._reduces_of(number)):
            lines += [
                (
                    f"part_count = tl.minimum(tl.maximum({self.offsets.left}, 0), "
                    f"SEGMENT).to(tl.float32)"
                )
            ]
        for index, (name, _) in enumerate(self._states(number)):
            pointer = f"s{number}_{index} + row * SPLIT + part_index"
            lines += [
                (
                    f"{name}_parts = tl.load({pointer}, mask=k_valid & part_valid, "
                    f'cache_modifier=".cg")'
                )
            ]
        over = TO_SCALAR if self.single else BY_ROW
        lines += [
            line
            for item in self._reduces_of(number)
            for line in REDUCTIONS[item.kind].combine(item.names, over)
        ]
        if not self.single:
            return lines
        # As (1, 1) tensors they drag the parts' layout along: Triton 3.6 converts tiles in shared
        # memory and lets every thread load all parts. Source: H200, instance norm of 512 x 512
        # images, 32 programs a row: 60.6 ms so, 4.17 with scalars (a copy takes 3.54).
        states = (
            (name, "int32" if is_index else "float32") for name, is_index in self._states(number)
        )
        return lines + [f"{name} = tl.full((BK, 1), {name}, tl.{kind})" for name, kind in states]

    def _element_stores(self) -> list[str]:
        stores = [store for store in self.region.stores if not store.is_row]
        lines = [
            line
            for item in self._closure([store.value for store in stores])
            for line in self._write(item, "evict_first")
        ]
        return lines + [self._store(store) for store in stores]

    def _left_over_stores(self, start: str, end: str) -> list[str]:
        """Element stores that a rotated row's tiles leave out: of few elements, loaded and computed
        once more.
        """
        rest = self.offsets.rest
        stores = [store for store in self.region.stores if not store.is_row]
        if rest is None or not stores:
            return []
        items = self._closure([store.value for store in stores])
        values = [
            line
            for item in items
            for line in (self._write(item, "") if isinstance(item, Map) else rest.load(item, ""))
        ]
        return rest.columns(start, end) + values + [rest.store(store, "") for store in stores]

    def _row_stores(self, only_first: bool) -> list[str]:
        lines = [self._store(store) for store in self.region.stores if store.is_row]
        totals = self.region.total.values if self.region.total else ()
        lines += [
            f"tl.store(t{index} + row, tl.broadcast_to({value}, (BK, 1)), mask=k_valid)"
            for index, value in enumerate(totals)
        ]
        if only_first and lines:
            return ["if part == 0:", *(f"    {line}" for line in lines)]
        return lines

    def _tile_body(self, shared: bool) -> list[str]:
        """The row (or this program's share of it) in registers."""
        lines = self._row_lines(0)
        lines += self.offsets.segment() if shared else ["begin = 0", "end = R"]
        lines += self.offsets.columns("begin", "end") + ["count = (end - begin) * 1.0"]
        # Source: measured on H200, RMSNorm over 64 channels of 512 x 512 images (15 GB): 3.66 ms
        # without a hint, 3.76 ms with evict_first.
        hint = "" if self.region.has_element_output else "evict_first"
        written: set[str] = set()
        # texts of element expressions -> what to write for them after programs have combined
        cheaper: dict[str, str] = {}
        for number in range(self.pass_count):
            reduces = self._reduces_of(number)
            for item in self._closure([item.read for item in reduces]):
                if item.name not in written:
                    lines += self._write(item, hint)
                    written.add(item.name)
            lines += [
                line
                for item in reduces
                for line in REDUCTIONS[item.kind].direct(item.read, item.names)
            ]
            if shared:
                lines += self._publish(number) + self._await_row(number)
                lines += [
                    line for item in reduces for line in REDUCTIONS[item.kind].keep(item.names)
                ]
                lines += self._combine(number)
                for item in reduces:
                    cheaper |= REDUCTIONS[item.kind].reuse(item.read, item.names)
            lines += self._row_lines(number + 1)
        stores = [store for store in self.region.stores if not store.is_row]
        for item in self._closure([store.value for store in stores]):
            if isinstance(item, Map) and item.text in cheaper:
                lines += [f"{item.name} = {cheaper[item.text]}"]
            elif item.name not in written:
                lines += self._write(item, hint)
        return (
            lines
            + ["tile0 = tl.zeros((BK, BR), tl.int32)"] * bool(stores)
            + [self._store(store) for store in stores]
            + self._left_over_stores("begin", "end")
            + self._row_stores(shared)
        )

    def _await_row(self, number: int) -> list[str]:
        """This program's pass announced, then a wait until all programs of the row have announced
        theirs.
        """
        lines = self._announce(number) + self._await_all(number)
        return ["if WAIT:", *(f"    {line}" for line in lines)]

    def _announce(self, number: int) -> list[str]:
        return [
            "tl.debug_barrier()",
            f"tl.atomic_add(arrived + {number} * BLOCKS + block, 1, sem='release', scope='gpu')",
        ]

    def _await_all(self, number: int) -> list[str]:
        """Until all programs of the row have published a pass.

        Polls are relaxed, for every acquire empties the L1 cache (CCTL.IVALL).
        """
        counter = f"arrived + {number} * BLOCKS + block"
        return [
            f"while tl.atomic_add({counter}, 0, sem='relaxed', scope='gpu') < SPLIT:",
            "    pass",
            # once: PTX has no acquire without a result in use
            f"while tl.atomic_add({counter}, 0, sem='acquire', scope='gpu') < SPLIT:",
            "    pass",
            "tl.debug_barrier()",
        ]

    def _loop_body(self) -> list[str]:
        lines = [*self._row_lines(0), "begin = 0", "end = R"]
        for number in range(self.pass_count):
            lines += self._lanes(number) + self._row_lines(number + 1)
        return lines + self._apply_loop() + self._row_stores(only_first=False)

    def _apply_loop(self) -> list[str]:
        if not self.region.has_element_output:
            return []
        # backwards: what the last pass read last is what L2 still holds
        body = (
            self.offsets.columns("begin + (STEPS - 1 - index) * BR", "end") + self._element_stores()
        )
        lines = [
            "tile0 = tl.zeros((BK, BR), tl.int32)",
            "for index in range(0, STEPS):",
            *(f"    {line}" for line in body),
        ]
        return lines + self._left_over_stores("begin", "end")

    def _pipelined_body(self) -> list[str]:
        """One turn: a segment reduced, or a segment written from states that programs with lower
        tickets left.
        """
        segment = self.offsets.segment()
        reduce = (
            self.offsets.rows()
            + self._row_lines(0)
            + segment
            + self._lanes(0)
            + self._publish(0)
            + self._announce(0)
        )
        write = (
            self._await_all(0)
            + self.offsets.rows()
            + self._row_lines(0)
            + self._combine(0)
            + self._row_lines(1)
            + segment
        )
        write += self._apply_loop() + self._row_stores(only_first=True)
        return [
            "if pid % 2 == 0:",
            "    block = turn",
            "    if block < BLOCKS:",
            *(f"        {line}" for line in reduce),
            "else:",
            "    block = turn - LEAD",
            "    if block >= 0:",
            *(f"        {line}" for line in write),
        ]

    def _known_states(self, passes: int) -> list[str]:
        """Row-level values after the first `passes` passes, from what their combining kernels
        stored.
        """
        lines = self._row_lines(0)
        for number in range(passes):
            states = enumerate(self._states(number))
            lines += [
                f"{name} = tl.load(c{number}_{index} + row, mask=k_valid)"
                for index, (name, _) in states
            ]
            lines += self._row_lines(number + 1)
        return lines

    def _partial_body(self, number: int) -> list[str]:
        return [
            *self._known_states(number),
            *self.offsets.segment(),
            *self._lanes(number),
            *self._publish(number),
        ]

    def _combine_body(self, number: int) -> list[str]:
        """Final states of a pass; the last pass of a region without element outputs goes on to the
        results.
        """
        if number + 1 == self.pass_count and not self.region.has_element_output:
            return [
                *self._known_states(number),
                *self._combine(number),
                *self._row_lines(number + 1),
                *self._row_stores(only_first=False),
            ]
        states = enumerate(self._states(number))
        return [
            *self._combine(number),
            *(
                f"tl.store(c{number}_{index} + row, {name}, mask=k_valid)"
                for index, (name, _) in states
            ),
        ]

    def _apply_body(self) -> list[str]:
        """One tile per program, the tiles that the partial kernels read last coming first: L2 still
        holds them.
        """
        tile = [
            "step = STEPS - 1 - pid // (BLOCKS * SPLIT)",
            *self.offsets.segment(),
            "first = begin + step * BR",
        ]
        lines = self._known_states(self.pass_count) + tile + self.offsets.columns("first", "end")
        lines += ["tile0 = tl.zeros((BK, BR), tl.int32)", *self._element_stores()]
        lines += self._left_over_stores("first", "tl.minimum(first + BR, end)")
        rows = self._row_stores(only_first=True)
        return lines + (["if step == 0:", *(f"    {line}" for line in rows)] if rows else [])

    def emit(self, settings: Settings, purpose: str) -> Emission:
        pointers = [f"p{index}" for index in range(len(self.region.inputs))] + [
            f"q{index}" for index in range(len(self.region.outputs))
        ]
        states = [
            f"s{number}_{index}"
            for number in range(self.pass_count)
            for index in range(len(self._states(number)))
        ]
        if self.region.total:
            pointers += [f"t{index}" for index in range(len(self.region.total.values))]
        constants = self.offsets.constants(settings)
        rows = self.offsets.rows()
        part = ["block = pid // SPLIT", "part = pid % SPLIT"]
        kernels: list[tuple[str, str]] = []
        launches: list[str] = []

        def add(
            name: str, pointers: Sequence[str], body: Sequence[str], grid: str, **own: object
        ) -> None:
            """One more kernel and its launch; `own` are arguments whose values are not the
            launcher's variables of that name.
            """
            text = entry(name, pointers, list(constants), body)
            unique = f"{name}_{content_hash(text)[:8]}"
            kernels.append((unique, text.replace(f"def {name}(", f"def {unique}(", 1)))
            values = {key: own.get(key, key) for key in constants} | {
                "num_warps": own.get("num_warps", settings["num_warps"])
            }
            arguments = ", ".join([*pointers, *(f"{key}={value}" for key, value in values.items())])
            launches.append(f"{unique}[({own.get(grid, grid)},)]({arguments}{self.options})")

        if self.strategy in ("registers", "loop"):
            body = (
                self._tile_body(shared=False) if self.strategy == "registers" else self._loop_body()
            )
            add(
                f"{purpose}_{self.strategy}",
                pointers,
                [_NUMBER, "block = pid", *rows, "part = 0", *body],
                "BLOCKS",
            )
        elif self.strategy == "shared":
            constants |= {"WAIT": "wait"}
            body = [
                _NUMBER,
                "if WAIT:",
                f"    {_TICKET}",
                *part,
                *rows,
                *self._tile_body(shared=True),
            ]
            add(
                f"{purpose}_shared",
                [*pointers, *states, "arrived"],
                body,
                "BLOCKS * SPLIT",
                WAIT="wait",
            )
            launches = [
                "for _ in range(1 if wait else PASSES + 1):",
                *(f"    {line}" for line in launches),
            ]
        elif self.strategy == "pipelined":
            constants |= {"LEAD": settings["LEAD"]}
            body = [
                _TICKET,
                "turn = pid // (2 * SPLIT)",
                "part = pid % (2 * SPLIT) // 2",
                *self._pipelined_body(),
            ]
            add(
                f"{purpose}_pipelined",
                [*pointers, *states, "arrived"],
                body,
                "2 * SPLIT * (BLOCKS + LEAD)",
            )
        else:
            everything = [*pointers, *states, *(name.replace("s", "c", 1) for name in states)]
            combining = RowAccess(self.region)
            own = {} if self.single else self._combining_sizes(combining, settings)
            for number in range(self.pass_count):
                add(
                    f"{purpose}_partial{number}",
                    everything,
                    [_NUMBER, *part, *rows, *self._partial_body(number)],
                    "BLOCKS * SPLIT",
                )
                body = [_NUMBER, "block = pid", *combining.rows(), *self._combine_body(number)]
                add(f"{purpose}_combine{number}", everything, body, "BLOCKS", **own)
            if self.region.has_element_output:
                body = [
                    _NUMBER,
                    "block = pid % (BLOCKS * SPLIT) // SPLIT",
                    "part = pid % SPLIT",
                    *rows,
                    *self._apply_body(),
                ]
                add(f"{purpose}_apply", everything, body, "BLOCKS * SPLIT * STEPS")
        if self.region.total:
            total, launch = emit_total(self.region, purpose)
            kernels.append(total)
            launches.append(launch)
        return Emission(
            (*self._helpers(kernels), *kernels),
            self._launcher(constants, states, launches, int(settings["num_warps"])),
        )

    def _combining_sizes(self, combining: RowAccess, settings: Settings) -> dict[str, object]:
        """Arguments of a kernel that combines the parts of as many rows at once as _COMBINED says."""
        inner = self.region.axes[combining.inner].size if combining.inner is not None else 1
        rows = max(
            1, min(_COMBINED // next_power_of_two(int(settings["SPLIT"])), next_power_of_two(inner))
        )
        constants = combining.constants({**settings, "BK": rows})
        return {name: constants[name] for name in ("BK", "INNER_BLOCKS", "BLOCKS", "EVEN_K")} | {
            "num_warps": _COMBINING_WARPS
        }

    def _helpers(self, kernels: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
        text = "\n".join(source for _, source in kernels)
        return [
            (name, source)
            for name, source in {**HELPERS, "multiply": MULTIPLY}.items()
            if f"{name}(" in text or f"{name}," in text
        ]

    def _launcher(
        self,
        constants: dict[str, object],
        states: Sequence[str],
        launches: Sequence[str],
        warps: int,
    ) -> str:
        lines = [f"{key} = {value}" for key, value in constants.items() if key != "WAIT"]
        lines += allocations(self.region)
        if self.region.total:
            lines += [
                f"t{index} = torch.empty(ROWS, dtype=torch.float32, device=p0.device)"
                for index in range(len(self.region.total.values))
            ]
        kinds = [
            is_index for number in range(self.pass_count) for _, is_index in self._states(number)
        ]
        if self.strategy in ("shared", "split", "pipelined"):
            lines += [
                (
                    f"{name} = torch.empty(ROWS * SPLIT, "
                    f"dtype=torch.{'int32' if is_index else 'float32'}, device=p0.device)"
                )
                for name, is_index in zip(states, kinds, strict=True)
            ]
        if self.strategy == "split":
            lines += [
                (
                    f"{name.replace('s', 'c', 1)} = torch.empty(ROWS, dtype={name}.dtype, "
                    f"device=p0.device)"
                )
                for name in states
            ]
        if self.strategy == "shared":
            lines += waiting(warps)
        if self.strategy in ("shared", "pipelined"):
            lines += [
                "arrived = torch.zeros(PASSES * BLOCKS + 1, dtype=torch.int32, device=p0.device)"
            ]
        lines += launches
        outputs = ", ".join(f"q{index}" for index in range(len(self.region.outputs)))
        lines += [f"return {outputs}"]
        arguments = ", ".join(f"p{index}" for index in range(len(self.region.inputs)))
        return f"def launch({arguments}):\n" + "\n".join(f"    {line}" for line in lines) + "\n"
