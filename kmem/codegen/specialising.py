"""Kernels and launchers of a module, specialised to the constants that they are launched with.

Recipes write kernels that take sizes, strides, tiles and flags as `tl.constexpr` arguments, and
launchers that pass them. A module is written for one setting: what every launch of a kernel passes
alike becomes a constant of the module, flags decide their branches, and a launch passes tensors
alone. A kernel that is launched with several values for an argument still takes that argument.

Where a module is written for several workloads, they share the text: what differs between them are
the values of constants.
"""

import ast
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from kmem.codegen.alignment import Misaligned, align, is_number
from kmem.codegen.constants import Constants
from kmem.codegen.edited_text import EditedText
from kmem.codegen.jit_text import JitFunction, Parameter, bind, split_functions
from kmem.codegen.launch_text import LaunchCall, find_launches, read_launcher
from kmem.codegen.launcher_writer import Launched, LauncherWriter
from kmem.codegen.staging import Parted, part_launcher
from kmem.codegen.tuples import take_apart
from kmem.errors import RecipeError
from kmem.host.syntax import parse_python
from kmem.recipes import Emission

_HASH = re.compile(r"_(?=[0-9a-f]*\d)[0-9a-f]{8,10}$")
#: An argument that is known when a module is imported, though not when it is written.
_AT_IMPORT = {"triton.knobs.runtime.interpret": "_INTERPRETED"}


@dataclass
class SiteText:
    """One site of a module: its launcher at every workload, and its launches."""

    label: str  # what its constants and its launcher are named after
    functions: list[ast.FunctionDef]  # one for each workload
    launches: list[list[LaunchCall]]  # for each launch of the text, one for each workload
    origin: str  # the skill that wrote it, and at which knobs
    steady: frozenset[int]  # places of its inputs that parameters alone decide


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


@dataclass
class Specialiser:
    """Collects the sites of a module, then writes their kernels and launchers."""

    constants: Constants
    writer: LauncherWriter
    sites: list[SiteText] = field(default_factory=list)
    functions: dict[str, JitFunction] = field(default_factory=dict)
    _known: dict[str, object] = field(default_factory=dict)  # constants of one value for all
    _passed: dict[str, list[Parameter]] = field(default_factory=dict)  # what launches pass

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
            origin: the skill and its knobs, for the comment above the kernels.
            steady: places of its inputs that parameters alone decide, unless all are.
        Raises RecipeError: Misaligned if these differ in more than numbers; or if a kernel's name
            stands for two texts.
        """
        names = self._add_kernels(label, emissions)
        functions = [read_launcher(emission.launcher) for emission in emissions]
        found = [
            list(find_launches(function, own))
            for function, own in zip(functions, names, strict=True)
        ]
        if len({len(launches) for launches in found}) > 1:
            raise Misaligned(f"{label} has other launches at another size")
        launches = [list(group) for group in zip(*found, strict=True)]
        for group in launches:
            for call, own in zip(group, names, strict=True):
                _name_functions(call.call, own)
            if len({own[call.kernel] for call, own in zip(group, names, strict=True)}) > 1:
                raise Misaligned(f"{label} launches other kernels at another size")
        self.sites.append(SiteText(label, functions, launches, origin, frozenset(steady)))

    def _add_kernels(self, label: str, emissions: Sequence[Emission]) -> list[dict[str, str]]:
        """Take the kernels' text; by workload, a kernel's name and its name here."""
        shipped = [name for name, _ in emissions[0].kernels]
        if any(len(emission.kernels) != len(shipped) for emission in emissions):
            raise Misaligned(f"{label} has other kernels at another size")
        names = [
            {name: own for (name, _), own in zip(emission.kernels, shipped, strict=True)}
            for emission in emissions
        ]
        for texts in zip(*(emission.kernels for emission in emissions), strict=True):
            renamed = [_rename(text, own) for (_, text), own in zip(texts, names, strict=True)]
            for function in split_functions(self._align_text(renamed, label)):
                if self.functions.setdefault(function.name, function).text != function.text:
                    raise RecipeError(
                        f"Two kernels named {function.name} have different texts; "
                        "put what differs into the name or a constexpr"
                    )
        return names

    def _align_text(self, texts: Sequence[str], label: str) -> str:
        """The first of texts that differ in numbers alone, constants in the place of these."""
        if len(set(texts)) == 1:
            return texts[0]
        edited = EditedText(texts[0])

        def hoist(nodes: Sequence[ast.expr]) -> str:
            values = [ast.unparse(node) for node in nodes]
            name = self.constants.add(f"{label}_NUMBER".upper(), values, for_kernels=True)
            edited.replace(nodes[0], name)
            return name

        align([parse_python(text) for text in texts], hoist)
        return edited.result()

    # --- writing

    def write(self) -> tuple[str, list[Launcher]]:
        """The text of all kernels, and the launcher of each site."""
        for name in self._launched():
            self._settle_kernel(name)
        self._settle_helpers()
        shown = self._shown_names()
        kernels = "\n\n".join(
            self._comment(name) + _rename(function.text, shown)
            for name, function in self.functions.items()
        )
        return kernels, [self._write_launcher(site, shown) for site in self.sites]

    def _write_launcher(self, site: SiteText, shown: Mapping[str, str]) -> Launcher:
        launches = [(self._launched_as(site, group[0], shown), group) for group in site.launches]
        name, write = f"_launch_{site.label}", self.writer.write
        parted = self._part(site)
        if not parted:
            return Launcher(write(name, site.label, site.functions, launches), name)
        first = parted[0]
        staged = [launches[number] for number in first.staged]
        left = [each for number, each in enumerate(launches) if number not in first.staged]
        staging = f"_stage_{site.label}"
        text = write(staging, f"{site.label}_staging", [each.staging for each in parted], staged)
        rest = write(name, site.label, [each.rest for each in parted], left)
        return Launcher(f"{text}\n\n{rest}", name, first.rest_reads, staging, first.staging_reads)

    def _part(self, site: SiteText) -> list[Parted]:
        """A site's launcher in two at every workload; empty where that is not possible."""
        parted = []
        for place, function in enumerate(site.functions):
            # by its first workload's names, under which its kernels are known here
            calls = [LaunchCall(group[place].call, group[0].kernel) for group in site.launches]
            part = part_launcher(function, calls, site.steady, self.functions)
            if part is None or part.staged != (parted[0] if parted else part).staged:
                return []
            parted.append(part)
        return parted

    def _launched_as(
        self, site: SiteText, launch: LaunchCall, shown: Mapping[str, str]
    ) -> Launched:
        """What a launcher says of one launch."""
        alike = [group for group in site.launches if group[0].kernel == launch.kernel]
        short, label = _short(launch.kernel), site.label
        name = short if short.startswith(label) else f"{label}_{short}"
        if len(alike) > 1:
            name = "_".join([name, *map(ast.unparse, launch.call.args[:1])])
        kernel = shown.get(launch.kernel, launch.kernel)
        return Launched(kernel, self._passed[launch.kernel], name)

    def _comment(self, name: str) -> str:
        """What a launched kernel is for, and the knobs that it is written at."""
        sites = [
            site
            for site in self.sites
            if site.origin and any(group[0].kernel == name for group in site.launches)
        ]
        return "".join(f"# {site.label}, by {site.origin}\n" for site in sites)

    def _launched(self) -> list[str]:
        """Kernels that some site launches, in the order of their texts."""
        names = {group[0].kernel for site in self.sites for group in site.launches}
        return [name for name in self.functions if name in names]

    def _settle_kernel(self, name: str) -> None:
        """Make a kernel's arguments constants, as far as every launch agrees on them."""
        function = self.functions[name]
        groups = [
            (site.label, group)
            for site in self.sites
            for group in site.launches
            if group[0].kernel == name
        ]
        bound = [[bind(launch.call, function) for launch in group] for _, group in groups]
        function, bound = take_apart(function, bound)
        hoisted: dict[str, str] = {}
        known: dict[str, object] = {}
        for parameter in function.parameters:
            if not parameter.is_constexpr:
                continue
            values = {
                self._values([given.get(parameter.name) for given in group]) for group in bound
            }
            texts = next(iter(values))
            if len(values) == 1 and texts is not None:
                text = self._hoist(groups[0][0], function, parameter.name, texts)
                hoisted[parameter.name] = text
                known.update(self._value_of(parameter.name, text))
        pure = {name for name, other in self.functions.items() if other.is_pure}
        function = function.settle(known, pure)
        read = function.reads
        kept = [
            parameter
            for parameter in function.parameters
            if parameter.name not in hoisted and parameter.name in read
        ]
        function = function.with_names(hoisted).with_parameters(kept)
        for (_, group), givens in zip(groups, bound, strict=True):
            for launch, given in zip(group, givens, strict=True):
                _rewrite_call(launch.call, self.functions[name], given, [p.name for p in kept])
        self.functions[name] = function
        self._passed[name] = kept

    def _hoist(
        self, label: str, function: JitFunction, parameter: str, texts: Sequence[str]
    ) -> str:
        """A constant's name, or a flag as it is written where all workloads have the same."""
        if texts[0] in self.functions:
            return texts[0]
        if texts[0] in _AT_IMPORT.values():
            return self.constants.add("INTERPRETED", texts, for_kernels=True)
        is_same = len(set(texts)) == 1
        if is_same and (texts[0] in ("True", "False", "None") or texts[0][0] in "\"'"):
            return texts[0]
        shared = _upper(f"{label}_{parameter}")
        if self.constants.values.get(shared, tuple(texts)) != tuple(texts):
            short = _short(function.name)
            prefix = short if short.startswith(label) else f"{label}_{short}"
            shared = _upper(f"{prefix}_{parameter}")
        name = self.constants.add(shared, texts, for_kernels=True)
        if is_same:
            self._known[name] = ast.literal_eval(texts[0])
        return name

    def _settle_helpers(self) -> None:
        """Make constants of what every call of a helper passes; drop what nobody calls."""
        settled = set(self._launched())
        for name in reversed(list(self.functions)):
            if name in settled:
                continue
            callers = [other for other in self.functions.values() if name in other.reads]
            if not callers:
                del self.functions[name]
            elif all(caller.name in settled for caller in callers):
                self._settle_helper(name, callers)
                settled.add(name)

    def _settle_helper(self, name: str, callers: Sequence[JitFunction]) -> None:
        helper = self.functions[name]
        calls = [bind(call, helper) for caller in callers for call in caller.calls(name)]
        if not calls:  # handed on as a value
            return
        settled: dict[str, str] = {}
        known: dict[str, object] = {}
        for parameter in helper.parameters:
            given = {_text(call.get(parameter.name)) for call in calls}
            text = next(iter(given))
            if not (parameter.is_constexpr or text == "()") or len(given) > 1 or text is None:
                continue
            if self._is_decided(parse_python(text).body[0].value):
                settled[parameter.name] = text
                known.update(self._value_of(parameter.name, text))
        pure = {name for name, other in self.functions.items() if other.is_pure}
        kept = [item for item in helper.parameters if item.name not in settled]
        changed = helper.settle(known, pure).with_names(settled).with_parameters(kept)
        for caller in callers:
            self.functions[caller.name] = caller.without_arguments(helper, settled)
        self.functions[name] = changed

    def _values(self, nodes: Sequence[ast.expr | None]) -> tuple[str, ...] | None:
        """The texts of values that are known when a module is written or imported, or None."""
        texts = [_text(node) for node in nodes]
        known = [
            node is not None
            and (
                is_number(node)
                or isinstance(node, ast.Constant)
                or text in _AT_IMPORT
                or text in self.functions
            )
            for node, text in zip(nodes, texts, strict=True)
        ]
        return tuple(_AT_IMPORT.get(text, text) for text in texts) if all(known) else None

    def _is_decided(self, node: ast.expr) -> bool:
        """Whether an argument is made of constants and functions of the module alone."""
        if isinstance(node, ast.Tuple):
            return all(map(self._is_decided, node.elts))
        if isinstance(node, ast.Name):
            return node.id in self.constants.for_kernels or node.id in self.functions
        return is_number(node) or isinstance(node, ast.Constant)

    def _value_of(self, name: str, text: str) -> dict[str, object]:
        """What a parameter is known to be, by its name; nothing where that is not known yet.

        A function stands for itself: it is asked only whether there is one.
        """
        if text in self._known or text in self.functions:
            return {name: self._known.get(text, text)}
        node = parse_python(text).body[0].value
        is_literal = is_number(node) or isinstance(node, ast.Constant)
        return {name: ast.literal_eval(text)} if is_literal else {}

    def _shown_names(self) -> dict[str, str]:
        """The names of kernels and helpers without the hashes that told them apart."""
        shown: dict[str, str] = {}
        for name in self.functions:
            short = _HASH.sub("", name)
            number = 2
            while short in shown.values():
                short = f"{_HASH.sub('', name)}_{number}"
                number += 1
            shown[name] = short
        return {name: short for name, short in shown.items() if name != short}


def _name_functions(call: ast.Call, names: Mapping[str, str]) -> None:
    """Have a launch hand functions in by other names."""
    for value in (*call.args, *(keyword.value for keyword in call.keywords)):
        if isinstance(value, ast.Name):
            value.id = names.get(value.id, value.id)


def _rewrite_call(
    call: ast.Call, function: JitFunction, given: Mapping[str, ast.expr], kept: Sequence[str]
) -> None:
    """Have a launch pass the parameters that are kept, in order, and its options."""
    names = {parameter.name for parameter in function.parameters}
    options = [keyword for keyword in call.keywords if keyword.arg not in names]
    passed = [name for name in kept if name in given]
    if passed == list(kept[: len(passed)]):
        call.args, call.keywords = [given[name] for name in passed], options
    else:
        call.args = []
        call.keywords = [ast.keyword(name, given[name]) for name in passed] + options


def _text(node: ast.expr | None) -> str | None:
    return None if node is None else ast.unparse(node)


def _short(kernel: str) -> str:
    """What a kernel's constants are named after."""
    return _HASH.sub("", kernel).removeprefix("kmem_").strip("_")


def _upper(name: str) -> str:
    return re.sub(r"\W", "_", name).upper()


def _rename(text: str, names: Mapping[str, str]) -> str:
    """A text with other names in the place of these."""
    changed = {name: other for name, other in names.items() if name != other}
    if not changed:
        return text
    pattern = re.compile(rf"\b(?:{'|'.join(map(re.escape, changed))})\b")
    return pattern.sub(lambda match: changed[match[0]], text)
