"""What differs between a kernel and its parent, and whether an existing skill explains the change.

A change has a diff, to read, and a fingerprint, by which the same change is known again.
"""

import ast
import difflib
from dataclasses import dataclass

from kmem.host.syntax import parse_python
from kmem.records import Kernel, content_hash


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a change teaches no new skill: which skills it belongs to, and what differs, in words."""

    skills: tuple[str, ...]
    text: str


def diff_sources(parent: Kernel, child: Kernel) -> str:
    """The unified diff from parent to child, as `diff -u` prints it.

    Each line ends with a newline.
    """
    lines = difflib.unified_diff(
        parent.source.splitlines(),
        child.source.splitlines(),
        f"{parent.hash[:12]}.py",
        f"{child.hash[:12]}.py",
        lineterm="",
    )
    return "".join(f"{line}\n" for line in lines)


def change_fingerprint(parent: Kernel, child: Kernel) -> str:
    """SHA-256 of the lines taken away and of the lines added, each in order.

    Both texts are brought to one form first (`ast.unparse`), so that neither comments nor
    formatting count. What surrounds the lines does not count either: the same edit of two kernels
    that differ elsewhere is one change. Covered: texts that Python reads; another text is compared
    as it is.
    """
    removed, added = changed_lines(parent, child)
    return content_hash(*(f"- {line}" for line in removed), *(f"+ {line}" for line in added))


def changed_lines(parent: Kernel, child: Kernel) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The lines taken away and the lines added, each in order.

    They are without comments, formatting and indentation.
    """
    before, after = _without_common_ends(
        _canonical(parent.source).splitlines(), _canonical(child.source).splitlines()
    )
    removed: list[str] = []
    added: list[str] = []
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
    for kind, low, high, new_low, new_high in matcher.get_opcodes():
        if kind != "equal":
            removed += (line.strip() for line in before[low:high])
            added += (line.strip() for line in after[new_low:new_high])
    return tuple(removed), tuple(added)


def _without_common_ends(before: list[str], after: list[str]) -> tuple[list[str], list[str]]:
    """Both without the lines that they begin and end with alike.

    Where lines repeat, those would decide what is matched with what.
    """
    start = 0
    while start < min(len(before), len(after)) and before[start] == after[start]:
        start += 1
    end = 0
    while end < min(len(before), len(after)) - start and before[-1 - end] == after[-1 - end]:
        end += 1
    return before[start : len(before) - end], after[start : len(after) - end]


def explain_change(parent: Kernel, child: Kernel, skill: str) -> Explanation | None:
    """Which existing skills a change belongs to; None if it is something new.

    A kernel that recipes wrote is explained by its recipes: other knobs of the same recipes, or
    other recipes. A kernel that differs from its parent only in the values of module-level
    constants, the knobs of kernels that no recipe wrote, is explained by the skill of its task.
    """
    if child.choices:
        return Explanation(
            tuple(dict.fromkeys(choice.recipe for choice in child.choices)),
            _describe_choices(parent, child),
        )
    before, after = _constants(parent.source), _constants(child.source)
    if before is None or after is None or before[0] != after[0]:
        return None
    moved = [
        f"{name} {before[1].get(name)} -> {value}"
        for name, value in after[1].items()
        if before[1].get(name) != value
    ]
    return Explanation((skill,), ", ".join(moved) or "nothing but formatting")


def _describe_choices(parent: Kernel, child: Kernel) -> str:
    before = {choice.site: choice for choice in parent.choices}
    parts = []
    for choice in child.choices:
        old = before.get(choice.site)
        if old is None or old.recipe != choice.recipe:
            replaced = old.recipe if old else "what was there"
            parts.append(f"{choice.recipe} in place of {replaced} at {choice.operator}")
            continue
        knobs = dict(old.knobs)
        parts += [
            f"{choice.recipe} {name} {knobs.get(name)} -> {value}"
            for name, value in choice.knobs
            if knobs.get(name) != value
        ]
    return ", ".join(parts) or "the same recipes and knobs"


def _canonical(source: str) -> str:
    try:
        return ast.unparse(parse_python(source))
    except (SyntaxError, ValueError):  # ValueError: null bytes
        return source


def _constants(source: str) -> tuple[str, dict[str, str]] | None:
    """A module with the values of its top-level constants masked, and those values as text.

    None if the source is no Python.
    """
    try:
        tree = parse_python(source)
    except (SyntaxError, ValueError):
        return None
    values = {}
    for statement in tree.body:
        if (
            isinstance(statement, ast.Assign)
            and isinstance(statement.targets[0], ast.Name)
            and _is_plain(statement.value)
        ):
            values[statement.targets[0].id] = ast.unparse(statement.value)
            statement.value = ast.Constant(None)
    return ast.dump(tree), values


def _is_plain(value: ast.expr) -> bool:
    """A number or text, or one wrapped for Triton: `tl.constexpr(128)`."""
    if isinstance(value, ast.Call):
        return (
            ast.unparse(value.func).split(".")[-1] == "constexpr"
            and len(value.args) == 1
            and _is_plain(value.args[0])
        )
    return isinstance(value, ast.Constant) and isinstance(value.value, int | str)
