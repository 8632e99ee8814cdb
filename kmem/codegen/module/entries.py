"""The kernels of a module as their recipes wrote them, and the entries that launches go through.

Recipes write kernels that take sizes, strides, tiles and flags as `tl.constexpr` arguments, and
launchers that pass them. A module is written for one setting, and a launch passes tensors alone:
between the two stands an entry, which calls the kernel with constants of the module.

    @triton.jit
    def kmem_cumsum_scan_carry(p0, q):
        kmem_scan_carry(p0, q, N=CUMSUM_N, BR=CUMSUM_BR, REVERSE=False)

Triton inlines the call, so that an entry costs nothing; the kernel's text is never edited. Where a
module is written for several workloads, they share the text: what differs between them are the
values of constants.
"""

import ast
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from kmem.codegen.module.alignment import Misaligned, align, is_number
from kmem.codegen.module.constants import Constants
from kmem.codegen.module.launchers import Launched, LauncherWriter
from kmem.codegen.module.staging import Parted, part_launcher
from kmem.codegen.text.functions import JitFunction, Parameter, bind, split_functions
from kmem.codegen.text.launches import LaunchCall, find_launches, read_launcher
from kmem.errors import RecipeError
from kmem.host.syntax import parse_python
from kmem.recipes import Emission

_HASH = re.compile(r"_(?=[0-9a-f]*\d)[0-9a-f]{8,10}$")
#: An argument that is known when a module is imported, though not when it is written.
_AT_IMPORT = {"triton.knobs.runtime.interpret": "_INTERPRETED"}
#: Where a constant will be named, numbered.
_PLACE = "KMEM_HOISTED_"


@dataclass(frozen=True, slots=True)
class Launcher:
    """The functions of one site in a module, and which of the site's inputs they take.

    `name` launches; `staging` makes what it reads in the place of parameters, and is "" where a
    launcher has no such part. `reads` is None where the launcher takes all inputs. With
    `takes_scratch` it is given scratch memory last.
    """

    text: str
    name: str
    reads: tuple[int, ...] | None = None
    staging: str = ""
    staging_reads: tuple[int, ...] = ()
    takes_scratch: bool = False


@dataclass(frozen=True, slots=True)
class Entry:
    """The function that launches go through, and the skills and knobs that they are of."""

    function: JitFunction
    origins: list[str]


@dataclass(frozen=True, slots=True)
class _Argument:
    """What one launch gives a parameter of its kernel.

    `texts` are what the entry knows of it at each workload; where that is None, launches pass it:
    `passed` are parameters of the entry, several for a tuple, and what each gets at each workload.
    """

    name: str
    texts: tuple[str, ...] | None
    passed: Sequence[tuple[Parameter, Sequence[ast.expr]]] = ()
    is_tuple: bool = False

    @property
    def given(self) -> str:
        """What the entry gives its kernel of what it is passed."""
        names = [parameter.name for parameter, _ in self.passed]
        if not self.is_tuple:
            return names[0]
        return f"({', '.join(names)}{',' * (len(names) == 1)})"


@dataclass
class _SiteText:
    """One site of a module: its launcher at every workload, and its launches."""

    label: str  # what its constants and its launcher are named after
    functions: list[ast.FunctionDef]  # one for each workload
    launches: list[list[LaunchCall]]  # for each launch of the text, one for each workload
    origin: str
    steady: frozenset[int]


@dataclass
class ModuleKernels:
    """Collects the sites of a module, then writes their kernels, entries and launchers."""

    constants: Constants
    writer: LauncherWriter
    sites: list[_SiteText] = field(default_factory=list)
    functions: dict[str, JitFunction] = field(default_factory=dict)
    entries: dict[str, Entry] = field(default_factory=dict)  # by name
    _names: dict[object, str] = field(default_factory=dict)  # of entries, by what they know

    def add_site(
        self,
        label: str,
        emissions: Sequence[Emission],
        origin: str = "",
        steady: Collection[int] = (),
    ) -> None:
        """Add a site.

        Args:
            emissions: what its recipe wrote for each workload.
            origin: the skill and its knobs, for the comment above the entries.
            steady: places of its inputs that parameters alone decide, unless all are.
        Raises RecipeError: Misaligned if these differ in more than numbers; or if a kernel's name
            stands for two texts.
        """
        names = self._add_kernels(label, emissions)
        functions = [read_launcher(emission.launcher) for emission in emissions]
        found = [
            [LaunchCall(launch.call, own[launch.kernel]) for launch in find_launches(function, own)]
            for function, own in zip(functions, names, strict=True)
        ]
        if len({len(launches) for launches in found}) > 1:
            raise Misaligned(f"{label} has other launches at another size")
        launches = [list(group) for group in zip(*found, strict=True)]
        for group in launches:
            for launch, own in zip(group, names, strict=True):
                _name_functions(launch.call, own)
            if len({launch.kernel for launch in group}) > 1:
                raise Misaligned(f"{label} launches other kernels at another size")
        self.sites.append(_SiteText(label, functions, launches, origin, frozenset(steady)))

    def _add_kernels(self, label: str, emissions: Sequence[Emission]) -> list[dict[str, str]]:
        """Take the kernels' text; by workload, a kernel's name and its name here."""
        shipped = [name for name, _ in emissions[0].kernels]
        if any(len(emission.kernels) != len(shipped) for emission in emissions):
            raise Misaligned(f"{label} has other kernels at another size")
        names = [
            {name: own for (name, _), own in zip(emission.kernels, shipped, strict=True)}
            for emission in emissions
        ]
        shared, again = [], {}
        by_kernel = zip(*(emission.kernels for emission in emissions), strict=True)
        for own, texts in zip(shipped, by_kernel, strict=True):
            renamed = [_rename(text, other) for (_, text), other in zip(texts, names, strict=True)]
            text, is_hoisted = self._shared_text(renamed, own)
            shared.append(text)
            # equal text at the problem's own size, other numbers at another one
            if is_hoisted and self._clashes(own, text):
                again[own] = self._free_name(own, text)
        for text in shared:
            for function in split_functions(_rename(text, again)):
                if self.functions.setdefault(function.name, function).text != function.text:
                    raise RecipeError(
                        f"Two kernels named {function.name} have different texts; "
                        "put what differs into the name or a constexpr"
                    )
        return [{name: again.get(own, own) for name, own in each.items()} for each in names]

    def _clashes(self, name: str, text: str) -> bool:
        """Whether a function of a text has the name of another one."""
        own = next((each for each in split_functions(text) if each.name == name), None)
        return own is not None and self.functions.get(name, own).text != own.text

    def _free_name(self, name: str, text: str) -> str:
        """A kernel's name that stands for no other text."""
        number = 2
        while True:
            other = _HASH.sub(lambda found, count=number: f"_{count}{found[0]}", name)
            other = other if other != name else f"{name}_{number}"
            if not self._clashes(other, _rename(text, {name: other})):
                return other
            number += 1

    def _shared_text(self, texts: Sequence[str], kernel: str) -> tuple[str, bool]:
        """The text of all workloads, and whether it has constants for numbers that differ."""
        if len(set(texts)) == 1:
            return texts[0], False
        shared, hoisted = _align_kernels(tuple(texts))
        name = _upper(f"{_short(kernel)}_NUMBER")
        constants = [self.constants.add(name, values, for_kernels=True) for values in hoisted]
        return re.sub(rf"\b{_PLACE}(\d+)\b", lambda match: constants[int(match[1])], shared), True

    # --- writing

    def write(self) -> tuple[str, list[Launcher]]:
        """The text of all kernels and entries, and the launcher of each site."""
        launched = [[self._enter(site, group) for group in site.launches] for site in self.sites]
        called = self._called()
        kernels = [function.text for name, function in self.functions.items() if name in called]
        kernels += [
            "".join(f"# {origin}\n" for origin in entry.origins) + entry.function.text
            for entry in self.entries.values()
        ]
        launchers = [
            self._write_launcher(site, each)
            for site, each in zip(self.sites, launched, strict=True)
        ]
        return "\n\n".join(kernels), launchers

    def _called(self) -> set[str]:
        """The kernels' functions that some entry reaches."""
        found: set[str] = set()
        waiting = [entry.function for entry in self.entries.values()]
        while waiting:
            more = (waiting.pop().reads & self.functions.keys()) - found
            found |= more
            waiting += [self.functions[name] for name in more]
        return found

    def _enter(self, site: _SiteText, group: Sequence[LaunchCall]) -> Launched:
        """Have a launch, at every workload, go through an entry."""
        kernel = self.functions[group[0].kernel]
        bound = [bind(launch.call, kernel) for launch in group]
        arguments = [
            self._read_argument(parameter, [given[parameter.name] for given in bound])
            for parameter in kernel.parameters
            if parameter.name in bound[0]
        ]
        key = kernel.name, *((each.name, each.texts, len(each.passed)) for each in arguments)
        if key not in self._names:
            self._names[key] = self._add_entry(site.label, kernel, arguments)
        entry = self.entries[self._names[key]]
        origin = f"{site.label}, by {site.origin}"
        if site.origin and origin not in entry.origins:
            entry.origins.append(origin)
        own = {parameter.name for parameter in kernel.parameters}
        for place, launch in enumerate(group):
            launch.call.args = [nodes[place] for each in arguments for _, nodes in each.passed]
            launch.call.keywords = [each for each in launch.call.keywords if each.arg not in own]
        return Launched(entry.function.name, entry.function.parameters, _prefix(site, group))

    def _read_argument(self, parameter: Parameter, nodes: Sequence[ast.expr]) -> _Argument:
        if all(self._is_known(parameter, node) for node in nodes):
            texts = map(ast.unparse, nodes)
            return _Argument(parameter.name, tuple(_AT_IMPORT.get(text, text) for text in texts))
        tuples = [node.elts for node in nodes if isinstance(node, ast.Tuple)]
        if not tuples:
            own = Parameter(parameter.name, parameter.is_constexpr, None)
            return _Argument(parameter.name, None, [(own, nodes)])
        if len(tuples) < len(nodes) or len(set(map(len, tuples))) > 1:
            raise Misaligned(f"{parameter.name} has other parts at another size")
        passed = [
            (Parameter(f"{parameter.name}_{place}", parameter.is_constexpr, None), part)
            for place, part in enumerate(zip(*tuples, strict=True))
        ]
        return _Argument(parameter.name, None, passed, is_tuple=True)

    def _is_known(self, parameter: Parameter, node: ast.expr) -> bool:
        """Whether an argument is known when a module is written or imported."""
        text = ast.unparse(node)
        if not parameter.is_constexpr:  # a number is then one that the kernel wants to be told
            return text in ("()", "None")
        is_literal = is_number(node) or isinstance(node, ast.Constant)
        return is_literal or text in _AT_IMPORT or text in self.functions

    def _add_entry(self, label: str, kernel: JitFunction, arguments: Sequence[_Argument]) -> str:
        """The name of a new entry."""
        wanted = f"kmem_{_in_site(label, kernel.name)}"
        name, number = wanted, 2
        while name in self.entries or name in self.functions:
            name, number = f"{wanted}_{number}", number + 1
        head = ", ".join(each.write() for argument in arguments for each, _ in argument.passed)
        given: list[str] = []
        for argument, parameter in zip(arguments, kernel.parameters, strict=False):
            if argument.texts is not None or argument.name != parameter.name:
                break
            given.append(argument.given)
        for argument in arguments[len(given) :]:
            value = argument.given if argument.texts is None else ""
            value = value or self._write_known(label, kernel, argument.name, argument.texts)
            given.append(f"{argument.name}={value}")
        text = f"@triton.jit\ndef {name}({head}):\n    {kernel.name}({', '.join(given)})\n"
        self.entries[name] = Entry(JitFunction(name, text), [])
        return name

    def _write_known(
        self, label: str, kernel: JitFunction, parameter: str, texts: Sequence[str]
    ) -> str:
        """A constant's name, or a flag as it is written where all workloads have the same."""
        first = texts[0]
        if first in _AT_IMPORT.values():
            return self.constants.add("INTERPRETED", texts, for_kernels=True)
        is_flag = first in ("True", "False", "None", "()") or first[0] in "\"'"
        if first in self.functions or (is_flag and len(set(texts)) == 1):
            return first
        shared = _upper(f"{label}_{parameter}")
        if self.constants.values.get(shared, tuple(texts)) != tuple(texts):
            shared = _upper(f"{_in_site(label, kernel.name)}_{parameter}")
        return self.constants.add(shared, texts, for_kernels=True)

    def _write_launcher(self, site: _SiteText, launched: Sequence[Launched]) -> Launcher:
        launches = [
            (each, [LaunchCall(launch.call, each.kernel) for launch in group])
            for each, group in zip(launched, site.launches, strict=True)
        ]
        name, write = f"_launch_{site.label}", self.writer.write
        parted = self._part(site, launches)
        if not parted:
            return Launcher(write(name, site.label, site.functions, launches), name)
        first = parted[0]
        staged = [launches[number] for number in first.staged]
        left = [each for number, each in enumerate(launches) if number not in first.staged]
        staging = f"_stage_{site.label}"
        text = write(staging, f"{site.label}_staging", [each.staging for each in parted], staged)
        rest = write(name, site.label, [each.rest for each in parted], left)
        return Launcher(f"{text}\n\n{rest}", name, first.rest_reads, staging, first.staging_reads)

    def _part(
        self, site: _SiteText, launches: Sequence[tuple[Launched, Sequence[LaunchCall]]]
    ) -> list[Parted]:
        """A site's launcher in two at every workload; empty where that is not possible."""
        functions = self.functions | {name: each.function for name, each in self.entries.items()}
        parted: list[Parted] = []
        for place, function in enumerate(site.functions):
            calls = [group[place] for _, group in launches]
            part = part_launcher(function, calls, site.steady, functions)
            if part is None or part.staged != (parted[0] if parted else part).staged:
                return []
            parted.append(part)
        return parted


@lru_cache(maxsize=1024)
def _align_kernels(texts: tuple[str, ...]) -> tuple[str, tuple[tuple[str, ...], ...]]:
    """The text of kernels at all workloads, with places where they differ, and what stands there.

    It is kept: the kernels of one run have most of their sites in common.

    Raises Misaligned: if they differ in more than numbers.
    """
    hoisted: list[tuple[str, ...]] = []

    def hoist(nodes: Sequence[ast.expr]) -> str:
        hoisted.append(tuple(ast.unparse(node) for node in nodes))
        return f"{_PLACE}{len(hoisted) - 1}"

    shared = ast.unparse(align([parse_python(text) for text in texts], hoist))
    return shared, tuple(hoisted)


def _prefix(site: _SiteText, group: Sequence[LaunchCall]) -> str:
    """What the constants of one launch are named after."""
    alike = [each for each in site.launches if each[0].kernel == group[0].kernel]
    name = _in_site(site.label, group[0].kernel)
    if len(alike) > 1:
        name = "_".join([name, *map(ast.unparse, group[0].call.args[:1])])
    return name


def _in_site(label: str, kernel: str) -> str:
    """A kernel's short name behind its site's, unless it says the same."""
    short = _short(kernel)
    return short if short.startswith(label) else f"{label}_{short}"


def _short(kernel: str) -> str:
    """A kernel's name without what tells it apart from others of the same purpose."""
    return _HASH.sub("", kernel).removeprefix("kmem_").strip("_")


def _name_functions(call: ast.Call, names: Mapping[str, str]) -> None:
    """Have a launch hand functions in by other names."""
    for value in (*call.args, *(keyword.value for keyword in call.keywords)):
        if isinstance(value, ast.Name):
            value.id = names.get(value.id, value.id)


def _upper(name: str) -> str:
    return re.sub(r"\W", "_", name).upper()


def _rename(text: str, names: Mapping[str, str]) -> str:
    """A text with other names in the place of these."""
    changed = {name: other for name, other in names.items() if name != other}
    if not changed:
        return text
    pattern = re.compile(rf"\b(?:{'|'.join(map(re.escape, changed))})\b")
    return pattern.sub(lambda match: changed[match[0]], text)
