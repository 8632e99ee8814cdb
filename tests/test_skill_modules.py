"""A new skill is a new directory: recipe.py may have modules beside it, and whatever reads, copies
or checks a skill takes these modules along.
"""

import importlib
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner
from test_skills import RECIPE as EMPTY_RECIPE
from test_skills import write_skill

from kmem.cli.skills.skills import skills
from kmem.curate.export import export_skills
from kmem.curate.own_skills import mark_as_own
from kmem.curate.sources import add_from
from kmem.devices import named_target
from kmem.errors import SkillError
from kmem.memory.skills.added import add_skill
from kmem.memory.skills.standing import SkillStanding, Standing
from kmem.plugins import Registry, build_plugin_manager, collect
from kmem.records import Contract
from kmem.skills import Skill, code_files, load_recipe, load_skill
from kmem.testing import check_recipe, trace_source

ROOT = Path(__file__).parent.parent

#: A whole recipe in three files: what is found, the kernel, and how it is launched.
RELU_RECIPE = '''"""Writes relu over a contiguous fp32 tensor."""

from kmem.recipes import Operand, Recipe, Site, Space

from .kernel import RELU
from .launch import write_launcher


class Relu(Recipe):
    operators = ("pointwise",)

    def match(self, graph, contract):
        return [
            Site(
                node.name,
                "pointwise",
                (node.name,),
                (Operand(node.args[0].name, graph.spec(node.args[0].name)),),
                (Operand(node.name, node.spec),),
                node.spec.numel,
                2 * node.spec.bytes,
            )
            for node in graph.nodes
            if node.target == "aten.relu.default"
            and node.spec.dtype == "float32"
            and node.spec.is_contiguous
        ]

    def space(self, site, device):
        return Space({"block": (64, 128)})

    def cost_ms(self, site, settings, device):
        return site.bytes / device.dram_bytes_per_s * 1e3

    def emit(self, site, settings):
        return write_launcher(RELU, site.detail, settings["block"])


RECIPE = Relu()
'''
RELU_KERNEL = """RELU = (
    "my_relu",
    '''
@triton.jit
def my_relu(x, y, COUNT: tl.constexpr, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(x + place, mask=place < COUNT, other=0.0)
    tl.store(y + place, tl.maximum(values, 0.0), mask=place < COUNT)
''',
)
"""
RELU_LAUNCH = """from kmem.recipes import Emission


def write_launcher(kernel, count, block):
    return Emission(
        (kernel,),
        "def launch(x):\\n"
        "    y = torch.empty_like(x)\\n"
        f"    my_relu[({-(-count // block)},)](x, y, COUNT={count}, BLOCK={block})\\n"
        "    return y\\n",
    )
"""
RELU_PROBLEM = """
import torch
class Model(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x)
def get_inputs():
    return [torch.randn(3, 70)]
"""


def write_relu(root: Path, name: str = "my-relu") -> Path:
    path = write_skill(root, name, recipe=RELU_RECIPE)
    (path / "kernel.py").write_text(RELU_KERNEL, encoding="utf-8")
    (path / "launch.py").write_text(RELU_LAUNCH, encoding="utf-8")
    return path


def write_pair(root: Path, name: str, value: int) -> Skill:
    """A skill whose recipe takes a number from a module beside it."""
    path = write_skill(root, name, recipe="from .numbers import VALUE\n" + EMPTY_RECIPE)
    (path / "numbers.py").write_text(f"VALUE = {value}\n", encoding="utf-8")
    return load_skill(path)


def value_of(skill: Skill) -> int:
    return sys.modules[type(load_recipe(skill)).__module__].VALUE


@pytest.fixture
def database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KMEM_DB", str(tmp_path / "home" / "kmem.db"))
    monkeypatch.setenv("KMEM_EMBEDDING_MODEL", "none")
    return tmp_path / "home" / "kmem.db"


def test_a_new_skill_is_a_new_directory(tmp_path: Path, database: Path) -> None:
    source = write_relu(tmp_path / "mine")
    mark_as_own(source, database)
    added = CliRunner().invoke(skills, ["add", str(source)], obj=Registry())
    assert added.exit_code == 0, added.output
    path = Path(added.stdout.strip())
    assert path.parent == database.parent / "skills"

    registry = collect(build_plugin_manager())
    assert registry.skills["my-relu"] == path
    validated = CliRunner().invoke(skills, ["validate", str(path)], obj=registry)
    assert (validated.exit_code, validated.stdout) == (0, "")

    recipe = load_recipe(load_skill(path))
    _, graph = trace_source(RELU_PROBLEM)
    (site,) = recipe.match(graph, Contract())
    emission = recipe.emit(site, {"block": 64})
    assert [name for name, _ in emission.kernels] == ["my_relu"]
    assert "my_relu[(4,)](x, y, COUNT=210, BLOCK=64)" in emission.launcher
    errors = check_recipe(recipe, RELU_PROBLEM, named_target("h200"))
    assert list(errors.values()) == [0.0, 0.0]


def test_modules_of_one_name_in_two_skills_do_not_collide(tmp_path: Path) -> None:
    first, second = write_pair(tmp_path, "first", 1), write_pair(tmp_path, "second", 2)
    copy = write_pair(tmp_path / "elsewhere", "first", 3)
    assert [value_of(skill) for skill in (first, second, copy, first)] == [1, 2, 3, 1]


def test_loading_twice_gives_the_same_and_after_an_edit_the_new(tmp_path: Path) -> None:
    skill = write_pair(tmp_path, "first", 1)
    recipe = load_recipe(skill)
    assert load_recipe(load_skill(skill.path)) is recipe
    (skill.path / "numbers.py").write_text("VALUE = 17\n", encoding="utf-8")
    assert value_of(skill) == 17


def test_an_edit_counts_however_soon_it_comes_after(tmp_path: Path) -> None:
    """Bytecode is told by size and second: neither changes here."""
    skill = write_pair(tmp_path, "first", 1)
    numbers, recipe = skill.path / "numbers.py", skill.path / "recipe.py"
    second = (1_600_000_000, 1_600_000_000)
    for file in (numbers, recipe):
        os.utime(file, second)
    assert value_of(skill) == 1
    numbers.write_text("VALUE = 2\n", encoding="utf-8")
    os.utime(numbers, second)
    assert value_of(skill) == 2
    recipe.write_text(recipe.read_text(encoding="utf-8").replace("VALUE", "WRONG"))
    os.utime(recipe, second)
    with pytest.raises(SkillError, match="cannot import name 'WRONG'"):
        load_recipe(skill)


def test_a_module_asked_for_later_is_found_too(tmp_path: Path) -> None:
    skill = write_pair(tmp_path, "first", 1)
    (skill.path / "heavy.py").write_text("from .numbers import VALUE as LATE\n", encoding="utf-8")
    package = type(load_recipe(skill)).__module__
    assert importlib.import_module(".heavy", package).LATE == 1


def test_modules_are_part_of_the_version(tmp_path: Path) -> None:
    skill = write_pair(tmp_path, "first", 1)
    seen = {skill.hash}
    (skill.path / "numbers.py").write_text("VALUE = 2\n", encoding="utf-8")
    seen.add(skill.hash)
    (skill.path / "numbers.py").rename(skill.path / "figures.py")
    seen.add(skill.hash)
    (skill.path / "figures.py").unlink()
    seen.add(skill.hash)
    assert len(seen) == 4


def test_loading_leaves_the_version_as_it_is(tmp_path: Path) -> None:
    skill = write_pair(tmp_path, "first", 1)
    before = skill.hash
    load_recipe(skill)
    assert skill.hash == before


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("VALUE = 1 / 0\n", "numbers.py fails on import: ZeroDivisionError: division by zero"),
        ("OTHER = 1\n", "recipe.py fails on import: ImportError: cannot import name 'VALUE'"),
        ("from .gone import X\n", "numbers.py fails on import: ModuleNotFoundError"),
    ],
)
def test_a_broken_module_is_named_by_every_command(
    tmp_path: Path, database: Path, text: str, fault: str
) -> None:
    path = write_pair(tmp_path, "broken", 1).path
    (path / "numbers.py").write_text(text, encoding="utf-8")
    for _ in range(2):  # nothing half imported is left behind
        with pytest.raises(SkillError, match=fault):
            load_recipe(load_skill(path))
    untrusted = CliRunner().invoke(skills, ["validate", str(path)], obj=Registry())
    assert "was not made here and was not run" in untrusted.stderr
    assert fault not in untrusted.output
    arguments = ["validate", "--trust-code", str(path)]
    validated = CliRunner().invoke(skills, arguments, obj=Registry())
    assert f"broken: {path}/{fault}" in validated.stdout
    with pytest.raises(SkillError, match=fault):
        add_from(str(path), database, {}, trust_code=True)
    assert not (database.parent / "skills" / "broken").exists()


def test_a_skill_is_added_with_its_modules(tmp_path: Path, database: Path) -> None:
    skill = write_pair(tmp_path, "first", 1)
    load_recipe(skill)  # leaves caches behind, which stay there
    added = add_skill(skill.path, database, {})
    assert sorted(file.name for file in added.path.rglob("*")) == [
        "SKILL.md",
        "numbers.py",
        "recipe.py",
    ]
    assert (added.hash, value_of(added)) == (skill.hash, 1)


def test_modules_from_elsewhere_come_with_their_recipe_or_not_at_all(
    tmp_path: Path, database: Path
) -> None:
    path = write_relu(tmp_path / "repository")
    (path / "examples").mkdir()
    (path / "examples" / "after.py").write_text("x = 1\n", encoding="utf-8")
    for arguments in (["init", "-q"], ["add", "."], ["commit", "-qm", "a skill"]):
        subprocess.run(
            ["git", "-c", "user.name=x", "-c", "user.email=x@example.org", *arguments],
            cwd=path.parent,
            check=True,
        )
    address = f"file://{path.parent}"
    (bare,) = add_from(address, database, {})
    assert bare.recipe_left_out
    names = {file.relative_to(bare.path).as_posix() for file in bare.path.rglob("*.*")}
    assert names == {"SKILL.md", "examples/after.py"}
    (trusted,) = add_from(address, database, {"my-relu": bare.path}, trust_code=True)
    assert load_skill(trusted.path).hash == load_skill(path).hash
    assert load_recipe(load_skill(trusted.path)).operators == ("pointwise",)


def test_an_export_holds_the_modules(tmp_path: Path) -> None:
    skill = load_skill(write_relu(tmp_path / "from"))
    export_skills([skill], {"my-relu": SkillStanding(Standing.ADDED)}, tmp_path / "to")
    copy = load_skill(tmp_path / "to" / "my-relu")
    assert copy.hash == skill.hash
    assert load_recipe(copy).name == "my-relu"


def test_the_code_of_a_skill_is_its_recipe_with_the_modules_beside_it(tmp_path: Path) -> None:
    path = write_relu(tmp_path)
    (path / "examples").mkdir()
    (path / "examples" / "after.py").write_text("x = 1\n", encoding="utf-8")
    assert [file.name for file in code_files(path)] == ["kernel.py", "launch.py", "recipe.py"]
    (path / "recipe.py").unlink()
    assert code_files(path) == []


def test_a_wheel_holds_every_file_of_every_skill() -> None:
    build = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["hatch"]
    assert build["build"]["targets"]["wheel"]["force-include"] == {"skills": "kmem/bundled_skills"}
