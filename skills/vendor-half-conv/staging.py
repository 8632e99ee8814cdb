"""What launches the kernels that stage the input of a vendor's convolution, as text.

The source is a tensor of the module's own layout, or what the library made of the convolution
before: then its names begin with `BEFORE`.
"""

from dataclasses import dataclass, replace
from math import prod

from kmem.codegen.chains.ports import AFTER_LOAD, IN_PLACE, port_arguments
from kmem.codegen.text.calls import write_call, write_launch
from kmem.problem.sizes import ceil_div, next_power_of_two

from .behind import finish_tile, follow, read_arguments, read_pointers
from .chains import BEFORE
from .settings import VendorSettings, write_order
from .vendor import SLACK, VendorConv, whole_windows

#: Exponent of fp32 numbers in [2**-1, 1), as their bits have it.
BELOW_ONE = 126
#: Programs that stage an image again, and results that they read at a time, at most.
_RESTAGING, _RESULTS = 16, 1024
_STAGED_CHANNELS = 64
#: Where what follows the convolution before is handed in.
_AFTER_BEFORE = replace(IN_PLACE, pointer=f"{BEFORE}{IN_PLACE.pointer}")


@dataclass(frozen=True, slots=True)
class _Source:
    """What is staged: its kernels, its pointers and constants as text, tiles of an image."""

    kernel: str
    pointers: str
    given: tuple[str, ...]
    tiles: int
    tile: tuple[int, int]
    warps: int


def staged_dtype(detail: VendorConv, knobs: VendorSettings, source: str) -> str:
    """The type in which an operand is staged.

    On the CPU (interpreter) fp32 is not rounded, as eager's TF32 is not there.
    """
    if knobs.is_scaled(detail):
        return f"(torch.float32 if {source}.is_cpu else torch.float16)"
    return f"{source}.dtype"


def channels_last(images: int, channels: int, sizes: tuple[int, ...]) -> str:
    """Shape and strides of an allocation."""
    strides = [1] * len(sizes)
    step = channels
    for place in reversed(range(len(sizes))):
        strides[place] = step
        step *= sizes[place]
    return f"{(images, channels, *sizes)!r}, {(step, 1, *strides)!r}"


def write_staging(detail: VendorConv, knobs: VendorSettings) -> list[str]:
    """The statements that write `staged` and `exponents` of the input."""
    base = detail.base
    padded = knobs.padded_in(detail)
    block_c = min(_STAGED_CHANNELS, next_power_of_two(padded))
    block_p = min(max(16, knobs.stage // block_c), max(16, next_power_of_two(base.inputs)))
    steps = zip(("IMAGE", "C", "P"), detail.source, strict=True)
    given = (
        *port_arguments(AFTER_LOAD, detail.prologue, detail.prologue_steps),
        f"M={base.group_in}, MP={padded}, N={base.inputs}, BATCH_INNER={base.groups}",
        ", ".join(f"X_{name}={step}" for name, step in steps),
        f"SCALED={knobs.is_scaled(detail)}",
    )
    tiles = base.groups * ceil_div(padded, block_c) * ceil_div(base.inputs, block_p)
    source = _Source("stage", "x", given, tiles, (block_c, block_p), 4)
    return _write(detail, knobs, source)


def write_passing(before: VendorConv, detail: VendorConv, knobs: VendorSettings) -> list[str]:
    """The statements that write `staged` and `exponents` of what the convolution before leaves."""
    padded = knobs.padded_in(detail)
    block_c, block_p = finish_tile(before, knobs)
    chain, steps = follow(before, knobs)
    given = (
        *port_arguments(_AFTER_BEFORE, chain, steps),
        *read_arguments(before, knobs, before.base.window),
        f"STAGED_MP={padded}",
    )
    positions = prod(whole_windows(before, before.base.window))
    tiles = ceil_div(padded, block_c) * ceil_div(positions, block_p)
    pointers = read_pointers(before, knobs, BEFORE)
    source = _Source("pass", pointers, given, tiles, (block_c, block_p), knobs.warps)
    return _write(detail, knobs, source)


def _write(detail: VendorConv, knobs: VendorSettings, source: _Source) -> list[str]:
    base, is_scaled = detail.base, knobs.is_scaled(detail)
    sizes = tuple(axis.size for axis in detail.axes)
    placed = f"dtype={staged_dtype(detail, knobs, 'x')}", "device=x.device"
    allocated = channels_last(base.images, base.groups * knobs.padded_in(detail), sizes)
    tiles = source.tiles
    largest = f"torch.empty({base.images * tiles}, dtype=torch.int32, device=x.device)"
    tile = f"BLOCK_C={source.tile[0]}, BLOCK_P={source.tile[1]}"
    statements = [
        write_call("staged = torch.empty_strided", allocated, *placed),
        f"largest = {largest if is_scaled else 'staged  # not written'}",
        write_launch(
            f"kmem_nhwc_{source.kernel}",
            base.images * tiles,
            f"{source.pointers}, largest, staged",
            *source.given,
            f"TILES={tiles}, SCALE={2.0**detail.guess if is_scaled else 1.0}",
            f"{write_order(knobs)}, {tile}",
            f"num_warps={source.warps}",
        ),
    ]
    if not is_scaled:
        return [*statements, "exponents = w_exponents  # not read"]
    parts = min(tiles, _RESTAGING)
    return [
        *statements,
        f"exponents = torch.empty({base.images}, dtype=torch.int32, device=x.device)",
        write_launch(
            f"kmem_nhwc_re{source.kernel}",
            base.images * parts,
            f"{source.pointers}, largest, exponents, staged",
            *source.given,
            f"TILES={tiles}, PARTS={parts}, GUESS={detail.guess}, SLACK={SLACK}",
            f"TOP={BELOW_ONE + detail.image_binades}",
            f"BLOCK={min(_RESULTS, next_power_of_two(tiles))}, {tile}",
            f"num_warps={source.warps}",
        ),
    ]
