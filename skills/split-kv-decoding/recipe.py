"""Writes attention of a few queries to many keys, split over the keys, in two launches.

Heads that share keys are one block of rows. Keys and values that were appended to a cache by a
concatenation are read from both parts, so that nobody copies the cache. kernels.py has the text.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, log2, prod
from math import e as euler

from kmem.codegen.settings import read_settings
from kmem.codegen.text.calls import write_allocation, write_launch, write_launch_function
from kmem.problem.dtypes import FLOATS
from kmem.problem.graph import Node, OpGraph, Ref
from kmem.problem.sizes import ceil_div, next_power_of_two
from kmem.recipes import Emission, Operand, Recipe, Role, Settings, Site, Space
from kmem.records import DTYPE_BYTES, Contract, Device, TensorSpec

from .kernels import MERGE, PART

_TARGET = "aten.scaled_dot_product_attention.default"
_CONCATENATION = "aten.cat.default"
_NAMES = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
#: Rows of a block: the queries of all heads that share keys.
MOST_ROWS = 64
MAX_WIDTH = 256
#: Keys that were appended, which the last program of a head takes alone.
MOST_ADDED = 256
#: Of the bandwidth of a copy, what the stream of keys reaches where programs fill the device: so
#: many on each multiprocessor. Guesses, which only rank settings.
SHARE_OF_BANDWIDTH, PROGRAMS_TO_FILL = 0.85, 3.0
#: How much later what differs from four warps is tried.
LESS_USUAL = 0.02
#: Of 255 registers, what a thread has for sums and operands.
MAX_THREAD_VALUES = 144


@dataclass(frozen=True, slots=True)
class Decoding:
    """softmax(scale * q k^T) v, with `group` heads of `queries` rows for every head of keys.

    `steps`: of q, k, v and out, and of what is appended to k and v, along outer batch, heads and
    rows, in elements. `held` keys lie in k and v, `added` ones in what is appended.
    """

    outer: int
    inner: int  # heads of keys
    group: int
    queries: int
    held: int
    added: int
    depth: int
    width: int
    scale: float
    out: TensorSpec
    steps: tuple[tuple[int, int, int], ...]

    @property
    def heads(self) -> int:
        return self.outer * self.inner

    @property
    def rows(self) -> int:
        return self.group * self.queries

    @property
    def keys(self) -> int:
        return self.held + self.added

    @property
    def flops(self) -> float:
        return 2.0 * self.heads * self.rows * self.keys * (self.depth + self.width)

    @property
    def bytes(self) -> int:
        """Of all operands and the output."""
        values = self.heads * (self.rows + self.keys) * (self.depth + self.width)
        return values * DTYPE_BYTES[self.out.dtype]


@dataclass(frozen=True, slots=True)
class DecodingSettings:
    """The knobs: stretches of keys, keys of a tile, and how a program runs."""

    splits: int
    block_n: int
    warps: int
    stages: int


class SplitKvDecoding(Recipe):
    operators = ("attention",)
    roles = {
        "splits": (Role("split"),),
        "block_n": (Role("depth"),),
        "warps": (Role("warps"),),
        "stages": (Role("stages"),),
    }

    def match(self, graph: OpGraph, contract: Contract) -> Sequence[Site]:
        found = (_site(graph, node) for node in graph.nodes if node.target == _TARGET)
        return [site for site in found if site is not None]

    def space(self, site: Site, device: Device) -> Space:
        detail: Decoding = site.detail
        knobs = {
            "splits": tuple(n for n in (1, 2, 4, 8, 16, 32) if n * 64 <= max(64, detail.held)),
            "block_n": tuple(n for n in (32, 64, 128) if n <= max(32, detail.held)),
            "warps": (2, 4, 8),
            "stages": (2, 3, 4),
        }
        return Space(knobs, lambda settings: _is_legal(detail, _knobs(settings), device))

    def cost_ms(self, site: Site, settings: Settings, device: Device) -> float:
        detail: Decoding = site.detail
        knobs = _knobs(settings)
        splits, chunk = _stretches(detail, knobs)
        programs = detail.heads * splits
        filled = min(1.0, programs / (PROGRAMS_TO_FILL * device.sm_count))
        in_flight = min(1.0, (knobs.block_n * knobs.stages / 192) ** 0.5)
        bandwidth = SHARE_OF_BANDWIDTH * device.dram_bytes_per_s * in_flight * filled**0.7
        waves = programs / device.sm_count
        uneven = ceil(waves) / waves if waves > 1 else 1.0
        read_ms = detail.bytes * uneven * splits * chunk / detail.held / bandwidth * 1e3
        between = programs * detail.rows * (detail.width + 2) * 4
        between_ms = 2 * between / device.dram_bytes_per_s * 1e3
        other_warps = 0.0 if knobs.warps == 4 else LESS_USUAL * read_ms
        return read_ms + other_warps + between_ms + 2 * device.launch_ms

    def emit(self, site: Site, settings: Settings) -> Emission:
        detail: Decoding = site.detail
        knobs = _knobs(settings)
        splits, chunk = _stretches(detail, knobs)
        lines = detail.heads * splits * detail.rows
        kind = "dtype=torch.float32, device=q.device"
        names = ["q", "k", "v", *(("k_new", "v_new") if detail.added else ())]
        new = "k_new, v_new" if detail.added else "k, v"
        block_e = max(16, next_power_of_two(detail.width))
        shape = f"ROWS={detail.rows}, QUERIES={detail.queries}, GROUP={detail.group}"
        is_exact = detail.out.dtype == "float32"
        statements = [
            write_allocation("out", detail.out, "q"),
            f"parts = torch.empty({lines * detail.width}, {kind})",
            f"tops = torch.empty({lines}, {kind})",
            "totals = torch.empty_like(tops)",
            write_launch(
                "kmem_decode_part",
                detail.heads * splits,
                f"q, k, v, {new}, parts, tops, totals",
                f"{shape}, HELD={detail.held}, ADDED={detail.added}, DEPTH={detail.depth}",
                f"WIDTH={detail.width}, INNER={detail.inner}",
                f"SCALE={detail.scale * log2(euler)!r}",
                *(_steps(name, detail.steps[place]) for name, place in _PLACES.items()),
                f"SPLITS={splits}, CHUNK={chunk}",
                f"WIDEN={True if is_exact else 'q.is_cpu'}",
                f"BLOCK_R={max(16, next_power_of_two(detail.rows))}, BLOCK_N={knobs.block_n}",
                f"BLOCK_D={max(16, next_power_of_two(detail.depth))}, BLOCK_E={block_e}",
                f"num_warps={knobs.warps}, num_stages={knobs.stages}",
            ),
            write_launch(
                "kmem_decode_merge",
                detail.heads * detail.rows,
                "parts, tops, totals, out",
                f"{shape}, WIDTH={detail.width}, INNER={detail.inner}",
                _steps("OUT", detail.steps[3]),
                f"SPLITS={splits}, BLOCK_S={next_power_of_two(splits)}, BLOCK_E={block_e}",
                "num_warps=4",
            ),
            "return out",
        ]
        return Emission((PART, MERGE), write_launch_function(names, statements))


_PLACES = {"Q": 0, "K": 1, "V": 2, "K_NEW": 4, "V_NEW": 5}


def _steps(name: str, steps: tuple[int, int, int]) -> str:
    axes = zip(("OUTER", "INNER", "ROW"), steps, strict=True)
    return ", ".join(f"{name}_{axis}={step}" for axis, step in axes)


def _knobs(settings: Settings) -> DecodingSettings:
    return read_settings(DecodingSettings, settings)


def _stretches(detail: Decoding, knobs: DecodingSettings) -> tuple[int, int]:
    """How many stretches of keys there are, none of them empty, and keys in each."""
    chunk = ceil_div(ceil_div(detail.held, knobs.splits), knobs.block_n) * knobs.block_n
    return ceil_div(detail.held, chunk), chunk


def _is_legal(detail: Decoding, knobs: DecodingSettings, device: Device) -> bool:
    item = DTYPE_BYTES[detail.out.dtype]
    depth, width = (max(16, next_power_of_two(each)) for each in (detail.depth, detail.width))
    rows = max(16, next_power_of_two(detail.rows))
    shared = knobs.block_n * (depth + width) * knobs.stages * item + rows * depth * item
    values = (rows * (width + knobs.block_n)) / (device.warp_size * knobs.warps)
    if item == 4:  # no tensor core: operands pass through registers
        values += knobs.block_n * (depth + width) / (device.warp_size * knobs.warps)
    return shared <= device.shared_bytes_per_block * 0.9 and values <= MAX_THREAD_VALUES


# --- what is matched


def _site(graph: OpGraph, node: Node) -> Site | None:
    """The attention of a node; None for what the kernels do not cover.

    They do not cover a mask, dropout, broadcasting, or rows that are not dense.
    """
    given = {**dict(zip(_NAMES, node.args, strict=False)), **node.kwargs}
    is_plain = given.get("attn_mask") is None and given.get("dropout_p", 0.0) == 0.0
    if not is_plain or given.get("is_causal", False):
        return None
    if len(node.args) < 3 or not all(isinstance(given[name], Ref) for name in _NAMES[:3]):
        return None
    query, *made = (given[name].name for name in _NAMES[:3])
    scale = given.get("scale")
    reads, nodes = _apart(graph, node, query, made), [*made, node.name]
    detail = _detail(graph, reads, node.spec, scale) if reads else None
    if detail is None:
        reads, nodes = [query, *made], [node.name]
        detail = _detail(graph, reads, node.spec, scale)
    if detail is None:
        return None
    nodes = sorted(set(nodes), key=graph.place)
    inputs = tuple(Operand(name, graph.spec(name)) for name in reads)
    return Site(
        name=node.name,
        operator="attention",
        nodes=tuple(nodes),
        inputs=inputs,
        outputs=(Operand(node.name, node.spec),),
        detail=detail,
        bytes=detail.bytes,
        flops=detail.flops,
    )


def _apart(graph: OpGraph, node: Node, query: str, made: Sequence[str]) -> list[str]:
    """What is read where keys and values are caches and what is appended; empty if they are not."""
    key, value = (_parts(graph, node, name) for name in made)
    if key is None or value is None or query in made:
        return []
    return [query, key[0], value[0], key[1], value[1]]


def _parts(graph: OpGraph, node: Node, name: str) -> tuple[str, str] | None:
    """A cache and what is appended to it, if a value is those two and only this attention's."""
    made = graph.node(name)
    if made is None or made.target != _CONCATENATION or name in graph.outputs:
        return None
    if any(user.name != node.name for user in graph.users(name)):
        return None
    values, *axis = made.args
    rank = len(made.spec.shape)
    if len(values) != 2 or (axis[0] if axis else 0) % rank != rank - 2:
        return None
    held, added = (each.name for each in values)
    return (held, added) if graph.spec(added).shape[-2] <= MOST_ADDED else None


def _detail(
    graph: OpGraph, names: Sequence[str], out: TensorSpec, scale: float | None
) -> Decoding | None:
    specs = [*(graph.spec(name) for name in names[:3]), out]
    specs += [graph.spec(name) for name in names[3:]]
    q = specs[0]
    k, v = specs[1:3]
    rank = len(q.shape)
    if rank not in (3, 4) or q.dtype not in FLOATS:
        return None
    if any(len(spec.shape) != rank or spec.dtype != q.dtype for spec in specs):
        return None
    if any(spec.stride[-1] != 1 or prod(spec.shape) == 0 for spec in specs):
        return None
    key_heads = k.shape[:-2]
    if any(spec.shape[:-2] != key_heads for spec in (v, *specs[4:])):
        return None
    if q.shape[:-3] != k.shape[:-3] or q.shape[-3] % k.shape[-3]:
        return None
    group = q.shape[-3] // k.shape[-3]
    added = specs[4].shape[-2] if len(specs) > 4 else 0
    depth, width = q.shape[-1], v.shape[-1]
    if k.shape[-1] != depth or k.shape[-2] != v.shape[-2] or max(depth, width) > MAX_WIDTH:
        return None
    if added and [spec.shape[-2:] for spec in specs[4:]] != [(added, depth), (added, width)]:
        return None
    if group * q.shape[-2] > MOST_ROWS:
        return None
    steps = tuple((0,) * (4 - rank) + spec.stride[:-1] for spec in specs)
    return Decoding(
        outer=1 if rank == 3 else q.shape[0],
        inner=k.shape[-3],
        group=group,
        queries=q.shape[-2],
        held=k.shape[-2],
        added=added,
        depth=depth,
        width=width,
        scale=scale if scale is not None else depth**-0.5,
        out=out,
        steps=steps if added else (*steps, (0, 0, 0), (0, 0, 0)),
    )


RECIPE = SplitKvDecoding()
