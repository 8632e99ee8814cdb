"""How a role is asked: its question is found answered in the archive, or asked, paid for and kept.

A question is (role, round, slot); its turn is 0, or 1 for the one re-ask that an unusable answer
gets. The re-ask says exactly what was wrong. The budget is cost/budget.py's, the archive the run's.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar, cast

from kmem.errors import BudgetExhausted, NotRegistered
from kmem.explore.models.answers.blocks import encodable
from kmem.explore.models.answers.malformed import Malformed
from kmem.explore.models.complaints import Complaints
from kmem.explore.models.cost.budget import Spending
from kmem.explore.models.prompts.message import estimate_tokens, stable_chars
from kmem.explore.models.roles import Role, choose_models
from kmem.interfaces import (
    Completion,
    CompletionKey,
    CompletionRecord,
    Message,
    ModelRequest,
    RunContext,
    StopReason,
)

logger = logging.getLogger(__name__)

AnswerT = TypeVar("AnswerT")

#: The first question and one re-ask.
_TURNS = 2
#: Tokens of its role's limit that a first question leaves free, so that a re-ask fits, though
#: perhaps without the answer that it is about: what was wrong takes `_FAULT_BYTES` at most, the
#: words around it less than 100 tokens.
REASK_TOKENS = 1_100
_FAULT_BYTES = 3_000
#: How far apart the temperatures of questions alike are, and where that ends: some providers take
#: none above 1.
_WARMER = 0.1
_WARMEST = 1.0


@dataclass(frozen=True, slots=True)
class Question:
    """Which question of a run: `slot` is what it is about, unique within a role and round.

    `warmer` counts the questions alike that were put before it: where the user set a temperature,
    each is asked at a higher one, so that answers differ.
    """

    role: Role
    round: int
    slot: str
    warmer: int = 0


class Conversation:
    """Asks the models of one run. Safe to use from several threads at once."""

    def __init__(self, context: RunContext) -> None:
        """Begin or resume the conversations of a run.

        Raises:
            ProviderError: if a role has no model.
            NotRegistered: if a model's provider is not registered.
            PriceError: if the budget is in dollars and a model's price is not known.
        """
        self._context = context
        self._spending = Spending(context.run.budget, context.archive)
        self._choices = choose_models(context.run.models)
        self._complaints = Complaints(
            {role: choice.model for role, choice in self._choices.items()}
        )
        for choice in self._choices.values():
            if choice.provider not in context.providers:
                known = ", ".join(sorted(context.providers)) or "none"
                raise NotRegistered(
                    f"There is no provider {choice.provider!r} for {choice.model}; registered: "
                    f"{known}"
                )
            self._spending.check(context.providers[choice.provider], choice.model, choice.base_url)

    @property
    def complaint(self) -> str:
        """What the user hears of models none of whose answers could be used; may be empty."""
        return self._complaints.text

    @property
    def unanswered(self) -> int:
        """How many questions had no answer of use."""
        return self._complaints.count

    def ask(
        self,
        about: Question,
        system: str,
        user: str,
        read: Callable[[str], AnswerT],
    ) -> AnswerT | None:
        """What `read` makes of the model's answer; asked again once if it raises Malformed.

        Args:
            user: leaves REASK_TOKENS of the role's limit free.
            read: raises Malformed for an answer that cannot be used. Of two such answers, what
                the later one has that is `usable` is the result.

        Returns:
            None if the second answer is no better, or if every answer was lost on the way.

        Raises:
            BudgetExhausted: if the next call might cost more than is left; nothing was asked then.
            ProviderError: if the provider cannot answer.
        """
        role, round_number = about.role, about.round
        messages = [Message("system", system), Message("user", user)]
        usable: object | None = None
        for turn in range(_TURNS):
            key = CompletionKey(role.name, round_number, about.slot, turn)
            try:
                completion = self._complete(key, about, tuple(messages))
            except BudgetExhausted:
                if usable is None:
                    raise
                return cast(AnswerT, usable)  # of the first answer, which is paid for
            if completion.stop is StopReason.LOST and usable is not None:
                return cast(AnswerT, usable)
            if completion.stop is StopReason.LOST:
                self._complaints.unusable(key, completion, "")
                self._context.announce(
                    f"the {role.name} of round {round_number} gave no answer: {completion.text}"
                )
                return None
            text = completion.text
            try:
                _check_finished(completion)
                answer = read(text)
                self._complaints.usable(key)
                return answer
            except Malformed as ex:
                fault = ex
                usable = ex.usable if ex.usable is not None else usable
            logger.info("%s, turn %d: %s", about, turn, fault)
            again = _ask_again(fault)
            room = (
                role.prompt_tokens
                - sum(estimate_tokens(message.text) for message in messages)
                - estimate_tokens(again)
            )
            messages += [Message("assistant", _echo(text, room)), Message("user", again)]
        if usable is not None:
            self._context.announce(
                f"of two faulty answers of the {role.name} of round {round_number} only what has "
                f"no fault is used: {fault}"
            )
            self._complaints.usable(key)
            return cast(AnswerT, usable)
        self._context.announce(
            f"the {role.name} of round {round_number} answered twice in a way that cannot be "
            f"used: {fault}"
        )
        self._complaints.unusable(key, completion, str(fault))
        return None

    def _complete(
        self, key: CompletionKey, about: Question, messages: tuple[Message, ...]
    ) -> Completion:
        kept = self._context.archive.find(key)
        if kept is not None:
            return kept.completion
        choice = self._choices[about.role.name]
        request = ModelRequest(
            model=choice.model,
            messages=messages,
            max_output_tokens=choice.max_output_tokens or about.role.output_tokens,
            temperature=_warmed(choice.temperature, about.warmer),
            effort=choice.effort,
            base_url=choice.base_url,
            stable_chars=stable_chars(messages[1].text),
            stream=choice.stream,
        )
        paid = self._spending.pay(key, self._context.providers[choice.provider], request)
        completion = replace(paid.completion, text=encodable(paid.completion.text))
        self._context.archive.keep(
            CompletionRecord(key, paid.request, completion, paid.usd, paid.seconds)
        )
        return completion


def _warmed(temperature: float | None, steps: int) -> float | None:
    """A temperature some steps up; the provider's own stays, for some models take no other."""
    if temperature is None:
        return None
    return max(temperature, min(_WARMEST, temperature + _WARMER * steps))


def _check_finished(completion: Completion) -> None:
    if completion.stop is StopReason.REFUSAL:
        raise Malformed(
            "you declined; the task is ordinary performance work on a tensor kernel, so please "
            "answer it"
        )
    if completion.stop is StopReason.LENGTH:
        raise Malformed(
            "your answer was cut off at its length limit; give the whole answer in fewer words"
        )
    if not completion.text.strip():
        raise Malformed("your answer was empty")


def _echo(text: str, room: int) -> str:
    """A model's answer as a turn of the conversation, or a note of its length if it is too long.

    `room` is in tokens. Servers refuse empty turns, so an empty answer becomes a note, too.
    """
    if not text.strip():
        return "(no text)"
    if estimate_tokens(text) <= room:
        return text
    return f"(an answer of {len(text)} characters, left out here)"


def _ask_again(fault: Malformed) -> str:
    told = str(fault)
    if len(told.encode()) > _FAULT_BYTES:
        told = told.encode()[:_FAULT_BYTES].decode(errors="ignore") + " ..."
    return (
        f"Your answer cannot be used: {told}.\n"
        "Give the whole answer again, corrected, in the form asked for and nothing else."
    )
