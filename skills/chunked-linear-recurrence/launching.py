"""The launches of both forms of a scan."""

from collections.abc import Mapping

from kmem.codegen.text.calls import write_call, write_launch
from kmem.problem.sizes import ceil_div, next_power_of_two

from .scan import Scan, ScanSettings, columns_of, padded, precision_of

#: Elements of a state that one program passes on.
PASSED_ELEMENTS = 256
_AXES = {
    "a": ("outer", "inner", "chunk", "place"),
    "b": ("outer", "inner", "chunk", "place", "state"),
    "c": ("outer", "inner", "chunk", "place", "state"),
    "x": ("outer", "inner", "chunk", "place", "column"),
    "y": ("outer", "inner", "chunk", "place", "column"),
    "first": ("outer", "inner", "state", "column"),
    "last": ("outer", "inner", "state", "column"),
}


def parameters_of(scan: Scan) -> list[str]:
    """The tensors that a launcher takes, in the order of the site's inputs."""
    return [name for name in ("a", "b", "c", "x", "first") if name in scan.steps]


def write_results(scan: Scan) -> tuple[list[str], str]:
    """The statements that allocate the results, and what is returned."""
    names = [name for name in ("y", "last") if name in scan.steps]
    statements = [
        write_call(
            f"{name} = torch.empty_strided",
            f"{spec.shape!r}, {spec.stride!r}",
            "dtype=torch.float32, device=x.device",
        )
        for name, spec in zip(names, scan.outputs, strict=True)
    ]
    return statements, ", ".join(names)


def write_fused(scan: Scan, knobs: ScanSettings) -> list[str]:
    """Running sums, and the launch that does everything else."""
    names = ("b", "c", "x", "first", "y", "last")
    given = {name: _given(scan, name) for name in names}
    return [
        *_write_sums(scan),
        write_launch(
            "kmem_chunked_fused",
            scan.rows * columns_of(scan, knobs),
            f"{given['b']}, {given['c']}, x, sums, {given['first']}, {given['y']}, {given['last']}",
            _sizes(scan),
            *(_write_steps(scan, name) for name in names),
            _traits(scan),
            _tile(scan, knobs),
            knobs.run,
        ),
    ]


def _write_sums(scan: Scan) -> list[str]:
    places, length = scan.rows * scan.chunks, scan.sizes["place"]
    return [
        f"sums = torch.empty({places * length}, dtype=torch.float64, device=x.device)",
        write_launch(
            "kmem_chunked_sums",
            places,
            "a, sums",
            _sizes(scan, "inner", "chunk", "place"),
            _write_steps(scan, "a"),
            f"BLOCK_L={next_power_of_two(length)}, num_warps=1",
        ),
    ]


def write_chunked(scan: Scan, knobs: ScanSettings) -> list[str]:
    """Running sums, states of chunks, states passed on, and y."""
    places = scan.rows * scan.chunks
    length = scan.sizes["place"]
    elements = scan.sizes["state"] * scan.sizes["column"]
    block = min(PASSED_ELEMENTS, next_power_of_two(elements))
    columns = columns_of(scan, knobs)
    statements = [
        *_write_sums(scan),
        f"fed = torch.empty({scan.state_elements}, dtype=torch.float32, device=x.device)",
        write_launch(
            "kmem_chunked_states",
            places * columns,
            "b, x, sums, fed",
            _sizes(scan),
            *(_write_steps(scan, name) for name in "bx"),
            _tile(scan, knobs),
            knobs.run,
        ),
        *(("before = torch.empty_like(fed)",) if scan.has_y else ()),
        write_launch(
            "kmem_chunked_pass_on",
            scan.rows * ceil_div(elements, block),
            f"fed, sums, {_given(scan, 'first')}",
            f"{'before' if scan.has_y else 'fed'}, {_given(scan, 'last')}",
            _sizes(scan),
            *(_write_steps(scan, name) for name in ("first", "last")),
            _traits(scan),
            f"BLOCK_E={block}, num_warps=4",
        ),
    ]
    if scan.has_y:
        statements.append(
            write_launch(
                "kmem_chunked_output",
                places * columns * ceil_div(length, knobs.block_l),
                "b, c, x, sums, before, y",
                _sizes(scan),
                *(_write_steps(scan, name) for name in "bcxy"),
                _tile(scan, knobs),
                knobs.run,
            )
        )
    return statements


def _given(scan: Scan, name: str) -> str:
    """An argument; one that a kernel does not read stands for what there is none of."""
    return name if name in scan.steps else "x"


_SIZES: Mapping[str, str] = {
    "inner": "INNER",
    "chunk": "CHUNKS",
    "place": "LENGTH",
    "state": "STATE",
    "column": "COLUMNS",
}


def _sizes(scan: Scan, *axes: str) -> str:
    return ", ".join(f"{_SIZES[axis]}={scan.sizes[axis]}" for axis in axes or _SIZES)


def _write_steps(scan: Scan, name: str) -> str:
    steps = scan.steps.get(name, {})
    return ", ".join(f"{name.upper()}_{axis.upper()}={steps.get(axis, 0)}" for axis in _AXES[name])


def _traits(scan: Scan) -> str:
    return (
        f"SUMS={scan.sums}, FIRST={'first' in scan.steps}, HAS_Y={scan.has_y}, "
        f"HAS_LAST={'last' in scan.steps}"
    )


def _tile(scan: Scan, knobs: ScanSettings) -> str:
    return (
        f"PRECISION={precision_of(scan, knobs)!r}, BLOCK_L={knobs.block_l}, "
        f"BLOCK_N={padded(scan.sizes['state'])}, BLOCK_P={knobs.block_p}"
    )
