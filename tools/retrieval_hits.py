"""Is a right skill among the first three? By half and by what was known, with intervals.

    python tools/retrieval_hits.py [--half tuned|unseen] [--missed]

The labelled profiles are tests/data/labelled_profiles.jsonl (with counters; its held-out cases are
the unseen half) and tests/data/compiled_profiles.jsonl (without; tools/collect_labelled.py). Rules
and ranking are tuned while looking at --half tuned only; the other half is reported. The interval
is Wilson's, for a share of few cases. Source: Wilson, "Probable inference, the law of succession,
and statistical inference", JASA 22(158), 1927.
"""

import argparse
import json
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from kmem.devices import named_target
from kmem.diagnose.bottleneck import diagnose
from kmem.memory.skills.embeddings import load_embedder
from kmem.memory.store import Memory
from kmem.prescribe.consult import consult_memory
from kmem.prescribe.gate import SkillQuery
from kmem.profile.derive import add_derived
from kmem.profile.ncu_csv import read_report
from kmem.records import Bound, Contract, Diagnosis, Launch, Precision, Profile
from kmem.serialize import from_data
from kmem.skills import bundled_skills_root, load_skill, skill_directories

TESTS = Path(__file__).parent.parent / "tests"
COUNTED = TESTS / "data" / "labelled_profiles.jsonl"
COMPILED = TESTS / "data" / "compiled_profiles.jsonl"
VERSIONS = {"torch": "2.11.0", "triton": "3.6.0"}
_TARGET, _Z = "h200", 1.96


@dataclass(frozen=True)
class Case:
    """A labelled profile, diagnosed."""

    name: str
    half: str
    known: str  # "with counters" or "without counters"
    query: SkillQuery
    right: frozenset[str]


def cases() -> Iterator[Case]:
    """Every labelled profile."""
    for line in COUNTED.read_text(encoding="utf-8").splitlines():
        case = json.loads(line)
        device = case.get("device", _TARGET)
        bound = Bound(**case["bound"]) if "bound" in case else None
        if "report" in case:
            launches = read_report(TESTS / "recordings" / case["report"])
        else:
            launches = tuple(
                Launch(f"kernel_{place}", each["duration_ms"], None, None, each["counters"])
                for place, each in enumerate(case["launches"])
                for _ in range(each["count"])
            )
        found = diagnose(
            Profile("", "ncu", device, False, tuple(launches)),
            named_target(device),
            bound,
            latency_ms=case.get("latency_ms"),
        )
        half = "unseen" if case["split"] == "held_out" else "tuned"
        contract = Contract(Precision(case["precision"]))
        query = SkillQuery(found, tuple(case["operators"]), case["arch"], contract)
        yield Case(case["case"], half, "with counters", query, frozenset(case["skills"]))
    for line in COMPILED.read_text(encoding="utf-8").splitlines():
        case = json.loads(line)
        query = SkillQuery(
            _compiled(case), tuple(case["operators"]), named_target(_TARGET).arch, Contract()
        )
        right = frozenset(case["right"])
        yield Case(case["name"], case["half"], "without counters", query, right)


def _compiled(case: dict) -> Diagnosis:
    device = named_target(_TARGET)
    distinct = [from_data(Launch, launch) for launch in case["launches"]]
    bound = from_data(Bound, case["bound"]) if case["bound"] else None
    # what the compiler said is kept; what follows from it is worked out anew
    launches = add_derived([distinct[place] for place in case["order"]], bound, device)
    patterns = None if case["patterns"] is None else tuple(case["patterns"])
    profile = from_data(Profile, case["profile"])
    profile = replace(profile, launches=launches, patterns=patterns)
    return diagnose(profile, device, bound, latency_ms=None)


def wilson(hits: int, total: int) -> tuple[float, float]:
    """The 95% interval of a share."""
    share, spread = hits / total, _Z**2 / total
    middle = (share + spread / 2) / (1 + spread)
    width = _Z * math.sqrt(share * (1 - share) / total + spread / (4 * total)) / (1 + spread)
    return middle - width, middle + width


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--half", choices=("tuned", "unseen"))
    parser.add_argument("--missed", action="store_true", help="Name the cases that are missed.")
    options = parser.parse_args()
    library = [load_skill(path) for path in skill_directories(bundled_skills_root())]
    with TemporaryDirectory() as home, Memory(Path(home) / "m.db", load_embedder()) as memory:
        memory.skills.sync(library)
        offered = [
            (case, [each.skill for each in consult_memory(memory, case.query, library, VERSIONS)])
            for case in cases()
            if options.half in (None, case.half)
        ]
    print("| half | profiles | hit@1 | hit@3 | 95% interval |\n|---|---|---|---|---|")
    for half, known in sorted({(case.half, case.known) for case, _ in offered}):
        own = [each for each in offered if (each[0].half, each[0].known) == (half, known)]
        first = sum(bool(case.right & set(skills[:1])) for case, skills in own)
        three = sum(bool(case.right & set(skills[:3])) for case, skills in own)
        low, high = wilson(three, len(own))
        print(
            f"| {half} | {len(own)} {known} | {first / len(own):.0%} | {three / len(own):.0%} | "
            f"{low:.0%} to {high:.0%} |"
        )
    for case, skills in offered if options.missed else ():
        if not case.right & set(skills):
            told = f"{case.query.diagnosis.bottleneck.value}: {', '.join(skills)}"
            print(f"{case.name}: {told}; right: {', '.join(sorted(case.right))}", file=sys.stderr)


if __name__ == "__main__":
    main()
