"""Vectors of texts, made by an embedder and kept: each text that comes back is embedded once."""

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from kmem.errors import EmbeddingError
from kmem.memory.location import vector_cache_path
from kmem.memory.skills.embeddings import Embedder, load_embedder
from kmem.memory.skills.vector_cache import VectorCache
from kmem.memory.storage import Storage, Tables
from kmem.records import content_hash

if TYPE_CHECKING:
    import numpy as np


class Vectors(Tables):
    """`memory.vectors`: vectors of texts."""

    def __init__(self, storage: Storage, embed: Embedder | None) -> None:
        """Take an embedder, or load the one that `load_embedder` names when it is first needed."""
        super().__init__(storage)
        self._embed = embed
        self._embed_loaded = embed is not None
        self._last_query: tuple[str, np.ndarray] | None = None
        self._cache = None if storage.keeps else VectorCache(vector_cache_path())

    @property
    def embedder(self) -> Embedder | None:
        """What this memory embeds with; None if KMEM_EMBEDDING_MODEL says so.

        Raises EmbeddingError if the default is not installed.
        """
        if not self._embed_loaded:
            self._embed, self._embed_loaded = load_embedder(), True
        return self._embed

    def embed_texts(self, texts: Sequence[str]) -> "np.ndarray":
        """Vectors of texts: (len(texts), dim) float32, unit norm; each is made once and kept.

        For texts that come back, such as descriptions; `embed_query` is for those that do not.

        Raises:
            EmbeddingError: if there is no embedder, it cannot be loaded, or it breaks its contract.
        """
        import numpy as np  # start-up of commands that embed nothing need not pay for it

        embedder = self._required_embedder()
        hashes = [content_hash(text) for text in texts]
        vectors = self._stored_vectors(embedder.model, hashes)
        missing = {key: text for key, text in zip(hashes, texts, strict=True) if key not in vectors}
        if missing:
            embedder.verify()
            made = _embed_now(embedder, list(missing.values()))
            new = {key: vector.tobytes() for key, vector in zip(missing, made, strict=True)}
            self._keep(embedder.model, new)
            vectors.update(new)
        together = b"".join(vectors[key] for key in hashes)
        return np.frombuffer(together, dtype="<f4").reshape(len(hashes), -1)

    def count_missing(self, texts: Sequence[str]) -> int:
        """How many of these texts `embed_texts` would have to embed; 0 without an embedder."""
        if self.embedder is None:
            return 0
        hashes = {content_hash(text) for text in texts}
        return len(hashes - set(self._stored_vectors(self.embedder.model, list(hashes))))

    def embed_query(self, query: str) -> "np.ndarray":
        """The vector of a question: (dim,) float32, unit norm.

        It is not stored: a memory would fill with questions that nobody asks again.
        """
        if self._last_query is None or self._last_query[0] != query:
            self._last_query = (query, _embed_now(self._required_embedder(), [query])[0])
        return self._last_query[1]

    def _required_embedder(self) -> Embedder:
        if self.embedder is None:
            raise EmbeddingError(
                "Embeddings are switched off; unset KMEM_EMBEDDING_MODEL or name a model in it"
            )
        return self.embedder

    def _stored_vectors(self, model: str, hashes: Sequence[str]) -> dict[str, bytes]:
        rows = self._storage.read(
            """
            select content_hash, vector from embeddings
            where model = ? and content_hash in (select value from json_each(?))
            """,
            [model, json.dumps(hashes)],
        )
        stored = {row["content_hash"]: row["vector"] for row in rows}
        missing = [key for key in hashes if key not in stored]
        if self._cache is not None and missing:
            stored |= self._cache.read(model, missing)
        return stored

    def _keep(self, model: str, vectors: Mapping[str, bytes]) -> None:
        with self._storage.write() as connection:
            connection.executemany(
                """
                insert or ignore into embeddings (model, content_hash, vector)
                values (?, ?, ?)
                """,
                [(model, key, vector) for key, vector in vectors.items()],
            )
        if self._cache is not None:
            self._cache.write(model, vectors)


def _embed_now(embedder: Embedder, texts: list[str]) -> "np.ndarray":
    """What the embedder makes of texts: (len(texts), dim) little-endian float32.

    Raises EmbeddingError if that is not one vector of unit norm per text.
    """
    import numpy as np

    made = np.asarray(embedder(texts), dtype="<f4")
    has_shape = made.ndim == 2 and len(made) == len(texts)
    if not has_shape or not np.allclose(np.linalg.norm(made, axis=1), 1.0, atol=1e-3):
        raise EmbeddingError(
            f"Embedding model '{embedder.model}' returned {made.shape}, "
            "not one vector of unit norm per text"
        )
    return made
