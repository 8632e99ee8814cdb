"""Where added skills come from: a directory, a file, an archive, a git repository, or the web.

    DIR | SKILL.md | X.zip | X.tar.gz             on this machine
    https://HOST/X.zip | .tar.gz | SKILL.md       one file, fetched
    https://, ssh://, git@HOST:, file://, or      a git repository, cloned
        PATH.git [@REVISION] [#SUBDIRECTORY]

A source is checked whole: either all its skills are added or none. A recipe.py is code, and is left
out unless the user trusts it or made the skill here with `kmem skills new`: an archive that a
browser fetched lies on this machine too. Code that is kept is imported once in a confined process
(recipe_check.py). Address, commit and licence of what is fetched are kept beside the added skills.
"""

import os
import re
import shutil
import tempfile
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from kmem.curate.own_skills import is_own
from kmem.curate.recipe_check import recipe_faults
from kmem.errors import SkillError
from kmem.memory.location import added_skills_root
from kmem.memory.skills.added import ARCHIVES, add_skill, unpack_archive
from kmem.memory.team.git import run_git
from kmem.serialize import from_json, to_json
from kmem.skills import code_files, read_skill

#: A whole repository as an archive may come with much that is no skill; more than this is taken for
#: a mistake.
MAX_DOWNLOAD_BYTES = 64 * 2**20
_TIMEOUT_S = 30.0
_GIT_ADDRESS = re.compile(r"^(?:(?:https?|ssh|git|file)://.+|[\w.-]+@[\w.-]+:.+|.+\.git)$")
#: An "@" begins a revision only after the last "/" or ":"; before that it belongs to user@host.
_REVISION = re.compile(r"^(?P<address>.+[/:].*|.+\.git)@(?P<revision>[^@/:]+)$")


@dataclass(frozen=True, slots=True)
class SkillOrigin:
    """Where an added skill came from; kept beside it."""

    address: str
    revision: str | None  # the commit, for a git repository
    licence: str  # as the skill states it; "" if it does not
    recipe_left_out: bool


@dataclass(frozen=True, slots=True)
class AddedSkill:
    """A skill that was added, or was there already, byte for byte."""

    name: str
    path: Path
    recipe_left_out: bool


@dataclass(frozen=True, slots=True)
class _Fetched:
    """The directories of skills that an address holds, and the commit of a git repository."""

    directories: tuple[Path, ...]
    revision: str | None = None


def add_from(
    address: str, db_path: Path, existing: Mapping[str, Path], *, trust_code: bool = False
) -> list[AddedSkill]:
    """Add every skill an address holds.

    Args:
        address: in one of the forms that the module lists.
        db_path: the database beside which the skills are kept.
        existing: the skills registered now, name -> directory.
        trust_code: keep, and import once, every recipe.py; otherwise only those of skills that
            were made here.

    Raises:
        SkillError: if the address cannot be read or holds no skill, or with every fault of every
            skill it holds; then none is added.
        MemoryStoreError: if git fails.
        OutputError: if the directory beside the database cannot be written.
    """
    added: list[AddedSkill] = []
    with tempfile.TemporaryDirectory(prefix="kmem-add-") as scratch:
        is_remote = _is_remote(address)
        if is_remote:
            fetched = _fetch(address, Path(scratch))
        else:
            fetched = _open_local(Path(address), Path(scratch))
        trusted = [each for each in fetched.directories if trust_code or is_own(each, db_path)]
        _check_all(address, fetched.directories, trusted, Path(scratch))
        with _all_or_none(db_path) as new:
            for directory in fetched.directories:
                left_out = directory not in trusted and bool(code_files(directory))
                skill = add_skill(directory, db_path, existing, with_recipe=not left_out)
                new.append(skill.path)
                added.append(AddedSkill(skill.name, skill.path, left_out))
                # not where the skill is one that came with kmem
                if is_remote and skill.path.parent == added_skills_root(db_path):
                    origin = SkillOrigin(address, fetched.revision, skill.license, left_out)
                    _keep_origin(db_path, skill.name, origin)
    return added


def skill_source(db_path: Path, name: str) -> SkillOrigin | None:
    """Where an added skill came from; None if it was added from this machine."""
    place = _origin_file(db_path, name)
    return from_json(SkillOrigin, place.read_text(encoding="utf-8")) if place.is_file() else None


def forget_source(db_path: Path, name: str) -> None:
    """Forget where an added skill came from, when it is removed."""
    _origin_file(db_path, name).unlink(missing_ok=True)


@contextmanager
def _all_or_none(db_path: Path) -> Iterator[list[Path]]:
    """A list for the directories of skills as they are added.

    If anything raises, those that were not there before are removed.
    """
    root = added_skills_root(db_path)
    present = set(root.iterdir()) if root.is_dir() else set()
    new: list[Path] = []
    try:
        yield new
    except BaseException:
        for path in new:
            if path.parent == root and path not in present:
                shutil.rmtree(path)
                _origin_file(db_path, path.name).unlink(missing_ok=True)
        raise


def _is_remote(address: str) -> bool:
    """Whether an address must be fetched.

    A git repository is remote wherever it lies: what is in it was written elsewhere.
    """
    location = _split_revision(_split_subdirectory(address)[0])[0]
    return _GIT_ADDRESS.match(location) is not None


def _split_subdirectory(address: str) -> tuple[str, str]:
    parts = address.partition("#")
    return parts[0], parts[2]


def _split_revision(location: str) -> tuple[str, str | None]:
    match = _REVISION.match(location)
    return (match["address"], match["revision"]) if match else (location, None)


def _keep_origin(db_path: Path, name: str, origin: SkillOrigin) -> None:
    place = _origin_file(db_path, name)
    place.parent.mkdir(parents=True, exist_ok=True)
    partial = place.with_name(place.name + ".partial")
    partial.write_text(to_json(origin) + "\n", encoding="utf-8")
    os.replace(partial, place)


def _origin_file(db_path: Path, name: str) -> Path:
    # not inside the skill, whose bytes are its identity
    return added_skills_root(db_path) / ".origins" / f"{name}.json"


def _check_all(
    address: str, directories: Sequence[Path], trusted: Sequence[Path], scratch: Path
) -> None:
    """Raise SkillError with every fault of the directories, and of the recipes of the trusted."""
    if not directories:
        raise SkillError(
            f"{address} holds no skill: there is no SKILL.md in it; name the directory that has one"
        )
    found = {directory: read_skill(directory)[1] for directory in directories}
    for directory, fault in recipe_faults(trusted).items():
        found[directory].append(fault)
    faults = [
        f"  {directory.resolve().name}: {_without_scratch(fault, directory, address, scratch)}"
        for directory in directories
        for fault in found[directory]
    ]
    if faults:
        raise SkillError(
            f"Nothing was added: {address} has {len(faults)} "
            f"fault{'' if len(faults) == 1 else 's'}:\n" + "\n".join(faults)
        )


def _without_scratch(fault: str, directory: Path, address: str, scratch: Path) -> str:
    """A fault that names no temporary place: what was unpacked is named by its source."""
    if not directory.resolve().is_relative_to(scratch.resolve()):
        return fault
    return fault.replace(str(directory.resolve()), f"{address}: {directory.name}")


def _open_local(path: Path, scratch: Path) -> _Fetched:
    if path.is_dir():
        return _Fetched(tuple(_skills_below(path)))
    if not path.is_file():
        raise SkillError(
            f"No skill at {path}; "
            "name a directory with a SKILL.md, a SKILL.md, a .zip, a .tar.gz, or the URL of one"
        )
    return _open_file(path, scratch)


def _open_file(path: Path, scratch: Path) -> _Fetched:
    content = scratch / "content"
    content.mkdir()
    if path.suffix == ".md":
        shutil.copy(path, content / "SKILL.md")
    elif path.name.endswith(ARCHIVES):
        unpack_archive(path, content)
    else:
        raise SkillError(
            f"File {path} is no skill; "
            "name a directory with a SKILL.md, a SKILL.md, a .zip or a .tar.gz"
        )
    return _Fetched(tuple(_named(directory, content) for directory in _skills_below(content)))


def _skills_below(root: Path) -> list[Path]:
    """Directories with a SKILL.md, by path; what lies inside a skill is its own."""
    found: list[Path] = []
    for file in sorted(root.rglob("SKILL.md")):
        parts = file.relative_to(root).parts
        if ".git" not in parts and not any(file.is_relative_to(other) for other in found):
            found.append(file.parent)
    return found


def _named(directory: Path, content: Path) -> Path:
    """The directory of a skill, named as the skill where it is the top of what was fetched.

    A skill further down must lie in a directory of its own name.
    """
    skill = read_skill(directory)[0]
    if directory != content or skill is None:
        return directory
    return directory.rename(directory.parent / (Path(skill.name).name or "unnamed"))


def _fetch(address: str, scratch: Path) -> _Fetched:
    location, subdirectory = _split_subdirectory(address)
    parts = urllib.parse.urlsplit(location)
    if parts.scheme in ("http", "https") and parts.path.endswith((*ARCHIVES, ".md")):
        target = scratch / (Path(parts.path).name or "download")
        _download(location, target)
        return _open_file(target, scratch)
    return _clone(*_split_revision(location), subdirectory, scratch)


def _download(url: str, target: Path) -> None:
    try:
        # http or https: `_fetch` looked at the scheme
        with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as answer, target.open("wb") as file:
            data = answer.read(MAX_DOWNLOAD_BYTES + 1)
            file.write(data)
    except urllib.error.HTTPError as ex:
        raise SkillError(f"{url} answered {ex.code} {ex.reason}; check the address") from ex
    # refused, unknown host, timed out, cut off, malformed
    except (urllib.error.URLError, OSError, ValueError) as ex:
        raise SkillError(
            f"{url} cannot be fetched ({getattr(ex, 'reason', ex)}); "
            "check the address and the network"
        ) from ex
    if len(data) > MAX_DOWNLOAD_BYTES:
        raise SkillError(
            f"{url} is larger than {MAX_DOWNLOAD_BYTES} bytes; "
            "name the skill's directory in its git repository instead"
        )


def _clone(address: str, revision: str | None, subdirectory: str, scratch: Path) -> _Fetched:
    if address.startswith("-"):
        raise SkillError(
            f"'{address}' is no address of a git repository; give a URL or a directory"
        )
    clone = scratch / "content"
    run_git(scratch, ["clone", "--quiet", "--no-checkout", "--", address, str(clone)])
    if revision is None:
        commit = _resolve(clone, "HEAD")
        if commit is None:
            raise SkillError(f"Repository {address} is empty; push a skill to it first")
    else:
        commit = _resolve(clone, revision) or _resolve(clone, f"origin/{revision}")
        if commit is None:
            raise SkillError(
                f"Repository {address} has no revision '{revision}'; "
                "name a branch, a tag or a commit"
            )
    run_git(clone, ["checkout", "--quiet", "--detach", commit])
    place = (clone / subdirectory).resolve()
    if not place.is_relative_to(clone.resolve()) or not place.is_dir():
        raise SkillError(
            f"Repository {address} has no directory '{subdirectory}' at {commit[:12]}; "
            "check what follows the #"
        )
    return _Fetched(
        tuple(_named(directory, clone.resolve()) for directory in _skills_below(place)), commit
    )


def _resolve(clone: Path, revision: str) -> str | None:
    found = run_git(
        clone,
        ["rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}"],
        allow=("",),
    )
    return found.strip() if found else None
