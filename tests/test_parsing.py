"""Reading a model's answer: what is found, and what is said of an answer that cannot be used."""

import ast
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted_models import KERNEL, answer, diagnosis_answer, plan_answer

from kmem.explore.models.answers.blocks import Block, find_blocks
from kmem.explore.models.answers.files import read_file
from kmem.explore.models.answers.malformed import Malformed
from kmem.explore.models.answers.objects import read_fields
from kmem.explore.models.answers.schema import (
    DiagnoserAnswer,
    GeneratorAnswer,
    PlannerAnswer,
    ReflectorAnswer,
)
from kmem.records import Bottleneck, Claim

FIELDS = '{"plan": "one pass", "operators": ["x"], "algebraic": true, "knobs": {"B": [1, "two"]}}'
PARSED = GeneratorAnswer(plan="one pass", operators=("x",), algebraic=True, knobs={"B": (1, "two")})


@pytest.mark.parametrize(
    "text",
    [
        f"```json\n{FIELDS}\n```",
        (
            f"Sure, here it is:\n\n```JSON\n{FIELDS}\n```\nand the file:\n```python\nx = {{}}\n"
            "```\nEnjoy."
        ),
        f"```python\nx = {{}}\n```\n```json\n{FIELDS}\n```",
        f"```\n{FIELDS}\n```",
        f"~~~json\n{FIELDS}\n~~~",
        f"  ```json\r\n{FIELDS}\r\n  ```\r\n",
        f"{FIELDS}\n```python\nx = 1\n```",
        f"The answer is\n  {FIELDS} and that is all",
        FIELDS.replace(", ", ",\n  "),
        FIELDS.replace("]}", "],}").replace('"x"]', '"x",]'),
        FIELDS.replace('"plan"', '// a remark\n"plan"', 1),
        FIELDS.replace("true", "True").replace('"', "'"),
        f"<think>\n{{}} might do\n</think>\n```json\n{FIELDS}\n```",
        f"```json\n{FIELDS}\n```python\nx = 1\n```",
        f'For example:\n```json\n{{"plan": 1}}\n```\nMine:\n```json\n{FIELDS}\n```',
        f"````markdown\n```json\n{FIELDS}\n```\n````",
    ],
)
def test_the_json_object_is_found(text: str) -> None:
    assert read_fields(GeneratorAnswer, text) == PARSED


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "there is no JSON object"),
        ("I would rather talk about it.", "there is no JSON object"),
        ("[1, 2]", "there is no JSON object"),
        ("```json\n{'plan': 1}\n```", "plan: Input should be a valid string"),
        ("```json\n{'plan': x}\n```", "the JSON block is not valid JSON: Expecting property name"),
        (
            '```json\n{"plan": "one',
            r"not valid JSON: .* \(the block is not closed: the answer is cut off\)",
        ),
        ("```json\n[]\n```", "the JSON block holds no object"),
        (
            '```json\n{"plan": "p", "operators": ["x"], "algebraic": false}\n```',
            "knobs: Field required",
        ),
        (
            '```json\n{"plan": "p", "operators": ["x"], "algebraic": "no", "knobs": {}}\n```',
            "algebraic: Input should be a valid boolean",
        ),
        (
            '```json\n{"plan": 3, "operators": ["x"], "algebraic": false, "knobs": {}}\n```',
            "plan: Input should be a valid string",
        ),
        (
            '```json\n{"plan": "p", "operators": "x", "algebraic": false, "knobs": {}}\n```',
            "operators: Input should be a valid array",
        ),
        (
            (
                "```json\n"
                '{"plan": "p", "operators": ["x"], "algebraic": false, "knobs": {"B": [1.5]}}\n```'
            ),
            r"knobs\.B\.0",
        ),
        (
            (
                "```json\n"
                '{"plan": "p", "operators": ["x"], "algebraic": false, "knobs": {"B": [true]}}\n```'
            ),
            r"knobs\.B\.0",
        ),
        (
            '```json\n{"plan": " ", "operators": ["x"], "algebraic": false, "knobs": {}}\n```',
            "plan must not be empty",
        ),
        (
            '```json\n{"plan": "p", "operators": [], "algebraic": false, "knobs": {}}\n```',
            "operators must name at least one",
        ),
        ("```json\n" + '{"a":' * 100_000 + "\n```", "the JSON block is not valid JSON"),
        ("{\n" * 50_000, "there is no JSON object"),
    ],
)
def test_an_answer_without_the_right_object_is_told_so(text: str, said: str) -> None:
    with pytest.raises(Malformed, match=said):
        read_fields(GeneratorAnswer, text)


def test_a_remark_nobody_asked_for_is_ignored() -> None:
    assert (
        read_fields(GeneratorAnswer, f'```json\n{FIELDS[:-1]}, "confidence": 0.9}}\n```') == PARSED
    )


def test_names_of_bottlenecks_and_claims_are_typed() -> None:
    parsed = read_fields(DiagnoserAnswer, diagnosis_answer())
    assert parsed.bottleneck is Bottleneck.REDUNDANT_TRAFFIC
    assert parsed.claim == Claim("traffic_ratio", "<=", 0.7, relative=True)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"bottleneck": "the network"}, "bottleneck: Input should be"),
        ({"evidence": []}, "evidence must name at least one metric"),
        (
            {"claim": {"metric": "speed", "comparison": ">=", "number": 1}},
            "the claim's metric 'speed' is none of",
        ),
        (
            {"claim": {"metric": "waves", "comparison": "==", "number": 1}},
            "the claim's comparison '==' must be",
        ),
        (
            {"claim": {"metric": "waves", "comparison": ">=", "number": "1"}},
            r"claim\.number: Input should be a valid number",
        ),
        (
            {"claim": {"metric": "waves", "comparison": ">=", "number": float("inf")}},
            "must be finite",
        ),
        (
            {"claim": {"metric": "waves", "comparison": ">=", "number": -1, "relative": True}},
            "and positive",
        ),
        ({"claim": "faster"}, "claim: Input should be"),
    ],
)
def test_a_claim_that_names_nothing_measurable_is_refused(
    changes: dict[str, object], said: str
) -> None:
    with pytest.raises(Malformed, match=said):
        read_fields(DiagnoserAnswer, diagnosis_answer(**changes))


def test_a_planner_has_one_to_three_directions() -> None:
    assert len(read_fields(PlannerAnswer, plan_answer("a", "b", "c")).directions) == 3
    for count in (0, 4):
        with pytest.raises(Malformed, match="directions must hold 1 to 3 entries"):
            read_fields(PlannerAnswer, plan_answer(*"abcd"[:count]))


def test_no_lesson_is_an_answer() -> None:
    assert read_fields(ReflectorAnswer, answer({"lessons": []})).lessons == ()


OTHER = KERNEL.replace("* 2,", "* 3,")
SKETCH = "class ModelNew(torch.nn.Module):\n    def forward(self, x):\n        return 2 * x"


@pytest.mark.parametrize(
    "text",
    [
        answer({}, KERNEL),
        f"```python\n{KERNEL}```\n```json\n{{}}\n```",
        f"```py\n{KERNEL}```",
        f"```\n{KERNEL}```",
        f"~~~python\n{KERNEL}~~~",
        f"```cpp\n{KERNEL}```",
        f"Step 1. I load.\n\n```cuda\n{KERNEL}```\n\nStep 2. It is fast: `tl.load` is all.",
        f"```cpp\nint main() {{}}\n```\nthe same for Triton:\n```triton\n{KERNEL}```",
        f"```python\n\n\n{KERNEL}\n\n```",
        f"First a sketch:\n```python\nx = 1\n```\nNow the file:\n```python\n{KERNEL}```",
        f"The class:\n```python\n{SKETCH}\n```\nThe file:\n```python\n{KERNEL}```",
        f"````python\n{KERNEL}````\n",
        f"````markdown\nHere:\n```python\n{KERNEL}```\n````",
        f"```python\r\n{KERNEL}```".replace("\n", "\r\n"),
        f"\ufeff```python\n\ufeff{KERNEL}```",
        f"```python\n{KERNEL}",
        f"```json\n{{}}\n```python\n{KERNEL}```",
        f"```json\n{{}}\n```python\n{KERNEL}",
        f'```python\n{{"plan": "p"}}\n{KERNEL}```',
        f"<think>\n```python\n{OTHER}```\nno, twice\n</think>\n```python\n{KERNEL}```",
        f"```python\n{OTHER}```\nno, twice\n</think>\n\n```python\n{KERNEL}```",
        f"```python\n{KERNEL}```\nOnce more:\n```python\n# the file\n{KERNEL}```",
        json.dumps({"plan": "p", "code": KERNEL}),
        json.dumps({"plan": "p", "code": f"```python\n{KERNEL}```"}, indent=1),
        f"```json\n{json.dumps({'code': KERNEL})}\n```",
        KERNEL,
        f"Here is the file.\n\n{KERNEL}",
        f"{KERNEL}\nThis uses a block of 256; it's fast.\n",
    ],
)
def test_the_file_is_found(text: str) -> None:
    assert read_file(text) == KERNEL


def test_a_fence_inside_a_longer_fence_belongs_to_the_file() -> None:
    code = KERNEL + '"""\n```python\nx\n```\n"""\n'
    assert read_file(f"````python\n{code}````") == code


def test_the_file_that_the_model_was_given_is_a_quotation_beside_its_own() -> None:
    both = f"Before:\n```python\n{KERNEL}```\nAfter:\n```python\n{OTHER}```"
    assert read_file(both, KERNEL) == OTHER
    assert read_file(f"```python\n{KERNEL}```", KERNEL) == KERNEL, "alone it is the answer"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (answer({}), "there is no ```python block"),
        ("def f(): pass", "there is no ```python block"),
        (
            f"```python\n{KERNEL[: KERNEL.index('        return')]}",
            "not closed: the file is cut off",
        ),
        (f"```python\n{KERNEL}    def extra(self, x", "is the file cut off"),
        (
            f"```python\n{KERNEL}```\n```python\n{OTHER}```",
            "2 different files with a class ModelNew",
        ),
        (f"{KERNEL}    x = (\n        2\nand so on.\n", "not valid Python"),
        ("```python\nx = (\n```", "not valid Python: line 1: '\\(' was never closed"),
        ("```python\nclass ModelNew:\n  x = '\0'\n```", "not valid Python"),
        (
            "```python\nclass Model:\n    pass\n```",
            "no class ModelNew at .*; call the class Model so",
        ),
        (f"```python\n{KERNEL.replace('ModelNew', 'Fast')}```", "call the class Fast so"),
        (
            f"```python\n{KERNEL[KERNEL.index('BLOCK') :]}```",
            "uses torch, triton, tl and imports no such name",
        ),
        (
            f"```python\n{KERNEL.replace('import triton.language as tl', '')}```",
            "uses tl and imports no such name",
        ),
        (f"```python\n{SKETCH}\n```", "uses torch and imports"),
        ("```python\nclass ModelNew:\n" + "    x = " + "(" * 50_000 + "\n```", "not valid Python"),
        (
            "```python\nclass ModelNew:\n" + "    x = " + "-" * 200_000 + "1\n```",
            "not valid Python",
        ),
    ],
)
def test_an_answer_without_one_whole_file_is_told_so(text: str, said: str) -> None:
    with pytest.raises(Malformed, match=said):
        read_file(text)


_PIECES = st.sampled_from(
    [
        "Here is the kernel, it's quick:",
        "```",
        "```python",
        "~~~~",
        "````markdown",
        "<think>",
        "</think>",
        "{",
        '{"plan": "p", "knobs": {"BLOCK": [1]},}',
        "\ufeff",
        "\r\n",
        "class ModelNew(torch.nn.Module):",
        "    def forward(self, x",
        "x = (",
        KERNEL,
        OTHER,
        SKETCH,
        json.dumps({"code": KERNEL}),
    ]
)


@given(st.lists(_PIECES, max_size=9).map("\n".join))
def test_whatever_is_read_as_a_file_is_code_that_stood_in_the_answer(text: str) -> None:
    try:
        source = read_file(text)
    except Malformed as ex:
        assert str(ex)
        return
    names = [each.name for each in ast.parse(source).body if isinstance(each, ast.ClassDef)]
    assert "ModelNew" in names
    said = text.replace("\r\n", "\n").replace("\ufeff", "").replace("\\n", "\n")
    lines = set(said.replace('\\"', '"').split("\n"))
    assert all(line in lines or line in said for line in source.splitlines())


@given(
    st.lists(st.sampled_from(["Sure.", "\n", "Notes: a, b; it's done", '{"plan": 1}']), max_size=4),
    st.lists(st.sampled_from(["Enjoy.", "\n", "It is 2x as fast!", '{"knobs": {}}']), max_size=4),
    st.sampled_from(["```", "```python", "~~~", "`````py"]),
    st.booleans(),
)
def test_one_fenced_file_is_found_whatever_surrounds_it(
    before: list[str], after: list[str], fence: str, carriage: bool
) -> None:
    end = fence.rstrip("python")
    text = "\n".join([*before, fence, KERNEL + end, *after])
    assert read_file(text.replace("\n", "\r\n") if carriage else text) == KERNEL


def test_blocks_are_listed_with_labels() -> None:
    assert find_blocks("a\n```json\n{}\n```\n```\nx\n```py\ny\n```\n~~~\nopen") == [
        Block("json", "{}", closed=True),
        Block("", "x\n```py\ny", closed=True),
        Block("", "open", closed=False),
    ]


@given(st.text(alphabet="`~{}\"':,[]ab \n\\", max_size=200))
def test_no_text_breaks_the_readers(text: str) -> None:
    for read in (lambda: read_fields(ReflectorAnswer, text), lambda: read_file(text)):
        try:
            read()
        except Malformed as ex:
            assert str(ex)
