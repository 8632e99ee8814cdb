"""Every skill's before and after are one problem, and give the same values in the interpreter.

before.py must also answer in float64, in which a judge computes what is right. The interpreter
takes types that a compiler refuses, so the float64 kernels are compiled for sm_90 too.
"""

import copy
from pathlib import Path

import pytest
import torch
from compile_sm90 import compile_examples

from kmem.problem.source.load import build_inputs, build_model, execute_problem, load_problem
from kmem.records import Workload

SKILLS = Path(__file__).parent.parent / "skills"
PAIRS = sorted(path.parent for path in SKILLS.glob("*/examples/after.py"))
SMALL = Workload("small", small_inputs=True)
#: Largest relative Frobenius difference of two correct results in this type: a few roundings of the
#: output, or of a 16-bit intermediate.
TOLERANCE = {torch.float32: 2e-6, torch.float16: 2e-3}


def load(path: Path) -> tuple[torch.nn.Module, list[torch.Tensor], object]:
    """The model, small inputs of a fixed seed, and the executed module."""
    module = execute_problem(load_problem(path), SMALL)
    torch.manual_seed(0)
    model = build_model(module, "cpu")
    torch.manual_seed(1)
    return model, build_inputs(module, "cpu"), module


def tolerance(inputs: list[torch.Tensor]) -> float:
    """What correct results for these inputs may differ by."""
    return TOLERANCE[
        torch.float16 if any(value.dtype is torch.float16 for value in inputs) else torch.float32
    ]


def transposed(value: torch.Tensor) -> torch.Tensor:
    """The same values with the order of strides reversed."""
    order = tuple(reversed(range(value.dim())))
    return value.permute(order).contiguous().permute(order)


def relative_error(output: torch.Tensor, reference: torch.Tensor) -> float:
    """By the Frobenius norm."""
    return float(
        torch.linalg.vector_norm(output.double() - reference.double())
        / torch.linalg.vector_norm(reference.double())
    )


def run(model: torch.nn.Module, inputs: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    with torch.no_grad():
        outputs = model(*inputs)
    return outputs if isinstance(outputs, tuple) else (outputs,)


def test_at_least_thirty_skills_have_a_pair() -> None:
    assert len(PAIRS) >= 30
    assert all((pair / "before.py").is_file() for pair in PAIRS)


@pytest.mark.slow(after=16)
@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.parent.name)
def test_before_and_after_agree(pair: Path) -> None:
    before, inputs, before_module = load(pair / "before.py")
    after, other_inputs, after_module = load(pair / "after.py")
    assert before_module.get_inputs.__code__.co_code == after_module.get_inputs.__code__.co_code
    assert all(
        torch.equal(first, second) for first, second in zip(inputs, other_inputs, strict=True)
    )
    after.load_state_dict(copy.deepcopy(before.state_dict()))
    kept = [value.clone() for value in inputs]
    expected, got = run(before, inputs), run(after, inputs)
    assert all(torch.equal(value, copied) for value, copied in zip(inputs, kept, strict=True)), (
        "an input was changed"
    )
    for output, reference in zip(got, expected, strict=True):
        assert (output.shape, output.dtype, output.stride()) == (
            reference.shape,
            reference.dtype,
            reference.stride(),
        )
        if not output.is_floating_point():
            assert torch.equal(output, reference)
            continue
        assert relative_error(output, reference) <= tolerance(inputs)


@pytest.mark.slow(after=8)
@pytest.mark.parametrize("file", ["before.py", "after.py"])
@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.parent.name)
def test_strides_do_not_change_the_answer(pair: Path, file: str) -> None:
    model, inputs, _ = load(pair / file)
    expected, got = run(model, inputs), run(model, [transposed(value) for value in inputs])
    assert all(
        relative_error(output, reference) <= tolerance(inputs)
        for output, reference in zip(got, expected, strict=True)
    )


@pytest.mark.slow(after=8)
@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.parent.name)
def test_before_answers_in_float64(pair: Path) -> None:
    model, inputs, _ = load(pair / "before.py")
    expected = run(model, inputs)
    got = run(
        model.double(), [value.double() if value.is_floating_point() else value for value in inputs]
    )
    for output, reference in zip(got, expected, strict=True):
        assert output.dtype is (torch.float64 if reference.is_floating_point() else reference.dtype)
        assert relative_error(output, reference) <= tolerance(inputs)


@pytest.mark.slow
def test_the_float64_kernels_of_every_before_compile() -> None:
    texts = {pair / "before.py": (pair / "before.py").read_text(encoding="utf-8") for pair in PAIRS}
    files = [file for file, text in texts.items() if "@triton.jit" in text]
    compiled = compile_examples(files)
    launching = {file for file in files if compiled[str(file)]}
    assert launching == {file for file in files if "is torch.float64" not in texts[file]}
    assert all("f64" in kernel["ttir"] for kernels in compiled.values() for kernel in kernels)


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.parent.name)
def test_after_is_triton_and_full_inputs_fit_two_gigabytes(pair: Path) -> None:
    assert "@triton.jit" in (pair / "after.py").read_text(encoding="utf-8")
    module = execute_problem(load_problem(pair / "after.py"))
    with torch.device("meta"):
        inputs = module.get_inputs()
    assert sum(value.numel() * value.element_size() for value in inputs) <= 2 * 2**30
