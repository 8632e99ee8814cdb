"""Which skills there are: every version ever seen, and which one a name means now.

Versions lie under their content hash. search.py ranks what is kept here.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kmem.errors import SkillError
from kmem.memory.location import added_skills_root
from kmem.memory.storage import Tables
from kmem.records import Bottleneck
from kmem.skills import Condition, Skill, bundled_skills_root, embedded_text, parse_condition

ORIGINS = ("bundled", "plugin", "added")


@dataclass(frozen=True, slots=True)
class SkillRecord:
    """A skill as the memory knows it: what is needed to find it.

    Its text and recipe lie in `path`.
    """

    name: str
    content_hash: str
    description: str
    origin: str  # one of ORIGINS
    path: str
    operators: tuple[str, ...]
    bottlenecks: tuple[Bottleneck, ...]
    signature: tuple[Condition, ...]
    arch: tuple[str, ...]
    precision: str

    @property
    def embedded_text(self) -> str:
        """What is embedded, as for the skill itself."""
        return embedded_text(self.name, self.description)


def skill_origin(path: Path, db_path: Path) -> str:
    """Where a skill directory comes from: "bundled", "added" beside this database, or "plugin"."""
    resolved = path.resolve()
    if resolved.is_relative_to(bundled_skills_root().resolve()):
        return "bundled"
    return "added" if resolved.is_relative_to(added_skills_root(db_path).resolve()) else "plugin"


class Library(Tables):
    """Which skills there are; search.py adds the search."""

    def sync(self, skills: Sequence[Skill]) -> None:
        """Make these, and no others, the skills that names mean.

        Raises SkillError for two skills of one name.
        """
        by_origin: dict[str, list[Skill]] = {origin: [] for origin in ORIGINS}
        for skill in skills:
            by_origin[skill_origin(skill.path, self._storage.path)].append(skill)
        for origin, of_origin in by_origin.items():
            self.sync_origin(of_origin, origin)

    def sync_origin(self, skills: Sequence[Skill], origin: str) -> None:
        """Make these, and no others, the current skills of an origin; versions stay.

        Nothing is written if nothing changed. New descriptions are embedded when somebody first
        searches, for that may take seconds.

        Raises:
            SkillError: if two skills, here or of another origin, have one name and different
                content.
        """
        wanted: dict[str, tuple[str, Skill]] = {}
        for skill in skills:
            version = skill.hash
            other_version, other = wanted.setdefault(skill.name, (version, skill))
            if other_version != version:
                raise SkillError(_collision(skill.name, str(other.path), str(skill.path)))
        rows = self._storage.read(
            "select name, content_hash, path from library where origin = ?", [origin]
        )
        present = {row["name"]: (row["content_hash"], row["path"]) for row in rows}
        named = {name: (version, str(skill.path)) for name, (version, skill) in wanted.items()}
        if present == named:
            return
        with self._storage.write() as connection:
            connection.execute("delete from library where origin = ?", [origin])
            for version, skill in wanted.values():
                for row in self._storage.read(
                    "select content_hash, path from library where name = ?", [skill.name]
                ):
                    if row["content_hash"] != version:
                        raise SkillError(_collision(skill.name, str(row["path"]), str(skill.path)))
                self._keep_version(version, skill)
                connection.execute(
                    """
                    insert or ignore into library (name, content_hash, origin, path)
                    values (?, ?, ?, ?)
                    """,
                    [skill.name, version, origin, str(skill.path)],
                )
            connection.execute("update library_version set version = version + 1")

    def _keep_version(self, version: str, skill: Skill) -> None:
        """Keep a version of a skill, and its texts for the full-text search, if it is new."""
        with self._storage.write() as connection:
            cursor = connection.execute(
                """
                insert or ignore into skills (
                    content_hash, name, description, body, operators, bottlenecks, signature, arch,
                    precision
                )
                values (?, ?, ?, ?, ?, ?, ?, ?, ?)
                """,
                [
                    version,
                    skill.name,
                    skill.description,
                    skill.body,
                    " ".join(skill.operators),
                    " ".join(item.value for item in skill.bottlenecks),
                    ", ".join(map(str, skill.signature)),
                    " ".join(skill.arch),
                    skill.precision,
                ],
            )
            if cursor.rowcount:
                connection.execute(
                    "insert into skill_text (rowid, name, description, body) values (?, ?, ?, ?)",
                    [cursor.lastrowid, skill.name, skill.description, skill.body],
                )

    def all(self) -> list[SkillRecord]:
        """The skills that names mean now, by name."""
        rows = self._storage.read(
            """
            select
                l.name, l.content_hash, l.origin, l.path,
                s.description, s.operators, s.bottlenecks, s.signature, s.arch, s.precision
            from library l
            join skills s on s.content_hash = l.content_hash
            order by l.name
            """
        )
        return [
            SkillRecord(
                row["name"],
                row["content_hash"],
                row["description"],
                row["origin"],
                row["path"],
                tuple(row["operators"].split()),
                tuple(Bottleneck(word) for word in row["bottlenecks"].split()),
                tuple(parse_condition(text) for text in row["signature"].split(", ") if text),
                tuple(row["arch"].split()),
                row["precision"],
            )
            for row in rows
        ]


def _collision(name: str, first: str, second: str) -> str:
    return f"Two different skills are named '{name}': {first} and {second}; rename or remove one"
