"""The providers through their real SDKs, against a local server that speaks both wire formats.

Programs and recordings as models are tested here, too.
"""

import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from scripted_server import PIECE, Reply, ScriptedServer, Turn, count_tokens, in_order

from kmem.errors import AnswerLost, ProviderError
from kmem.interfaces import (
    Completion,
    CompletionKey,
    CompletionRecord,
    Message,
    ModelRequest,
    Provider,
    StopReason,
)
from kmem.providers.anthropic import AnthropicProvider
from kmem.providers.command import CommandProvider, render_conversation
from kmem.providers.http import HttpProvider
from kmem.providers.keys import find_key, parse_env, redact
from kmem.providers.openai import OpenAIProvider, limit_name
from kmem.providers.recorded import RecordingsProvider
from kmem.providers.retry import Backoff, retry_after_s
from kmem.serialize import to_json
from kmem.testing import check_provider

QUICK = Backoff(tries=4, first_s=0.01)
MESSAGES = (
    Message("system", "You write kernels."),
    Message("user", "Write one."),
    Message("assistant", "No."),
    Message("user", "Do."),
)
KEY = "sk-secret-0123456789abcdef"


@pytest.fixture(autouse=True)
def own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No .env but the test's own."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(params=[OpenAIProvider, AnthropicProvider], ids=["openai", "anthropic"])
def provider(request: pytest.FixtureRequest) -> HttpProvider:
    made = request.param(QUICK)
    made._sdk()  # importing an SDK takes a second or two, which no test's timeout should bear
    return made


def url(server: ScriptedServer, provider: Provider) -> str:
    return server.url_openai if provider.name == "openai" else server.url_anthropic


def ask(provider: Provider, server: ScriptedServer, **settings: object) -> Completion:
    settings = {
        "max_output_tokens": 1000,
        "base_url": url(server, provider),
        "timeout_s": 20.0,
    } | settings
    return provider.complete(ModelRequest("scripted-large", MESSAGES, **settings))


def error_of(call: Callable[[], object]) -> str:
    with pytest.raises(ProviderError) as caught:
        call()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_long_answer_is_streamed_whole_with_the_servers_counts(provider: HttpProvider) -> None:
    text = "a kernel of many lines\n" * 5000
    with ScriptedServer(in_order(Reply(text, input_tokens=1234))) as server:
        completion = ask(provider, server, max_output_tokens=40_000)
    assert completion == Completion(
        text, "scripted-large", 1234, count_tokens(text), StopReason.END
    )
    assert server.requests[0].stream


@pytest.mark.parametrize(
    "reply",
    [
        Reply("a kernel", input_tokens=1234),
        Reply("x" * 8000),
        Reply("I cannot help", StopReason.REFUSAL),
        Reply(""),
        Reply("so", StopReason.LENGTH),
    ],
)
def test_an_answer_that_is_not_streamed_says_the_same(provider: HttpProvider, reply: Reply) -> None:
    with ScriptedServer(in_order(Reply(status=429, retry_after="0"), reply)) as server:
        whole = ask(provider, server, stream=False)
        assert whole == ask(provider, server)
    assert [turn.stream for turn in server.requests] == [False, False, True]
    assert "stream_options" not in server.requests[0].body
    assert {turn.messages for turn in server.requests} == {MESSAGES}


@pytest.mark.parametrize("raw", [b"{broken", b'{"foo": 1}', b"[1, 2]", b'"text"', b"{}"])
def test_a_whole_answer_that_is_not_in_the_wire_format_is_an_error_and_not_a_crash(
    provider: HttpProvider, raw: bytes
) -> None:
    with ScriptedServer(in_order(Reply(raw=raw))) as server:
        said = error_of(lambda: ask(provider, server, stream=False))
    assert said.startswith(f"{url(server, provider)} sent something that is not {provider.wire}")


def test_a_whole_answer_lost_on_the_way_may_be_charged(provider: HttpProvider) -> None:
    for reply in (Reply("ok", drop_after=0), Reply("ok", delay_s=5)):
        with ScriptedServer(in_order(reply)) as server, pytest.raises(AnswerLost):
            ask(provider, server, stream=False, timeout_s=1.0)


def test_every_message_arrives_and_the_system_prompt_is_kept(provider: HttpProvider) -> None:
    with ScriptedServer(in_order(Reply("ok"))) as server:
        ask(provider, server)
    assert server.requests[0].messages == MESSAGES
    assert server.requests[0].system == "You write kernels."


def test_settings_reach_the_server_and_unset_ones_are_left_to_it(provider: HttpProvider) -> None:
    with ScriptedServer(in_order(Reply("ok"))) as server:
        ask(provider, server, temperature=0.3, effort="high", max_output_tokens=777)
        ask(provider, server)
    first, second = server.requests
    assert (first.temperature, first.effort, first.max_output_tokens) == (0.3, "high", 777)
    assert not second.body.keys() & {"temperature", "reasoning_effort", "output_config"}


@pytest.mark.parametrize(
    ("base_url", "name"),
    [
        ("https://api.openai.com/v1/", "max_completion_tokens"),
        ("https://eu.api.openai.com/v1", "max_completion_tokens"),
        ("https://mine.openai.azure.com/openai/v1", "max_completion_tokens"),
        ("http://localhost:11434/v1", "max_tokens"),
        ("https://notapi.openai.com.example/v1", "max_tokens"),
    ],
)
def test_openai_limits_output_by_another_name_than_other_servers(base_url: str, name: str) -> None:
    assert limit_name(base_url) == name


def test_an_answer_cut_off_a_refusal_and_an_empty_answer_are_completions(
    provider: HttpProvider,
) -> None:
    replies = in_order(
        Reply("x" * 8000),
        Reply("I cannot help", StopReason.REFUSAL),
        Reply(""),
        Reply("so", StopReason.LENGTH),
    )
    with ScriptedServer(replies) as server:
        completions = [ask(provider, server) for _ in range(4)]
    assert [completion.stop for completion in completions] == [
        StopReason.LENGTH,
        StopReason.REFUSAL,
        StopReason.END,
        StopReason.LENGTH,
    ]
    assert [completion.text for completion in completions] == [
        "x" * 4000,
        "I cannot help",
        "",
        "so",
    ]
    assert completions[0].output_tokens == 1000


def test_openais_content_filter_is_a_refusal() -> None:
    events = [
        {
            "choices": [{"index": 0, "delta": {"role": "assistant", "content": "Sor"}}],
            "model": "m",
            "id": "1",
            "created": 0,
        },
        {
            "choices": [{"index": 0, "delta": {}, "finish_reason": "content_filter"}],
            "model": "m",
            "id": "1",
            "created": 0,
        },
    ]
    with ScriptedServer(
        in_order(Reply(raw=b"".join(f"data: {json.dumps(event)}\n\n".encode() for event in events)))
    ) as server:
        assert ask(OpenAIProvider(QUICK), server).stop is StopReason.REFUSAL


def test_thinking_is_not_part_of_the_text_but_is_counted() -> None:
    with ScriptedServer(in_order(Reply("answer", thinking="hmm " * 100))) as server:
        completion = ask(AnthropicProvider(QUICK), server)
    assert completion.text == "answer"
    assert completion.output_tokens == count_tokens("hmm " * 100) + count_tokens("answer")


def test_counts_a_server_does_not_report_are_unknown_not_zero(provider: HttpProvider) -> None:
    with ScriptedServer(in_order(Reply("ok", reports_usage=False))) as server:
        completion = ask(provider, server)
    assert (completion.input_tokens, completion.output_tokens) == (None, None)


def test_what_costs_nothing_is_asked_again_and_nobody_else_is_asked(provider: HttpProvider) -> None:
    with ScriptedServer(
        in_order(
            Reply(status=429, retry_after="0"), Reply(status=500), Reply(status=529), Reply("ok")
        )
    ) as server:
        assert ask(provider, server).text == "ok"
    assert [turn.model for turn in server.requests] == ["scripted-large"] * 4
    assert len({turn.body["messages"][-1]["content"] for turn in server.requests}) == 1


def test_retry_after_is_waited_for(provider: HttpProvider) -> None:
    with ScriptedServer(in_order(Reply(status=429, retry_after="0.4"), Reply("ok"))) as server:
        start = time.monotonic()
        assert ask(provider, server).text == "ok"
    assert 0.4 <= time.monotonic() - start < 5


def test_a_server_that_stays_broken_is_given_up_after_so_many_tries(provider: HttpProvider) -> None:
    with ScriptedServer(in_order(Reply(status=503, error="overloaded"))) as server:
        said = error_of(lambda: ask(provider, server))
    assert len(server.requests) == QUICK.tries
    assert said.startswith(
        f"{url(server, provider)} failed (HTTP 503: overloaded) (tried 4 times in "
    )
    assert said.endswith("; try later")


def test_a_wait_longer_than_the_question_may_take_is_not_begun(provider: HttpProvider) -> None:
    with ScriptedServer(in_order(Reply(status=429, retry_after="900"))) as server:
        start = time.monotonic()
        said = error_of(lambda: ask(provider, server, timeout_s=5.0))
    assert time.monotonic() - start < 4
    assert "the next try, in 900 s, is later than the question may take" in said
    assert len(server.requests) == 1


def test_an_answer_lost_on_the_way_is_not_asked_for_again_here_for_it_may_be_charged(
    provider: HttpProvider,
) -> None:
    with ScriptedServer(in_order(Reply("text " * 1000, drop_after=2), Reply("ok"))) as server:
        with pytest.raises(AnswerLost, match="dropped the connection before its answer was whole"):
            ask(provider, server, max_output_tokens=5000)
        assert len(server.requests) == 1


@pytest.mark.slow(after=1)
def test_a_slow_answer_is_given_up_when_its_time_is_over(provider: HttpProvider) -> None:
    with ScriptedServer(in_order(Reply("late", delay_s=30))) as server:
        start = time.monotonic()
        with pytest.raises(AnswerLost, match="gave no answer after 1 s"):
            ask(provider, server, timeout_s=1.0)
        assert time.monotonic() - start < 4
        assert len(server.requests) == 1


def test_endless_output_is_cut_off_and_its_counts_are_unknown(provider: HttpProvider) -> None:
    with ScriptedServer(in_order(Reply("and on " * 200, endless=True))) as server:
        completion = ask(provider, server, max_output_tokens=100)
    assert completion.stop is StopReason.LENGTH
    assert (completion.input_tokens, completion.output_tokens) == (None, None)
    assert 12_800 < len(completion.text) < 100_000


@pytest.mark.parametrize("status", [504, 524])
def test_a_gateway_that_gave_up_waiting_may_have_cost_something(
    provider: HttpProvider, status: int
) -> None:
    with ScriptedServer(in_order(Reply(status=status, error="upstream timeout"))) as server:
        with pytest.raises(
            AnswerLost,
            match=rf"gave up waiting for the model \(HTTP {status}: upstream timeout\); ask again",
        ):
            ask(provider, server)
        assert len(server.requests) == 1


def test_a_key_that_a_relay_repeats_is_no_part_of_its_answer(
    provider: HttpProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(provider.key_name, KEY)
    with ScriptedServer(lambda turn: Reply("x" * (PIECE - 5) + KEY + ", you said")) as server:
        assert (
            ask(provider, server).text == "x" * (PIECE - 5) + f"[{provider.key_name}], you said"
        ), "though it came in two pieces"
    monkeypatch.setenv(provider.key_name, "EMPTY")
    with ScriptedServer(lambda turn: Reply("EMPTY = 0")) as server:
        assert ask(provider, server).text == "EMPTY = 0", "a placeholder is no secret"


def test_text_is_whole_characters_even_where_a_server_splits_one_or_sends_half(
    provider: HttpProvider,
) -> None:
    split = "x" * (PIECE - 1) + "\ud83d\ude00"
    with ScriptedServer(in_order(Reply(split), Reply("a\ud800b"))) as server:
        assert ask(provider, server).text == "x" * (PIECE - 1) + "\U0001f600"
        assert ask(provider, server).text == "a\ufffdb"


def test_another_model_than_the_one_asked_does_not_answer_silently(
    caplog: pytest.LogCaptureFixture,
) -> None:
    chunk = {
        "id": "1",
        "created": 0,
        "choices": [{"index": 0, "delta": {"content": "hi"}, "finish_reason": "stop"}],
    }
    answers = [
        Reply(raw=f"data: {json.dumps(chunk | {'model': model})}\n\n".encode())
        for model in ("scripted-large-2026-01-01", "tiny")
    ]
    with ScriptedServer(in_order(*answers)) as server:
        assert ask(OpenAIProvider(QUICK), server).model == "scripted-large-2026-01-01"
        assert caplog.text == ""
        assert ask(OpenAIProvider(QUICK), server).model == "tiny"
    assert "answered with the model tiny where scripted-large was asked" in caplog.text


def test_no_key_names_the_variable_and_the_file(provider: HttpProvider) -> None:
    said = error_of(lambda: provider.complete(ModelRequest("m", MESSAGES, 10)))
    assert said == (
        f"No key for {provider.name}; set {provider.key_name} in the environment or in a .env "
        "file in this directory"
    )
    assert error_of(provider.models) == said


def test_a_wrong_key_is_told_without_repeating_it(
    provider: HttpProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(provider.key_name, KEY)
    with ScriptedServer(in_order(Reply("ok")), key="another") as server:
        said = error_of(lambda: ask(provider, server))
        assert error_of(lambda: provider.models(url(server, provider))) == said
    assert said == (
        f"{url(server, provider)} refused the key; correct {provider.key_name} in the environment "
        "or in .env"
    )


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (
            Reply(status=403, error="no access to this model"),
            "does not allow scripted-large with this key: no access to this model; use",
        ),
        (Reply(status=402, error="pay first"), "says the credit is used up: pay first; top it up"),
        (
            Reply(status=400, error="temperature is\nnot supported"),
            "(HTTP 400): temperature is not supported; change what it names",
        ),
        (Reply(status=413, error="too long"), "refused scripted-large (HTTP 413): too long"),
        (Reply(raw=b"<html>hello</html>"), "; correct --base-url"),
    ],
)
def test_what_asking_again_would_not_mend_is_one_line_with_the_remedy(
    provider: HttpProvider, reply: Reply, words: str
) -> None:
    with ScriptedServer(in_order(reply)) as server:
        said = error_of(lambda: ask(provider, server))
    assert said.startswith(url(server, provider))
    assert words in said
    assert len(server.requests) == 1


def test_an_unknown_model_names_the_command_that_lists_them(provider: HttpProvider) -> None:
    with ScriptedServer(in_order(Reply(status=404, error="no such model"))) as server:
        said = error_of(lambda: ask(provider, server))
    assert (
        "does not know the model scripted-large: no such model; `kmem models list --provider "
        + provider.name
        in said
    )
    assert f"--base-url {url(server, provider)}` shows its models" in said


def test_used_up_credit_is_not_waited_for() -> None:
    with ScriptedServer(
        in_order(
            Reply(status=429, error="You exceeded your quota", error_code="insufficient_quota")
        )
    ) as server:
        said = error_of(lambda: ask(OpenAIProvider(QUICK), server))
    assert "says the credit is used up: insufficient_quota: You exceeded your quota" in said
    assert len(server.requests) == 1


def test_an_unreachable_server_is_named(provider: HttpProvider) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: connections are refused
        place = f"http://127.0.0.1:{taken.getsockname()[1]}/v1"
        said = error_of(lambda: provider.complete(ModelRequest("m", MESSAGES, 10, base_url=place)))
    assert said.startswith(
        f"No server answers at {place} (tried 3 times in 0 s); start it, or correct --base-url"
    )


@pytest.mark.parametrize(
    "raw",
    [
        b"data: {broken\n\n",
        b'data: {"foo": 1}\n\n',
        b'data: {"choices": [{"delta": null}]}\n\n',
        b"data: [1, 2]\n\n",
    ],
)
def test_an_answer_that_is_not_in_the_wire_format_is_an_error_and_not_a_crash(raw: bytes) -> None:
    with ScriptedServer(in_order(Reply(raw=raw))) as server:
        said = error_of(lambda: ask(OpenAIProvider(QUICK), server))
    assert said.startswith(
        f"{server.url_openai} sent something that is not OpenAI's chat completions; correct "
        "--base-url"
    )


@pytest.mark.parametrize(
    "data",
    [b'{"type": "message_start"}', b'{"type": "message_start", "message": {"id": 1}}', b"{broken"],
)
def test_an_anthropic_answer_that_is_not_in_the_wire_format_is_an_error_and_not_a_crash(
    data: bytes,
) -> None:
    with ScriptedServer(
        in_order(Reply(raw=b"event: message_start\ndata: " + data + b"\n\n"))
    ) as server:
        said = error_of(lambda: ask(AnthropicProvider(QUICK), server))
    assert said.startswith(
        f"{server.url_anthropic} sent something that is not Anthropic's Messages API; correct "
        "--base-url"
    )


def test_an_answer_that_turns_into_something_else_is_lost_for_it_may_be_charged() -> None:
    chunk = {
        "id": "1",
        "created": 0,
        "model": "m",
        "choices": [{"index": 0, "delta": {"content": "hi"}}],
    }
    for rest in (b"data: {broken\n\n", b'data: {"choices": [{"delta": null}]}\n\n', b""):
        reply = Reply(raw=f"data: {json.dumps(chunk)}\n\n".encode() + rest)
        with ScriptedServer(in_order(reply)) as server, pytest.raises(AnswerLost):
            ask(OpenAIProvider(QUICK), server)


def test_an_error_in_place_of_an_answer_is_retried_and_one_in_its_midst_is_a_lost_answer() -> None:
    error = (
        b"event: error\n"
        b'data: {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}\n'
        b"\n"
    )
    start = {
        "id": "1",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [],
        "usage": {"input_tokens": 1, "output_tokens": 1},
    }
    begun = json.dumps({"type": "message_start", "message": start})
    begun = f"event: message_start\ndata: {begun}\n\n".encode()
    with ScriptedServer(
        in_order(Reply(raw=error), Reply("ok"), Reply(raw=begun + error))
    ) as server:
        assert ask(AnthropicProvider(QUICK), server).text == "ok"
        with pytest.raises(AnswerLost, match="broke off its answer: Overloaded; ask again"):
            ask(AnthropicProvider(QUICK), server)
    assert len(server.requests) == 3


def test_a_key_is_sent_and_never_shown(
    provider: HttpProvider, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(provider.key_name, KEY)
    caplog.set_level(logging.DEBUG)
    echo = f"your key {KEY} and Bearer {KEY}"
    failures = [
        Reply(status=status, error=echo) for status in (400, 401, 402, 403, 404, 422, 429, 500)
    ]
    shown = []
    with ScriptedServer(in_order(Reply("ok"))) as server:
        completion = ask(provider, server)
        assert KEY in json.dumps(server.requests[0].headers)
        request = ModelRequest("m", MESSAGES, 10, base_url=url(server, provider))
        shown.append(
            to_json(
                CompletionRecord(
                    CompletionKey("planner", 0, "k", 0), request, completion, None, 0.1
                )
            )
        )
        for failure in failures:
            server.play = in_order(failure)
            with pytest.raises(ProviderError) as caught:
                ask(provider, server)
            shown += traceback.format_exception(caught.value)
    assert any(provider.key_name in text for text in shown)
    text = "\n".join([*shown, caplog.text, repr(provider), repr(vars(provider)), str(completion)])
    assert "secret" not in text


def test_base_urls_that_hold_secrets_or_are_none_are_refused(provider: HttpProvider) -> None:
    secret = "The base URL of relay.example holds a password or a query; give the key"
    none = "--base-url localhost:8000/v1 is not a URL; it looks like http://localhost:8000/v1"
    for place, words in {
        "https://user:secret@relay.example/v1": secret,
        "https://relay.example/v1?api_key=secret": secret,
        "localhost:8000/v1": none,
    }.items():
        said = error_of(
            lambda place=place: provider.complete(ModelRequest("m", MESSAGES, 10, base_url=place))
        )
        assert said.startswith(words)
        assert "secret" not in said


def test_many_threads_may_ask_at_once(provider: HttpProvider) -> None:
    with (
        ScriptedServer(lambda turn: Reply(turn.user, delay_s=0.05)) as server,
        ThreadPoolExecutor(8) as pool,
    ):

        def one(number: int) -> str:
            return provider.complete(
                ModelRequest(
                    "m", (Message("user", str(number)),), 10, base_url=url(server, provider)
                )
            ).text

        assert list(pool.map(one, range(24))) == [str(number) for number in range(24)]


def test_interrupt_ends_the_waits_of_other_threads_and_later_calls_work(
    provider: HttpProvider,
) -> None:
    with (
        ScriptedServer(in_order(Reply(status=429, retry_after="15"), Reply("ok"))) as server,
        ThreadPoolExecutor(1) as pool,
    ):
        waiting = pool.submit(ask, provider, server)
        while not server.replies:
            time.sleep(0.01)
        time.sleep(0.1)
        provider.interrupt()
        with pytest.raises(ProviderError, match="interrupted while waiting to try again"):
            waiting.result(timeout=5)
        assert ask(provider, server).text == "ok"


def test_an_interrupt_while_the_sdk_is_imported_keeps_the_question_from_being_put(
    provider: HttpProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    importing = threading.Event()
    imported = threading.Event()
    find_client = provider._client

    def slow_import(base_url: str | None) -> tuple[object, str]:
        importing.set()
        assert imported.wait(60)
        return find_client(base_url)

    with ScriptedServer(in_order(Reply("ok"))) as server, ThreadPoolExecutor(1) as pool:
        with monkeypatch.context() as patches:
            patches.setattr(provider, "_client", slow_import)
            asked = pool.submit(ask, provider, server)
            assert importing.wait(60)
            provider.interrupt()
            imported.set()
            with pytest.raises(ProviderError, match="Interrupted before the question was put"):
                asked.result(timeout=60)
        assert not server.requests
        assert ask(provider, server).text == "ok"


def test_ctrl_c_ends_a_wait_at_once(provider: HttpProvider) -> None:
    with ScriptedServer(in_order(Reply(status=429, retry_after="15"))) as server:
        timer = threading.Timer(0.5, os.kill, [os.getpid(), signal.SIGINT])
        timer.start()
        start = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            ask(provider, server)
        assert time.monotonic() - start < 5
        timer.join()


def test_models_are_those_the_server_lists(provider: HttpProvider) -> None:
    with ScriptedServer(in_order(Reply("ok")), models=("b", "a")) as server:
        assert provider.models(url(server, provider)) == ["a", "b"]


def test_waits_double_up_to_a_limit_and_are_the_same_for_the_same_seed() -> None:
    backoff = Backoff(tries=9, first_s=1.0, longest_s=30.0)
    delays = backoff.delays_s("a question")
    assert delays == backoff.delays_s("a question") != backoff.delays_s("another")
    for number, delay in enumerate(delays):
        assert min(30.0, 2.0**number) / 2 <= delay <= min(30.0, 2.0**number)


def test_retry_after_is_read_in_each_of_its_forms() -> None:
    assert retry_after_s({"retry-after": "7"}) == 7.0
    assert retry_after_s({"retry-after": "0.25"}) == 0.25
    assert retry_after_s({"retry-after-ms": "250", "retry-after": "7"}) == 0.25
    assert retry_after_s({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}) == 0.0
    assert 3e8 < retry_after_s({"retry-after": "Wed, 21 Oct 2099 07:28:00 GMT"}) < 3e9
    assert retry_after_s({"retry-after": "soon"}) is None
    assert retry_after_s({}) is None


ENV = """
# keys
OPENAI_API_KEY=plain   # the work account
export QUOTED="two words # not a comment"
SINGLE='$literal \\n'
ESCAPED="a\\nb \\"c\\" \\$d"
EMPTY=
  SPACED  =  value with spaces
HASH=a#b
URL=postgres://u:p@h/db?x=1#frag
not an assignment
1BAD=x
TWICE=first
TWICE=second # wins
UNCLOSED="oh
"""


def test_env_files_are_read_with_quotes_comments_and_export() -> None:
    assert parse_env(ENV) == {
        "OPENAI_API_KEY": "plain",
        "QUOTED": "two words # not a comment",
        "SINGLE": "$literal \\n",
        "ESCAPED": 'a\nb "c" $d',
        "EMPTY": "",
        "SPACED": "value with spaces",
        "HASH": "a#b",
        "URL": "postgres://u:p@h/db?x=1#frag",
        "TWICE": "second",
        "UNCLOSED": '"oh',
    }


def test_the_environment_wins_over_the_file_and_the_file_stays_out_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert find_key("OPENAI_API_KEY") is None
    Path(".env").write_text(f"OPENAI_API_KEY='{KEY}'\nANTHROPIC_API_KEY=\n")
    assert find_key("OPENAI_API_KEY") == KEY
    assert find_key("ANTHROPIC_API_KEY") is None
    assert "OPENAI_API_KEY" not in os.environ
    assert redact(f"<{KEY}>") == "<[OPENAI_API_KEY]>"
    monkeypatch.setenv("OPENAI_API_KEY", " from-the-environment\n")
    assert find_key("OPENAI_API_KEY") == "from-the-environment"


def test_a_key_from_the_file_reaches_the_server(provider: HttpProvider) -> None:
    Path(".env").write_text(f'export {provider.key_name}="{KEY}"  # mine\n')
    with ScriptedServer(in_order(Reply("ok")), key=KEY) as server:
        assert ask(provider, server).text == "ok"


def test_keys_and_files_that_cannot_be_used_are_told_without_showing_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secrét")
    assert error_of(lambda: find_key("OPENAI_API_KEY")) == (
        "OPENAI_API_KEY holds characters that no key has; copy it again, alone on its line"
    )
    monkeypatch.delenv("OPENAI_API_KEY")
    Path(".env").write_bytes(b"\xff\xfe")
    assert error_of(lambda: find_key("OPENAI_API_KEY")).endswith(
        ".env cannot be read (UnicodeDecodeError); mend or remove it"
    )


def command(line: str, **settings: object) -> Completion:
    return CommandProvider().complete(
        ModelRequest(line, MESSAGES, **({"max_output_tokens": 100} | settings))
    )


def test_a_command_gets_the_conversation_and_its_output_is_the_answer() -> None:
    completion = command("cat; echo done")
    assert completion.text == render_conversation(MESSAGES) + "done\n"
    assert completion.text.startswith(
        "# system\n\nYou write kernels.\n\n# user\n\nWrite one.\n\n# assistant\n\nNo.\n\n# user\n\n"
        "Do.\n"
    )
    assert (completion.input_tokens, completion.output_tokens, completion.stop) == (
        None,
        None,
        StopReason.END,
    )
    assert not CommandProvider.counts_tokens
    assert CommandProvider().models() == []


def test_a_command_that_does_not_read_its_input_or_prints_nothing_answers_all_the_same() -> None:
    assert command("true").text == ""
    assert command("echo $((6 * 7))").text == "42\n"


def test_a_key_that_a_command_prints_is_no_part_of_its_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    assert command("echo my key is $OPENAI_API_KEY").text == "my key is [OPENAI_API_KEY]\n"


def test_a_command_that_fails_or_is_not_there_is_one_line_with_its_last_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    said = error_of(lambda: command("echo first >&2; echo key $OPENAI_API_KEY is bad >&2; exit 3"))
    assert said.endswith(
        "failed with exit code 3: key [OPENAI_API_KEY] is bad; try it by hand with a prompt on "
        "standard input"
    )
    assert "is not found" in error_of(lambda: command("no-such-program --print"))
    assert error_of(lambda: command(f"agent --key {KEY}")) == (
        "The command line holds a key, and it is archived; let the program read the key from the "
        "environment"
    )


@pytest.mark.slow
def test_a_command_that_takes_too_long_is_ended_with_all_it_started(tmp_path: Path) -> None:
    alive = tmp_path / "alive"
    said = error_of(lambda: command(f"(sleep 2; touch {alive}) & wait", timeout_s=0.3))
    assert "gave no answer within 0 s" in said
    time.sleep(2.2)
    assert not alive.exists()


def test_a_command_that_prints_for_ever_is_cut_off() -> None:
    completion = command("yes and on", timeout_s=20)
    assert completion.stop is StopReason.LENGTH
    assert len(completion.text) == 12_800


def test_the_bundled_providers_keep_the_contract_that_plugins_are_held_to(
    provider: HttpProvider,
) -> None:
    def play(turn: Turn) -> Reply:
        return (
            Reply("yes")
            if turn.model == "scripted-large"
            else Reply(status=404, error="no such model")
        )

    with ScriptedServer(play) as server:
        check_provider(provider, "scripted-large", url(server, provider), unknown_model="nobody")
    check_provider(CommandProvider(), "cat", unknown_model="no-such-program-here")


def test_a_provider_that_breaks_the_contract_is_named_what_it_breaks() -> None:
    class Silent(CommandProvider):
        counts_tokens = True

    class Halves(CommandProvider):
        def complete(self, request: ModelRequest) -> Completion:
            return replace(super().complete(request), input_tokens=3)

    with pytest.raises(AssertionError, match="counts_tokens promises"):
        check_provider(Silent(), "cat")
    with pytest.raises(AssertionError, match="both counts are known or neither"):
        check_provider(Halves(), "cat")
    with pytest.raises(AssertionError, match="must be refused"):
        check_provider(CommandProvider(), "cat", unknown_model="echo another")


def test_interrupt_ends_a_running_command(tmp_path: Path) -> None:
    provider, runs = CommandProvider(), tmp_path / "runs"
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(
            provider.complete, ModelRequest(f"touch {runs}; sleep 30", MESSAGES, 10)
        )
        while not runs.exists() and not running.done():
            time.sleep(0.01)
        provider.interrupt()
        with pytest.raises(ProviderError, match="Interrupted while `touch"):
            running.result(timeout=20)


def recorded(question: str, answer: str) -> str:
    request = ModelRequest("some-model", (Message("user", question),), 100)
    return to_json(
        CompletionRecord(
            CompletionKey("planner", 0, "k", 0),
            request,
            Completion(answer, "some-model", 7, 3),
            0.5,
            1.0,
        )
    )


def test_replay_answers_the_same_messages_in_the_order_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "recorded.jsonl"
    file.write_text(
        "\n".join([recorded("a", "1"), recorded("b", "2"), "", recorded("a", "3")]) + "\n"
    )
    provider = RecordingsProvider()

    def answer(question: str) -> str:
        return provider.complete(ModelRequest(str(file), (Message("user", question),), 100)).text

    assert [answer("a"), answer("b"), answer("a"), answer("a"), answer("b")] == [
        "1",
        "2",
        "3",
        "3",
        "2",
    ]
    completion = provider.complete(ModelRequest(str(file), (Message("user", "b"),), 100))
    assert (completion.input_tokens, completion.output_tokens, completion.model) == (
        7,
        3,
        "some-model",
    )
    assert error_of(lambda: answer("c")) == (
        f"{file} has no answer to the question that starts 'c'; record it first, or use a live "
        "model"
    )


def test_replay_files_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    file = tmp_path / "recorded.jsonl"
    missing = error_of(lambda: RecordingsProvider().complete(ModelRequest(str(file), MESSAGES, 10)))
    assert (
        missing
        == f"Recorded conversations {file} cannot be read (FileNotFoundError); name another with -m"
    )
    file.write_text(recorded("a", "1") + "\n{}\n")
    broken = error_of(lambda: RecordingsProvider().complete(ModelRequest(str(file), MESSAGES, 10)))
    assert broken.startswith(f"{file}, line 2, is not a recorded conversation")


def test_registered_providers_import_no_sdk_and_no_http_library() -> None:
    code = (
        "import sys; from kmem.plugins import build_plugin_manager, collect; registry = "
        "collect(build_plugin_manager()); print(sorted(registry.providers), {'openai', "
        "'anthropic', 'httpx', 'httpx2', 'pydantic'} & set(sys.modules))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"KMEM_LOAD_PLUGINS": ""},
    )
    assert result.stdout.strip() == "['anthropic', 'command', 'openai', 'replay'] set()"


# ---- caching of prompts


def usage_of(wire: str, **kept: int) -> bytes:
    """A whole streamed answer with 100 tokens of input, so many of them cached or written."""
    if wire == "openai":
        usage = {
            "prompt_tokens": 100,
            "completion_tokens": 5,
            "total_tokens": 105,
            "prompt_tokens_details": {
                "cached_tokens": kept["read"],
                "cache_write_tokens": kept["written"],
            },
        }
        delta = {"index": 0, "delta": {"content": "yes"}, "finish_reason": "stop"}
        base = {"id": "c", "object": "chat.completion.chunk", "created": 0, "model": "any"}
        events = [base | {"choices": [delta]}, base | {"choices": [], "usage": usage}]
        return b"".join(f"data: {json.dumps(each)}\n\n".encode() for each in events)
    counts = {
        "input_tokens": 100 - kept["read"] - kept["written"],
        "cache_read_input_tokens": kept["read"],
        "cache_creation_input_tokens": kept["written"],
        "output_tokens": 1,
    }
    message = {"id": "m", "type": "message", "role": "assistant", "model": "any", "content": []}
    message |= {"stop_reason": None, "stop_sequence": None, "usage": counts}
    text = {"type": "text_delta", "text": "yes"}
    events = [
        {"type": "message_start", "message": message},
        {
            "type": "content_block_start",
            "index": 0,
            "content_block": {"type": "text", "text": ""},
        },
        {"type": "content_block_delta", "index": 0, "delta": text},
        {"type": "content_block_stop", "index": 0},
        {
            "type": "message_delta",
            "delta": {"stop_reason": "end_turn", "stop_sequence": None},
            "usage": {"output_tokens": 5},
        },
        {"type": "message_stop"},
    ]
    return b"".join(
        f"event: {each['type']}\ndata: {json.dumps(each)}\n\n".encode() for each in events
    )


def test_tokens_from_the_providers_cache_are_counted_apart(provider: HttpProvider) -> None:
    raw = usage_of(provider.name, read=60, written=30)
    with ScriptedServer(in_order(Reply(raw=raw))) as server:
        found = ask(provider, server)
    assert (found.text, found.input_tokens, found.output_tokens) == ("yes", 100, 5)
    assert (found.cached_tokens, found.written_tokens) == (60, 30)


def test_anthropic_is_told_how_far_the_prompt_stays_the_same() -> None:
    anthropic = AnthropicProvider(QUICK)
    stable = "## The module\nrelu\n\n"
    first = Message("user", f"{stable}## The task\nWrite.")
    messages = (MESSAGES[0], first, *MESSAGES[2:])
    with ScriptedServer(in_order(Reply("yes"))) as server:
        request = ModelRequest("any", messages, 1000, base_url=server.url_anthropic)
        anthropic.complete(replace(request, stable_chars=len(stable)))
        anthropic.complete(request)
    marked, unmarked = (turn.body for turn in server.requests)
    kept = {"cache_control": {"type": "ephemeral"}}
    assert marked["system"] == [{"type": "text", "text": "You write kernels.", **kept}]
    assert marked["messages"][0]["content"] == [
        {"type": "text", "text": stable, **kept},
        {"type": "text", "text": "## The task\nWrite."},
    ]
    assert unmarked["messages"][0]["content"] == messages[1].text
    assert server.requests[0].messages == server.requests[1].messages == messages
