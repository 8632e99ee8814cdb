"""The library as folders for agents: a directory a skill, in the Agent Skills format, and an index.

A file `.kmem-export.json` lists what an export wrote, with hashes. The next export replaces and
removes exactly those files, and refuses a directory that holds anything else: nobody's own skills
or edits are ever overwritten.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from hashlib import sha256
from pathlib import Path

from kmem.errors import OutputError, SkillError
from kmem.memory.skills.standing import SkillStanding, Standing
from kmem.skills import Skill

MANIFEST = ".kmem-export.json"
INDEX = "README.md"
#: How an index begins, before its line for each skill.
_INTRODUCTION = """\
# Skills for fast GPU kernels

One directory a skill, in the Agent Skills format: \
read SKILL.md of the one whose description fits, and the files it names.
`kmem skills search` ranks them for a question or a profile, \
`kmem mcp` serves them with their track record, and
`kmem skills export` wrote this directory and will replace what it wrote.

"""


@dataclass(frozen=True, slots=True)
class Exported:
    """What an export did, in files; `unchanged` were the same already."""

    skills: int
    written: int
    unchanged: int
    removed: int


def export_skills(
    skills: Sequence[Skill],
    standings: Mapping[str, SkillStanding],
    directory: Path,
    only: str = "*",
) -> Exported:
    """Lay skills out below a directory; doing so again changes nothing.

    Args:
        skills: those to export.
        standings: of each skill, by name; retracted ones are left out, drafts are labelled in the
            index.
        directory: where to lay them out.
        only: shell pattern on names.

    Raises:
        SkillError: if no skill fits the pattern.
        OutputError: if the directory holds files that no export wrote or somebody changed since, or
            cannot be written.
    """
    chosen = [
        skill
        for skill in skills
        if fnmatchcase(skill.name, only)
        and standings[skill.name].standing is not Standing.RETRACTED
    ]
    if not chosen:
        raise SkillError(f"No skill's name fits '{only}'; `kmem skills list` shows them all")
    files = {INDEX: render_index(chosen, standings).encode()}
    for skill in chosen:
        files |= {
            f"{skill.name}/{path.relative_to(skill.path).as_posix()}": path.read_bytes()
            for path in skill.files
        }
    try:
        own = _own_files(directory)
        _refuse_foreign(directory, own)
        return _write(directory, files, own, len(chosen))
    except OSError as ex:
        raise OutputError(
            f"Directory {directory} cannot be written ({ex.strerror or ex}); "
            "choose another with --to"
        ) from ex


def render_index(skills: Sequence[Skill], standings: Mapping[str, SkillStanding]) -> str:
    """README.md of an export: what these folders are, and each skill with its description."""
    lines = []
    for skill in sorted(skills, key=lambda skill: skill.name):
        label = " (draft, not verified)" if standings[skill.name].standing is Standing.DRAFT else ""
        lines.append(
            f"- [{skill.name}]({skill.name}/SKILL.md){label}: {' '.join(skill.description.split())}"
        )
    return _INTRODUCTION + "".join(f"{line}\n" for line in lines)


def _own_files(directory: Path) -> dict[str, list[str]]:
    """What exports wrote here: relative path -> SHA-256; empty if there was no export.

    A path has two of them while a new file replaces an old one.
    """
    manifest = directory / MANIFEST
    if not manifest.is_file():
        return {}
    try:
        return {
            str(name): [str(digest) for digest in digests]
            for name, digests in json.loads(manifest.read_text(encoding="utf-8")).items()
        }
    except (ValueError, AttributeError, TypeError) as ex:
        raise OutputError(
            f"{manifest} is damaged; "
            f"remove {directory} if nothing in it is yours, or choose another with --to"
        ) from ex


def _refuse_foreign(directory: Path, own: Mapping[str, list[str]]) -> None:
    """Raise OutputError if the directory holds files that are not as exports wrote them."""
    if not directory.exists():
        return
    present = (path for path in directory.rglob("*") if path.is_file() or path.is_symlink())
    for path in sorted(present):
        name = path.relative_to(directory).as_posix()
        if name == MANIFEST or "__pycache__" in path.parts or path.suffix == ".partial":
            continue
        if name not in own:
            raise OutputError(
                f"{path} is not from an export; choose another directory with --to, or move it away"
            )
        if path.is_symlink() or _digest(path.read_bytes()) not in own[name]:
            raise OutputError(
                f"{path} was changed since it was exported; "
                "move it away, or choose another directory with --to"
            )


def _write(
    directory: Path, files: Mapping[str, bytes], own: Mapping[str, list[str]], skills: int
) -> Exported:
    directory.mkdir(parents=True, exist_ok=True)
    new = {name: [_digest(data)] for name, data in files.items()}
    # Whatever a kill leaves half replaced is still known as this export's own.
    both = {name: [*own.get(name, ()), *new.get(name, ())] for name in {*own, *new}}
    _write_manifest(directory, both)
    written = 0
    for name, data in files.items():
        place = directory / name
        if not place.is_file() or place.read_bytes() != data:
            place.parent.mkdir(parents=True, exist_ok=True)
            _replace(place, data)
            written += 1
    gone = [name for name in own if name not in files and (directory / name).is_file()]
    for name in gone:
        (directory / name).unlink()
    _remove_empty(directory, gone)
    _write_manifest(directory, new)
    return Exported(skills, written, len(files) - written, len(gone))


def _remove_empty(directory: Path, gone: Sequence[str]) -> None:
    """Remove the folders that files were taken out of, where nothing else is in them."""
    folders = {
        parent
        for name in gone
        for parent in (directory / name).parents
        if parent != directory and parent.is_relative_to(directory)
    }
    for folder in sorted(folders, reverse=True):  # what is inside another comes before it
        if not any(folder.iterdir()):
            folder.rmdir()


def _write_manifest(directory: Path, digests: Mapping[str, list[str]]) -> None:
    text = json.dumps(dict(sorted(digests.items())), indent=1) + "\n"
    _replace(directory / MANIFEST, text.encode())


def _replace(place: Path, data: bytes) -> None:
    partial = place.with_name(place.name + ".partial")
    partial.write_bytes(data)
    os.replace(partial, place)


def _digest(data: bytes) -> str:
    return sha256(data).hexdigest()
