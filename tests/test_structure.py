"""A kernel's text is counted, gates read the counts, and forbidden combinations are obeyed."""

from dataclasses import replace
from pathlib import Path

import pytest
from test_prescribe import diagnosis, skill

from kmem.cli.display.skills import describe_gates
from kmem.memory.skills.search import TextMatches
from kmem.prescribe.gate import Gate, SkillQuery, gate_skill
from kmem.prescribe.rank import Knowledge, prescribe_skills
from kmem.profile.structure import read_structure
from kmem.records import Bottleneck, Contract, Kernel, SiteChoice, Structure
from kmem.skills import read_skill, skill_template, validate_library
from kmem.skills.form import parse_combination, parse_feature
from kmem.vocabulary import SOURCE_FEATURES, SYMPTOMS

TEXT = """
import triton
import triton.language as tl

@triton.jit
def kernel(x_ptr, i_ptr, out_ptr, n, BLOCK: tl.constexpr):
    lanes = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
{body}

@triton.jit
def other(x_ptr):
    tl.atomic_add(x_ptr, 1)

def launch(x):
    kernel[(1,)](x)

class ModelNew:
    def forward(self, x):
        return launch(x)
"""
COUNTED = {
    "tl.store(out_ptr + lanes, tl.load(x_ptr + lanes), mask=lanes < n)": {
        "loads": 1,
        "stores": 1,
        "masks": 1,
        "copies": 1,
    },
    "tl.store(out_ptr, tl.load(x_ptr + lanes, None))": {"loads": 1, "stores": 1, "copies": 1},
    "x = tl.load(x_ptr + lanes)\n    y = tl.trans(x)\n    tl.store(out_ptr, y.to(tl.float16))": {
        "loads": 1,
        "stores": 1,
        "turns": 1,
        "copies": 1,
    },
    "x = tl.load(x_ptr + lanes)\n    x = x * 2\n    tl.store(out_ptr, x)": {
        "loads": 1,
        "stores": 1,
    },
    "row = tl.load(i_ptr + lanes)\n    y = tl.exp(tl.load(x_ptr + row * n))": {
        "loads": 2,
        "gathers": 1,
        "specials": 1,
    },
    "for k in range(n):\n        a = tl.dot(tl.trans(x_ptr.load([k])), k)": {
        "loads": 1,
        "loops": 1,
        "dots": 1,
        "turns": 1,
    },
    "for k in tl.static_range(4):\n        y = tl.sum(tl.cumsum(lanes, 0), 0)": {
        "unrolled": 1,
        "scans": 1,
        "reductions": 1,
    },
    "row = x_ptr + n\n    for k in range(n):\n        a = tl.load(row + k)\n"
    "    for k in range(n):\n        b = tl.load(row + k)": {"loads": 2, "loops": 2, "rereads": 1},
    "for k in range(n):\n        for j in range(n):\n            a = tl.load(x_ptr + k)": {
        "loads": 1,
        "loops": 2,
    },
    "row, first = lanes // n, tl.program_id(0) // n": {"divisions": 1},
    "first, all_lanes = tl.program_id(0), lanes\n    row = first // n": {},
}


def structure(body: str) -> Structure:
    found = read_structure(Kernel(TEXT.format(body=f"    {body}")))
    assert found is not None
    return found


@pytest.mark.parametrize("body", COUNTED)
def test_what_the_entry_reaches_is_counted(body: str) -> None:
    found = structure(body).features
    assert {name: int(count) for name, count in found.items() if count} == COUNTED[body]
    assert list(found) == list(SOURCE_FEATURES) and set(SOURCE_FEATURES) > SYMPTOMS


def test_copies_of_the_host_are_counted_and_what_is_contiguous_already_is_none() -> None:
    text = "import torch\n\nclass ModelNew:\n    def forward(self, x, y):\n        return {made}\n"
    for made, count in (
        ("torch.cat([x, y])", 1),
        ("x.half()", 1),
        ("x.transpose(0, 1).contiguous()", 1),
        ("x[:, ::2].contiguous()", 1),
        ("x[:, 0].contiguous()", 1),
        ("x[:2].contiguous()", 0),
        ("x[:, None].contiguous()", 0),
        ("x.contiguous()", 0),
        ("x.view(2, 3)", 0),
    ):
        found = read_structure(Kernel(text.format(made=made)))
        assert found is not None and found.features["copies"] == count, made


def test_a_fill_is_a_copy_where_a_kernel_then_only_stores_to_the_tensor() -> None:
    stored = "tl.store(out_ptr + lanes, tl.load(x_ptr + lanes) * 2)"
    filled = "out = torch.FILL(x)\n    kernel[(1,)](x, x, out, 4, BLOCK=4)"
    for made, body, count in (
        ("zeros_like", stored, 1),
        ("empty_like", stored, 0),
        ("zeros_like", f"y = tl.load(out_ptr + lanes)\n    {stored}", 0),
        ("zeros_like", "tl.atomic_add(out_ptr + lanes, tl.load(x_ptr + lanes))", 0),
    ):
        text = TEXT.replace("kernel[(1,)](x)", filled.replace("FILL", made))
        found = read_structure(Kernel(text.format(body=f"    {body}")))
        assert found is not None and found.features["copies"] == count, (made, body)


def test_a_text_without_triton_has_nothing_and_one_that_is_no_python_is_unknown() -> None:
    choice = SiteChoice("a", "softmax", "online-softmax", ())
    found = read_structure(Kernel("class ModelNew: pass", choices=(choice, choice)))
    assert found == Structure(dict.fromkeys(SOURCE_FEATURES, 0.0), ("online-softmax",))
    assert read_structure(Kernel("def (")) is None


def said(text: Structure | None):
    return SkillQuery(replace(diagnosis(), structure=text), ("max_pool",), "sm_90", Contract())


def features(*skills: str, **counts: float) -> Structure:
    return Structure(dict.fromkeys(SOURCE_FEATURES, 0.0) | counts, skills)


def test_the_gate_reads_the_text() -> None:
    masked = skill(structure=(parse_feature("masks >= 1"),))
    assert gate_skill(masked, said(features(masks=2.0))).applies
    assert not gate_skill(masked, said(features())).applies
    unasked = gate_skill(masked, said(None))
    assert unasked.applies and not any("masks" in reason for reason in unasked.reasons)
    # a symptom is what the skill is about, whatever the diagnosis names
    mends = skill(
        operators=("embedding",),
        bottlenecks=(Bottleneck.UNCOALESCED,),
        structure=(parse_feature("gathers >= 1"),),
    )
    shown = gate_skill(mends, said(features(gathers=1.0)))
    assert shown.applies and "the text has gathers >= 1" in shown.reasons
    assert not gate_skill(mends, said(None)).applies


def test_what_is_forbidden_is_not_offered_and_the_reasons_say_so() -> None:
    barred = skill(
        name="barred", forbidden=(parse_combination("masks >= 1 and gathers >= 1 and by other"),)
    )
    kept = skill(name="kept")
    nothing = Knowledge(TextMatches({}, {}), lambda names: {}, lambda names: {})

    def offered(text: Structure | None) -> dict[str, tuple[str, ...]]:
        query = said(text)
        gate = Gate(query)
        assert (gate.strength(barred) is None) == gate.test(barred).is_forbidden
        found = prescribe_skills(query, [barred, kept], nothing)
        return {each.skill: each.reasons for each in found}

    met = features("other", masks=1.0, gathers=1.0)
    reason = "offered instead of barred: forbidden where masks >= 1 and gathers >= 1 and by other"
    assert list(offered(met)) == ["kept"] and reason in offered(met)["kept"]
    for not_met in (None, features("other", masks=1.0), features(masks=1.0, gathers=1.0)):
        assert set(offered(not_met)) == {"barred", "kept"}


@pytest.mark.parametrize(
    ("keys", "fault"),
    [
        ("kmem-structure: dot >= 1", "feature 'dot' is unknown; did you mean dots"),
        ("kmem-structure: waves >= 1", "feature 'waves' is unknown"),
        ("kmem-forbidden: dots >= 1 and loop >= 2", "metric 'loop' is unknown; did you mean loops"),
        ("kmem-forbidden: by made-up", "names the skill itself"),
        ("kmem-forbidden: traffic_ratio >= 1.2", "forbids whatever"),
        ("kmem-structure: dots >= 2\n  kmem-forbidden: dots > 1", "forbids whatever"),
    ],
)
def test_faults_of_combinations_are_named(tmp_path: Path, keys: str, fault: str) -> None:
    (tmp_path / "made-up").mkdir()
    template = skill_template("made-up")["SKILL.md"]
    text = template.replace("  kmem-precision", f"  {keys}\n  kmem-precision")
    (tmp_path / "made-up" / "SKILL.md").write_text(text, encoding="utf-8")
    _, faults = read_skill(tmp_path / "made-up")
    assert any(fault in each for each in faults), faults


def test_a_combination_names_a_skill_that_writes_and_is_shown() -> None:
    alone = skill(name="alone", forbidden=(parse_combination("by ghost"),))
    fault = "alone: kmem-forbidden 'by ghost': there is no such skill with a recipe"
    assert fault in validate_library([alone])
    ghost = skill(name="ghost", has_recipe=True)
    assert fault not in validate_library([alone, ghost])
    assert describe_gates(alone) == "- Forbidden where `by ghost`."
