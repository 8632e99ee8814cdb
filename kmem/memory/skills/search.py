"""Find skills for a question in words: embedding cosine and full-text rank, fused; and why each was
found.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kmem.memory.skills.library import Library, SkillRecord
from kmem.memory.storage import storage_errors
from kmem.records import Bottleneck
from kmem.skills import arch_matches

if TYPE_CHECKING:
    import numpy as np

#: Constant of reciprocal rank fusion. Source: Cormack, Clarke, Buettcher, "Reciprocal Rank Fusion",
#: SIGIR 2009, section 3: k = 60.
RRF_K = 60
#: bm25 weights of a hit in the name, the description and the body: the body mentions much that the
#: skill is not about.
_COLUMN_WEIGHTS = (4.0, 2.0, 1.0)
#: Words that nearly every text has: they tell no two skills apart, and reading where they occur is
#: most of a full-text search.
_STOP_WORDS = frozenset(
    """
    a an and are as at be but by can do for from has have i if in into is it its my no not of on one or so than that the their them then
    there these they this to was what when where which while who why will with
    """.split()  # noqa: SIM905 - a list of sixty quoted words reads worse
)
#: A search ranks by its rarest words, as many as occur in this many texts together: what they leave
#: out tells few skills apart, and time does not grow with the library. A library of a hundred
#: skills uses every word.
_MAX_OCCURRENCES = 4000


@dataclass(frozen=True, slots=True)
class SkillHit:
    """A skill found.

    `similarity` is a cosine, None without embeddings; `text_rank` counts from 1, None if no word
    matched.
    """

    name: str
    score: float
    similarity: float | None
    text_rank: int | None
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TextMatches:
    """How well each current skill matches a text: by cosine (empty without embeddings), and by bm25
    rank, from 1, where a word matched.
    """

    similarity: Mapping[str, float]
    text_rank: Mapping[str, int]


NO_MATCHES = TextMatches({}, {})


@dataclass(frozen=True, slots=True)
class _Library:
    """The skills that names mean now, as one process keeps them until they change."""

    version: int
    records: list[SkillRecord]  # by name
    names: list[str]  # of those
    names_by_id: dict[int, str]  # by row of the full-text index
    counts: dict[str, int]  # word -> how many texts hold it; filled as words are asked for


class Skills(Library):
    """`memory.skills`: the library and its search."""

    _matrix: "tuple[object, np.ndarray] | None" = None
    _library: _Library | None = None

    def search(
        self,
        query: str,
        *,
        operators: Sequence[str] | None = None,
        arch: str | None = None,
        bottlenecks: Sequence[Bottleneck] = (),
        signature: Mapping[str, float] | None = None,
        limit: int = 10,
    ) -> list[SkillHit]:
        """Current skills for a query, best first, ties by name.

        Excluded: skills about none of `operators`, not for `arch`, or with a signature condition
        that `signature` refutes (an unknown metric refutes nothing). The others are ranked by the
        cosine of query and description, by bm25 over name, description and body, and, if
        `bottlenecks` are given (primary first), by which of them they address; score = sum over
        these lists of 1 / (60 + rank).

        Source: reciprocal rank fusion, see RRF_K; bm25: sqlite.org/fts5.html#the_bm25_function.

        Raises:
            EmbeddingError: if an embedding model is wanted and cannot be loaded.
        """
        import numpy as np  # start-up of commands that search nothing need not pay for it

        known = self._known()
        kept = [
            index
            for index, record in enumerate(known.records)
            if _is_applicable(record, operators, arch, signature)
        ]
        if not kept:
            return []
        names = [known.records[index].name for index in kept]
        places = {name: place for place, name in enumerate(names)}
        text_rank = {
            name: rank
            for rank, name in enumerate(
                (name for name in self._text_order(query, known) if name in places), start=1
            )
        }
        cosines = self._cosines(query, known)
        scores = np.zeros(len(kept))
        if cosines is not None:
            cosines = cosines[kept]
            scores[np.argsort(-cosines, kind="stable")] = 1 / (RRF_K + np.arange(1, len(kept) + 1))
        for name, rank in text_rank.items():
            scores[places[name]] += 1 / (RRF_K + rank)
        if bottlenecks:
            worth = {
                bottleneck: 1 / (RRF_K + rank)
                for rank, bottleneck in enumerate(bottlenecks, start=1)
            } | {None: 0.0}
            scores += [worth[_first_addressed(known.records[index], bottlenecks)] for index in kept]
        hits = []
        # records lie by name, so ties come by name
        for place in np.argsort(-scores, kind="stable")[:limit].tolist():
            if scores[place] > 0:
                record = known.records[kept[place]]
                similarity = float(cosines[place]) if cosines is not None else None
                rank = text_rank.get(record.name)
                reasons = _reasons(record, similarity, rank, operators, bottlenecks, signature)
                hits.append(SkillHit(record.name, float(scores[place]), similarity, rank, reasons))
        return hits

    def match_texts(self, query: str) -> TextMatches:
        """How well every current skill matches a text, without regard to what it applies to.

        Raises:
            EmbeddingError: if an embedding model is wanted and cannot be loaded.
        """
        known = self._known()
        cosines = self._cosines(query, known)
        return TextMatches(
            dict(zip(known.names, cosines.tolist(), strict=True)) if cosines is not None else {},
            {name: rank for rank, name in enumerate(self._text_order(query, known), start=1)},
        )

    def _known(self) -> _Library:
        (row,) = self._storage.read("select version from library_version")
        if self._library is None or self._library.version != row["version"]:
            rows = self._storage.read(
                "select s.id, s.name from skills s join library l on l.content_hash = "
                "s.content_hash"
            )
            records = self.all()
            names = [record.name for record in records]
            self._library = _Library(
                row["version"], records, names, {row["id"]: row["name"] for row in rows}, {}
            )
        return self._library

    def _cosines(self, query: str, known: _Library) -> "np.ndarray | None":
        """Cosines (skills,) float32 of the query and each description; None without an embedder or
        without skills.
        """
        import numpy as np

        if self.embedder is None or not known.records:
            return None
        key = (known.version, self.embedder.model)
        if self._matrix is None or self._matrix[0] != key:
            self._matrix = (
                key,
                self.embed_texts([record.embedded_text for record in known.records]),
            )
        # Not `@`: the threads of a BLAS wait for more work in a loop, and burn more time than these
        # few million products take.
        return np.einsum("ij,j->i", self._matrix[1], self.embed_query(query))

    def _text_order(self, query: str, known: _Library) -> list[str]:
        """Names of the skills that hold a word of the query, best first, ties by name; the rarest
        words first, up to _MAX_OCCURRENCES.
        """
        words = [
            word
            for word in dict.fromkeys(re.findall(r"[^\W_]+", query.lower()))
            if word not in _STOP_WORDS
        ]
        rarest = sorted(
            (self._count_skills_with(word, known), place, word) for place, word in enumerate(words)
        )
        occurrences = 0
        telling = []
        for count, _, word in rarest:
            occurrences += count
            if count and (occurrences <= _MAX_OCCURRENCES or not telling):
                telling.append(word)
        if not telling:
            return []
        with storage_errors(self._storage.path):
            rows = self._storage.db.conn.execute(
                "select bm25(skill_text, ?, ?, ?), rowid from skill_text where skill_text match ?",
                [*_COLUMN_WEIGHTS, " OR ".join(f'"{word}"' for word in telling)],
            ).fetchall()
        names = known.names_by_id  # other rows are older versions
        return [
            name for _, name in sorted((score, names[row]) for score, row in rows if row in names)
        ]

    def _count_skills_with(self, word: str, known: _Library) -> int:
        if word not in known.counts:
            (row,) = self._storage.read(
                "select count(*) as skills from skill_text where skill_text match ?", [f'"{word}"']
            )
            known.counts[word] = row["skills"]
        return known.counts[word]


def _is_applicable(
    record: SkillRecord,
    operators: Sequence[str] | None,
    arch: str | None,
    signature: Mapping[str, float] | None,
) -> bool:
    if operators and "any" not in record.operators and not set(operators) & set(record.operators):
        return False
    if arch and not arch_matches(record.arch, arch):
        return False
    return signature is None or all(
        condition.holds(signature) is not False for condition in record.signature
    )


def _first_addressed(record: SkillRecord, bottlenecks: Sequence[Bottleneck]) -> Bottleneck | None:
    return next(
        (bottleneck for bottleneck in bottlenecks if bottleneck in record.bottlenecks), None
    )


def _reasons(
    record: SkillRecord,
    similarity: float | None,
    text_rank: int | None,
    operators: Sequence[str] | None,
    bottlenecks: Sequence[Bottleneck],
    signature: Mapping[str, float] | None,
) -> tuple[str, ...]:
    reasons = [
        f"addresses {bottleneck.value}"
        for bottleneck in bottlenecks
        if bottleneck in record.bottlenecks
    ]
    if signature is not None:
        reasons += [
            f"{condition} (measured {signature[condition.metric]:g})"
            for condition in record.signature
            if condition.metric in signature
        ]
    reasons += [f"for {operator}" for operator in operators or () if operator in record.operators]
    if similarity is not None:
        reasons.append(f"description similarity {similarity:.2f}")
    else:
        reasons.append("full text only: no embeddings (KMEM_EMBEDDING_MODEL=none)")
    if text_rank is not None:
        reasons.append(f"full-text rank {text_rank}")
    return tuple(reasons)
