"""Reductions over the channels of a convolution, written where its tile is stored.

A program whose tile holds every output channel of its positions has whole rows in registers: a
softmax, a norm or a minimum over channels needs no second kernel, and where one value of each
position is left, the image itself is never written. The statements stand after those of the
epilogue; kmem_store_tile then stores what they leave.
"""

from collections.abc import Collection
from dataclasses import replace

from kmem.codegen.chains.chain import find_closing
from kmem.codegen.chains.epilogue import LOAD_OPERAND, MAX_OPERANDS, Bias, Epilogue, write_epilogue
from kmem.codegen.convolutions.convolution import Convolution, convolution_tensors, extend_sites
from kmem.codegen.regions.matching import FoundRegion
from kmem.codegen.regions.reductions import REDUCTIONS
from kmem.codegen.regions.region import Load, Map
from kmem.codegen.steady import kept_operands
from kmem.problem.graph import OpGraph
from kmem.problem.operators.expressions import Helper, order_helpers
from kmem.recipes import Operand, Site

#: Output channels of the widest tile.
MOST_CHANNELS = 256


def close_sites(graph: OpGraph, sites: Collection[Site]) -> list[Site]:
    """The sites of convolutions, each with the reductions over its channels if there are any."""
    return extend_sites(sites, lambda site, others: _close(graph, site, others))


def _close(graph: OpGraph, site: Site, others: Collection[str]) -> Site | None:
    node, detail = graph.node(site.name), site.detail
    assert node is not None and isinstance(detail, Convolution)
    if detail.groups > 1 or detail.channels_out > MOST_CHANNELS:
        return None
    found = find_closing(graph, node)
    if found is None or not others.isdisjoint(found.nodes):
        return None
    tensors = convolution_tensors(node)
    bias = tensors.get("bias")
    added = None if bias is None else Bias(bias)
    plain = write_epilogue(graph, node, added, None, ())
    given = [each for each in found.region.inputs if each.name != node.name]
    if plain is None or len(plain.operands) + len(given) > MAX_OPERANDS:
        return None
    epilogue = _write_closing(found, plain, node.name, given)
    by_channel = (0, detail.channels_out, 1, 0)
    (output,) = found.region.outputs
    if not output.spec.has_contiguous_items:
        return None
    steps = [by_channel if each.spec.numel > 1 else (0, 0, 0, 0) for each in given]
    closed = replace(
        detail,
        out=output.spec,
        epilogue=epilogue,
        operand_steps=(*(by_channel for _ in plain.operands), *steps),
        is_closed=True,
        leaves_row=found.region.stores[0].is_row,
    )
    inputs = kept_operands(graph, (tensors["input"], tensors["weight"], *epilogue.operands))
    return replace(
        site,
        nodes=(node.name, *found.nodes),
        inputs=inputs,
        outputs=(output,),
        detail=closed,
        bytes=sum(operand.spec.bytes for operand in (*inputs, output)),
    )


def _write_closing(
    found: FoundRegion, plain: Epilogue, anchor: str, given: list[Operand]
) -> Epilogue:
    """The epilogue of the convolution alone, and the region on the tile (positions, channels)."""
    region = found.region
    sums = plain.statements[-1][0] if plain.statements else "acc"
    statements = [
        *plain.statements,
        ("whole", f"tl.trans({sums})"),
        ("valid", "(rows < M)[None, :]"),
        ("r", "rows[None, :]"),
        ("count", "M * 1.0"),
        ("EVEN_R", "whole.shape[1] == M"),
    ]
    places = {each.name: len(plain.operands) + place for place, each in enumerate(given)}
    helpers: list[Helper] = []
    for item in region.statements:
        if isinstance(item, Load):
            name = region.inputs[item.operand].name
            read = "whole" if name == anchor else f"tl.trans(x{places[name]})"
            statements.append((item.name, read))
        elif isinstance(item, Map):
            statements.append((item.name, item.text))
            helpers += item.helpers
        else:
            kind = REDUCTIONS[item.kind]
            lines = (line.split(" = ", 1) for line in kind.direct(item.read, item.names))
            statements += [(name, text) for name, text in lines]
            helpers += kind.helpers
    (store,) = region.stores
    places = (("rows", "tl.arange(0, 1)"),) if store.is_row else ()  # stored as one channel
    statements.append(("closed", f"tl.trans({store.value})"))
    operands = (*plain.operands, *(each.name for each in given))
    loads = [helper for helper in (*plain.helpers, LOAD_OPERAND) if operands]
    known = dict([*order_helpers(helpers), *loads])
    return Epilogue(tuple(statements), operands, tuple(known.items()), places)
