"""Exporting the library as folders: complete, repeatable, never over what others put there."""

from pathlib import Path

import pytest
from click.testing import CliRunner
from test_memory_library import make_skill

from kmem.curate.export import MANIFEST, Exported, export_skills
from kmem.errors import OutputError, SkillError
from kmem.memory.skills.standing import SkillStanding, Standing
from kmem.skills import Skill, load_skill, skill_directories


@pytest.fixture
def library(tmp_path: Path) -> list[Skill]:
    made = [
        make_skill(tmp_path / "from", name, f"About {name}.")
        for name in ("row-softmax", "tile-matmul")
    ]
    (made[0].path / "examples").mkdir()
    (made[0].path / "examples" / "after.py").write_text("x = 1\n")
    (made[0].path / "__pycache__").mkdir()
    (made[0].path / "__pycache__" / "junk.pyc").write_bytes(b"0")
    return made


def export(
    library: list[Skill], directory: Path, only: str = "*", **standings: Standing
) -> Exported:
    known = {
        skill.name: SkillStanding(standings.get(skill.name.replace("-", "_"), Standing.BUNDLED))
        for skill in library
    }
    return export_skills(library, known, directory, only)


def contents(directory: Path) -> dict[str, bytes]:
    return {
        path.relative_to(directory).as_posix(): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file()
    }


def test_every_file_of_every_skill_arrives_with_an_index(
    library: list[Skill], tmp_path: Path
) -> None:
    assert export(library, tmp_path / "to") == Exported(2, 4, 0, 0)
    assert sorted(contents(tmp_path / "to")) == [
        MANIFEST,
        "README.md",
        "row-softmax/SKILL.md",
        "row-softmax/examples/after.py",
        "tile-matmul/SKILL.md",
    ]
    assert [load_skill(path).name for path in skill_directories(tmp_path / "to")] == [
        "row-softmax",
        "tile-matmul",
    ]
    index = (tmp_path / "to" / "README.md").read_text()
    assert "- [row-softmax](row-softmax/SKILL.md): About row-softmax. Use when it helps.\n" in index


def test_exporting_again_changes_nothing(library: list[Skill], tmp_path: Path) -> None:
    export(library, tmp_path / "to")
    before = contents(tmp_path / "to")
    assert export(library, tmp_path / "to") == Exported(2, 0, 4, 0)
    assert contents(tmp_path / "to") == before


def test_an_export_is_brought_up_to_date_and_what_is_gone_is_removed(
    library: list[Skill], tmp_path: Path
) -> None:
    export(library, tmp_path / "to")
    (library[1].path / "SKILL.md").write_text(
        (library[1].path / "SKILL.md").read_text().replace("About", "On")
    )
    assert export([load_skill(library[1].path)], tmp_path / "to") == Exported(1, 2, 0, 2)
    assert sorted(contents(tmp_path / "to")) == [MANIFEST, "README.md", "tile-matmul/SKILL.md"]
    assert not (tmp_path / "to" / "row-softmax").exists()


def test_only_what_fits_the_pattern_is_exported(library: list[Skill], tmp_path: Path) -> None:
    assert export(library, tmp_path / "to", "*softmax").skills == 1
    with pytest.raises(SkillError, match=r"No skill's name fits 'zebra\*'"):
        export(library, tmp_path / "other", "zebra*")
    assert not (tmp_path / "other").exists()


def test_retracted_skills_stay_behind_and_drafts_are_labelled(
    library: list[Skill], tmp_path: Path
) -> None:
    export(library, tmp_path / "to", row_softmax=Standing.RETRACTED, tile_matmul=Standing.DRAFT)
    assert [path.name for path in skill_directories(tmp_path / "to")] == ["tile-matmul"]
    assert (
        "- [tile-matmul](tile-matmul/SKILL.md) (draft, not verified): About"
        in (tmp_path / "to" / "README.md").read_text()
    )


@pytest.mark.parametrize("foreign", ["notes.txt", "row-softmax/my-notes.md", "README.md"])
def test_what_no_export_wrote_is_never_overwritten(
    library: list[Skill], tmp_path: Path, foreign: str
) -> None:
    place = tmp_path / "to" / foreign
    place.parent.mkdir(parents=True)
    place.write_text("mine")
    with pytest.raises(
        OutputError, match=f"{foreign} is not from an export; choose another directory with --to"
    ):
        export(library, tmp_path / "to")
    assert contents(tmp_path / "to") == {foreign: b"mine"}


def test_a_file_changed_since_it_was_exported_is_never_overwritten(
    library: list[Skill], tmp_path: Path
) -> None:
    export(library, tmp_path / "to")
    (tmp_path / "to" / "tile-matmul" / "SKILL.md").write_text("my edit")
    with pytest.raises(OutputError, match="was changed since it was exported"):
        export(library, tmp_path / "to")
    assert (tmp_path / "to" / "tile-matmul" / "SKILL.md").read_text() == "my edit"


def test_an_export_killed_in_the_middle_can_go_on(
    library: list[Skill], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import kmem.curate.export as module

    export(library, tmp_path / "to")
    (library[0].path / "SKILL.md").write_text(
        (library[0].path / "SKILL.md").read_text().replace("About", "On")
    )
    (library[1].path / "SKILL.md").write_text(
        (library[1].path / "SKILL.md").read_text().replace("About", "On")
    )
    changed = [load_skill(skill.path) for skill in library]
    replace, done = module._replace, []

    def dies_in_the_middle(place: Path, data: bytes) -> None:
        done.append(place)
        if len(done) == 3:
            raise KeyboardInterrupt
        replace(place, data)

    monkeypatch.setattr(module, "_replace", dies_in_the_middle)
    with pytest.raises(KeyboardInterrupt):
        export(changed, tmp_path / "to")
    monkeypatch.undo()
    assert export(changed, tmp_path / "to").written == 2
    assert export(changed, tmp_path / "to").written == 0


def test_a_damaged_list_and_a_place_that_cannot_be_written_name_the_remedy(
    library: list[Skill], tmp_path: Path
) -> None:
    export(library, tmp_path / "to")
    (tmp_path / "to" / MANIFEST).write_text("[")
    with pytest.raises(OutputError, match="is damaged; remove"):
        export(library, tmp_path / "to")
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot be written .* choose another with --to"):
        export(library, tmp_path / "file")


def test_the_command_prints_where_they_are(library: list[Skill], tmp_path: Path) -> None:
    from kmem.cli.skills.skills import skills
    from kmem.plugins import Registry

    registry = Registry(skills={skill.name: skill.path for skill in library})
    result = CliRunner().invoke(
        skills, ["export", "--to", str(tmp_path / "to"), "--only", "tile-*"], obj=registry
    )
    assert result.exit_code == 0, result.output
    assert result.stdout == f"{tmp_path / 'to'}\n"
    assert result.stderr == "1 skills: 2 files written, 0 unchanged, 0 removed\n"
