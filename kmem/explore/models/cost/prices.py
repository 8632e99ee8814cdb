"""What language models cost: the shipped table (prices.json), and a user's own file before it.

A price is for one model at one place. The shipped ones hold only at the vendor's own server, so a
request with a `base_url` (a relay, a local server) has a price only if the file that KMEM_PRICES
names gives one. That file has the form of prices.json:

    {"prices": [{"model": "my-model", "base_url": "http://localhost:8000/v1",
                 "usd_per_million_input": 0, "usd_per_million_output": 0,
                 "source": "own hardware", "date": "2026-11-21"}]}

An entry without `provider` or `base_url` holds for every one. Amounts are kept in whole picodollars
(1e-12 USD), so that sums are exact: a price of at most six decimals per million tokens is a whole
number of picodollars per token.
"""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

from kmem.errors import PriceError
from kmem.serialize import from_data

SHIPPED = Path(__file__).with_name("prices.json")
PICODOLLARS = 10**12


@dataclass(frozen=True, slots=True)
class Price:
    """The price of one model, in USD per million tokens.

    The price of input is the highest rate at which a plain request can be billed.
    """

    model: str
    usd_per_million_input: float
    usd_per_million_output: float
    source: str  # where it was read
    date: str  # when, as 2026-11-21
    provider: str | None = None  # None: at any
    base_url: str | None = None  # None: at any
    up_to_input_tokens: int | None = None  # a longer prompt costs more than this entry says
    note: str = ""
    # of input tokens that come from the provider's cache, and that it puts there; None: as input
    usd_per_million_cached: float | None = None
    usd_per_million_written: float | None = None

    def __post_init__(self) -> None:
        given = (self.usd_per_million_cached, self.usd_per_million_written)
        named = [usd for usd in given if usd is not None]
        for usd in (self.usd_per_million_input, self.usd_per_million_output, *named):
            if not usd >= 0 or (Decimal(str(usd)) * 10**6) % 1:
                raise ValueError(
                    f"price {usd} of {self.model} must be 0 or more, with at most six decimals"
                )

    @property
    def input_picodollars(self) -> int:
        """Per token."""
        return _per_token(self.usd_per_million_input)

    @property
    def output_picodollars(self) -> int:
        """Per token."""
        return _per_token(self.usd_per_million_output)

    def picodollars(
        self, input_tokens: int, output_tokens: int, cached_tokens: int = 0, written_tokens: int = 0
    ) -> int:
        """Cost of one call; cached and written tokens are among those of the input."""
        plain = input_tokens - cached_tokens - written_tokens
        return (
            plain * self.input_picodollars
            + cached_tokens * self._or_input(self.usd_per_million_cached)
            + written_tokens * self._or_input(self.usd_per_million_written)
            + output_tokens * self.output_picodollars
        )

    def worst_picodollars(self, input_tokens: int, output_tokens: int) -> int:
        """The most that one call can cost, whatever of its input the provider caches."""
        highest = max(self.input_picodollars, self._or_input(self.usd_per_million_written))
        return input_tokens * highest + output_tokens * self.output_picodollars

    def _or_input(self, usd: float | None) -> int:
        return self.input_picodollars if usd is None else _per_token(usd)


def _per_token(usd_per_million: float) -> int:
    """Picodollars of one token."""
    return int(Decimal(str(usd_per_million)) * 10**6)


class PriceTable:
    """Prices of which the first that fits holds.

    `own` hold everywhere, `shipped` where no other server than the vendor's is asked.
    """

    def __init__(self, own: Sequence[Price] = (), shipped: Sequence[Price] = ()) -> None:
        self._own, self._shipped = tuple(own), tuple(shipped)

    def find(self, provider: str, model: str, base_url: str | None) -> Price | None:
        """The price of a model at one place; None if it is not known."""
        for price in (*self._own, *(self._shipped if base_url is None else ())):
            same_place = price.base_url is None or (
                base_url is not None and price.base_url.rstrip("/") == base_url.rstrip("/")
            )
            if price.model == model and price.provider in (None, provider) and same_place:
                return price
        return None


def load_prices(path: Path) -> list[Price]:
    """The prices of one file.

    Raises:
        PriceError: if it cannot be read or an entry is not a price.
    """
    try:
        return [
            from_data(Price, entry)
            for entry in json.loads(path.read_text(encoding="utf-8"))["prices"]
        ]
    except OSError as ex:
        raise PriceError(
            f"Price file {path} cannot be read ({ex.strerror}); correct KMEM_PRICES"
        ) from ex
    except (ValueError, KeyError, TypeError) as ex:
        reason = " ".join(str(ex).split())[:200]
        raise PriceError(
            f"Price file {path} is not in the form of {SHIPPED}: {reason}; mend it"
        ) from ex


def known_prices() -> PriceTable:
    """The user's prices (KMEM_PRICES) before the shipped ones.

    Raises:
        PriceError: if the user's file cannot be read.
    """
    own = os.environ.get("KMEM_PRICES")
    return PriceTable(load_prices(Path(own)) if own else (), load_prices(SHIPPED))


def to_picodollars(usd: float | None) -> int | None:
    """Dollars as whole picodollars; None stays None: the price is not known."""
    return None if usd is None else round(usd * PICODOLLARS)


def to_usd(picodollars: int | None) -> float | None:
    """Picodollars as dollars; None stays None: the price is not known."""
    return None if picodollars is None else picodollars / PICODOLLARS
