"""What the language models of a run may still cost: a budget that holds to the token.

Every question is paid for through `Spending.pay`. It prices the question at its worst before it is
asked (a bound on its input tokens, plus all of max_output_tokens), reserves that, asks, and settles
with the provider's own counts. So budgets hold however many threads ask: what is settled and what
is reserved never add up to more. What does not fit now waits for the questions under way to be
settled; what does not fit then either has its max_output_tokens lowered, though not below
MIN_OUTPUT_TOKENS, or raises BudgetExhausted.

    spending = Spending(run.budget, archive)
    paid = spending.pay(key, provider, request)  # BudgetExhausted: stop asking
    archive.keep(CompletionRecord(key, paid.request, paid.completion, paid.usd, paid.seconds))

Bound on input tokens. A byte-level or byte-fallback tokenizer makes at most one token of a UTF-8
byte; a server's chat template adds tokens per message and per conversation. Four bytes a token is
usual, so about three quarters of a reservation comes back.

Covered: answers lost on the way (the provider may charge for them: their whole reservation is
spent), answers without counts (the same), and questions under way when the process is killed (the
same: the archive has a note of each before it is put). Not covered: a server that answers beyond
max_output_tokens, whose own count is then booked as it is.
"""

import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from kmem.errors import (
    BUDGET_SPENT,
    AnswerLost,
    BudgetExhausted,
    Interrupted,
    PriceError,
    ProviderError,
)
from kmem.explore.models.cost.prices import (
    PICODOLLARS,
    Price,
    PriceTable,
    known_prices,
    to_picodollars,
    to_usd,
)
from kmem.explore.models.cost.usage import Accounts, Usage
from kmem.interfaces import (
    Completion,
    CompletionArchive,
    CompletionKey,
    CompletionRecord,
    Message,
    ModelRequest,
    Provider,
    StopReason,
    Unanswered,
)
from kmem.records import Budget

logger = logging.getLogger(__name__)

#: A smaller answer has no room for a module file with a Triton kernel: 4 kB at about four bytes a
#: token.
MIN_OUTPUT_TOKENS = 1024
#: Special tokens and role names around one message: ChatML has 5, harmony up to 10.
#: Source: chat templates of Qwen2.5 and gpt-oss (tokenizer_config.json, chat_template.jinja).
TOKENS_PER_MESSAGE = 16
#: A system message that a chat template adds of its own: below 100 tokens in the templates of
#: Qwen2.5, Llama 3.1 and gpt-oss.
TOKENS_PER_CONVERSATION = 256
#: Stands for no limit; in int, so that all sums stay exact.
UNLIMITED = 10**30
#: How often one question may be asked in all when its answers get lost on the way.
ASKED_AT_MOST = 3


def input_token_bound(messages: Sequence[Message]) -> int:
    """The most tokens that a tokenizer makes of these messages (see the module)."""
    return TOKENS_PER_CONVERSATION + sum(
        TOKENS_PER_MESSAGE + len(message.text.encode()) for message in messages
    )


@dataclass(frozen=True, slots=True)
class Paid:
    """An answer that is paid for, with the request that was sent and how long the answer took.

    The request's max_output_tokens may have been lowered. An answer that stayed lost is a
    completion without counts that stopped with LOST.
    """

    completion: Completion
    request: ModelRequest
    usd: float | None
    seconds: float


@dataclass(frozen=True, slots=True)
class _Reservation:
    """The most that one question can cost.

    `picodollars` is 0 where no price is known, which a budget in dollars refuses.
    """

    role: str
    request: ModelRequest
    price: Price | None
    input_bound: int

    @property
    def tokens(self) -> int:
        return self.input_bound + self.request.max_output_tokens

    @property
    def picodollars(self) -> int:
        if self.price is None:
            return 0
        return self.price.worst_picodollars(self.input_bound, self.request.max_output_tokens)

    @property
    def usd(self) -> float | None:
        return to_usd(self.picodollars) if self.price else None


class Spending:
    """What one run may still spend; every method may be called from several threads at once.

    Args:
        budget: `usd` and `tokens` (input plus output) are its limits; None is no limit.
        archive: of the run. What is in it already is booked, so that a resumed run goes on with
            what is left; questions are noted in it.
        prices: the known prices; by default the shipped ones and those of KMEM_PRICES.
    """

    def __init__(
        self, budget: Budget, archive: CompletionArchive, prices: PriceTable | None = None
    ) -> None:
        self._archive = archive
        self._prices = known_prices() if prices is None else prices
        self._limits_tokens = budget.tokens is not None
        self._limits_usd = budget.usd is not None
        self._tokens_limit = UNLIMITED if budget.tokens is None else budget.tokens
        self._picodollars_limit = UNLIMITED if budget.usd is None else to_picodollars(budget.usd)
        self._tokens_spent = self._picodollars_spent = 0
        self._tokens_reserved = self._picodollars_reserved = 0
        self._under_way = 0
        self._accounts = Accounts()
        self._settled = threading.Condition()
        for record in archive.records():
            self._book(record)
        for question in archive.unanswered():
            self._book_uncounted(
                question.key.role, question.model, question.tokens, to_picodollars(question.usd)
            )

    @property
    def spent_tokens(self) -> int:
        """Tokens booked so far: the provider's counts, and the worst of calls without counts."""
        with self._settled:
            return self._tokens_spent

    @property
    def spent_usd(self) -> float:
        """Dollars booked so far; calls without a known price are not in it."""
        with self._settled:
            return self._picodollars_spent / PICODOLLARS

    def check(self, provider: Provider, model: str, base_url: str | None = None) -> None:
        """Refuse a model with which the budget cannot be kept, before the run's first question.

        Raises:
            ProviderError: if the provider reports no token counts and there is a budget of tokens
                or dollars.
            PriceError: if there is a budget in dollars and the model's price is not known.
        """
        if not provider.counts_tokens and (self._limits_tokens or self._limits_usd):
            raise ProviderError(
                f"Provider {provider.name} reports no token counts, so --tokens and --usd cannot "
                "be kept; use --minutes"
            )
        if self._limits_usd and self._prices.find(provider.name, model, base_url) is None:
            place = f" at {base_url}" if base_url else ""
            raise PriceError(
                f"The price of {model}{place} is not known, so --usd cannot be kept; give it in "
                "the file KMEM_PRICES names, or use --tokens"
            )

    def pay(self, key: CompletionKey, provider: Provider, request: ModelRequest) -> Paid:
        """Ask a model within the budget.

        An answer that is lost on the way is paid for and asked for again, ASKED_AT_MOST times
        within the request's timeout. The archive gets a note before each try; the caller replaces
        the last note by the record of what is returned.

        Raises:
            BudgetExhausted: if what is left does not cover the question.
            PriceError: see `check`.
            ProviderError: see `check` and `Provider`.
        """
        self.check(provider, request.model, request.base_url)
        used_s = 0.0  # in calls, without waiting for the budget
        for asked in range(1, ASKED_AT_MOST + 1):
            reservation = self._reserve(key.role, provider, request)
            start = time.monotonic()
            try:
                self._archive.note(
                    Unanswered(key, request.model, reservation.tokens, reservation.usd)
                )
                completion = provider.complete(
                    replace(reservation.request, timeout_s=request.timeout_s - used_s)
                )
            except Interrupted:
                self._settle(reservation, None)
                raise
            except AnswerLost as ex:
                used_s += time.monotonic() - start
                usd = self._settle(reservation, None)
                if asked == ASKED_AT_MOST or used_s >= request.timeout_s:
                    lost = Completion(str(ex), request.model, None, None, StopReason.LOST)
                    return Paid(lost, reservation.request, usd, used_s)
                logger.warning("%s: %s; asking again", key.role, ex)
            except ProviderError:
                self._release(reservation)  # nothing was answered, so nothing is charged
                self._archive.withdraw(key)
                raise
            except BaseException:
                self._settle(reservation, None)  # interrupted in mid-call: it may be charged
                raise
            else:
                used_s += time.monotonic() - start
                return Paid(
                    completion, reservation.request, self._settle(reservation, completion), used_s
                )
        raise AssertionError("the last try returns or raises")

    def usage(self) -> tuple[Usage, ...]:
        """What each role has used of each model, in order of first use."""
        with self._settled:
            return self._accounts.rows()

    def _book(self, record: CompletionRecord) -> None:
        """Book an answer that was paid for before this process began."""
        request = record.request
        counts = _counts(record.completion)
        picodollars = to_picodollars(record.usd)
        if counts is None:
            worst = input_token_bound(request.messages) + request.max_output_tokens
            self._book_uncounted(record.key.role, request.model, worst, picodollars)
        else:
            cached = record.completion.cached_tokens
            self._book_counted(record.key.role, request.model, counts, cached, picodollars)

    def _book_counted(
        self,
        role: str,
        model: str,
        counts: tuple[int, int],
        cached_tokens: int,
        picodollars: int | None,
    ) -> None:
        self._accounts.add_counted(role, model, counts, picodollars, cached_tokens)
        self._spend(sum(counts), picodollars)

    def _book_uncounted(self, role: str, model: str, tokens: int, picodollars: int | None) -> None:
        """Book a call without counts, which costs all that it could."""
        self._accounts.add_uncounted(role, model, picodollars)
        self._spend(tokens, picodollars)

    def _spend(self, tokens: int, picodollars: int | None) -> None:
        self._tokens_spent += tokens
        self._picodollars_spent += picodollars or 0

    def _reserve(self, role: str, provider: Provider, request: ModelRequest) -> _Reservation:
        price = self._prices.find(provider.name, request.model, request.base_url)
        asked = _Reservation(role, request, price, input_token_bound(request.messages))
        limit = price.up_to_input_tokens if price else None
        if self._limits_usd and limit is not None and asked.input_bound > limit:
            raise PriceError(
                f"The price of {request.model} is known for prompts of up to {limit} tokens, and "
                f"this one may have {asked.input_bound}; give its price in the file KMEM_PRICES "
                "names, or use --tokens"
            )
        with self._settled:
            while not self._fits(asked) and self._under_way:
                self._settled.wait()
            reservation = asked if self._fits(asked) else self._lowered(asked)
            self._tokens_reserved += reservation.tokens
            self._picodollars_reserved += reservation.picodollars
            self._under_way += 1
            return reservation

    def _fits(self, reservation: _Reservation) -> bool:
        return (
            reservation.tokens <= self._tokens_left
            and reservation.picodollars <= self._picodollars_left
        )

    def _lowered(self, asked: _Reservation) -> _Reservation:
        """The question with as many output tokens as what is left pays for.

        Raises:
            BudgetExhausted: if those are too few.
        """
        room = min(asked.request.max_output_tokens, self._tokens_left - asked.input_bound)
        if asked.price is not None:
            left = self._picodollars_left - asked.price.worst_picodollars(asked.input_bound, 0)
            if left < 0:  # not even the input can be paid for, whatever the output costs
                room = 0
            elif asked.price.output_picodollars:
                room = min(room, left // asked.price.output_picodollars)
        if room < min(MIN_OUTPUT_TOKENS, asked.request.max_output_tokens):
            raise BudgetExhausted(
                f"{BUDGET_SPENT}: {self._standing()} left, and the next "
                f"question may take {asked.tokens} tokens; raise --tokens or --usd"
            )
        return replace(asked, request=replace(asked.request, max_output_tokens=room))

    @property
    def _tokens_left(self) -> int:
        return self._tokens_limit - self._tokens_spent - self._tokens_reserved

    @property
    def _picodollars_left(self) -> int:
        return self._picodollars_limit - self._picodollars_spent - self._picodollars_reserved

    def _standing(self) -> str:
        parts = [f"{self._tokens_left} tokens"] if self._limits_tokens else []
        parts += [f"{self._picodollars_left / PICODOLLARS:.4f} USD"] if self._limits_usd else []
        return " and ".join(parts)

    def _release(self, reservation: _Reservation) -> None:
        with self._settled:
            self._return_reserved(reservation)

    def _return_reserved(self, reservation: _Reservation) -> None:
        self._tokens_reserved -= reservation.tokens
        self._picodollars_reserved -= reservation.picodollars
        self._under_way -= 1
        self._settled.notify_all()

    def _settle(self, reservation: _Reservation, completion: Completion | None) -> float | None:
        """Book what a call cost and return it in dollars.

        Without counts the call cost all that was reserved for it.
        """
        role = reservation.role
        model = reservation.request.model
        price = reservation.price
        counts = None if completion is None else _counts(completion)
        with self._settled:
            if completion is None or counts is None:
                cost = reservation.picodollars if price else None
                self._book_uncounted(role, model, reservation.tokens, cost)
            else:
                kept = completion.cached_tokens, completion.written_tokens
                cost = price.picodollars(*counts, *kept) if price else None
                self._book_counted(role, model, counts, kept[0], cost)
                if sum(counts) > reservation.tokens:
                    logger.warning(
                        "%s used %d tokens where %d were allowed",
                        model,
                        sum(counts),
                        reservation.tokens,
                    )
            self._return_reserved(reservation)
            return to_usd(cost)


def _counts(completion: Completion) -> tuple[int, int] | None:
    """Input and output tokens, if the provider reported them."""
    if completion.input_tokens is None or completion.output_tokens is None:
        return None
    return completion.input_tokens, completion.output_tokens
