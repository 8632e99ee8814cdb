"""The labelled profiles are many, of two halves, and the tool that reports hits reads them all."""

import json
import runpy
import sys
from pathlib import Path

import pytest
from sick import sick_kernels

from kmem.skills import bundled_skills_root, skill_directories

ROOT = Path(__file__).parent.parent
COUNTED = ROOT / "tests" / "data" / "labelled_profiles.jsonl"
COMPILED = ROOT / "tests" / "data" / "compiled_profiles.jsonl"


def test_profiles_without_counters_are_labelled_with_skills_that_there_are() -> None:
    known = {path.name for path in skill_directories(bundled_skills_root())}
    cases = [json.loads(line) for line in COMPILED.read_text(encoding="utf-8").splitlines()]
    counted = COUNTED.read_text(encoding="utf-8").splitlines()
    assert len({case["name"] for case in cases}) == len(cases) >= len(counted)
    assert len(cases) + len(counted) >= 430
    halves = [case["half"] for case in cases]
    assert min(halves.count("tuned"), halves.count("unseen")) >= len(cases) / 3
    for case in cases:
        assert case["right"] and set(case["right"]) <= known, case["name"]
        assert case["profile"]["estimated"] and max(case["order"]) < len(case["launches"])


def test_a_kind_of_sickness_in_a_family_is_in_one_half_alone() -> None:
    cases = [json.loads(line) for line in COMPILED.read_text(encoding="utf-8").splitlines()]
    kinds = {case.name: f"{case.kind}: {case.family}" for case in sick_kernels()}
    halves: dict[str, set[str]] = {}
    for case in cases:
        assert case["group"] == kinds.get(case["name"], case["name"])
        halves.setdefault(case["group"], set()).add(case["half"])
    assert all(len(found) == 1 for found in halves.values())
    sick = [case for case in cases if case["name"] in kinds]
    assert len(sick) >= 310
    rights = {case.name: case.right for case in sick_kernels()}
    assert all(tuple(case["right"]) == rights[case["name"]] for case in sick)


@pytest.mark.slow
def test_the_tool_tells_the_hits_of_each_half(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tool = str(ROOT / "tools" / "retrieval_hits.py")
    monkeypatch.setattr(sys, "argv", [tool, "--half", "tuned"])
    # in this process, which knows the library's vectors
    runpy.run_path(tool, run_name="__main__")
    told = capsys.readouterr().out
    assert "with counters" in told and "without counters" in told
    assert "unseen" not in told
    # what tuning reached, 99% and 98%, less a case or two
    hits = {row[1].split(maxsplit=1)[1]: int(row[3].rstrip("%")) for row in _rows(told)}
    assert hits["without counters"] >= 97 and hits["with counters"] >= 95


def _rows(table: str) -> list[list[str]]:
    """The cells of a table's rows, without those of its head."""
    return [line.strip("| ").split(" | ") for line in table.splitlines() if "tuned" in line]
