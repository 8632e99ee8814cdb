"""Launchers as a module has them: tensors alone are passed, through the compiled kernels' handles.

`LauncherWriter` writes one site's launcher from those of all workloads: grids, sizes and arguments
that are numbers become constants of the module; scratch is one allocation, of which kernels get
parts. What a module needs for that is in runtime.py.
"""

import ast
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from kmem.codegen.module.alignment import Hoist, Misaligned, align, is_number
from kmem.codegen.module.constants import Constants
from kmem.codegen.module.staging import STAGED
from kmem.codegen.text.functions import Parameter
from kmem.codegen.text.launches import ALLOCATIONS, LaunchCall, drop_unused_allocations, is_library
from kmem.host.syntax import parse_python
from kmem.records import DTYPE_BYTES

#: Bytes at which a part of scratch starts.
_ALIGNMENT = 256
#: A type of staged operands: the interpreter does not round them (staged_operands.py).
_WIDE_ON_CPU = re.compile(r"torch\.float32 if \w+\.is_cpu else (torch\.float16)")
#: Staged operands that are larger are allocated by themselves: scratch is held for a whole forward,
#: and behind a kernel of so many bytes the host has time for an allocation (5 us on the host of an
#: H200, 2026-12-01).
_MOST_POOLED_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class Launched:
    """A kernel as its launches see it."""

    kernel: str  # its name in the module
    parameters: Sequence[Parameter]  # what a launch passes
    prefix: str  # what the constants of one launch are named after


@dataclass
class LauncherWriter:
    """Writes the launchers of a module's sites, and the objects that they launch through."""

    constants: Constants
    objects: list[str] = field(default_factory=list)  # statements: `_kernel = _Launch(...)`
    pools_scratch: bool = False
    _names: set[str] = field(default_factory=set)

    def write(
        self,
        name: str,
        label: str,
        functions: Sequence[ast.FunctionDef],
        launches: Sequence[tuple[Launched, Sequence[LaunchCall]]],
    ) -> str:
        """The text of a launcher.

        Args:
            name: of its function.
            label: what its constants are named after.
            functions: its tree at every workload.
            launches: each launch, and its call at every workload.
        """
        for function in functions:
            drop_unused_allocations(function)
        tensors = _tensors(functions[0])
        is_direct = bool(launches) and all(
            _passes_tensors(group[0].call, launched.parameters, tensors)
            for launched, group in launches
        )
        calls = [self._write_launch(launched, group, is_direct) for launched, group in launches]
        if is_direct:
            self._pool_scratch(label, functions)
        for statements in side_by_side(functions):
            self._hoist_memory(label, statements)
        merged = align(functions, self.hoist_as(f"{label}_NUMBER"))
        assert isinstance(merged, ast.FunctionDef)
        for (_, group), call in zip(launches, calls, strict=True):
            place = group[0].call
            place.func = call.func
            place.args, place.keywords = call.args, call.keywords
        if is_direct:
            given = [argument.arg for argument in merged.args.args]
            names = ", ".join(each for each in given if each != STAGED)
            merged.body[:0] = parse_python(f"key = _key({names})").body
        merged.name = name
        return ast.unparse(ast.fix_missing_locations(merged)) + "\n"

    def _write_launch(
        self, launched: Launched, group: Sequence[LaunchCall], is_direct: bool
    ) -> ast.Call:
        """A launch as it is written; the launcher of every workload then has it in common."""
        prefix = launched.prefix
        grid = self._name([launch.grid for launch in group], f"{prefix}_GRID")
        names = [parameter.name for parameter in launched.parameters]
        given = zip(names, *(launch.call.args for launch in group), strict=False)
        arguments = [self._name(values, f"{prefix}_{name}") for name, *values in given]
        keywords = [
            ast.keyword(
                options[0].arg,
                self._align([option.value for option in options], f"{prefix}_{options[0].arg}"),
            )
            for options in zip(*(launch.call.keywords for launch in group), strict=True)
        ]
        for launch in group:
            launch.call.func, launch.call.args = ast.Name("launch", ast.Load()), []
            launch.call.keywords = []
        if not is_direct:
            handle = ast.Subscript(ast.Name(launched.kernel, ast.Load()), grid, ast.Load())
            return ast.Call(handle, arguments, keywords)
        key = "key"
        late = [
            ast.unparse(item)
            for item, parameter in zip(arguments, launched.parameters, strict=False)
            if parameter.is_constexpr and ast.unparse(item) not in self.constants.values
        ]
        if late:  # decided when the module runs: a handle is for one value of these
            key = f"key and (*key, {', '.join(late)})"
        name = self._add_object(launched, ast.unparse(grid), keywords)
        first = ast.parse(key, mode="eval").body
        return ast.Call(ast.Name(name, ast.Load()), [first, *arguments], [])

    def _add_object(self, launched: Launched, grid: str, options: Sequence[ast.keyword]) -> str:
        """The name of what launches a kernel over this grid."""
        wanted = "_" + re.sub(r"\W", "_", launched.prefix)
        name, number = wanted, 2
        while name in self._names:
            name, number = f"{wanted}_{number}", number + 1
        self._names.add(name)
        given = "".join(f", {option.arg}={ast.unparse(option.value)}" for option in options)
        self.objects.append(f"{name} = _Launch({launched.kernel}, {grid}{given})\n")
        return name

    # --- memory

    def _pool_scratch(self, label: str, functions: Sequence[ast.FunctionDef]) -> None:
        """Make one allocation of scratch, in place, where there are several."""
        found = [_scratch(function) for function in functions]
        names = [name for name in found[0] if all(name in parts for parts in found)]
        if len(names) < 2:
            return
        pools = [{name: parts[name] for name in names} for parts in found]
        layouts = [_lay_out_parts(pool) for pool in pools]
        layout = self.constants.add(_upper(f"{label}_SCRATCH"), [text for text, _ in layouts])
        size = self.constants.add(
            _upper(f"{label}_SCRATCH_BYTES"), [str(size) for _, size in layouts]
        )
        self.pools_scratch = True
        device = functions[0].args.args[0].arg
        statements = (
            f"scratch = torch.empty({size}, dtype=torch.uint8, device={device}.device)\n"
            f"{', '.join(names)} = _parts(scratch, {layout}, key)\n"
        )
        for name in names:
            if pools[0][name].is_wide_on_cpu:
                counts = [str(pool[name].count) for pool in pools]
                count = self.constants.add(_upper(f"{label}_{name}_SIZE"), counts)
                statements += (
                    f"if {device}.is_cpu:\n    {name} = torch.empty({count}, dtype=torch.float32)\n"
                )
        for function in functions:
            function.body = [item for item in function.body if _target(item) not in names]
            function.body[:0] = parse_python(statements).body

    def _hoist_memory(self, label: str, statements: Sequence[ast.stmt]) -> None:
        """Give the sizes of an allocation names, in place."""
        calls = [_allocation(statement) for statement in statements]
        found = [call for call in calls if call is not None]
        if len(found) < len(calls):
            return
        target = _target(statements[0])
        for place, what in enumerate(("SHAPE", "STRIDE")):
            values = [call.args[place] for call in found if len(call.args) > place]
            if len(values) == len(found) and all(map(is_number, values)):
                is_size = isinstance(values[0], ast.Constant)
                name = f"{label}_{target}_{'SIZE' if is_size else what}"
                hoisted = self.hoist_as(name)(values)
                for call in found:
                    call.args[place] = ast.Name(hoisted, ast.Load())

    # --- constants

    def align_texts(self, texts: Sequence[str], label: str) -> str:
        """One text from a function that was written for each workload.

        Raises Misaligned: if they differ in more than numbers.
        """
        if len(set(texts)) == 1:
            return texts[0]
        functions = [_function(text) for text in texts]
        body = []
        for statements in side_by_side(functions):
            target = _target(statements[0])
            name = f"{label}_{target}" if target else label
            body.append(align(statements, self.hoist_as(name)))
        functions[0].body = [item for item in body if isinstance(item, ast.stmt)]
        return ast.unparse(ast.fix_missing_locations(functions[0])) + "\n"

    def hoist_as(self, name: str) -> Hoist:
        """Makes constants of this name."""

        def hoist(nodes: Sequence[ast.expr]) -> str:
            return self.constants.add(_upper(name), [ast.unparse(node) for node in nodes])

        return hoist

    def _name(self, nodes: Sequence[ast.expr], name: str) -> ast.expr:
        """Numbers under a name of their own; anything else as it is written."""
        if all(map(is_number, nodes)):
            return ast.Name(self.hoist_as(name)(nodes), ast.Load())
        return self._align(nodes, name)

    def _align(self, nodes: Sequence[ast.expr], name: str) -> ast.expr:
        aligned = align(nodes, self.hoist_as(name))
        assert isinstance(aligned, ast.expr)
        return aligned


def side_by_side(functions: Sequence[ast.FunctionDef]) -> list[tuple[ast.stmt, ...]]:
    """The statements of a function's body at every workload, one place after the other.

    Raises Misaligned: if there are more at one than at another.
    """
    if len({len(function.body) for function in functions}) > 1:
        raise Misaligned(f"{functions[0].name} has other statements at another size")
    return list(zip(*(function.body for function in functions), strict=True))


def _function(text: str) -> ast.FunctionDef:
    (function,) = parse_python(text).body
    assert isinstance(function, ast.FunctionDef)
    return function


def _target(statement: ast.stmt) -> str | None:
    """The one name that a statement assigns to."""
    target = statement.targets[0] if isinstance(statement, ast.Assign) else None
    return target.id if isinstance(target, ast.Name) else None


def _allocation(statement: ast.stmt) -> ast.Call | None:
    value = statement.value if isinstance(statement, ast.Assign) else None
    is_one = isinstance(value, ast.Call) and ast.unparse(value.func) in ALLOCATIONS
    return value if is_one else None


def _tensors(function: ast.FunctionDef) -> set[str]:
    """Parameters that are always given, and memory that a launcher or the library makes."""
    arguments = function.args.args[: len(function.args.args) - len(function.args.defaults)]
    made = {
        _target(item) for item in function.body if _allocation(item) is not None or is_library(item)
    }
    staged = {
        name.id
        for item in function.body
        if isinstance(item, ast.Assign) and ast.unparse(item.value) == STAGED
        for name in ast.walk(item.targets[0])
        if isinstance(name, ast.Name)
    }
    return {argument.arg for argument in arguments} | {name for name in made if name} | staged


def _passes_tensors(
    call: ast.Call, parameters: Sequence[Parameter], tensors: Collection[str]
) -> bool:
    """Whether each pointer that a launch passes is a whole tensor, as allocated or as given."""
    return len(call.args) == len(parameters) and all(
        parameter.is_constexpr or (isinstance(item, ast.Name) and item.id in tensors)
        for item, parameter in zip(call.args, parameters, strict=True)
    )


@dataclass(frozen=True, slots=True)
class _Part:
    """Memory that a launcher makes for itself alone."""

    count: int  # of elements
    dtype: str  # such as "torch.int32"
    is_wide_on_cpu: bool = False  # float32 in the interpreter, which has memory of its own for it

    @property
    def bytes(self) -> int:
        return self.count * DTYPE_BYTES[self.dtype.removeprefix("torch.")]


def _scratch(function: ast.FunctionDef) -> dict[str, _Part]:
    """The memory that a launcher makes for itself alone, by name."""
    returned = {
        node.id
        for item in function.body
        if isinstance(item, ast.Return)
        for node in ast.walk(item)
        if isinstance(node, ast.Name)
    }
    found: dict[str, _Part] = {}
    for statement in function.body:
        name, call = _target(statement), _allocation(statement)
        part = None if call is None or name in returned else _part(call, found)
        if name is not None and part is not None:
            found[name] = part
    return found


def _part(call: ast.Call, found: Mapping[str, _Part]) -> _Part | None:
    what = ast.unparse(call.func)
    given = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
    first = ast.unparse(call.args[0])
    if what == "torch.empty_like":
        return found.get(first) if not given else None
    dtype = given.get("dtype", "")
    owner, narrow = found.get(dtype.removesuffix(".dtype")), _WIDE_ON_CPU.fullmatch(dtype)
    is_wide = narrow is not None
    if owner is not None:
        dtype, is_wide = owner.dtype, owner.is_wide_on_cpu
    elif narrow:
        dtype = narrow[1]
    is_known = dtype.removeprefix("torch.") in DTYPE_BYTES
    if what != "torch.empty" or not is_known or not is_number(call.args[0]):
        return None
    shape = ast.literal_eval(first)
    part = _Part(prod(shape) if isinstance(shape, tuple) else shape, dtype, is_wide)
    return part if not is_wide or part.bytes <= _MOST_POOLED_BYTES else None


def _lay_out_parts(parts: Mapping[str, _Part]) -> tuple[str, int]:
    """(start, end, dtype) of each part as text, and the bytes of all."""
    start, layout = 0, []
    for part in parts.values():
        end = start + part.bytes
        layout.append(f"({start}, {end}, {part.dtype})")
        start = -(-end // _ALIGNMENT) * _ALIGNMENT
    return f"({', '.join(layout)})", start


def _upper(name: str) -> str:
    return re.sub(r"\W", "_", name).upper()
