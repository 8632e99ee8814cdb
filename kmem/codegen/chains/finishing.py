"""The kernel that finishes rows of which tiles left their part: the states of one reduction.

A tile reduces every so many of its columns and stores what the reduction keeps of them, one or two
states. The kernel here combines the states of a row, does what follows for each row, and stores the
row's value. partial.py says what a tile leaves.
"""

from dataclasses import dataclass

from kmem.codegen.text.calls import write_launch
from kmem.codegen.text.definitions import write_definition
from kmem.problem.sizes import ceil_div, next_power_of_two
from kmem.records import content_hash

#: Parts and rows of a tile that one program combines.
_TILE, _MOST_ROWS = 4096, 32

FINISH_ROWS = (
    "kmem_finish_rows",
    '''
@triton.jit
def kmem_finish_rows(
    parts, out, FINISH: tl.constexpr, ROWS: tl.constexpr, PARTS: tl.constexpr,
    STATES: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_P: tl.constexpr,
):
    """The value of each row, from what tiles left: STATES for each of PARTS, side by side."""
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    place = parts + rows.to(tl.int64)[:, None] * (PARTS * STATES)
    values = FINISH(place, (rows < ROWS)[:, None], PARTS, BLOCK_P)
    tl.store(
        out + rows[:, None], values.to(out.dtype.element_ty), mask=(rows < ROWS)[:, None]
    )
''',
)


@dataclass(frozen=True, slots=True)
class Finish:
    """How rows are finished.

    `body` are the lines of the function that is handed to the kernel as FINISH, which returns the
    rows' values; `helpers` the jitted functions that it calls. `window` columns leave one part:
    every tile has as many, or a multiple. `wants_rounding`: what tiles reduce is rounded first, and
    no compiler may fuse it with the reduction.
    """

    body: tuple[str, ...]
    helpers: tuple[tuple[str, str], ...]
    states: int
    rows: int
    columns: int
    window: int
    wants_rounding: bool

    @property
    def parts(self) -> int:
        """How many parts a row has."""
        return ceil_div(self.columns, self.window)

    @property
    def row_elements(self) -> int:
        """fp32 numbers that are left for a row."""
        return self.parts * self.states

    @property
    def suffix(self) -> str:
        """What the name of its function ends in."""
        return f"_{content_hash(*self.body)[:8]}"

    @property
    def options(self) -> str:
        """Options of launches whose tiles are reduced."""
        return "enable_fp_fusion=False" if self.wants_rounding else ""

    @property
    def kernels(self) -> tuple[tuple[str, str], ...]:
        """The function, and the kernel that it is handed to."""
        function = f"kmem_finish{self.suffix}"
        parameters = "place, inside, PARTS: tl.constexpr, BLOCK_P: tl.constexpr"
        says = "A row's value from the states of its parts."
        text = write_definition(function, (parameters,), self.body, says)
        return (*self.helpers, (function, text), FINISH_ROWS)

    def write_allocation(self, like: str) -> str:
        """A statement that makes `parts`.

        Args:
            like: the tensor whose device it has.
        """
        size = self.rows * self.row_elements
        return f"parts = torch.empty({size}, dtype=torch.float32, device={like}.device)"

    def write_launch(self) -> str:
        """The launch that reads `parts` and writes `out`."""
        block_p = next_power_of_two(self.parts)
        block_r = min(_MOST_ROWS, max(1, _TILE // block_p), next_power_of_two(self.rows))
        return write_launch(
            FINISH_ROWS[0],
            ceil_div(self.rows, block_r),
            f"parts, out, FINISH=kmem_finish{self.suffix}",
            f"ROWS={self.rows}, PARTS={self.parts}, STATES={self.states}",
            f"BLOCK_M={block_r}, BLOCK_P={block_p}",
            "num_warps=4",
        )


def read_states(names: tuple[str, ...]) -> list[str]:
    """Lines that read the states of all parts, as `Reduction.combine` wants them."""
    count = len(names)
    lines = ["part = tl.arange(0, BLOCK_P)[None, :]", "part_valid = part < PARTS"]
    for index, name in enumerate(names):
        at = "place + part" + (f" * {count} + {index}" if count > 1 else "")
        lines.append(f"{name}_parts = tl.load({at}, mask=inside & part_valid, other=0.0)")
    return lines
