"""What launches the kernels behind a vendor's convolution, as text."""

from dataclasses import replace
from math import prod

from kmem.codegen.chains.epilogue import Epilogue
from kmem.codegen.chains.ports import AFTER, IN_PLACE, port_arguments
from kmem.codegen.text.calls import write_call, write_launch
from kmem.problem.sizes import ceil_div, next_power_of_two

from .lines import in_windows, line_columns
from .phases import long_phases, phase_parts
from .settings import VendorSettings, as_exact, write_order
from .vendor import VendorConv, whole_windows

#: Elements of a warp whose statistics are kept in registers.
_SUMMED = 512
#: Programs that fill a device a few times over; tiles of one, at most.
_PROGRAMS, _MOST_STEPS = 2048, 32
_ROLES = ("weight", "bias", "running_mean", "running_var")
#: What a norm subtracts, multiplies by and adds, as its statements call them.
_MOMENTS = "mean", "scale", "shift"
#: Results that one program reads at a time.
_RESULTS = 1024


def read_arguments(
    detail: VendorConv, knobs: VendorSettings, window: tuple[int, ...]
) -> tuple[str, ...]:
    """Arguments by which kernels read whole windows of what the library made."""
    base = detail.base
    outs = whole_windows(detail, window)
    places = [axis.out for axis in base.axes]
    strides, paddings = [1, 1, 1], [0, 0, 0]
    longs = [0, 0, 0]
    if knobs.is_phased(detail):
        places = list(phase_parts(detail)[0].places)
        strides = [axis.stride for axis in base.axes]
        paddings = [axis.padding for axis in base.axes]
        longs = [long_phases(axis) for axis in base.axes]
    named = {"S": strides, "P": paddings, "R": longs, "W": window}
    return (
        f"M={base.group_out}, MP={knobs.padded_out(detail)}, N={prod(outs)}",
        f"BATCH_INNER={base.groups}, YN={prod(places)}, YH={places[1]}, YW={places[2]}",
        f"OH={outs[1]}, OW={outs[2]}",
        ", ".join(
            f"{name}{letter}={size}"
            for name, sizes in named.items()
            for letter, size in zip("DHW", sizes, strict=True)
        ),
        f"SCALED={knobs.is_scaled(detail)}",
    )


def read_pointers(detail: VendorConv, knobs: VendorSettings, before: str = "") -> str:
    """What kernels read of what the library made, as text.

    Args:
        before: what the names begin with.
    """
    parts = len(phase_parts(detail)) if knobs.is_phased(detail) else 1
    more = " ".join(f"{before}y{place}," for place in range(1, parts))
    return f"{before}y, ({more}), {before}exponents, {before}w_exponents"


#: What a port is handed, and the steps of its operands.
_Handed = tuple[Epilogue, tuple[tuple[int, int, int, int], ...]]


def follow(detail: VendorConv, knobs: VendorSettings) -> _Handed:
    """What follows a convolution; moments of a norm are operands behind those of the graph."""
    chain, steps = as_exact(detail.base.epilogue, knobs), detail.base.operand_steps
    if detail.lines is not None:
        chain = replace(chain, statements=tuple(in_windows(detail, chain.statements)))
    if detail.statistics is None or not detail.is_norm:
        return chain, steps
    image = 0 if detail.statistics.over_images else detail.base.channels_out
    read = [(name, f"x{place}") for place, name in enumerate(_MOMENTS, len(steps))]
    whole = replace(
        chain,
        statements=(*read, *chain.statements),
        operands=(*chain.operands, *_MOMENTS),
    )
    return whole, (*steps, *[(image, detail.base.group_out, 1, 0)] * len(_MOMENTS))


def precede(detail: VendorConv, knobs: VendorSettings) -> _Handed:
    """What is done before values are summed."""
    before = detail.statistics.before if detail.statistics is not None else Epilogue()
    return as_exact(before, knobs), detail.base.operand_steps[: len(before.operands)]


def write_statistics(detail: VendorConv, knobs: VendorSettings) -> list[str]:
    """The statements that sum over positions: what a norm makes, or `out`."""
    statistics, base = detail.statistics, detail.base
    if statistics is None:
        return []
    before, steps = precede(detail, knobs)
    block_c, block_p = statistics_tile(detail, knobs)
    window = (1, 1, 1) if detail.is_norm else base.window
    count = prod(whole_windows(detail, window))
    tiles = ceil_div(count, block_p)
    blocks = base.batches * ceil_div(base.group_out, block_c)
    turns = max(1, min(_MOST_STEPS, blocks * tiles // _PROGRAMS))
    parts = ceil_div(tiles, turns)
    size = base.images * parts * base.channels_out
    places = "dtype=torch.float32, device=x.device"
    statements = [
        f"found = torch.empty({size}, {places})",
        f"squares = torch.empty({size}, {places})" if detail.is_norm else "squares = found",
        write_launch(
            "kmem_nhwc_statistics",
            blocks * parts,
            f"{read_pointers(detail, knobs)}, found, squares",
            *port_arguments(IN_PLACE, before, steps),
            *read_arguments(detail, knobs, window),
            f"CENTRED={detail.is_norm}, PARTS={parts}, TURNS={turns}",
            f"BLOCK_C={block_c}, BLOCK_P={block_p}",
            f"num_warps={knobs.warps}",
        ),
    ]
    values = count // prod(window)
    part = turns * block_p // prod(window)
    sets = base.channels_out // statistics.channels
    if not detail.is_norm:
        spec = detail.result_spec
        out = f"{spec.shape!r}, {spec.stride!r}", "dtype=x.dtype", "device=x.device"
        return [
            *statements,
            write_call("out = torch.empty_strided", *out),
            write_launch(
                "kmem_nhwc_total",
                base.images * sets,
                "found, out",
                f"C={base.channels_out}, CHANNELS={statistics.channels}, PARTS={parts}",
                f"FACTOR={statistics.factor!r}",
                f"BLOCK={min(_RESULTS, next_power_of_two(parts * statistics.channels))}",
            ),
        ]
    images = 1 if statistics.over_images else base.images
    rows = base.images * parts // images
    total = base.images // images * statistics.channels * values
    first = len(base.operand_steps)
    moments = [f"{AFTER.pointer}{first + place}" for place in range(len(_MOMENTS))]
    given = [role if role in statistics.roles else "found" for role in _ROLES]
    return [
        *statements,
        *(f"{name} = torch.empty({images * base.channels_out}, {places})" for name in moments),
        write_launch(
            "kmem_nhwc_settle",
            images * sets,
            f"found, squares, {', '.join((*moments, *given))}",
            f"C={base.channels_out}, CHANNELS={statistics.channels}, ROWS={rows}, PARTS={parts}",
            f"POSITIONS={values}, PART={part}, TOTAL={total}",
            f"EPS={statistics.eps!r}, WEIGHTED={'weight' in statistics.roles}",
            f"BIASED={'bias' in statistics.roles}, RUNNING={'running_mean' in statistics.roles}",
            f"MOMENTUM={statistics.momentum!r}",
            f"BLOCK={min(_RESULTS, next_power_of_two(rows * statistics.channels))}",
            f"BLOCK_C={next_power_of_two(statistics.channels)}",
        ),
    ]


def write_finish(detail: VendorConv, knobs: VendorSettings) -> list[str]:
    """The statements that write `out`, where the positions of images are kept."""
    if detail.is_summed:
        return []
    base, spec = detail.base, detail.result_spec
    chain, operand_steps = follow(detail, knobs)
    block_c, block_p = finish_tile(detail, knobs)
    tiles = ceil_div(base.group_out, block_c) * ceil_div(
        prod(whole_windows(detail, detail.base.window)), block_p
    )
    steps = zip(("IMAGE", "C", "P"), detail.result, strict=True)
    return [
        write_call(
            "out = torch.empty_strided",
            f"{spec.shape!r}, {spec.stride!r}",
            "dtype=x.dtype",
            "device=x.device",
        ),
        write_launch(
            "kmem_nhwc_finish",
            base.batches * tiles,
            f"{read_pointers(detail, knobs)}, out",
            *port_arguments(AFTER, chain, operand_steps),
            *read_arguments(detail, knobs, base.window),
            ", ".join(f"OUT_{name}={step}" for name, step in steps),
            f"{write_order(knobs)}, STREAMS={knobs.hint == 'stream'}",
            f"BLOCK_C={block_c}, BLOCK_P={block_p}",
            f"num_warps={knobs.warps}",
        ),
    ]


def finish_tile(detail: VendorConv, knobs: VendorSettings) -> tuple[int, int]:
    """Channels and positions of a tile of the result."""
    base = detail.base
    whole = next_power_of_two(base.group_out)
    channels = whole if base.is_closed else min(knobs.channels, whole)
    if detail.lines is not None:
        channels = min(channels, max(1, knobs.finish // line_columns(detail)))
    return _tile(detail, channels, knobs.finish)


def statistics_tile(detail: VendorConv, knobs: VendorSettings) -> tuple[int, int]:
    """Channels and positions of a tile that is summed, which has three values of each in place."""
    most = next_power_of_two(detail.base.group_out)
    held = _SUMMED * knobs.warps * min(2, prod(detail.base.window))
    return _tile(detail, min(knobs.channels, most), min(knobs.finish, held))


def _tile(detail: VendorConv, channels: int, elements: int) -> tuple[int, int]:
    least = max(16, prod(detail.base.window), line_columns(detail))
    most = max(least, next_power_of_two(prod(whole_windows(detail, detail.base.window))))
    return channels, min(max(least, elements // channels), most)
