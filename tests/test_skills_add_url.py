"""Adding skills from git repositories and web addresses: no code runs without being trusted.

Git is real, and so is the HTTP server.
"""

import functools
import subprocess
import tarfile
import threading
import zipfile
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from click.testing import CliRunner
from test_memory_library import _pack
from test_skills import write_skill

from kmem.curate.own_skills import is_own, mark_as_own
from kmem.curate.recipe_check import recipe_faults
from kmem.curate.sources import SkillOrigin, _is_remote, _split_revision, add_from, skill_source
from kmem.errors import KmemError, MemoryStoreError, SkillError
from kmem.skills import load_skill

RECIPE = "raise SystemExit('recipe.py was imported')\n"
GOOD_RECIPE = """
from kmem.recipes import Recipe


class Quiet(Recipe):
    def match(self, graph): return []
    def knobs(self, site, device): return {}
    def is_legal(self, site, knobs, device): return True
    def cost_ms(self, site, knobs, device): return 1.0
    def generate(self, site, knobs): return None


Quiet.__abstractmethods__ = frozenset()
RECIPE = Quiet()
"""


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "home" / "kmem.db"


def git(directory: Path, *arguments: str) -> str:
    settings = ("-c", "user.name=t", "-c", "user.email=t@t")
    return subprocess.run(
        ["git", *settings, *arguments], cwd=directory, capture_output=True, text=True, check=True
    ).stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Two skills at v1 (one with a recipe), a third on a branch."""
    path = tmp_path / "team"
    write_skill(path / "skills", "wide-loads")
    write_skill(path / "skills", "row-sums", recipe=RECIPE)
    git(path, "init", "--quiet", "--initial-branch=main")
    git(path, "add", ".")
    git(path, "commit", "--quiet", "-m", "one")
    git(path, "tag", "v1")
    git(path, "checkout", "--quiet", "-b", "next")
    write_skill(path / "skills", "third-skill")
    git(path, "add", ".")
    git(path, "commit", "--quiet", "-m", "two")
    git(path, "checkout", "--quiet", "main")
    return path


@pytest.fixture
def site(tmp_path: Path):
    """A directory served over HTTP: (directory, address)."""
    root = tmp_path / "www"
    root.mkdir()

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(root)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield root, f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def names(added) -> list[str]:
    return [skill.name for skill in added]


def test_every_skill_of_a_repository_is_added_and_its_origin_kept(
    repository: Path, database: Path
) -> None:
    address = f"file://{repository}"
    added = add_from(address, database, {})
    assert [(skill.name, skill.recipe_left_out) for skill in added] == [
        ("row-sums", True),
        ("wide-loads", False),
    ]
    assert all(skill.path == database.parent / "skills" / skill.name for skill in added)
    commit = git(repository, "rev-parse", "main")
    assert skill_source(database, "row-sums") == SkillOrigin(address, commit, "Apache-2.0", True)
    assert skill_source(database, "wide-loads") == SkillOrigin(address, commit, "Apache-2.0", False)
    assert skill_source(database, "other") is None
    assert not load_skill(added[0].path).has_recipe


@pytest.mark.parametrize(
    ("suffix", "expected"),
    [
        ("@next", ["row-sums", "third-skill", "wide-loads"]),
        ("@v1", ["row-sums", "wide-loads"]),
        ("#skills/wide-loads", ["wide-loads"]),
        ("@next#skills/third-skill", ["third-skill"]),
        ("@{commit}#skills", ["row-sums", "third-skill", "wide-loads"]),
    ],
)
def test_a_revision_and_a_subdirectory_can_be_named(
    repository: Path, database: Path, suffix: str, expected: list[str]
) -> None:
    commit = git(repository, "rev-parse", "next")
    assert (
        names(add_from(f"file://{repository}{suffix.format(commit=commit)}", database, {}))
        == expected
    )


def test_a_bare_repository_is_named_by_its_path(
    repository: Path, database: Path, tmp_path: Path
) -> None:
    git(tmp_path, "clone", "--quiet", "--bare", str(repository), "team.git")
    added = add_from(f"{tmp_path / 'team.git'}", database, {})
    assert [(skill.name, skill.recipe_left_out) for skill in added] == [
        ("row-sums", True),
        ("wide-loads", False),
    ]
    assert names(add_from(f"{tmp_path / 'team.git'}@next#skills/third-skill", database, {})) == [
        "third-skill"
    ]


def test_a_repository_that_is_one_skill_is_named_by_its_frontmatter(
    tmp_path: Path, database: Path
) -> None:
    path = write_skill(tmp_path, "whole-skill").rename(tmp_path / "checkout")
    git(path, "init", "--quiet")
    git(path, "add", ".")
    git(path, "commit", "--quiet", "-m", "one")
    (added,) = add_from(f"file://{path}", database, {})
    assert (added.name, sorted(file.name for file in added.path.iterdir())) == (
        "whole-skill",
        ["SKILL.md"],
    )


def test_code_from_elsewhere_is_only_kept_and_run_when_trusted(
    repository: Path, database: Path
) -> None:
    address = f"file://{repository}#skills/row-sums"
    with pytest.raises(SkillError, match="row-sums/recipe.py fails on import: SystemExit"):
        add_from(address, database, {}, trust_code=True)
    (repository / "skills" / "row-sums" / "recipe.py").write_text(GOOD_RECIPE)
    git(repository, "commit", "--quiet", "-am", "mended")
    (text_only,) = add_from(address, database, {})
    assert text_only.recipe_left_out
    known = {text_only.name: text_only.path}
    assert add_from(address, database, known)[0].recipe_left_out  # again: nothing changes
    (trusted,) = add_from(address, database, known, trust_code=True)
    assert not trusted.recipe_left_out
    assert load_skill(trusted.path).has_recipe
    assert not skill_source(database, "row-sums").recipe_left_out


def test_another_content_under_a_known_name_is_refused(repository: Path, database: Path) -> None:
    address = f"file://{repository}#skills/wide-loads"
    (first,) = add_from(address, database, {})
    before = load_skill(first.path).hash
    file = repository / "skills" / "wide-loads" / "SKILL.md"
    file.write_text(file.read_text().replace("Cases", "Many cases"))
    git(repository, "commit", "--quiet", "-am", "changed")
    with pytest.raises(
        SkillError, match="A different skill is named 'wide-loads' already: .*; rename the new one"
    ):
        add_from(address, database, {first.name: first.path})
    assert load_skill(first.path).hash == before


def test_where_one_of_several_cannot_be_added_none_is(
    repository: Path, database: Path, tmp_path: Path
) -> None:
    other = write_skill(tmp_path / "plugin", "wide-loads", change=lambda text: text + "\nmore\n")
    with pytest.raises(SkillError, match="A different skill is named 'wide-loads' already"):
        add_from(f"file://{repository}", database, {"wide-loads": other})
    assert [path.name for path in (database.parent / "skills").iterdir()] == [".origins"]
    assert skill_source(database, "row-sums") is None


def test_all_faults_of_all_skills_are_listed_and_none_is_added(
    repository: Path, database: Path
) -> None:
    write_skill(repository, "vague", change=lambda text: text.replace("Use when", "If"))
    write_skill(repository, "lost", change=lambda text: text.replace("## Pitfalls", "## Traps"))
    git(repository, "add", ".")
    git(repository, "commit", "--quiet", "-m", "faults")
    with pytest.raises(SkillError) as caught:
        add_from(f"file://{repository}", database, {})
    lines = str(caught.value).splitlines()
    assert lines[0] == f"Nothing was added: file://{repository} has 3 faults:"
    assert lines[1:] == [
        "  lost: body lacks the section '## Pitfalls'",
        "  vague: description lacks 'Use when ...'",
        "  vague: body lacks the section '## Use when'",
    ]
    assert not (database.parent / "skills").exists()


@pytest.mark.parametrize(
    ("suffix", "message"),
    [
        ("@v9", "has no revision 'v9'; name a branch, a tag or a commit"),
        ("#nowhere", "has no directory 'nowhere' at "),
        ("#../..", "has no directory '../..' at "),
        ("@v1#skills/wide-loads/..", ""),
    ],
)
def test_a_revision_or_directory_that_is_not_there_is_one_line(
    repository: Path, database: Path, suffix: str, message: str
) -> None:
    if not message:
        assert names(add_from(f"file://{repository}{suffix}", database, {})) == [
            "row-sums",
            "wide-loads",
        ]
        return
    with pytest.raises(SkillError) as caught:
        add_from(f"file://{repository}{suffix}", database, {})
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_repository_without_a_skill_or_that_is_not_there_is_one_line(
    tmp_path: Path, database: Path
) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    git(empty, "init", "--quiet")
    with pytest.raises(SkillError, match="is empty; push a skill to it first"):
        add_from(f"file://{empty}", database, {})
    git(empty, "commit", "--quiet", "--allow-empty", "-m", "nothing")
    with pytest.raises(SkillError, match="holds no skill: there is no SKILL.md in it"):
        add_from(f"file://{empty}", database, {})
    with pytest.raises(
        MemoryStoreError, match="git clone failed .*check the remote's address"
    ) as caught:
        add_from(f"file://{tmp_path}/nothing", database, {})
    assert "\n" not in str(caught.value)


@pytest.mark.slow(after=2)
@pytest.mark.parametrize("kind", ["SKILL.md", "one.zip", "one.tar.gz", "top.tgz"])
def test_a_file_at_an_address_is_added(
    site: tuple[Path, str], database: Path, tmp_path: Path, kind: str
) -> None:
    root, address = site
    skill = write_skill(tmp_path / "made", "fetched-skill")
    if kind == "SKILL.md":
        (root / kind).write_text((skill / "SKILL.md").read_text())
    elif kind == "one.zip":
        with zipfile.ZipFile(root / kind, "w") as archive:
            archive.write(skill / "SKILL.md", "repo-main/skills/fetched-skill/SKILL.md")
    else:
        with tarfile.open(root / kind, "w:gz") as archive:
            archive.add(
                skill / "SKILL.md", "SKILL.md" if kind == "top.tgz" else "fetched-skill/SKILL.md"
            )
    (added,) = add_from(f"{address}/{kind}", database, {})
    assert added.name == "fetched-skill"
    assert skill_source(database, "fetched-skill") == SkillOrigin(
        f"{address}/{kind}", None, "Apache-2.0", False
    )


def test_an_archive_at_an_address_leaves_its_code_out(
    site: tuple[Path, str], database: Path, tmp_path: Path
) -> None:
    root, address = site
    skill = write_skill(tmp_path / "made", "fetched-skill", recipe=RECIPE)
    with zipfile.ZipFile(root / "one.zip", "w") as archive:
        for file in skill.iterdir():
            archive.write(file, f"fetched-skill/{file.name}")
    (added,) = add_from(f"{address}/one.zip", database, {})
    assert (added.recipe_left_out, load_skill(added.path).has_recipe) == (True, False)


def test_an_address_that_does_not_answer_is_one_line(
    site: tuple[Path, str], database: Path
) -> None:
    root, address = site
    (root / "broken.zip").write_bytes(b"no archive")
    (root / "SKILL.md").write_text("no frontmatter")
    for url, message in [
        (f"{address}/missing.zip", r"answered 404 File not found; check the address"),
        (f"{address}/broken.zip", r"cannot be unpacked \(File is not a zip file\)"),
        (
            "http://127.0.0.1:9/one.zip",
            r"cannot be fetched \(.*refused.*\); check the address and the network",
        ),
    ]:
        with pytest.raises(SkillError, match=message) as caught:
            add_from(url, database, {})
        assert "\n" not in str(caught.value)
    with pytest.raises(SkillError, match="SKILL.md does not begin with frontmatter"):
        add_from(f"{address}/SKILL.md", database, {})


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("git@host:team/skills.git", ("git@host:team/skills.git", None)),
        ("git@host:skills.git@v1", ("git@host:skills.git", "v1")),
        ("https://user@host/team/skills", ("https://user@host/team/skills", None)),
        ("https://user@host/team/skills@v1.2", ("https://user@host/team/skills", "v1.2")),
        ("ssh://git@host/skills.git", ("ssh://git@host/skills.git", None)),
        ("team.git@v1", ("team.git", "v1")),
    ],
)
def test_an_at_sign_is_a_revision_only_behind_the_address(
    address: str, expected: tuple[str, str | None]
) -> None:
    assert _split_revision(address) == expected
    assert _is_remote(address)


@pytest.mark.parametrize("address", ["skills/mine", "/a/b@c", "./one.zip", "SKILL.md", "C:/x"])
def test_what_lies_here_is_not_fetched(address: str) -> None:
    assert not _is_remote(address)


def test_code_from_this_machine_is_run_only_if_it_was_made_here_or_is_trusted(
    tmp_path: Path, database: Path
) -> None:
    """An archive that a browser fetched lies on this machine too."""
    ran = tmp_path / "ran"
    spy = f"import pathlib\npathlib.Path({str(ran)!r}).write_text('x')\n{GOOD_RECIPE}"
    write_skill(tmp_path / "mine", "first-skill")
    other = write_skill(tmp_path / "mine", "other-skill", recipe=spy)
    archive = _pack(other, tmp_path / "other.zip")
    for source in (tmp_path / "mine", archive, archive):
        left_out = {each.name: each.recipe_left_out for each in add_from(str(source), database, {})}
        assert left_out["other-skill"]
    assert not ran.exists()
    assert not load_skill(database.parent / "skills" / "other-skill").has_recipe

    mark_as_own(other, database)
    known = {"other-skill": database.parent / "skills" / "other-skill"}
    with pytest.raises(SkillError, match="other-skill/recipe.py fails on import: PermissionError"):
        add_from(str(other), database, known)  # it may not write in the confined process either
    (other / "recipe.py").write_text(GOOD_RECIPE)
    (own,) = add_from(str(other), database, known)
    assert load_skill(own.path).has_recipe


def test_a_mark_is_of_the_directory_that_was_made_and_no_archive_can_bring_one(
    tmp_path: Path, database: Path
) -> None:
    made = write_skill(tmp_path, "my-skill", recipe=GOOD_RECIPE)
    mark_as_own(made, database)
    assert is_own(made, database)
    (made / "recipe.py").write_text(GOOD_RECIPE + "# edited\n")
    assert is_own(made, database)
    made.rename(tmp_path / "away")
    other = write_skill(tmp_path, "my-skill", recipe=RECIPE)
    assert not is_own(other, database)
    assert not is_own(tmp_path / "away", database)
    (other / ".made-here.json").write_text("{}")  # the like of it in an archive means nothing
    assert add_from(str(other), database, {})[0].recipe_left_out


def test_a_recipe_that_kills_its_process_is_the_one_that_is_named(tmp_path: Path) -> None:
    good = write_skill(tmp_path, "good-one", recipe=GOOD_RECIPE)
    bad = write_skill(tmp_path, "kills-it", recipe="import os\nos._exit(0)\n")
    broken = write_skill(tmp_path, "broken", recipe="print('[]')\n1 / 0\n")
    found = recipe_faults([good, bad, broken])
    assert set(found) == {bad, broken}
    assert found[bad] == f"{bad}/recipe.py ends the process (exit code 0)"
    assert found[broken].endswith("recipe.py fails on import: ZeroDivisionError: division by zero")


def test_faults_of_an_archive_are_named_by_the_archive(tmp_path: Path, database: Path) -> None:
    archive = _pack(write_skill(tmp_path, "broken", recipe="1 / 0\n"), tmp_path / "broken.zip")
    with pytest.raises(SkillError) as caught:
        add_from(str(archive), database, {}, trust_code=True)
    assert f"{archive}: broken/recipe.py fails on import: ZeroDivisionError" in str(caught.value)
    assert "/kmem-" not in str(caught.value)
    assert ".adding-" not in str(caught.value)


def test_the_command_says_what_was_left_out(repository: Path, database: Path) -> None:
    from kmem.cli.skills.skills import skills
    from kmem.plugins import Registry

    environment = {"KMEM_DB": str(database), "KMEM_EMBEDDING_MODEL": "none"}
    result = CliRunner().invoke(
        skills, ["add", f"file://{repository}@v1"], obj=Registry(), env=environment
    )
    assert result.exit_code == 0, result.output
    root = database.parent / "skills"
    assert result.stdout == f"{root / 'row-sums'}\n{root / 'wide-loads'}\n"
    assert result.stderr == (
        "row-sums: text only; its recipe.py is code from elsewhere: "
        "read it, then add again with --trust-code\n"
    )
    shown = CliRunner().invoke(
        skills,
        ["show", "row-sums"],
        obj=Registry(skills={"row-sums": root / "row-sums"}),
        env=environment,
    )
    assert (
        f"at {git(repository, 'rev-parse', 'v1')[:12]}; its recipe.py was left out."
        in " ".join(shown.stdout.split())  # the address, which is as long as it is, wraps the line
    )
    missing = CliRunner().invoke(skills, ["add", "nothing-here"], obj=Registry(), env=environment)
    assert isinstance(missing.exception, KmemError)
    assert "No skill at nothing-here; name a directory with a SKILL.md" in str(missing.exception)
