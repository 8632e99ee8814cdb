"""Products whose operands are split while they are read: launches, legality, a rough time.

Kernels in in_loop_kernels.py.
"""

from collections.abc import Sequence

from kmem.codegen.products.contraction import Product
from kmem.codegen.products.matmul import operand_arguments
from kmem.codegen.products.tuning import SHARE_OF_BANDWIDTH, partial_bytes, tile_count
from kmem.codegen.rates import ceiling, sm_issues_per_s
from kmem.codegen.text.calls import write_call, write_launch
from kmem.problem.sizes import ceil_div, next_power_of_two
from kmem.records import Device

from .knobs import SplitSettings, effort, is_compensated, terms_of

#: Rows and columns of a piece of a tile that one program mends, and its steps of K. Compiled for
#: sm_90: 64 x 64 x 16 does not spill.
PIECE, PIECE_K = 64, 16
#: Elements of a block of the pass for the scales, 64 to a thread, and of its side that is not
#: contiguous.
SCALES_BLOCK, SCALES_LINES = 8192, 32
#: Instructions of a step: for an element of an operand (scale, two roundings, to and from shared
#: memory), for one of the output (unscale, add), and for each thread beside these. Source: SASS for
#: sm_90 of the loops of 128x128x64 and 128x128x32 on 8 warps (812, 569) and 64x128x32 on 4 (688).
_PER_OPERAND = 6.5
_PER_OUTPUT = 3.0
_PER_THREAD = 200.0
#: The same for one of the output whose total is compensated: four additions and a select more.
_PER_COMPENSATION = 5.0
#: From the end of the loads of a step to its last tensor-core product, beside work that issues: two
#: barriers and latencies. Not measured yet.
_STEP_LATENCY_S = 0.3e-6
#: Of a thread: values of the tiles that its registers hold at most (192 take 253 registers; with
#: 224, 64x128x64 on 4 warps, 80 bytes spilled), and registers beside them.
_MOST_VALUES, _OTHER_REGISTERS = 192, 30


def in_loop_splits(knobs: SplitSettings) -> int:
    """Splits of K that a setting stands for.

    There are two at least, for the sums must lie in scratch until they are mended.
    """
    return max(2, knobs.splits)


def write_in_loop(product: Product, knobs: SplitSettings) -> list[str]:
    """The launches that write `target`, the sums of every split."""
    splits = in_loop_splits(knobs)
    steps = _steps(product, knobs)
    tiles_m, tiles_n = tile_count(product, knobs)
    programs = tiles_m * tiles_n * splits * product.batches
    piece_m, piece_n = min(PIECE, knobs.block_m), min(PIECE, knobs.block_n)
    pieces = (knobs.block_m // piece_m) * (knobs.block_n // piece_n)
    shared = (
        f"M={product.m.size}, N={product.n.size}, BATCH={product.batches}, "
        f"BATCH_INNER={product.batch[1].size}",
        *operand_arguments(product),
        f"STEPS={steps}, SPLITS={splits}",
        f"BLOCK_M={knobs.block_m}, BLOCK_N={knobs.block_n}, BLOCK_K={knobs.block_k}",
    )
    multiply = write_launch(
        "kmem_split_in_loop",
        programs,
        "a, b, a_exponents, b_exponents, a_left_out, b_left_out, target",
        *shared,
        f"TERMS={terms_of(product, knobs)}, COMPENSATED={is_compensated(product, knobs)}",
        f"num_warps={knobs.warps}, num_stages={knobs.stages}",
    )
    mend = write_launch(
        "kmem_mend_steps",
        programs * pieces,
        "a, b, a_left_out, b_left_out, target",
        *shared,
        f"PADDED_STEPS={next_power_of_two(steps)}",
        f"PIECE_M={piece_m}, PIECE_N={piece_n}, PIECE_K={PIECE_K}",
        "num_warps=4, num_stages=2",
    )
    return [
        *_write_scales(product, "a", knobs.block_m, knobs.block_k),
        *_write_scales(product, "b", knobs.block_n, knobs.block_k),
        multiply,
        mend,
    ]


def _steps(product: Product, knobs: SplitSettings) -> int:
    """Steps of K in one split, at most."""
    return ceil_div(ceil_div(product.k.size, knobs.block_k), in_loop_splits(knobs))


def _write_scales(product: Product, name: str, tile: int, block_k: int) -> list[str]:
    """The statements that write one operand's exponents and the steps to leave out."""
    axis = product.m if name == "a" else product.n
    outer, inner = product.batch
    padded, all_steps = ceil_div(axis.size, tile) * tile, ceil_div(product.k.size, block_k)
    lines = min(tile, SCALES_LINES if getattr(product.k, name) == 1 else SCALES_BLOCK // block_k)
    steps = min(next_power_of_two(all_steps), max(1, SCALES_BLOCK // (lines * block_k)))
    exponents = (product.batches, all_steps, padded)
    left_out = (product.batches, padded // tile, all_steps)
    return [
        write_call(
            f"{name}_exponents = torch.empty",
            f"{exponents!r}, dtype=torch.int32, device={name}.device",
        ),
        write_call(
            f"{name}_left_out = torch.zeros",
            f"{left_out!r}, dtype=torch.int8, device={name}.device",
        ),
        write_launch(
            "kmem_step_scales",
            product.batches * (padded // lines) * ceil_div(all_steps, steps),
            f"{name}, {name}_exponents, {name}_left_out",
            f"LINES={axis.size}, K={product.k.size}, BATCH_INNER={inner.size}",
            f"X_OUTER={getattr(outer, name)}, X_INNER={getattr(inner, name)}, "
            f"X_LINE={getattr(axis, name)}, X_K={getattr(product.k, name)}",
            f"PADDED_LINES={padded}, ALL_STEPS={all_steps}, TILE={tile}",
            f"BLOCK_L={lines}, BLOCK_S={steps}, BLOCK_K={block_k}, num_warps=4",
        ),
    ]


def is_legal_in_loop(product: Product, knobs: SplitSettings, device: Device) -> bool:
    """Whether a setting fits registers and shared memory.

    Registers hold a sum and a total of the output's tile, and the elements of both operands' tiles.
    """
    # one split would be two, as in_loop_splits says; every step is a chain of its own already
    if effort(product, knobs) > 1:
        return False
    if knobs.splits < 2 or knobs.block_m != 16 * knobs.warps:
        return False
    threads = knobs.warps * device.warp_size
    sums = 3 if is_compensated(product, knobs) else 2
    values = (sums * knobs.elements + knobs.step_elements) / threads
    shared = knobs.step_elements * 4 * knobs.stages
    fits = values <= _MOST_VALUES and shared <= device.shared_bytes_per_block
    return fits and knobs.splits <= ceil_div(product.k.size, knobs.block_k)


def in_loop_cost_ms(
    product: Product, knobs: SplitSettings, device: Device, scaled: Sequence[int]
) -> float:
    """Time of the launches before the splits are added, where no step has to be mended.

    Per step and SM the instructions of all programs there, or one program's instructions, products
    and latency one after the other.

    Args:
        scaled: bytes of each operand whose scales are looked for at every call.
    """
    splits, threads = in_loop_splits(knobs), knobs.warps * device.warp_size
    tiles_m, tiles_n = tile_count(product, knobs)
    programs = tiles_m * tiles_n * product.batches * splits
    elements, outputs = knobs.step_elements, knobs.elements
    per_output = _PER_OUTPUT + (_PER_COMPENSATION if is_compensated(product, knobs) else 0.0)
    per_thread = (_PER_OPERAND * elements + per_output * outputs) / threads + _PER_THREAD
    issue_s = knobs.warps * per_thread / sm_issues_per_s(device)
    rate = ceiling(device, "fp16") / device.sm_count
    tensor_s = 2.0 * terms_of(product, knobs) * outputs * knobs.block_k / rate
    registers = (2 * outputs + elements) // threads + _OTHER_REGISTERS
    fits = min(
        device.registers_per_sm // (registers * threads),
        device.shared_bytes_per_sm // (elements * 4 * knobs.stages),
    )
    per_sm = ceil_div(programs, device.sm_count)
    resident = max(1, min(fits, per_sm))
    step_s = max(issue_s, tensor_s, (issue_s + tensor_s + _STEP_LATENCY_S) / resident)
    # The operands are read for their scales and to be multiplied; the scratch is written, read by
    # the mending programs only where they must, and read again to be added.
    bandwidth = SHARE_OF_BANDWIDTH * device.dram_bytes_per_s
    scales_s = sum(scaled) / bandwidth
    bytes_s = (sum(product.operand_bytes) + partial_bytes(product, splits)) / bandwidth
    compute_s = per_sm * _steps(product, knobs) * step_s
    launches_ms = (3 + 2 * len(scaled)) * device.launch_ms
    return (scales_s + max(compute_s, bytes_s)) * 1e3 + launches_ms
