"""Which skills there are: every version ever seen by content hash, and which one a name means now;
their vectors, made once.

search.py ranks what is kept here.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kmem.errors import EmbeddingError, SkillError
from kmem.memory.location import added_skills_root
from kmem.memory.skills.embeddings import Embedder, load_embedder
from kmem.memory.storage import Storage, Tables
from kmem.records import Bottleneck, content_hash
from kmem.skills import Condition, Skill, bundled_skills_root, embedded_text, parse_condition

if TYPE_CHECKING:
    import numpy as np

ORIGINS = ("bundled", "plugin", "added")


@dataclass(frozen=True, slots=True)
class SkillRecord:
    """A skill as the memory knows it: what is needed to find it. Its text and recipe lie in `path`."""

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
    """Where a skill directory comes from: "bundled" with kmem, "added" beside this database, or a
    "plugin".
    """
    resolved = path.resolve()
    if resolved.is_relative_to(bundled_skills_root().resolve()):
        return "bundled"
    return "added" if resolved.is_relative_to(added_skills_root(db_path).resolve()) else "plugin"


class Library(Tables):
    """Which skills there are, and their vectors; search.py adds the search."""

    def __init__(self, storage: Storage, embed: Embedder | None) -> None:
        """Args: embed: None loads the one that `load_embedder` names when it is first needed."""
        super().__init__(storage)
        self._embed = embed
        self._embed_loaded = embed is not None
        self._last_query: tuple[str, np.ndarray] | None = None

    def sync(self, skills: Sequence[Skill]) -> None:
        """Make these, and no others, the skills that names mean.

        Raises SkillError for two skills of one name.
        """
        for origin in ORIGINS:
            self.sync_origin(
                [
                    skill
                    for skill in skills
                    if skill_origin(skill.path, self._storage.path) == origin
                ],
                origin,
            )

    def sync_origin(self, skills: Sequence[Skill], origin: str) -> None:
        """Make these the skills of an origin; what it had before and lacks now is forgotten as
        current, its versions stay.

        Nothing is written if nothing changed. New descriptions are embedded when somebody first
        searches, for that may take seconds.

        Raises: SkillError: if two skills, here or of another origin, have one name and different
            content.
        """
        wanted: dict[str, tuple[str, Skill]] = {}
        for skill in skills:
            version = skill.hash
            if wanted.get(skill.name, (version, skill))[0] != version:
                raise SkillError(
                    _collision(skill.name, str(wanted[skill.name][1].path), str(skill.path))
                )
            wanted.setdefault(skill.name, (version, skill))
        present = {
            row["name"]: (row["content_hash"], row["path"])
            for row in self._storage.read(
                "select name, content_hash, path from library where origin = ?", [origin]
            )
        }
        if present == {
            name: (version, str(skill.path)) for name, (version, skill) in wanted.items()
        }:
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
                    (
                        "insert or ignore into library (name, content_hash, origin, path) values "
                        "(?, ?, ?, ?)"
                    ),
                    [skill.name, version, origin, str(skill.path)],
                )
            connection.execute("update library_version set version = version + 1")

    def _keep_version(self, version: str, skill: Skill) -> None:
        with self._storage.write() as connection:
            cursor = connection.execute(
                """
                insert or ignore into skills
                    (content_hash, name, description, body, operators, bottlenecks, signature, arch, precision)
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
            select l.name, l.content_hash, l.origin, l.path, s.description, s.operators, s.bottlenecks, s.signature, s.arch, s.precision
            from library l join skills s on s.content_hash = l.content_hash order by l.name
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

    @property
    def embedder(self) -> Embedder | None:
        """What this memory embeds with; None if KMEM_EMBEDDING_MODEL says so.

        Raises EmbeddingError if the default is not installed.
        """
        if not self._embed_loaded:
            self._embed, self._embed_loaded = load_embedder(), True
        return self._embed

    def embed_texts(self, texts: Sequence[str]) -> "np.ndarray":
        """Vectors of texts: (len(texts), dim) float32, unit norm; each text is embedded once in the
        life of the database.

        For texts that come back, such as descriptions; `embed_query` is for those that do not.

        Raises:
            EmbeddingError: if there is no embedder, it cannot be loaded, or it breaks its contract.
        """
        import numpy as np

        if self.embedder is None:
            raise EmbeddingError(
                "Embeddings are switched off; unset KMEM_EMBEDDING_MODEL or name a model in it"
            )
        hashes = [content_hash(text) for text in texts]
        vectors = self._stored_vectors(hashes)
        missing = {key: text for key, text in zip(hashes, texts, strict=True) if key not in vectors}
        if missing:
            made = self._embed_now(list(missing.values()))
            rows = [
                (self.embedder.model, key, vector.tobytes())
                for key, vector in zip(missing, made, strict=True)
            ]
            with self._storage.write() as connection:
                connection.executemany(
                    (
                        "insert or ignore into embeddings (model, content_hash, vector) values (?, "
                        "?, ?)"
                    ),
                    rows,
                )
            vectors.update((key, vector) for _, key, vector in rows)
        return np.frombuffer(b"".join(vectors[key] for key in hashes), dtype="<f4").reshape(
            len(hashes), -1
        )

    def embed_query(self, query: str) -> "np.ndarray":
        """The vector of a question: (dim,) float32, unit norm; not stored, for a memory would fill
        with questions nobody asks again.
        """
        if self._last_query is None or self._last_query[0] != query:
            self._last_query = (query, self._embed_now([query])[0])
        return self._last_query[1]

    def _embed_now(self, texts: list[str]) -> "np.ndarray":
        import numpy as np

        if self.embedder is None:
            raise EmbeddingError(
                "Embeddings are switched off; unset KMEM_EMBEDDING_MODEL or name a model in it"
            )
        made = np.asarray(self.embedder(texts), dtype="<f4")
        if (
            made.ndim != 2
            or len(made) != len(texts)
            or not np.allclose(np.linalg.norm(made, axis=1), 1.0, atol=1e-3)
        ):
            raise EmbeddingError(
                f"Embedding model '{self.embedder.model}' returned {made.shape}, not one vector of "
                f"unit norm per text"
            )
        return made

    def _stored_vectors(self, hashes: Sequence[str]) -> dict[str, bytes]:
        rows = self._storage.read(
            (
                "select content_hash, vector from embeddings where model = ? and content_hash in "
                "(select value from json_each(?))"
            ),
            [self.embedder.model, json.dumps(hashes)],
        )
        return {row["content_hash"]: row["vector"] for row in rows}


def _collision(name: str, first: str, second: str) -> str:
    return f"Two different skills are named '{name}': {first} and {second}; rename or remove one"
