"""The house: how long files are, what the maps name, and how statements are written."""

import ast
import io
import re
import subprocess
import tokenize
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "kmem"

#: What is written by hand in Python.
WRITTEN = ("kmem", "skills", "tools", "tests")
#: Documents for people, beside every docstring and comment.
DOCUMENTS = ("README.md", "CONTRIBUTING.md", "db/README.md", "docs/*.md")
#: Rooms and files of the repository.
TOP = {
    *("kmem", "skills", "db", "problems", "tests", "tools", "docs", ".ci"),
    *("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "LICENSE", "Makefile"),
    *("pyproject.toml", "constraints.txt", ".gitignore"),
}
MOST_LINES = 400
MOST_FILES_AT_THE_TOP = 14
MOST_TARGETS = 2
MOST_PARAMETERS = 8
MOST_FORMAT_SKIPS = 10

#: Files that a text may name though no such file is in the repository: what a run or a user
#: writes, and names in examples.
NOT_OURS = {
    "best_kernel.py",
    "candidate.py",
    "kernel.py",
    "problem.py",
    "report.md",
    "squared_relu.py",  # the problem of docs/skills.md
}
#: Packages of others, whose files are named as sources.
OTHERS = ("src/kernelbench/", "torch/", "triton/", "squared-relu/")


@cache
def python_files(*places: str) -> tuple[Path, ...]:
    found = [path for place in places for path in sorted((ROOT / place).rglob("*.py"))]
    return tuple(path for path in found if "snapshots" not in path.parts)


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def nodes_of(path: Path) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(tree_of(path)))


def written_code() -> tuple[Path, ...]:
    """The package, and the recipes of skills with their modules; examples show what others do."""
    skills = (path for path in python_files("skills") if "examples" not in path.parts)
    return (*python_files("kmem"), *skills)


def nodes(kind: type[ast.AST]) -> Iterator[tuple[str, ast.AST]]:
    """Every node of a kind with the place where it stands."""
    for path in written_code():
        for node in nodes_of(path):
            if isinstance(node, kind):
                yield f"{path.relative_to(ROOT)}:{node.lineno}", node


# --- size


def test_no_module_is_longer_than_400_lines() -> None:
    lengths = {
        str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines())
        for path in python_files("kmem")
    }
    assert {name: lines for name, lines in lengths.items() if lines > MOST_LINES} == {}


def test_nothing_lies_beside_the_rooms_that_the_user_knows() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("no git checkout")
    assert {name.split("/", 1)[0] for name in listed.stdout.splitlines()} == TOP


def test_few_files_lie_at_the_top() -> None:
    assert len(list(PACKAGE.glob("*.py"))) <= MOST_FILES_AT_THE_TOP


# --- maps

#: A line of a map, as in kmem/records/__init__.py; a package has a slash behind its name.
ENTRY = re.compile(r"^- ([\w.]+/?): ((?:.|\n(?!\n|- ))+)", re.MULTILINE)


def rooms() -> list[Path]:
    """Every package below kmem; the map of kmem itself is docs/architecture.md."""
    inits = (path for path in python_files("kmem") if path.name == "__init__.py")
    return [path.parent for path in inits if path.parent != PACKAGE]


def entries(room: Path) -> dict[str, str]:
    """What the map of a room says, by name."""
    return dict(ENTRY.findall(ast.get_docstring(tree_of(room / "__init__.py")) or ""))


def contents(room: Path) -> set[str]:
    """The modules and packages of a room as a map names them."""
    modules = {path.name for path in room.glob("*.py")} - {"__init__.py", "__main__.py"}
    return modules | {f"{path.name}/" for path in room.iterdir() if (path / "__init__.py").exists()}


def test_every_room_has_a_map_that_names_what_is_there_and_nothing_else() -> None:
    faults = []
    for room in rooms():
        here, named, there = room.relative_to(ROOT), set(entries(room)), contents(room)
        faults += [f"{here}: the map lacks {name}" for name in sorted(there - named)]
        faults += [
            f"{here}: the map names {name}, which is not there"
            for name in sorted(named - there)
            if not (room / name).exists()
        ]
    assert faults == []


def test_what_a_map_says_is_a_sentence() -> None:
    said = [
        (f"{room.relative_to(ROOT)}: {name}", " ".join(text.split()))
        for room in rooms()
        for name, text in entries(room).items()
    ]
    assert [place for place, text in said if not text.endswith(".")] == []


def test_a_map_is_read_as_it_is_written() -> None:
    text = "A room.\n\n- one.py: what it is,\n  over two lines.\n- two/: what it holds.\n\nMore."
    assert dict(ENTRY.findall(text)) == {
        "one.py": "what it is,\n  over two lines.",
        "two/": "what it holds.",
    }


def test_the_architecture_names_every_room_and_every_file_at_the_top() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (.+?) \|", text, re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`(\w+(?:\.py|/))`", row)}
    assert contents(PACKAGE) <= named | {"__init__.py", "__main__.py"}
    missing = [name for name in sorted(named) if not (PACKAGE / name).exists()]
    assert [name for name in missing if not (ROOT / name).exists()] == []


# --- names of files in texts

#: A name of a file in prose, with the directories before it, if any.
FILE_NAME = re.compile(r"(?<![\w./<{*-])((?:[\w.-]+/)*[\w-]+\.(?:py|md|sql|toml))\b(?![\w/(*])")


@cache
def known_names() -> frozenset[str]:
    """Every way to name a file of the repository: its path, and each end of the path."""
    places = [path for place in (*WRITTEN, "problems", "db", "docs") for path in files_below(place)]
    places += [path for path in ROOT.iterdir() if path.is_file()]
    names = set()
    for path in places:
        parts = path.relative_to(ROOT).parts
        names |= {"/".join(parts[start:]) for start in range(len(parts))}
    return frozenset(names)


def files_below(place: str) -> list[Path]:
    return [path for path in (ROOT / place).rglob("*") if path.is_file()]


def unknown_files(text: str) -> list[str]:
    """The names in a text of files that do not exist."""
    return [
        name
        for name in FILE_NAME.findall(text)
        if name not in known_names()
        and name.rpartition("/")[2] not in NOT_OURS
        and not name.startswith(OTHERS)
    ]


def prose(path: Path) -> Iterator[tuple[int, str]]:
    """The docstrings and comments of a file, with the line of each."""
    source = path.read_text(encoding="utf-8")
    for node in ast.walk(tree_of(path)):
        documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
        if isinstance(node, documented) and (text := ast.get_docstring(node, clean=False)):
            yield node.body[0].lineno, text
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def test_files_named_in_docstrings_and_comments_exist() -> None:
    faults = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in python_files(*WRITTEN)
        if unknown_files(path.read_text(encoding="utf-8"))  # telling comments from code takes long
        for line, text in prose(path)
        for name in unknown_files(text)
    ]
    assert faults == []


def test_files_named_in_documents_exist() -> None:
    paths = [path for pattern in DOCUMENTS for path in sorted(ROOT.glob(pattern))]
    faults = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in paths
        for name in unknown_files(path.read_text(encoding="utf-8"))
    ]
    assert faults == []


@pytest.mark.parametrize(
    ("text", "unknown"),
    [
        ("see test_house.py and tests/test_house.py", []),
        ("what was called laboratory.py", ["laboratory.py"]),
        ("run/test_house.py", ["run/test_house.py"]),
        ("the user's problem.py, triton/runtime/cache.py, and kernel_<hash>.py", []),
    ],
)
def test_a_name_is_known_by_any_end_of_its_path(text: str, unknown: list[str]) -> None:
    assert unknown_files(text) == unknown


# --- statements


def targets(target: ast.expr) -> int:
    if isinstance(target, ast.Tuple | ast.List):
        return sum(targets(item) for item in target.elts)
    return 1


def test_an_assignment_has_at_most_two_targets() -> None:
    assert [
        place
        for place, node in nodes(ast.Assign)
        if sum(targets(target) for target in node.targets) > MOST_TARGETS
    ] == []


def is_nested(conditional: ast.AST) -> bool:
    """Whether another conditional expression lies in this one, or in the filter of a loop in it."""
    return any(
        isinstance(inner, ast.IfExp) for inner in ast.walk(conditional) if inner is not conditional
    )


def test_no_conditional_expression_lies_in_another() -> None:
    faults = [place for place, node in nodes(ast.IfExp) if is_nested(node)]
    loops = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
    faults += [
        place
        for place, node in nodes(loops)
        for loop in node.generators
        if any(isinstance(inner, ast.IfExp) for test in loop.ifs for inner in ast.walk(test))
    ]
    assert faults == []


def parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    given = function.args
    names = [each.arg for each in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
    return len(names) - (names[:1] in (["self"], ["cls"]))


def is_kernel(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """A Triton kernel takes what it takes."""
    return any("triton" in ast.unparse(decorator) for decorator in function.decorator_list)


def test_no_function_has_more_than_eight_parameters() -> None:
    assert [
        f"{place}: {node.name} has {parameters(node)}"
        for place, node in nodes(ast.FunctionDef | ast.AsyncFunctionDef)
        if parameters(node) > MOST_PARAMETERS and not is_kernel(node)
    ] == []


def test_the_formatter_is_seldom_told_to_keep_out() -> None:
    skips = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in python_files(*WRITTEN)
        if "fmt: skip" in path.read_text(encoding="utf-8")
        for line, text in prose(path)
        if text.startswith("#") and "fmt: skip" in text
    ]
    assert len(skips) <= MOST_FORMAT_SKIPS, skips


@pytest.mark.parametrize(
    ("source", "measure", "expected"),
    [
        ("a, (b, c) = d", lambda node: targets(node.targets[0]), 3),
        ("a if b else c if d else e", lambda node: is_nested(node.value), True),
        ("[a if b else c for a in d]", lambda node: is_nested(node.value.elt), False),
        ("def f(self, a, /, b, *, c): ...", parameters, 3),
    ],
)
def test_what_is_counted_is_what_is_there(
    source: str, measure: Callable[[ast.stmt], object], expected: object
) -> None:
    assert measure(ast.parse(source).body[0]) == expected
