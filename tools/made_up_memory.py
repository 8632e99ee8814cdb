"""Made-up outcomes and skills, with which tools/benchmark_memory.py fills a database."""

import random
from bisect import bisect
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import accumulate
from pathlib import Path

import numpy as np

from kmem.memory.ledger.outcomes import LedgerEntry
from kmem.records import (
    Bottleneck,
    Contract,
    Move,
    Outcome,
    Signature,
    SiteChoice,
    Status,
    content_hash,
)
from kmem.serialize import to_json
from kmem.skills import Skill, bundled_skills_root, load_skill, skill_directories
from kmem.vocabulary import OPERATORS, SIGNATURE_METRICS

STRUCTURES = 500
GRAPHS_PER_STRUCTURE = 40
KERNELS_PER_GRAPH = 20
STATUSES = (Status.PASSED,) * 8 + (Status.WRONG_VALUES, Status.BUILD_FAILED)
ORIGINS = ("own", "team-a", "team-b", "team-c")
VERSIONS = (
    {"torch": "2.9", "triton": "3.5"},
    {"torch": "2.10", "triton": "3.6"},
    {"torch": "2.11", "triton": "3.6"},
)
NAMES = list(OPERATORS)
METRICS = list(SIGNATURE_METRICS)[:16]
BATCH = 10_000


class HashEmbedder:
    """384 pseudo-random numbers per text: as many as the real model makes, without its time."""

    model = "benchmark"

    def __call__(self, texts: list[str]) -> np.ndarray:
        seeds = [int(content_hash(text)[:8], 16) for text in texts]
        vectors = np.stack(
            [np.random.default_rng(seed).standard_normal(384, dtype=np.float32) for seed in seeds]
        )
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


@cache
def _popularity(skills: int) -> list[float]:
    """Cumulative shares of skills: the n-th is tried as often as 1 / n**0.7 says.

    So a few are tried everywhere and most rarely.
    """
    return list(accumulate((index + 1) ** -0.7 for index in range(skills)))


def _draw_skill(draw: random.Random, skills: int) -> int:
    shares = _popularity(skills)
    return bisect(shares, draw.random() * shares[-1])


def _operator(skill: int, draw: random.Random) -> str:
    return NAMES[(skill * 7 + draw.randrange(2)) % len(NAMES)]


def make_outcome(index: int, skills: int) -> Outcome:
    draw = random.Random(index)
    structure, graph = draw.randrange(STRUCTURES), draw.randrange(GRAPHS_PER_STRUCTURE)
    skill = _draw_skill(draw, skills)
    operator = _operator(skill, draw)
    status = draw.choice(STATUSES)
    latency_ms = draw.uniform(0.1, 10.0)
    passed = latency_ms if status is Status.PASSED else None
    return Outcome(
        problem=f"problem-{structure}",
        graph_hash=content_hash(f"graph {structure} {graph}"),
        structure_hash=content_hash(f"structure {structure}"),
        operators=(operator, "pointwise"),
        workload="full",
        device="h200",
        arch=draw.choice(("sm_80", "sm_90")),
        contract=Contract(),
        skill=f"skill-{skill:05d}",
        choices=(
            SiteChoice(operator, operator, f"skill-{skill:05d}", (("BLOCK", 1024), ("warps", 8))),
        ),
        move=draw.choice((Move.TUNE, Move.TUNE, Move.FIX, Move.RECALL)),
        bottleneck=list(Bottleneck)[(skill + draw.randrange(2)) % len(Bottleneck)],
        signature=Signature({metric: round(draw.uniform(0.0, 100.0), 2) for metric in METRICS}),
        source_hash=content_hash(f"{structure} {graph} {draw.randrange(KERNELS_PER_GRAPH)}"),
        parent_hash=None,
        status=status,
        latency_ms=passed,
        latency_ms_p20=passed,
        latency_ms_p80=passed,
        parent_ms=draw.uniform(0.1, 10.0),
        baseline="compile",
        baseline_ms=5.0,
        ratio=5.0 / latency_ms if passed else None,
        ratio_low=None,
        ratio_high=None,
        bound_ms=0.05,
        flags=(),
        versions=draw.choice(VERSIONS),
        origin=draw.choice(ORIGINS),
        created_at=f"{index:026d}",
        sizes=(2 ** draw.randrange(4, 16), 16 + graph),
    )


def make_entries(first: int, count: int, skills: int) -> Iterator[LedgerEntry]:
    for index in range(first, count):
        outcome = make_outcome(index, skills)
        record = to_json(outcome)
        yield LedgerEntry(outcome, record, content_hash(record), outcome.origin)


def make_skills(count: int, root: Path) -> list[Skill]:
    """Skills with the metadata of bundled ones and their sentences, shuffled."""
    bundled = [load_skill(path) for path in skill_directories(bundled_skills_root())]
    lines = [line for skill in bundled for line in skill.body.splitlines() if line.strip()]
    sentences = [sentence for skill in bundled for sentence in skill.description.split(". ")]
    skills = []
    for index in range(count):
        draw = random.Random(index)
        path = root / f"skill-{index:05d}"
        path.mkdir(parents=True, exist_ok=True)
        (path / "SKILL.md").write_text(str(index))  # what makes one version differ from another
        skills.append(
            replace(
                draw.choice(bundled),
                name=f"skill-{index:05d}",
                description=". ".join(draw.choices(sentences, k=3)),
                body="\n".join(draw.choices(lines, k=40)),
                path=path,
                conflicts=(),
                has_recipe=False,
            )
        )
    return skills
