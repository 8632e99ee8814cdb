"""The machines of a cluster side by side: what differs between them."""

from collections import Counter
from collections.abc import Iterable, Sequence

from kmem.engines.executor import Node

#: How the facts about cards are named, with a number behind.
CARD_FACT = "gpu "


def differences(nodes: Sequence[Node]) -> list[str]:
    """What is not on all machines as it is on most, in a line each; the first decides a tie."""
    found = [f"{node.host}: {node.trouble}" for node in nodes if node.trouble]
    answered = [node for node in nodes if not node.trouble]
    names = dict.fromkeys(name for node in answered for name in node.facts)
    for name in names:
        if name.startswith(CARD_FACT):
            continue
        usual = _most([node.facts.get(name, "none") for node in answered])
        found += [
            f"{node.host}: {name} {node.facts.get(name, 'none')}, elsewhere {usual}"
            for node in answered
            if node.facts.get(name, "none") != usual
        ]
    cards = [(node.host, fact, text) for node in answered for fact, text in _cards(node)]
    if cards:
        usual = _most([text for _, _, text in cards])
        found += [
            f"{host}: {fact} is {text}, elsewhere {usual}"
            for host, fact, text in cards
            if text != usual
        ]
    return found


def _cards(node: Node) -> Iterable[tuple[str, str]]:
    return ((name, text) for name, text in node.facts.items() if name.startswith(CARD_FACT))


def _most(values: Sequence[str]) -> str:
    return Counter(values).most_common(1)[0][0]
