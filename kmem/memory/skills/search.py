"""Find skills for a question in words, and say why each was found.

Skills are ranked by the cosine of embeddings and by full-text search; the ranks are fused.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kmem.memory.skills.library import Library, SkillRecord
from kmem.memory.skills.vectors import Vectors
from kmem.memory.storage import Storage, storage_errors
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
    a an and any are as at be best better but by can could do does fast faster for from get has have
    help how i if improve in into is it its make makes my need no not of on one optimise optimize or
    please quick quicker should slow slower so speed than that the their them then there these they
    this to too up very want was way we what when where which while who why will with would you
    """.split()  # noqa: SIM905 - a list of sixty quoted words reads worse
)
#: A question fits the library if a description is at least so near to it, or at least so near while
#: the library has all its words ("gelu", "bank conflicts"). Source: measured on the bundled library
#: with all-MiniLM-L6-v2 (tests/test_skill_library.py): the best cosine is above 0.31 for questions
#: of several words about kernels, 0.21 and more for single words of the trade, and below 0.31 for
#: questions about anything else.
FITTING_COSINE = 0.31
_FITTING_COSINE_OF_KNOWN_WORDS = 0.2
#: A search ranks by its rarest words, as many of them as occur in this many texts together: the
#: words left out tell few skills apart, and the time of a search does not grow with the library. In
#: a library of a hundred skills every word is used.
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
    """How well each current skill matches a text, by name.

    `similarity` is a cosine, empty without embeddings; `text_rank` is the rank by bm25, from 1, of
    the skills where a word matched.
    """

    similarity: Mapping[str, float]
    text_rank: Mapping[str, int]


NO_MATCHES = TextMatches({}, {})


@dataclass(frozen=True, slots=True)
class _CurrentSkills:
    """The skills that names mean now, as one process keeps them until they change."""

    version: int
    records: list[SkillRecord]  # by name
    names: list[str]  # of those
    names_by_id: dict[int, str]  # by row of the full-text index
    counts: dict[str, int]  # word -> how many texts hold it; filled as words are asked for


class Skills(Library):
    """`memory.skills`: the library and its search."""

    def __init__(self, storage: Storage, vectors: Vectors) -> None:
        super().__init__(storage)
        self._vectors = vectors
        self._matrix: tuple[object, np.ndarray] | None = None
        self._current: _CurrentSkills | None = None

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

        current = self._current_skills()
        kept = [
            index
            for index, record in enumerate(current.records)
            if _is_applicable(record, operators, arch, signature)
        ]
        if not kept:
            return []
        places = {current.names[index]: place for place, index in enumerate(kept)}
        found = (name for name in self._text_order(query, current) if name in places)
        text_rank = {name: rank for rank, name in enumerate(found, start=1)}
        cosines = self._cosines(query, current)
        scores = np.zeros(len(kept))
        if cosines is not None:
            cosines = cosines[kept]
            scores[np.argsort(-cosines, kind="stable")] = 1 / (RRF_K + np.arange(1, len(kept) + 1))
        for name, rank in text_rank.items():
            scores[places[name]] += 1 / (RRF_K + rank)
        if bottlenecks:
            scores += [_worth(current.records[index], bottlenecks) for index in kept]
        hits = []
        # records lie by name, so ties come by name
        for place in np.argsort(-scores, kind="stable")[:limit].tolist():
            if scores[place] > 0:
                record = current.records[kept[place]]
                similarity = float(cosines[place]) if cosines is not None else None
                rank = text_rank.get(record.name)
                reasons = (
                    *_reasons_asked(record, operators or (), bottlenecks, signature or {}),
                    *_reasons_found(similarity, rank),
                )
                hits.append(SkillHit(record.name, float(scores[place]), similarity, rank, reasons))
        return hits

    def match_texts(self, query: str) -> TextMatches:
        """How well every current skill matches a text, without regard to what it applies to.

        Raises:
            EmbeddingError: if an embedding model is wanted and cannot be loaded.
        """
        current = self._current_skills()
        cosines = self._cosines(query, current)
        return TextMatches(
            dict(zip(current.names, cosines.tolist(), strict=True)) if cosines is not None else {},
            {name: rank for rank, name in enumerate(self._text_order(query, current), start=1)},
        )

    def count_unembedded(self) -> int:
        """How many current skills the next search embeds first, a twentieth of a second each."""
        records = self._current_skills().records
        return self._vectors.count_missing([record.embedded_text for record in records])

    def fits(self, query: str) -> bool:
        """Whether anything in the library is about a question at all.

        Every question has skills that are the nearest; this says whether near is near enough.
        Without embeddings, a question fits if any of its words occurs.

        Raises:
            EmbeddingError: if an embedding model is wanted and cannot be loaded.
        """
        current = self._current_skills()
        counts = [self._count_skills_with(word, current) for word in _telling_words(query)]
        cosines = self._cosines(query, current)
        if cosines is None:
            return any(counts)
        knows_all = bool(counts) and all(counts)
        return float(cosines.max()) >= (
            _FITTING_COSINE_OF_KNOWN_WORDS if knows_all else FITTING_COSINE
        )

    def _current_skills(self) -> _CurrentSkills:
        """The skills that names mean now, read again only after they changed."""
        (row,) = self._storage.read("select version from library_version")
        if self._current is None or self._current.version != row["version"]:
            ids = self._storage.read(
                """
                select s.id, s.name
                from skills s
                join library l on l.content_hash = s.content_hash
                """
            )
            records = self.all()
            self._current = _CurrentSkills(
                row["version"],
                records,
                [record.name for record in records],
                {row["id"]: row["name"] for row in ids},
                {},
            )
        return self._current

    def _cosines(self, query: str, current: _CurrentSkills) -> "np.ndarray | None":
        """Cosines (skills,) float32 of the query and each description.

        None without an embedder or without skills.
        """
        import numpy as np

        embedder = self._vectors.embedder
        if embedder is None or not current.records:
            return None
        key = (current.version, embedder.model)
        if self._matrix is None or self._matrix[0] != key:
            texts = [record.embedded_text for record in current.records]
            self._matrix = (key, self._vectors.embed_texts(texts))
        # Not `@`: the threads of a BLAS wait for more work in a loop, and burn more time than these
        # few million products take.
        return np.einsum("ij,j->i", self._matrix[1], self._vectors.embed_query(query))

    def _text_order(self, query: str, current: _CurrentSkills) -> list[str]:
        """Names of the skills that hold a word of the query, best first, ties by name.

        The rarest words are looked for, up to _MAX_OCCURRENCES.
        """
        words = _telling_words(query)
        rarest = sorted(
            (self._count_skills_with(word, current), place, word)
            for place, word in enumerate(words)
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
        names = current.names_by_id  # other rows are older versions
        return [
            name for _, name in sorted((score, names[row]) for score, row in rows if row in names)
        ]

    def _count_skills_with(self, word: str, current: _CurrentSkills) -> int:
        if word not in current.counts:
            (row,) = self._storage.read(
                "select count(*) as skills from skill_text where skill_text match ?", [f'"{word}"']
            )
            current.counts[word] = row["skills"]
        return current.counts[word]


def _telling_words(query: str) -> list[str]:
    """The words of a question that can tell skills apart, each once, in order."""
    words = dict.fromkeys(re.findall(r"[^\W_]+", query.lower()))
    return [word for word in words if word not in _STOP_WORDS]


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


def _worth(record: SkillRecord, bottlenecks: Sequence[Bottleneck]) -> float:
    """What a skill scores for the first of these bottlenecks that it addresses."""
    for rank, bottleneck in enumerate(bottlenecks, start=1):
        if bottleneck in record.bottlenecks:
            return 1 / (RRF_K + rank)
    return 0.0


def _reasons_asked(
    record: SkillRecord,
    operators: Sequence[str],
    bottlenecks: Sequence[Bottleneck],
    signature: Mapping[str, float],
) -> Iterator[str]:
    """What of the question a skill is for."""
    for bottleneck in bottlenecks:
        if bottleneck in record.bottlenecks:
            yield f"addresses {bottleneck.value}"
    for condition in record.signature:
        if condition.metric in signature:
            yield f"{condition} (measured {signature[condition.metric]:g})"
    for operator in operators:
        if operator in record.operators:
            yield f"for {operator}"


def _reasons_found(similarity: float | None, text_rank: int | None) -> Iterator[str]:
    """How the words of the question led to a skill."""
    if similarity is not None:
        yield f"its description is {similarity:.2f} near to the question (1 is the same)"
    else:
        yield "found by words alone: no embeddings (KMEM_EMBEDDING_MODEL=none)"
    if text_rank is not None:
        yield f"number {text_rank} by the words of its text"
