"""The module that an entry replaces, and inputs for it, from the evidence behind the entry."""

import json
from pathlib import Path
from typing import Any

import torch

from kmem.deploy.shipped import table
from kmem.deploy.shipped.table import Entry, load_original, read_table

TABLE = Path(table.__file__).with_name("table.json")
ENTRIES = read_table(TABLE) if TABLE.is_file() else ()


def details(entry: Entry) -> dict[str, Any]:
    """What the table says of an entry beside how it is used: accuracy, times, evidence."""
    entries = json.loads(TABLE.read_text(encoding="utf-8"))["entries"]
    return next(each for each in entries if each["name"] == entry.name)


def can_run(entry: Entry) -> bool:
    """Whether the kernel runs here: on a GPU of its name, or small enough in the interpreter."""
    import triton

    if triton.knobs.runtime.interpret:
        sizes = [torch.Size(each.shape).numel() for each in entry.inputs if each.is_tensor]
        return max(sizes, default=0) <= 1 << 16
    return torch.cuda.is_available() and torch.cuda.get_device_name() == entry.device


def make_reference(entry: Entry) -> tuple[torch.nn.Module, list[Any]]:
    """The module and inputs of one forward, on the device of this machine."""
    import triton

    device = "cpu" if triton.knobs.runtime.interpret else "cuda"
    module = load_original(entry)
    torch.manual_seed(0)
    with torch.device(device):
        model = module.Model(*getattr(module, "get_init_inputs", list)())
        inputs = module.get_inputs()
    model = model.to(device).train(entry.training)
    given = [value.to(device) if isinstance(value, torch.Tensor) else value for value in inputs]
    if details(entry)["precision"] == "bf16":
        model = model.to(torch.bfloat16)
        given = [_as_bf16(value) for value in given]
    return model, given


def _as_bf16(value: Any) -> Any:
    is_floating = isinstance(value, torch.Tensor) and value.is_floating_point()
    return value.to(torch.bfloat16) if is_floating else value
