"""How a forward gets at its parameters and buffers: in the dictionaries where modules keep them.

Of a network with hundreds of parameters an attribute for each takes the host longer than launching
its kernels: `get_submodule` 1.5 us, an attribute of a module 0.4, a dictionary 0.03 (Python 3.12,
torch 2.11, on the CPU of 2026-11-28). A module that holds several is looked up once.

A submodule that is replaced is found, and so is a parameter that is. One that is given another form
later, as pruning and parametrizations do, is not there: then the reference operators run.
"""

from collections.abc import Sequence

from kmem.problem.graph import Placeholder

#: What a forward calls what `_fetch` gives it; no input is called so.
STATE = "kmem_state"


def write_fetches(state: Sequence[Placeholder]) -> list[str]:
    """The statements of `_fetch`: a module's parameters and buffers, in this order, as a tuple.

    Args:
        state: not empty; known by their names in the state_dict.
    """
    holders = {"": "self"}
    names = {"self"}
    lines, found = [], []
    for placeholder in state:
        path = _above(placeholder.target)
        name = placeholder.target.removeprefix(f"{path}.")
        lines += _write_holder(path, holders, names)
        where = "_parameters" if placeholder.kind == "parameter" else "_buffers"
        found.append(f"{holders[path]}.{where}[{name!r}]")
    return [*lines, f"return ({', '.join(found)},)"]


def write_unpacking(state: Sequence[Placeholder]) -> str:
    """The statement that gives what was fetched its names in the graph."""
    return f"({', '.join(placeholder.name for placeholder in state)},) = {STATE}"


def _write_holder(path: str, holders: dict[str, str], names: set[str]) -> list[str]:
    """Statements that give a submodule a name, and those above it; none where it has one."""
    if path in holders:
        return []
    above = _above(path)
    lines = _write_holder(above, holders, names)
    holders[path] = _name(path, names)
    last = path.removeprefix(f"{above}.")
    return [*lines, f"{holders[path]} = {holders[above]}._modules[{last!r}]"]


def _name(path: str, names: set[str]) -> str:
    """A name for a submodule that no other has: `at_norm`, of several in a container `at_layers_3`.

    It is taken.
    """
    parts = path.split(".")
    short = "_".join(parts[-2:] if parts[-1].isdigit() else parts[-1:])
    numbered = (f"at_{short}_of_{count}" for count in range(2, len(names) + 2))
    name = next(each for each in (f"at_{short}", *numbered) if each not in names)
    names.add(name)
    return name


def _above(path: str) -> str:
    """The path of what holds it; "" for what the module itself holds."""
    return path.rpartition(".")[0]
