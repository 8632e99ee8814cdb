"""Writes products of one large matrix with one to sixteen vectors.

Memory is the limit, so the matrix is read once, wide and in order.

Which sites, knobs and times are here; the kernel is in kernel.py.
"""

from collections.abc import Sequence
from math import log2

from kmem.codegen.products.contraction import Product
from kmem.codegen.products.sites import find_products
from kmem.codegen.products.tuning import operand_width, partial_bytes
from kmem.codegen.settings import read_settings
from kmem.problem.graph import OpGraph
from kmem.problem.sizes import ceil_div, next_power_of_two
from kmem.recipes import ACCURACY, Emission, Recipe, Role, Settings, Site, Space
from kmem.records import Contract, Device

from .kernel import MatvecSettings, added_at_once, emit_matvec, is_compensated, roles_of

#: More vectors than this belong to the tensor cores.
MAX_VECTORS = 16
#: Bytes of one step and thread that its registers hold: 40 to 80 registers in fp32 and bf16.
#: Source: Triton 3.6 for sm_90.
MOST_BYTES = 256
#: Warps of a multiprocessor, with a step's loads on their way, at which a matrix arrives at half
#: speed. Source: H200, 2026-11-22, 2048 x 1048576 in fp32 and bf16: 8, 16 and 31 warps took 1.13 to
#: 1.4, 1.01 to 1.06 and 1.00 to 1.01 times the time of the best.
_HALF_SPEED_WARPS = 3.0
#: The same of bytes on their way, at 4.37e12 bytes/s: 8.2 MB took 1.01 to 1.06 times the time of
#: the best, 16.4 MB 1.00 to 1.05. A faster memory needs more of them.
_HALF_SPEED_BYTES, _HALF_SPEED_BYTES_PER_S = 1.3e6, 4.37e12
#: What reading half as many bytes of a line before the next costs, from so many on. Source: as
#: above, bf16: runs of 4 KB, 2 KB, 1 KB and 512 bytes took 1.12, 1.16, 1.18 and 1.21 ms in the
#: judge's shared memory, where 4 KB and 2 KB took 0.986 and 0.993 in a program's own.
_LINE_CHANGE, _LONG_RUN = 0.015, 16384
#: Share of the time of a last, partly filled wave of programs that is lost: those that run get the
#: others' bandwidth. Source: as above; 1.2 to 1.6 waves took 1.01 to 1.08 times the time of the
#: best.
_TAIL = 0.2
#: What twice as many lines read at a time cost, from so many on. Source: as above, bf16 and fp32,
#: neighbouring programs in the same lines: 66, 264 and 1056 lines at a time took 0.975, 0.994 and
#: 1.004 ms, and 1.92, 1.92 and 1.93 ms.
_LINE_SPREAD, _FEW_LINES = 0.006, 64
#: Of the bandwidth of reading, what the best reach; the rate of L2 over that of memory. These and
#: the next only rank settings.
_SHARE_OF_BANDWIDTH, _L2_OVER_DRAM = 0.92, 2
_TURN_MS = 3e-4  # of a program's turn, beside reading
#: Time over that of reading, without vectors and for each of them: six or fewer cost nothing.
_NO_VECTOR, _EACH_VECTOR = 0.5, 0.08
#: The same where sums are compensated: five operations beside each multiply-add, of which memory
#: hides most. Not measured yet.
_COMPENSATED = 1.01
#: Registers of a thread beside sums and values where products of one vector are added at once;
#: elsewhere twice as many.
_SPARE_REGISTERS = 20
#: Elements of a thread, at least, unless the whole matrix is small.
MIN_ELEMENTS, SMALL_MATRIX = 4, 4096
#: Elements of K in a split, at least; splits, at most.
MIN_SPLIT, MAX_SPLITS = 2048, 256


class Matvec(Recipe):
    """Matrix times few vectors, or few rows times a matrix, with fp32 sums.

    Products are exact in every dtype that it takes.
    """

    operators = ("matvec", "matmul", "batched_matmul", "linear")
    roles = {
        "block_l": (Role("rows"),),
        "block_k": (Role("depth"),),
        "splits": (Role("split"),),
        "warps": (Role("warps"),),
    }

    def match(self, graph: OpGraph, contract: Contract) -> Sequence[Site]:
        sites = find_products(graph, contract)
        return [
            site for site in sites if min(site.detail.m.size, site.detail.n.size) <= MAX_VECTORS
        ]

    def space(self, site: Site, device: Device) -> Space:
        product: Product = site.detail
        roles = roles_of(product)
        most_k, most_lines = next_power_of_two(product.k.size), next_power_of_two(roles.lines)
        if roles.along_k or roles.steps[2] != 1:  # lanes along K: a few lines, a wide block of K
            block_l, block_k = (1, 2, 4, 8), (256, 512, 1024, 2048, 4096, 8192)
        else:  # lanes along the lines: many lines, a few steps of K
            block_l, block_k = (64, 128, 256), (8, 16, 32)
        knobs = {
            "block_l": tuple(sorted({min(value, most_lines) for value in block_l})),
            "block_k": tuple(sorted({min(value, most_k) for value in block_k})),
            "splits": _split_choices(product, device),
            "warps": (1, 2, 4, 8),
            ACCURACY: (0, 1) if product.k.size > block_k[0] else (0,),
        }
        return Space(
            knobs,
            lambda settings: _is_legal(product, read_settings(MatvecSettings, settings), device),
        )

    def cost_ms(self, site: Site, settings: Settings, device: Device) -> float:
        product: Product = site.detail
        knobs, roles = read_settings(MatvecSettings, settings), roles_of(product)
        width, blocks = operand_width(product), ceil_div(roles.lines, knobs.block_l)
        programs = blocks * knobs.splits * product.batches
        resident = min(programs, device.sm_count * _programs_per_sm(product, knobs, device))
        turns = ceil_div(programs, resident)
        moved = sum(product.operand_bytes) + partial_bytes(product, knobs.splits)
        bytes_ms = moved / (_SHARE_OF_BANDWIDTH * device.read_bytes_per_s) * 1e3
        # Each vector is another multiply-add for every element of the matrix.
        busy = max(1.0, _NO_VECTOR + _EACH_VECTOR * roles.vectors)
        tail = 1.0 + _TAIL * (turns / (programs / resident) - 1.0)
        warps, in_flight = _waiting(product, knobs, device, resident)
        changes = _LINE_CHANGE * max(0.0, log2(_LONG_RUN / (knobs.block_k * width)))
        at_a_time = resident * knobs.block_l / knobs.splits
        changes += _LINE_SPREAD * max(0.0, log2(at_a_time / _FEW_LINES))
        busy *= _COMPENSATED if is_compensated(product, knobs) else 1.0
        read_ms = bytes_ms * busy * tail * (1.0 + warps**2 + in_flight**2 + changes)
        # Every block of lines reads the vectors again, from L2; a third of that is not hidden.
        again = blocks * product.batches * roles.vectors * product.k.size * width
        again_ms = again / (_L2_OVER_DRAM * device.read_bytes_per_s) * 1e3
        launches_ms = device.launch_ms * (1 + (knobs.splits > 1))
        return read_ms + again_ms / 3 + _TURN_MS * turns + launches_ms

    def emit(self, site: Site, settings: Settings) -> Emission:
        return emit_matvec(site.detail, read_settings(MatvecSettings, settings))

    def emit_like(self, site: Site, settings: Settings, like: Site) -> Emission:
        return emit_matvec(site.detail, read_settings(MatvecSettings, settings), like.detail)


def _is_legal(product: Product, knobs: MatvecSettings, device: Device) -> bool:
    if knobs.splits * knobs.block_k > max(product.k.size, knobs.block_k):
        return False
    roles = roles_of(product)
    most_k, most_lines = next_power_of_two(product.k.size), next_power_of_two(roles.lines)
    elements = knobs.block_l * knobs.block_k * next_power_of_two(roles.vectors)
    per_thread = elements / (knobs.warps * device.warp_size)
    # Products that are not added at once take a register each.
    at_once = added_at_once(product, roles, most_k) > 1
    most = MOST_BYTES // (operand_width(product) if at_once else 4)
    if is_compensated(product, knobs) and not at_once:
        most //= 2  # beside each sum stands what it lost
    is_small = most_lines * most_k < SMALL_MATRIX
    enough = per_thread >= MIN_ELEMENTS or (is_small and knobs.warps == 1)
    return enough and per_thread <= most


def _programs_per_sm(product: Product, knobs: MatvecSettings, device: Device) -> int:
    """Programs that share an SM; at least one.

    Limits are registers of a thread (partial sums in fp32, the values on their way, and addresses
    and the vector), threads and blocks.
    """
    width, threads = operand_width(product), knobs.warps * device.warp_size
    roles = roles_of(product)
    vectors = next_power_of_two(roles.vectors)
    group = added_at_once(product, roles, knobs.block_k)
    spare = _SPARE_REGISTERS if group > 1 else 2 * _SPARE_REGISTERS
    values = knobs.block_l * knobs.block_k * (vectors / group + width / 4) / threads
    registers = min(255, values + spare)
    fits = min(
        device.max_blocks_per_sm,
        device.registers_per_sm // int(registers * threads),
        device.max_threads_per_sm // threads,
    )
    return max(1, fits)


def _waiting(
    product: Product, knobs: MatvecSettings, device: Device, resident: int
) -> tuple[float, float]:
    """What half the speed takes over what there is: of warps, and of bytes on their way."""
    warps = _HALF_SPEED_WARPS * device.sm_count / (resident * knobs.warps)
    in_flight = resident * knobs.block_l * knobs.block_k * operand_width(product)
    needed = _HALF_SPEED_BYTES * device.read_bytes_per_s / _HALF_SPEED_BYTES_PER_S
    return warps, needed / in_flight


def _split_choices(product: Product, device: Device) -> tuple[int, ...]:
    """Numbers of splits of K worth trying.

    That is 1, and as many as give every SM 2 to 64 programs of eight lines, none under 2048
    elements of K.
    """
    blocks = ceil_div(roles_of(product).lines, 8) * product.batches
    per_sm = (2, 4, 8, 16, 32, 64)
    wanted = {next_power_of_two(max(1, each * device.sm_count // blocks)) for each in per_sm}
    most = min(max(1, product.k.size // MIN_SPLIT), MAX_SPLITS)
    return tuple(sorted({1} | {min(value, most) for value in wanted}))


RECIPE = Matvec()
