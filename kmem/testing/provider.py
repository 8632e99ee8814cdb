"""The suite of `kmem.interfaces.Provider`.

Covered: names, answers, token counts, calls side by side, interrupts between calls, refusal of an
unknown model. Not covered: back-off and lost connections, which need a server that misbehaves.
"""

from dataclasses import replace

from kmem.errors import ProviderError
from kmem.host.parallel import in_parallel
from kmem.interfaces import Completion, Message, ModelRequest, Provider, StopReason
from kmem.testing.wording import check_line, check_name


def check_provider(
    provider: Provider, model: str, base_url: str | None = None, *, unknown_model: str | None = None
) -> None:
    """Hold a provider to its contract with seven short questions.

    Args:
        model: one that answers; each question takes a few tokens.
        base_url: the server, where the provider needs one.
        unknown_model: a name that the provider must refuse; None if it takes any.
    Raises:
        AssertionError: naming what the contract says and the provider does otherwise.
    """
    check_name(provider.name)
    assert not set("/=") & set(provider.name), (
        f"the name must be usable in -m [ROLE=]PROVIDER/MODEL: {provider.name!r}"
    )
    models = provider.models(base_url)
    assert all(isinstance(name, str) and name for name in models), (
        f"models() lists names, not {models!r}"
    )
    messages = (Message("system", "Answer in one word."), Message("user", "Yes?"))
    question = ModelRequest(model, messages, 1024, base_url=base_url)
    _check_completion(provider, provider.complete(question))
    for completion in in_parallel(provider.complete, [question] * 4, provider.interrupt):
        _check_completion(provider, completion)
    provider.interrupt()
    # calls after an interrupt are not affected
    _check_completion(provider, provider.complete(question))
    if unknown_model is not None:
        _check_refusal(provider, replace(question, model=unknown_model, timeout_s=60.0))


def _check_completion(provider: Provider, completion: Completion) -> None:
    completion.text.encode()  # a lone surrogate can be put into no file, hash or request
    assert completion.stop is not StopReason.LOST, "an answer that is lost is raised as AnswerLost"
    counts = (completion.input_tokens, completion.output_tokens)
    assert all(count is None or (type(count) is int and count >= 0) for count in counts), (
        f"token counts are whole numbers, not {counts}"
    )
    assert (completion.input_tokens is None) == (completion.output_tokens is None), (
        f"both counts are known or neither is, not {counts}"
    )
    if provider.counts_tokens:
        assert counts[0], (
            f"counts_tokens promises the provider's own counts, and the question had some: {counts}"
        )


def _check_refusal(provider: Provider, request: ModelRequest) -> None:
    try:
        provider.complete(request)
    except ProviderError as ex:
        check_line(str(ex), "an error with its remedy")
    else:
        raise AssertionError(
            f"{request.model} must be refused with ProviderError, not answered by another model"
        )
