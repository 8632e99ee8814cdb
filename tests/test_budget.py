"""The budget holds to the token and the picodollar from any number of threads.

Totals are the sum of the calls.
"""

import json
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted_models import DictArchive
from scripted_server import Reply, ScriptedServer, count_tokens, in_order

from kmem.errors import AnswerLost, BudgetExhausted, Interrupted, PriceError, ProviderError
from kmem.explore.models.cost.budget import (
    ASKED_AT_MOST,
    MIN_OUTPUT_TOKENS,
    TOKENS_PER_CONVERSATION,
    TOKENS_PER_MESSAGE,
    Spending,
    input_token_bound,
)
from kmem.explore.models.cost.prices import (
    PICODOLLARS,
    SHIPPED,
    Price,
    PriceTable,
    known_prices,
    load_prices,
)
from kmem.explore.models.cost.usage import Usage, total_usage
from kmem.interfaces import (
    Completion,
    CompletionArchive,
    CompletionKey,
    CompletionRecord,
    Message,
    ModelRequest,
    Provider,
    StopReason,
)
from kmem.memory.runs.conversations import RunArchive
from kmem.memory.store import Memory
from kmem.providers.command import CommandProvider
from kmem.providers.openai import OpenAIProvider
from kmem.providers.retry import Backoff
from kmem.records import Budget, Contract, Problem, Run

PRICE = Price("m", 2.5, 10.0, "these tests", "2026-11-21")
PRICES = PriceTable([PRICE])
KEY = CompletionKey("planner", 0, "a", 0)


@dataclass
class Fake(Provider):
    """Answers with the next of `fates`, and keeps every request.

    A fate is (input, output) counts, None for no counts, or an error to raise.
    """

    fates: list[object]
    name: str = "fake"
    requests: list[ModelRequest] = field(default_factory=list)

    def complete(self, request: ModelRequest) -> Completion:
        self.requests.append(request)
        fate = self.fates.pop(0)
        if isinstance(fate, BaseException):
            raise fate
        return Completion("ok", "m", *(fate or (None, None)))

    def models(self, base_url: str | None = None) -> list[str]:
        return ["m"]


def key_of(role: str) -> CompletionKey:
    return replace(KEY, role=role)


def question(characters: int = 100, output: int = 2000) -> ModelRequest:
    return ModelRequest("m", (Message("user", "x" * characters),), output)


def record(
    key: int, request: ModelRequest, counts: tuple[int, int] | None, usd: float | None
) -> CompletionRecord:
    return CompletionRecord(
        CompletionKey("planner", 0, str(key), 0),
        request,
        Completion("ok", "m", *(counts or (None, None))),
        usd,
        1.0,
    )


def run_archive(home: Path) -> RunArchive:
    """That of a run in a memory of its own."""
    with Memory(home / "kmem.db") as memory:
        memory.runs.start(
            Run(
                "r1",
                Problem("p", "p.py", ""),
                "h200",
                Contract(),
                Budget(),
                "off",
                0,
                "out",
                "2026-11-21T00:00:00",
            )
        )
        return RunArchive(memory.path, "r1")


def test_the_bound_on_input_tokens_counts_utf8_bytes_and_the_chat_template() -> None:
    messages = (Message("system", "é" * 10), Message("user", "abc"))
    assert input_token_bound(messages) == TOKENS_PER_CONVERSATION + 2 * TOKENS_PER_MESSAGE + 20 + 3


def test_a_call_is_booked_with_the_providers_own_counts_to_the_token_and_the_picodollar() -> None:
    spending = Spending(Budget(tokens=10_000, usd=1.0), DictArchive(), PRICES)
    paid = spending.pay(KEY, Fake([(111, 222)]), question())
    assert paid.usd == (111 * 2.5 + 222 * 10) / 1e6 == 0.0024975
    assert (spending.spent_tokens, spending.spent_usd) == (333, 0.0024975)
    assert spending.usage() == (Usage("planner", "m", 1, 111, 222, 0, 0.0024975),)
    assert paid.request == question()


def test_usage_is_kept_per_role_and_model_in_order_of_first_use() -> None:
    spending = Spending(Budget(), DictArchive(), PRICES)
    fake = Fake([(1, 2), (3, 4), (5, 6), (7, 8)])
    spending.pay(KEY, fake, question())
    spending.pay(key_of("optimiser"), fake, replace(question(), model="unpriced"))
    spending.pay(key_of("optimiser"), fake, question())
    spending.pay(KEY, fake, question())
    assert spending.usage() == (
        Usage("planner", "m", 2, 8, 10, 0, 0.00012),
        Usage("optimiser", "unpriced", 1, 3, 4, 0, None),
        Usage("optimiser", "m", 1, 5, 6, 0, 7.25e-05),
    )
    assert total_usage(spending.usage()) == Usage("total", "", 4, 16, 20, 0, None)
    assert total_usage(spending.usage()[::2]) == Usage("total", "", 3, 13, 16, 0, 0.0001925)
    assert total_usage(()) == Usage("total", "", 0, 0, 0, 0, 0.0)


def test_a_question_that_does_not_fit_is_not_asked() -> None:
    bound = input_token_bound(question().messages)
    fake = Fake([])
    spending = Spending(Budget(tokens=bound + MIN_OUTPUT_TOKENS - 1), DictArchive(), PRICES)
    with pytest.raises(BudgetExhausted) as caught:
        spending.pay(KEY, fake, question())
    assert str(caught.value) == (
        f"The budget for language models is spent: {bound + MIN_OUTPUT_TOKENS - 1} tokens left, "
        f"and the next question may take {bound + 2000} tokens; raise --tokens or --usd"
    )
    assert fake.requests == [] and spending.usage() == ()


def test_the_output_limit_is_lowered_to_what_is_left_but_not_below_the_least() -> None:
    bound = input_token_bound(question().messages)
    fake = Fake([(bound, 1100), (10, 10)])
    paid = Spending(Budget(tokens=bound + 1100), DictArchive(), PRICES).pay(KEY, fake, question())
    assert fake.requests == [paid.request] == [replace(question(), max_output_tokens=1100)]
    small = replace(question(), max_output_tokens=50)
    assert (
        Spending(Budget(tokens=bound + 50), DictArchive(), PRICES).pay(KEY, fake, small).request
        == small
    )
    with pytest.raises(BudgetExhausted):
        Spending(Budget(tokens=bound + 49), DictArchive(), PRICES).pay(KEY, fake, small)


def test_a_budget_in_dollars_lowers_the_output_limit_and_then_refuses() -> None:
    bound = input_token_bound(question().messages)
    least = PRICE.picodollars(bound, MIN_OUTPUT_TOKENS) / 1e12
    fake = Fake([(bound, MIN_OUTPUT_TOKENS)])
    spending = Spending(Budget(usd=least), DictArchive(), PRICES)
    assert spending.pay(KEY, fake, question()).request.max_output_tokens == MIN_OUTPUT_TOKENS
    assert spending.spent_usd == least
    with pytest.raises(BudgetExhausted, match=r"0\.0000 USD left"):
        spending.pay(KEY, fake, question())
    with pytest.raises(BudgetExhausted):
        Spending(Budget(usd=least - 1e-9), DictArchive(), PRICES).pay(KEY, fake, question())


def test_free_output_still_has_to_pay_for_its_input() -> None:
    free_output = PriceTable([replace(PRICE, usd_per_million_output=0.0)])
    bound = input_token_bound(question().messages)
    enough = bound * 2.5 / 1e6
    assert (
        Spending(Budget(usd=enough), DictArchive(), free_output)
        .pay(KEY, Fake([(1, 1)]), question())
        .request
        == question()
    )
    with pytest.raises(BudgetExhausted):
        Spending(Budget(usd=enough - 1e-9), DictArchive(), free_output).pay(
            KEY, Fake([]), question()
        )


def test_an_unknown_price_is_refused_before_the_first_call_only_under_a_budget_in_dollars() -> None:
    fake = Fake([(1, 1)])
    spending = Spending(Budget(usd=1.0), DictArchive(), PRICES)
    for call in (
        lambda: spending.check(fake, "new"),
        lambda: spending.pay(KEY, fake, replace(question(), model="new")),
    ):
        with pytest.raises(PriceError) as caught:
            call()
        assert str(caught.value) == (
            "The price of new is not known, so --usd cannot be kept; give it in the file "
            "KMEM_PRICES names, or use --tokens"
        )
    assert fake.requests == []
    assert (
        Spending(Budget(tokens=9000), DictArchive(), PRICES)
        .pay(KEY, fake, replace(question(), model="new"))
        .usd
        is None
    )


def test_a_prompt_longer_than_a_price_holds_for_is_refused_under_a_budget_in_dollars() -> None:
    prices = PriceTable([replace(PRICE, up_to_input_tokens=1000)])
    with pytest.raises(
        PriceError, match="known for prompts of up to 1000 tokens, and this one may have 1272"
    ):
        Spending(Budget(usd=1.0), DictArchive(), prices).pay(KEY, Fake([]), question(1000))
    assert (
        Spending(Budget(), DictArchive(), prices).pay(KEY, Fake([(1, 1)]), question(1000)).usd
        == 1.25e-05
    )


@pytest.mark.parametrize("budget", [Budget(tokens=10**6), Budget(usd=1.0)])
def test_a_provider_without_counts_is_refused_under_a_budget_of_tokens_or_dollars(
    budget: Budget,
) -> None:
    with pytest.raises(ProviderError) as caught:
        Spending(budget, DictArchive(), PRICES).pay(KEY, CommandProvider(), question())
    assert str(caught.value) == (
        "Provider command reports no token counts, so --tokens and --usd cannot be kept; use "
        "--minutes"
    )


def test_a_provider_without_counts_works_without_such_a_budget_and_counts_nothing() -> None:
    spending = Spending(Budget(), DictArchive(), PRICES)
    assert (
        spending.pay(
            KEY, CommandProvider(), replace(question(), model="echo hello")
        ).completion.text
        == "hello\n"
    )
    assert spending.usage() == (Usage("planner", "echo hello", 1, 0, 0, 1, None),)


def test_an_answer_without_counts_costs_all_that_was_reserved() -> None:
    bound = input_token_bound(question().messages)
    spending = Spending(Budget(tokens=10_000, usd=1.0), DictArchive(), PRICES)
    paid = spending.pay(KEY, Fake([None]), question())
    assert spending.spent_tokens == bound + 2000
    assert paid.usd == spending.spent_usd == PRICE.picodollars(bound, 2000) / 1e12
    assert spending.usage() == (Usage("planner", "m", 1, 0, 0, 1, paid.usd),)


def test_a_lost_answer_is_paid_for_and_asked_for_again() -> None:
    bound = input_token_bound(question().messages)
    spending = Spending(Budget(tokens=10_000), DictArchive(), PRICES)
    fake = Fake([AnswerLost("gone"), (10, 20)])
    assert spending.pay(KEY, fake, question()).completion.output_tokens == 20
    assert spending.spent_tokens == bound + 2000 + 30
    assert spending.usage()[0].calls == 2 and spending.usage()[0].uncounted == 1
    assert 0 < fake.requests[1].timeout_s <= fake.requests[0].timeout_s


def test_answers_that_keep_getting_lost_are_given_up() -> None:
    fake = Fake([AnswerLost("gone")] * ASKED_AT_MOST)
    spending = Spending(Budget(), DictArchive(), PRICES)
    paid = spending.pay(KEY, fake, question())
    assert (paid.completion.stop, paid.completion.text) == (StopReason.LOST, "gone")
    assert len(fake.requests) == ASKED_AT_MOST
    worst = PRICE.picodollars(input_token_bound(question().messages), 2000)
    assert (paid.usd, spending.usage()[0].uncounted) == (worst / PICODOLLARS, ASKED_AT_MOST)


def test_a_question_that_was_broken_off_is_not_asked_again() -> None:
    fake = Fake([Interrupted("the run ends"), (1, 1)])
    spending = Spending(Budget(), archive := DictArchive(), PRICES)
    with pytest.raises(Interrupted):
        spending.pay(KEY, fake, question())
    assert len(fake.requests) == len(archive.unanswered()) == spending.usage()[0].uncounted == 1


@pytest.mark.parametrize("make_archive", [lambda home: DictArchive(), run_archive])
def test_what_was_lost_or_under_way_at_a_kill_counts_when_the_run_goes_on(
    make_archive: Callable[[Path], CompletionArchive], tmp_path: Path
) -> None:
    class Killed(BaseException):
        """Nothing of the process runs on after it."""

    archive, budget = make_archive(tmp_path), Budget(tokens=100_000, usd=1.0)
    noted: list[int] = []

    def answering(fate: object) -> Fake:
        class Noting(Fake):
            def complete(self, request: ModelRequest) -> Completion:
                noted.append(len(list(archive.unanswered())))
                return super().complete(request)

        return Noting([AnswerLost("gone"), fate])

    first = Spending(budget, archive, PRICES)
    paid = first.pay(KEY, answering((10, 20)), question())
    archive.keep(CompletionRecord(KEY, paid.request, paid.completion, paid.usd, paid.seconds))
    with pytest.raises(ProviderError):
        first.pay(key_of("diagnoser"), answering(ProviderError("no key")), question())
    with pytest.raises(Killed):
        first.pay(key_of("optimiser"), answering(Killed()), question())
    assert noted == [1, 2, 2, 3, 3, 4], "each is noted before it is put"
    again = Spending(budget, archive, PRICES)
    bound = input_token_bound(question().messages) + 2000
    assert again.spent_tokens == 30 + 4 * bound == first.spent_tokens
    assert again.spent_usd == first.spent_usd
    assert {row.role: (row.calls, row.uncounted) for row in again.usage()} == {
        "planner": (2, 1),
        "diagnoser": (1, 1),
        "optimiser": (2, 2),
    }


def test_a_lost_answer_is_not_asked_for_again_beyond_the_budget() -> None:
    fake = Fake([AnswerLost("gone")])
    with pytest.raises(BudgetExhausted):
        Spending(Budget(tokens=3000), DictArchive(), PRICES).pay(KEY, fake, question())
    assert len(fake.requests) == 1


def test_a_question_not_asked_costs_nothing_and_one_broken_off_costs_all() -> None:
    spending = Spending(Budget(tokens=10_000), DictArchive(), PRICES)
    with pytest.raises(ProviderError):
        spending.pay(KEY, Fake([ProviderError("no key")]), question())
    assert (spending.spent_tokens, spending.usage()) == (0, ())
    with pytest.raises(KeyboardInterrupt):
        spending.pay(KEY, Fake([KeyboardInterrupt()]), question())
    assert spending.spent_tokens == input_token_bound(question().messages) + 2000


def test_a_resumed_run_starts_from_what_was_answered_before() -> None:
    past = [
        record(1, question(), (100, 200), 0.5),
        record(2, question(), None, 0.25),
        record(3, question(), (1, 2), None),
    ]
    spending = Spending(Budget(tokens=100_000, usd=10.0), DictArchive(past), PRICES)
    assert spending.spent_tokens == 303 + input_token_bound(question().messages) + 2000
    assert spending.spent_usd == 0.75
    assert spending.usage() == (Usage("planner", "m", 3, 101, 202, 1, None),)
    with pytest.raises(BudgetExhausted):
        Spending(Budget(tokens=1000), DictArchive(past), PRICES).pay(KEY, Fake([]), question())


def test_what_a_call_does_not_use_comes_back_at_once() -> None:
    bound = input_token_bound(question().messages)
    worst_usd = PRICE.picodollars(bound, 2000) / 1e12
    fates = [ProviderError("down") if number % 5 == 4 else (10, 20) for number in range(40)]
    spending = Spending(
        Budget(
            tokens=bound + 2000 + 32 * 30, usd=worst_usd + 32 * PRICE.picodollars(10, 20) / 1e12
        ),
        DictArchive(),
        PRICES,
    )
    fake = Fake(list(fates))
    for fate in fates:
        with suppress(ProviderError) if isinstance(fate, ProviderError) else nullcontext():
            spending.pay(KEY, fake, question())
    # no limit was lowered: all that was reserved had come back
    assert all(request == question() for request in fake.requests)
    assert spending.spent_tokens == 32 * 30


def test_a_question_waits_for_those_under_way_rather_than_give_up() -> None:
    bound = input_token_bound(question().messages)
    answer = threading.Event()

    class Slow(Fake):
        def complete(self, request: ModelRequest) -> Completion:
            self.requests.append(request)
            if len(self.requests) == 1:
                assert answer.wait(10)
            return Completion("ok", "m", 10, 20)

    slow = Slow([])
    # for one at its worst, or several as they turn out
    spending = Spending(Budget(tokens=bound + 2000 + 30), DictArchive(), PRICES)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(spending.pay, KEY, slow, question())
        while not slow.requests:
            time.sleep(0.005)
        second = pool.submit(spending.pay, key_of("optimiser"), slow, question())
        time.sleep(0.1)
        assert len(slow.requests) == 1
        answer.set()
        assert first.result(10).request == second.result(10).request == question()
    assert spending.spent_tokens == 60


FATE = st.one_of(
    # how much of what it may use a call uses, of input and of output
    st.tuples(st.floats(0, 1), st.floats(0, 1)),
    st.sampled_from(["no counts", "lost", "error"]),
)
CALL = st.tuples(st.integers(0, 3000), st.integers(1, 4000), FATE)


# of what the calls cost at their worst, so that budgets bind
SHARE = st.one_of(st.none(), st.floats(0.1, 1.1))


@pytest.mark.slow
@settings(max_examples=120, derandomize=True)
@given(
    calls=st.lists(CALL, min_size=3, max_size=14),
    tokens_share=SHARE,
    usd_share=SHARE,
    threads=st.integers(1, 4),
)
def test_budgets_hold_at_every_moment_and_totals_are_the_sum_of_the_calls(
    calls: Sequence[tuple], tokens_share: float | None, usd_share: float | None, threads: int
) -> None:
    worst = [
        (input_token_bound((Message("user", "0:" + "x" * characters),)), output)
        for characters, output, _ in calls
    ]
    tokens = None if tokens_share is None else int(tokens_share * sum(map(sum, worst)))
    picodollars = (
        None
        if usd_share is None
        else int(usd_share * sum(PRICE.picodollars(*counts) for counts in worst))
    )
    usd = None if picodollars is None else picodollars / 1e12
    spending = Spending(Budget(tokens=tokens, usd=usd), DictArchive(), PRICES)
    ledger = threading.Lock()
    truth = {
        "tokens": 0,
        "picodollars": 0,
        "worst_tokens": 0,
        "worst_picodollars": 0,
        "input": 0,
        "output": 0,
        "calls": 0,
    }
    fates = {f"{number}:": fate for number, (_, _, fate) in enumerate(calls)}

    class Server(Fake):
        def complete(self, request: ModelRequest) -> Completion:
            bound, limit = input_token_bound(request.messages), request.max_output_tokens
            fate = fates[request.messages[0].text.rstrip("x")]
            with ledger:
                truth["worst_tokens"] += bound + limit
                truth["worst_picodollars"] += PRICE.picodollars(bound, limit)
                assert tokens is None or truth["tokens"] + truth["worst_tokens"] <= tokens
                assert (
                    picodollars is None
                    or truth["picodollars"] + truth["worst_picodollars"] <= picodollars
                )
            time.sleep(0.0002)  # lets the other threads in
            used = (
                (bound, limit)
                if isinstance(fate, str)
                else (int(bound * fate[0]), int(limit * fate[1]))
            )
            with ledger:
                truth["worst_tokens"] -= bound + limit
                truth["worst_picodollars"] -= PRICE.picodollars(bound, limit)
                if fate == "error":
                    raise ProviderError("refused")
                truth["calls"] += 1
                truth["tokens"] += sum(used)
                truth["picodollars"] += PRICE.picodollars(*used)
                if fate == "lost":
                    raise AnswerLost("gone")
                if fate == "no counts":
                    return Completion("ok", "m", None, None)
                truth["input"] += used[0]
                truth["output"] += used[1]
            return Completion("ok", "m", *used)

    server = Server([])

    def one(number: int) -> None:
        characters, output = calls[number][:2]
        request = ModelRequest("m", (Message("user", f"{number}:" + "x" * characters),), output)
        with suppress(BudgetExhausted, ProviderError):
            spending.pay(key_of(f"role {number % 3}"), server, request)

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(one, range(len(calls))))
    assert spending.spent_tokens == truth["tokens"]
    assert round(spending.spent_usd * 1e12) == truth["picodollars"]
    total = total_usage(spending.usage())
    assert (total.calls, total.input_tokens, total.output_tokens) == (
        truth["calls"],
        truth["input"],
        truth["output"],
    )
    assert round(total.usd * 1e12) == truth["picodollars"]


def test_against_a_real_server_the_budget_holds_to_the_token_by_the_servers_own_count() -> None:
    provider = OpenAIProvider(Backoff(tries=3, first_s=0.01))
    provider._sdk()
    texts = ["word " * 200, "word " * 1500, "word " * 40]
    with ScriptedServer(lambda turn: Reply(texts[turn.number % 3])) as server:
        spending = Spending(Budget(tokens=12_000), DictArchive(), PRICES)

        def one(number: int) -> None:
            request = ModelRequest(
                "m",
                (Message("system", "s" * 400), Message("user", f"{number} " * 200)),
                2000,
                base_url=server.url_openai,
            )
            try:
                spending.pay(KEY, provider, request)
            except BudgetExhausted:
                exhausted.append(number)

        exhausted: list[int] = []
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(one, range(30)))
    used = sum(
        turn.input_tokens + min(count_tokens(reply.text), turn.max_output_tokens)
        for turn, reply in zip(server.requests, server.replies, strict=True)
    )
    assert spending.spent_tokens == used <= 12_000
    assert exhausted and len(server.requests) + len(exhausted) == 30


def test_a_connection_dropped_in_the_midst_is_charged_at_its_worst_and_mended() -> None:
    provider = OpenAIProvider(Backoff(tries=3, first_s=0.01))
    with ScriptedServer(in_order(Reply("word " * 500, drop_after=1), Reply("done"))) as server:
        request = replace(question(), base_url=server.url_openai)
        spending = Spending(Budget(tokens=10_000), DictArchive(), PRICES)
        assert spending.pay(KEY, provider, request).completion.text == "done"
    assert spending.spent_tokens == input_token_bound(request.messages) + 2000 + server.requests[
        1
    ].input_tokens + count_tokens("done")


def test_every_shipped_price_says_where_and_when_it_was_read() -> None:
    prices = load_prices(SHIPPED)
    assert len(prices) >= 15
    assert len({(price.provider, price.model) for price in prices}) == len(prices)
    for price in prices:
        assert (
            price.source.startswith("https://")
            and len(price.date) == 10
            and price.date.startswith("2026-")
        )
        assert price.provider in ("openai", "anthropic")
        assert 0 < price.usd_per_million_input < price.usd_per_million_output


def test_shipped_prices_hold_only_at_the_vendors_own_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("KMEM_PRICES", raising=False)
    prices = known_prices()
    model = load_prices(SHIPPED)[0].model
    assert prices.find("openai", model, None).model == model
    assert prices.find("openai", model, "http://relay.example/v1") is None
    assert prices.find("anthropic", model, None) is None


def test_a_users_file_of_prices_adds_and_overrides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load_prices(SHIPPED)[0].model
    common = {"source": "contract", "date": "2026-11-01"}
    entries = [
        {
            "model": model,
            "usd_per_million_input": 1,
            "usd_per_million_output": 1.5,
            "provider": "openai",
            **common,
        },
        {
            "model": "local",
            "usd_per_million_input": 0,
            "usd_per_million_output": 0,
            "base_url": "http://localhost:8000/v1/",
            **common,
        },
    ]
    file = tmp_path / "prices.json"
    file.write_text(json.dumps({"prices": entries}))
    monkeypatch.setenv("KMEM_PRICES", str(file))
    prices = known_prices()
    assert prices.find("openai", model, None).usd_per_million_output == 1.5
    assert prices.find("openai", model, "http://anywhere/v1").usd_per_million_output == 1.5
    assert prices.find("openai", "local", "http://localhost:8000/v1").usd_per_million_input == 0
    assert prices.find("openai", "local", None) is None


PRICED = (
    '{"prices": [{"model": "m", "usd_per_million_input": %s, "usd_per_million_output": 1, '
    '"source": "s", "date": "d"}]}'
)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "cannot be read (No such file or directory); correct KMEM_PRICES"),
        ("{", "is not in the form of"),
        ('{"prices": [{"model": "m"}]}', "is not in the form of"),
        (
            (
                '{"prices": [{"model": "m", "usd_per_million_input": -1, '
                '"usd_per_million_output": 1, "source": "s", "date": "d"}]}'
            ),
            "0 or more",
        ),
        (
            (
                '{"prices": [{"model": "m", "usd_per_million_input": 1e-7, '
                '"usd_per_million_output": 1, "source": "", "date": ""}]}'
            ),
            "six decimals",
        ),
    ],
)
def test_a_file_of_prices_that_cannot_be_used_is_one_clear_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None, words: str
) -> None:
    file = tmp_path / "prices.json"
    if text is not None:
        file.write_text(text)
    monkeypatch.setenv("KMEM_PRICES", str(file))
    with pytest.raises(PriceError) as caught:
        known_prices()
    assert str(caught.value).startswith(f"Price file {file} ")
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_cached_tokens_are_priced_as_such_and_reserved_at_their_worst() -> None:
    price = Price("m", 2.0, 10.0, "s", "d", usd_per_million_cached=0.2, usd_per_million_written=2.5)
    assert price.picodollars(100, 0) == 100 * 2_000_000
    assert price.picodollars(100, 10, 60, 30) == (
        10 * 2_000_000 + 60 * 200_000 + 30 * 2_500_000 + 10 * 10_000_000
    )
    assert price.worst_picodollars(100, 10) == 100 * 2_500_000 + 10 * 10_000_000
    plain = Price("m", 2.0, 10.0, "s", "d")
    assert plain.picodollars(100, 10, 60, 30) == plain.worst_picodollars(100, 10)
