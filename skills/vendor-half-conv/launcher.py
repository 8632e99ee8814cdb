"""What launches a vendor's convolution with what is around it, as text."""

from math import prod

from kmem.codegen.chains.ports import AFTER, AFTER_LOAD, hand_in
from kmem.codegen.text.calls import write_call, write_launch, write_launch_function
from kmem.codegen.text.parts import SCALES
from kmem.problem.sizes import next_power_of_two
from kmem.recipes import Emission

from .behind import follow, precede, write_finish, write_statistics
from .chains import name_in, rename
from .kernels import (
    COLUMNS,
    FINISH,
    PASS,
    PASS_TILE,
    READ,
    REPASS,
    RESTAGE,
    STAGE,
    STAGE_TILE,
    WEIGHTS,
)
from .moments import SETTLE, STATISTICS, TOTAL
from .phases import PLACE, Part, phase_parts
from .phases import WEIGHTS as PHASE_WEIGHTS
from .settings import EXACT, VendorSettings
from .staging import BELOW_ONE, channels_last, staged_dtype, write_passing, write_staging
from .vendor import VendorConv, spare_outputs

_WEIGHT_BLOCK = 1024


def emit_vendor(detail: VendorConv, knobs: VendorSettings) -> Emission:
    """The kernels and the launcher at one setting."""
    links = detail.links
    statements: list[str] = []
    parameters = ["x"]
    kernels = [SCALES]
    for place, link in enumerate(links):
        written = [*_write_weights(link, knobs)]
        if link.before is None:
            written += write_staging(link, knobs)
        else:
            written += write_passing(link.before, link, knobs)
        written += [*_write_convolutions(link, knobs), *write_statistics(link, knobs)]
        if link is detail:
            written += [*write_finish(link, knobs), "return out"]
        names = _parameters(link)
        statements += rename(written, names, place)
        parameters += [name_in(name, place) for name in names]
        kernels += _kernels(link, knobs, is_last=link is detail)
    return Emission(
        tuple(dict.fromkeys(kernels)),
        write_launch_function(parameters, statements),
        own_size_only=detail.base.dtype == "float32" and knobs.accuracy < EXACT,
    )


def _parameters(link: VendorConv) -> list[str]:
    """Parameters of a launcher for one convolution, without what is convolved."""
    names = ["w", *(f"e{place}" for place in range(len(link.base.operand_steps)))]
    names += link.statistics.roles if link.statistics is not None else ()
    return [*names, *(f"p{place}" for place in range(len(link.prologue_steps)))]


def _kernels(link: VendorConv, knobs: VendorSettings, *, is_last: bool) -> list[tuple[str, str]]:
    """The kernels of one convolution that its constants or what surrounds it decide."""
    staging, functions = (STAGE_TILE, STAGE, RESTAGE), {AFTER_LOAD: link.prologue}
    if link.before is not None:
        staging, functions = (PASS_TILE, PASS, REPASS), {AFTER: follow(link.before, knobs)[0]}
    weights = PHASE_WEIGHTS if knobs.is_phased(link) else WEIGHTS
    kernels = [
        weights,
        PLACE,
        COLUMNS,
        READ,
        *hand_in(staging if knobs.is_scaled(link) else staging[:2], functions),
    ]
    if link.statistics is not None:
        kernels += hand_in((STATISTICS,), {AFTER: precede(link, knobs)[0]})
        kernels.append(SETTLE if link.is_norm else TOTAL)
    if is_last and not link.is_summed:
        kernels += hand_in((FINISH,), {AFTER: follow(link, knobs)[0]})
    return kernels


def _write_weights(detail: VendorConv, knobs: VendorSettings) -> list[str]:
    """The statements that write `packed` and `w_exponents`."""
    if knobs.is_phased(detail):
        return _write_phase_weights(detail, knobs)
    base = detail.base
    padded_in, padded_out = knobs.padded_in(detail), knobs.padded_out(detail)
    outside, inside = padded_out, padded_in
    if detail.is_transposed:
        outside, inside = inside, outside
    kernel = tuple(axis.kernel for axis in detail.axes)
    placed = f"dtype={staged_dtype(detail, knobs, 'w')}", "device=w.device"
    allocated = channels_last(base.groups * outside, inside, kernel)
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
            f"SCALED={knobs.is_scaled(detail)}, TOP={BELOW_ONE + detail.weight_binades}",
            f"BLOCK={min(_WEIGHT_BLOCK, next_power_of_two(padded_in * base.taps))}",
        ),
    ]


def _write_phase_weights(detail: VendorConv, knobs: VendorSettings) -> list[str]:
    """The statements that write `packed`, `packed1`, ... and `w_exponents` of the phases."""
    padded_out = knobs.padded_out(detail)
    statements = [f"w_exponents = torch.empty({padded_out}, dtype=torch.int32, device=w.device)"]
    for place, part in enumerate(phase_parts(detail)):
        statements += _write_part(detail, knobs, part, _numbered("packed", place))
    return statements


def _write_part(detail: VendorConv, knobs: VendorSettings, part: Part, packed: str) -> list[str]:
    base = detail.base
    padded_in, padded_out = knobs.padded_in(detail), knobs.padded_out(detail)
    rows = prod(part.phases) * padded_out
    placed = f"dtype={staged_dtype(detail, knobs, 'w')}", "device=w.device"
    each = list(zip("DHW", base.axes, part.phases, part.first, strict=True))
    most = max(padded_in * prod(part.taps), base.group_in * base.taps)
    return [
        write_call(
            f"{packed} = torch.empty_strided",
            channels_last(rows, padded_in, part.taps[3 - len(detail.axes) :]),
            *placed,
        ),
        write_launch(
            "kmem_nhwc_phase_weights",
            rows,
            f"w, w_exponents, {packed}",
            f"C={base.group_in}, CP={padded_in}, M={base.group_out}, MP={padded_out}",
            ", ".join(f"K{name}={axis.kernel}, S{name}={axis.stride}" for name, axis, *_ in each),
            ", ".join(f"N{name}={phases}, F{name}={first}" for name, _, phases, first in each),
            f"SCALED={knobs.is_scaled(detail)}, TOP={BELOW_ONE + detail.weight_binades}",
            f"BLOCK={min(_WEIGHT_BLOCK, next_power_of_two(most))}",
        ),
    ]


def _numbered(name: str, place: int) -> str:
    """The name of a part; the first part's has no number."""
    return f"{name}{place or ''}"


def _write_convolutions(detail: VendorConv, knobs: VendorSettings) -> list[str]:
    """The statements that make `y`, channels-last; of phases in parts `y`, `y1`, ..."""
    axes, nothing = detail.axes, [0] * len(detail.axes)
    if knobs.is_phased(detail):
        written = []
        for place, part in enumerate(phase_parts(detail)):
            padding = [count - 1 for count in part.taps[3 - len(axes) :]]
            window = [1] * len(axes), padding, [1] * len(axes)
            names = _numbered("y", place), _numbered("packed", place)
            written.append(_write_convolution(detail, knobs, names, window))
        return written
    spare = nothing if detail.is_transposed else [spare_outputs(axis) or 0 for axis in axes]
    padding = [axis.padding + count for axis, count in zip(axes, spare, strict=True)]
    window = [axis.stride for axis in axes], padding, [axis.dilation for axis in axes]
    wanted = ", ".join([":", ":", *(f"{count}:" for count in spare)])
    return [
        _write_convolution(
            detail, knobs, ("y", "packed"), window, f"[{wanted}]" if any(spare) else ""
        )
    ]


def _write_convolution(
    detail: VendorConv,
    knobs: VendorSettings,
    names: tuple[str, str],
    window: tuple[list[int], list[int], list[int]],
    wanted: str = "",
) -> str:
    """The statement of one call; on the CPU it is torch's own convolution.

    Args:
        names: of the result, and of the weights.
        window: strides, paddings and dilations.
        wanted: what of the result is, as a subscript.
    """
    made, packed = names
    stride, padding = window[:2]
    dilation = window[2]
    is_transposed = detail.is_transposed and not knobs.is_phased(detail)
    more = list(detail.output_padding) if is_transposed else [0] * len(stride)
    call, places = "cudnn_convolution", f"{padding}, {stride}, {dilation}"
    if is_transposed:
        call, places = f"{call}_transpose", f"{padding}, {more}, {stride}, {dilation}"
    takes_tf32 = (
        'torch.backends.cudnn.conv.fp32_precision == "tf32"' if knobs.accuracy < EXACT else "False"
    )
    layout = "channels_last" if len(stride) == 2 else "channels_last_3d"
    groups = detail.base.groups
    return "\n".join(
        [
            f"{made} = (",
            "    torch.convolution(",
            f"        staged, {packed}, None, {stride}, {padding}, {dilation},",
            f"        {is_transposed}, {more}, {groups},",
            "    )",
            "    if x.is_cpu",
            f"    else torch.{call}(",
            f"        staged, {packed}, {places}, {groups},",
            f"        {knobs.algorithm == 'measured'},",
            "        torch.backends.cudnn.deterministic",
            "        or torch.are_deterministic_algorithms_enabled(),",
            f"        {takes_tf32},",
            "    )",
            f"){wanted}.contiguous(memory_format=torch.{layout})",
        ]
    )
