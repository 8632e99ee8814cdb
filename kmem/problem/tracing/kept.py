"""Tensors that a module keeps in attributes, and writes before it reads them.

A recurrent cell keeps its state so: `self.hidden.copy_(initial_hidden)`, and then reads it. What
such a forward returns is made of its inputs alone.

Not covered: what the forward leaves in the attribute, which nobody who calls it sees; tensors that
are read before they are written as a whole.
"""

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.export.graph_signature import InputKind

_WRITING = torch.ops.aten.copy_.default


def give_attributes_memory(model: torch.nn.Module, *, above: int) -> torch.nn.Module:
    """Make plain tensor attributes of a fake module real, for export takes no others.

    Their values are arbitrary.

    Args:
        above: elements up to which a tensor stays as it is; its values may be asked for.
    """
    for module in model.modules():
        for name, value in list(vars(module).items()):
            if isinstance(value, FakeTensor) and value.numel() > above:
                setattr(module, name, torch.empty(value.shape, dtype=value.dtype, device="cpu"))
    return model


def replace_overwritten(program: torch.export.ExportedProgram) -> None:
    """Have whatever is copied over a whole tensor stand for it from then on.

    The tensor is a placeholder without users then. The program's graph is changed in place.
    """
    graph, signature = program.graph, program.graph_signature
    kept = {
        entry.arg.name for entry in signature.input_specs if entry.kind is InputKind.CONSTANT_TENSOR
    }
    for holder in [node for node in graph.nodes if node.name in kept]:
        write = next(iter(holder.users), None)
        if write is None or write.target is not _WRITING or write.args[0] is not holder:
            continue
        source = write.args[1]
        if not isinstance(source, torch.fx.Node) or not _are_alike(holder, source):
            continue
        with graph.inserting_after(write):
            clone = graph.call_function(torch.ops.aten.clone.default, (source,))
        clone.meta = dict(write.meta)
        write.replace_all_uses_with(clone)
        holder.replace_all_uses_with(clone, delete_user_cb=lambda user, write=write: user != write)
        graph.erase_node(write)


def _are_alike(one: torch.fx.Node, other: torch.fx.Node) -> bool:
    values = one.meta.get("val"), other.meta.get("val")
    if not all(isinstance(value, torch.Tensor) for value in values):
        return False
    return values[0].shape == values[1].shape and values[0].dtype == values[1].dtype
