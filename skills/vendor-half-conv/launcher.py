"""What launches a vendor's convolution with what is around it, as text."""

from dataclasses import dataclass
from math import prod

from kmem.codegen.approximate import approximate
from kmem.codegen.calls import write_call, write_launch, write_launch_function
from kmem.codegen.epilogue import Epilogue
from kmem.codegen.parts import SCALES
from kmem.codegen.ports import AFTER_LOAD, IN_PLACE, hand_in, port_arguments
from kmem.codegen.settings import read_settings
from kmem.problem.sizes import ceil_div, next_power_of_two
from kmem.recipes import Emission, Settings

from .kernels import FINISH, RESTAGE, STAGE, STAGE_TILE, WEIGHTS
from .vendor import SLACK, VendorConv, spare_outputs

#: Exponent of fp32 numbers in [2**-1, 1), as their bits have it.
_BELOW_ONE = 126
#: Programs that stage an image again, and results that they read at a time, at most.
_RESTAGING, _RESULTS = 16, 1024
_WEIGHT_BLOCK = 1024
_STAGED_CHANNELS = 64
EXACT = 2  # the rung of fp32 without tensor cores


@dataclass(frozen=True, slots=True)
class VendorSettings:
    """The knobs of a vendor's convolution.

    `algorithm`: whether the library measures its kernels, or guesses. `vector`: channels of a group
    are padded to multiples of it. `stage` and `finish` are elements of a tile that is staged, and
    of one of the result, `channels` the latter's channels at most. `order`: in which the kernels
    around the library's go through their tiles. `hint`: whether the last marks what it reads and
    writes once to leave the cache first. `accuracy`: rung 0 is half precision, scaled where
    it stands for fp32; 1 is TF32 and 2 fp32, both channels-last.
    """

    algorithm: str
    vector: int
    stage: int
    channels: int
    finish: int
    warps: int
    order: str = "forward"
    hint: str = "keep"
    accuracy: int = 0

    def is_scaled(self, detail: VendorConv) -> bool:
        """Whether fp32 is convolved in half precision."""
        return detail.base.dtype == "float32" and self.accuracy == 0

    def padded_in(self, detail: VendorConv) -> int:
        return ceil_div(detail.base.group_in, self.vector) * self.vector

    def padded_out(self, detail: VendorConv) -> int:
        """Output channels of a group as the library makes them."""
        vector = max(self.vector, 8)
        return ceil_div(detail.base.group_out, vector) * vector


def read_knobs(settings: Settings) -> VendorSettings:
    """The settings of a site as a record."""
    return read_settings(VendorSettings, settings)


def emit_vendor(detail: VendorConv, knobs: VendorSettings) -> Emission:
    """The kernels and the launcher at one setting."""
    statements = [
        *_write_weights(detail, knobs),
        *_write_staging(detail, knobs),
        _write_convolution(detail, knobs),
        *_write_finish(detail, knobs),
        "return out",
    ]
    names = [f"e{place}" for place in range(len(detail.base.operand_steps))]
    names += [f"p{place}" for place in range(len(detail.prologue_steps))]
    staging = (STAGE_TILE, STAGE, RESTAGE) if knobs.is_scaled(detail) else (STAGE_TILE, STAGE)
    epilogue = _epilogue(detail, knobs)
    kernels = [
        SCALES,
        WEIGHTS,
        *hand_in(staging, {AFTER_LOAD: detail.prologue}),
        *hand_in((FINISH,), {IN_PLACE: epilogue}),
    ]
    return Emission(
        tuple(dict.fromkeys(kernels)),
        write_launch_function(["x", "w", *names], statements),
        own_size_only=detail.base.dtype == "float32" and knobs.accuracy < EXACT,
    )


def _epilogue(detail: VendorConv, knobs: VendorSettings) -> Epilogue:
    """What follows, as exact as what it follows."""
    epilogue = detail.base.epilogue
    return epilogue if knobs.accuracy == EXACT else approximate(epilogue)


def _dtype(detail: VendorConv, knobs: VendorSettings, source: str) -> str:
    """The type in which an operand is staged.

    On the CPU (interpreter) fp32 is not rounded, as eager's TF32 is not there.
    """
    if knobs.is_scaled(detail):
        return f"(torch.float32 if {source}.is_cpu else torch.float16)"
    return f"{source}.dtype"


def _channels_last(images: int, channels: int, sizes: tuple[int, ...]) -> str:
    """Shape and strides of an allocation."""
    strides = [1] * len(sizes)
    step = channels
    for place in reversed(range(len(sizes))):
        strides[place] = step
        step *= sizes[place]
    return f"{(images, channels, *sizes)!r}, {(step, 1, *strides)!r}"


def _write_weights(detail: VendorConv, knobs: VendorSettings) -> list[str]:
    """The statements that write `packed` and `w_exponents`."""
    base = detail.base
    padded_in, padded_out = knobs.padded_in(detail), knobs.padded_out(detail)
    outside, inside = padded_out, padded_in
    if detail.is_transposed:
        outside, inside = inside, outside
    kernel = tuple(axis.kernel for axis in detail.axes)
    placed = f"dtype={_dtype(detail, knobs, 'w')}", "device=w.device"
    allocated = _channels_last(base.groups * outside, inside, kernel)
    rows = base.groups * padded_out
    return [
        write_call("packed = torch.empty_strided", allocated, *placed),
        f"w_exponents = torch.empty({rows}, dtype=torch.int32, device=w.device)",
        write_launch(
            "kmem_nhwc_weights",
            rows,
            "w, w_exponents, packed",
            f"C={base.group_in}, CP={padded_in}, M={base.group_out}, MP={padded_out}",
            f"TAPS={base.taps}, TRANSPOSED={detail.is_transposed}",
            f"SCALED={knobs.is_scaled(detail)}, TOP={_BELOW_ONE + detail.weight_binades}",
            f"BLOCK={min(_WEIGHT_BLOCK, next_power_of_two(padded_in * base.taps))}",
        ),
    ]


def _write_staging(detail: VendorConv, knobs: VendorSettings) -> list[str]:
    """The statements that write `staged` and `exponents`."""
    base = detail.base
    padded = knobs.padded_in(detail)
    block_c = min(_STAGED_CHANNELS, next_power_of_two(padded))
    block_p = min(max(16, knobs.stage // block_c), max(16, next_power_of_two(base.inputs)))
    tiles = base.groups * ceil_div(padded, block_c) * ceil_div(base.inputs, block_p)
    sizes = tuple(axis.size for axis in detail.axes)
    steps = zip(("IMAGE", "C", "P"), detail.source, strict=True)
    given = (
        *port_arguments(AFTER_LOAD, detail.prologue, detail.prologue_steps),
        f"M={base.group_in}, MP={padded}, N={base.inputs}, BATCH_INNER={base.groups}",
        ", ".join(f"X_{name}={step}" for name, step in steps),
    )
    tile = f"BLOCK_C={block_c}, BLOCK_P={block_p}"
    suffix, is_scaled = detail.prologue.suffix, knobs.is_scaled(detail)
    placed = f"dtype={_dtype(detail, knobs, 'x')}", "device=x.device"
    allocated = _channels_last(base.images, base.groups * padded, sizes)
    largest = f"torch.empty({base.images * tiles}, dtype=torch.int32, device=x.device)"
    scale = 2.0**detail.guess if is_scaled else 1.0
    statements = [
        write_call("staged = torch.empty_strided", allocated, *placed),
        f"largest = {largest if is_scaled else 'staged  # not written'}",
        write_launch(
            f"kmem_nhwc_stage{suffix}",
            base.images * tiles,
            "x, largest, staged",
            *given,
            f"TILES={tiles}, SCALE={scale}, SCALED={is_scaled}, {_order(knobs)}, {tile}",
            "num_warps=4",
        ),
    ]
    if not is_scaled:
        return [*statements, "exponents = w_exponents  # not read"]
    parts = min(tiles, _RESTAGING)
    return [
        *statements,
        f"exponents = torch.empty({base.images}, dtype=torch.int32, device=x.device)",
        write_launch(
            f"kmem_nhwc_restage{suffix}",
            base.images * parts,
            "x, largest, exponents, staged",
            *given,
            f"TILES={tiles}, PARTS={parts}, GUESS={detail.guess}, SLACK={SLACK}",
            f"TOP={_BELOW_ONE + detail.image_binades}",
            f"BLOCK={min(_RESULTS, next_power_of_two(tiles))}, {tile}",
            "num_warps=4",
        ),
    ]


def _write_convolution(detail: VendorConv, knobs: VendorSettings) -> str:
    """The statement that makes `y`, channels-last; on the CPU by torch's own convolution."""
    axes, nothing = detail.axes, [0] * len(detail.axes)
    stride = [axis.stride for axis in axes]
    spare = nothing if detail.is_transposed else [spare_outputs(axis) or 0 for axis in axes]
    padding = [axis.padding + count for axis, count in zip(axes, spare, strict=True)]
    wanted = ", ".join([":", ":", *(f"{count}:" for count in spare)])
    dilation, groups = [axis.dilation for axis in axes], detail.base.groups
    more = list(detail.output_padding) or nothing
    window = f"{padding}, {stride}, {dilation}"
    call = "cudnn_convolution"
    if detail.is_transposed:
        window, call = f"{padding}, {more}, {stride}, {dilation}", "cudnn_convolution_transpose"
    takes_tf32 = (
        'torch.backends.cudnn.conv.fp32_precision == "tf32"' if knobs.accuracy < EXACT else "False"
    )
    layout = "channels_last" if len(axes) == 2 else "channels_last_3d"
    return "\n".join(
        [
            "y = (",
            "    torch.convolution(",
            f"        staged, packed, None, {stride}, {padding}, {dilation},",
            f"        {detail.is_transposed}, {more}, {groups},",
            "    )",
            "    if x.is_cpu",
            f"    else torch.{call}(",
            f"        staged, packed, {window}, {groups},",
            f"        {knobs.algorithm == 'measured'},",
            "        torch.backends.cudnn.deterministic",
            "        or torch.are_deterministic_algorithms_enabled(),",
            f"        {takes_tf32},",
            "    )",
            f"){f'[{wanted}]' if any(spare) else ''}.contiguous(memory_format=torch.{layout})",
        ]
    )


def _write_finish(detail: VendorConv, knobs: VendorSettings) -> list[str]:
    """The statements that write `out`."""
    base, spec = detail.base, detail.result_spec
    epilogue = _epilogue(detail, knobs)
    block_c, block_p = finish_tile(detail, knobs)
    tiles = ceil_div(base.group_out, block_c) * ceil_div(base.positions, block_p)
    steps = zip(("IMAGE", "C", "P"), detail.result, strict=True)
    return [
        write_call(
            "out = torch.empty_strided",
            f"{spec.shape!r}, {spec.stride!r}",
            "dtype=x.dtype",
            "device=x.device",
        ),
        write_launch(
            f"kmem_nhwc_finish{epilogue.suffix}",
            base.batches * tiles,
            "y, exponents, w_exponents, out",
            *port_arguments(IN_PLACE, epilogue, base.operand_steps),
            f"M={base.group_out}, MP={knobs.padded_out(detail)}, N={base.positions}",
            f"BATCH_INNER={base.groups}",
            ", ".join(f"OUT_{name}={step}" for name, step in steps),
            f"SCALED={knobs.is_scaled(detail)}, {_order(knobs)}, STREAMS={knobs.hint == 'stream'}",
            f"BLOCK_C={block_c}, BLOCK_P={block_p}",
            f"num_warps={knobs.warps}",
        ),
    ]


def finish_tile(detail: VendorConv, knobs: VendorSettings) -> tuple[int, int]:
    """Channels and positions of a tile of the result."""
    base = detail.base
    block_c = min(knobs.channels, next_power_of_two(base.group_out))
    most = max(16, next_power_of_two(base.positions))
    return block_c, min(max(16, knobs.finish // block_c), most)


def _order(knobs: VendorSettings) -> str:
    return f"BACKWARD={knobs.order == 'backward'}"


def staged_elements(detail: VendorConv, knobs: VendorSettings) -> tuple[int, int]:
    """Elements that are staged, and that the library makes."""
    base = detail.base
    inside = base.batches * knobs.padded_in(detail) * base.inputs
    return inside, base.batches * knobs.padded_out(detail) * prod(axis.out for axis in base.axes)
