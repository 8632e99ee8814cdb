"""Bodies of row kernels, one for each strategy of kernel.py, joined from the lines of passes."""

from dataclasses import dataclass

from kmem.codegen.regions.reductions import REDUCTIONS
from kmem.codegen.regions.region import Map
from kmem.codegen.rows.launching import indent
from kmem.codegen.rows.passes import RowPasses

NUMBER = "pid = tl.program_id(0)"
TICKET = "pid = tl.atomic_add(arrived + PASSES * BLOCKS, 1, sem='relaxed', scope='gpu')"
_PLACE = "tile0 = tl.zeros((BK, BR), tl.int32)"


@dataclass(frozen=True, slots=True)
class RowBodies:
    """What programs do with the rows of one region."""

    passes: RowPasses

    # --- a row, or a share of it, in registers

    def tile(self, *, shared: bool) -> list[str]:
        """The row in registers; with `shared` this program's share of it."""
        passes = self.passes
        # Source: measured on H200, RMSNorm over 64 channels of 512 x 512 images (15 GB): 3.66 ms
        # without a hint, 3.76 ms with evict_first.
        hint = "" if passes.region.has_element_output else "evict_first"
        lines = passes.row_lines(0)
        lines += passes.offsets.segment() if shared else ["begin = 0", "end = R"]
        lines += passes.offsets.columns("begin", "end") + ["count = (end - begin) * 1.0"]
        written: set[str] = set()
        # state -> what to write for an element's share of it after programs have combined
        cheaper: dict[str, str] = {}
        for number in range(passes.pass_count):
            reduces = passes.reduces_of(number)
            needed = passes.closure(name for each in reduces for name in each.reads)
            # what comes after the last reduction is asked for before the first: its way from memory
            # would begin when a row's threads have waited for each other
            for item in needed + passes.early_loads() * (number == 0):
                if item.name not in written:
                    lines += passes.write(item, hint)
                    written.add(item.name)
            for item in reduces:
                lines += REDUCTIONS[item.kind].direct(item.read, item.named)
            if shared:
                lines += passes.publish(number) + self._await_row(number)
                for item in reduces:
                    lines += REDUCTIONS[item.kind].keep(item.names)
                lines += passes.combine(number)
                for item in reduces:
                    share = REDUCTIONS[item.kind].reuse(item.names)
                    cheaper |= {} if share is None else {item.names[0]: share}
            lines += passes.row_lines(number + 1)
        stores = passes.element_stores()
        for item in passes.closure(store.value for store in stores):
            if isinstance(item, Map) and item.share_of in cheaper:
                lines += [f"{item.name} = {cheaper[item.share_of]}"]
            elif item.name not in written:
                lines += passes.write(item, hint)
        return (
            lines
            + [_PLACE] * bool(stores)
            + [passes.store(store) for store in stores]
            + passes.write_left_over("begin", "end")
            + passes.write_rows(only_first=shared)
        )

    # --- waiting for the other programs of a row

    def _await_row(self, number: int) -> list[str]:
        """Announce this program's pass, then wait for all programs of the row."""
        return ["if WAIT:", *indent(self._announce(number) + self._await_all(number))]

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

    # --- loops over a row

    def loop(self) -> list[str]:
        """One sweep over the row per pass, and one more to write elements."""
        passes = self.passes
        lines = [*passes.row_lines(0), "begin = 0", "end = R"]
        for number in range(passes.pass_count):
            lines += passes.lanes(number) + passes.row_lines(number + 1)
        return lines + self._write_loop() + passes.write_rows(only_first=False)

    def _write_loop(self) -> list[str]:
        passes = self.passes
        if not passes.region.has_element_output:
            return []
        # backwards: what the last pass read last is what L2 still holds
        body = passes.offsets.columns("begin + (STEPS - 1 - index) * BR", "end")
        body += passes.write_elements()
        lines = [_PLACE, "for index in range(0, STEPS):", *indent(body)]
        return lines + passes.write_left_over("begin", "end")

    def pipelined(self) -> list[str]:
        """One turn: a segment is reduced or written.

        What is written comes from states that programs with lower tickets left.
        """
        passes = self.passes
        segment = passes.offsets.segment()
        reduce = passes.offsets.rows() + passes.row_lines(0) + segment
        reduce += passes.lanes(0) + passes.publish(0) + self._announce(0)
        write = self._await_all(0) + passes.offsets.rows() + passes.row_lines(0)
        write += passes.combine(0) + passes.row_lines(1) + segment
        write += self._write_loop() + passes.write_rows(only_first=True)
        return [
            "if pid % 2 == 0:",
            "    block = turn",
            "    if block < BLOCKS:",
            *indent(reduce, 2),
            "else:",
            "    block = turn - LEAD",
            "    if block >= 0:",
            *indent(write, 2),
        ]

    # --- kernels in a row: parts, their combination, and what is written from them

    def partial(self, number: int) -> list[str]:
        """States of this program's part of the row."""
        passes = self.passes
        return [
            *passes.known_states(number),
            *passes.offsets.segment(),
            *passes.lanes(number),
            *passes.publish(number),
        ]

    def combine(self, number: int) -> list[str]:
        """Final states of a pass.

        The last pass of a region without element outputs goes on to the results.
        """
        passes = self.passes
        if number + 1 == passes.pass_count and not passes.region.has_element_output:
            return [
                *passes.known_states(number),
                *passes.combine(number),
                *passes.row_lines(number + 1),
                *passes.write_rows(only_first=False),
            ]
        return [
            *passes.combine(number),
            *(
                f"tl.store({state.combined} + row, {state.name}, mask=k_valid)"
                for state in passes.states(number)
            ),
        ]

    def apply(self) -> list[str]:
        """One tile per program.

        The tiles that the partial kernels read last come first, for L2 still holds them.
        """
        passes = self.passes
        lines = [
            *passes.known_states(passes.pass_count),
            "step = STEPS - 1 - pid // (BLOCKS * SPLIT)",
            *passes.offsets.segment(),
            "first = begin + step * BR",
            *passes.offsets.columns("first", "end"),
            _PLACE,
            *passes.write_elements(),
            *passes.write_left_over("first", "tl.minimum(first + BR, end)"),
        ]
        rows = passes.write_rows(only_first=True)
        return lines + (["if step == 0:", *indent(rows)] if rows else [])
