"""Reading, checking and building a problem: every fault of the file is one line with the remedy."""

from pathlib import Path

import pytest
import torch

from kmem.errors import DeviceMemoryError, ProblemError
from kmem.problem.source.load import (
    build_inputs,
    build_model,
    check_forward,
    execute_problem,
    load_problem,
    size_forward,
)
from kmem.records import Precision, Problem, Workload

GOOD = """
import torch

M = 8
N: int = 6
SHAPE = [M, N]
A, B = 3, M // 2


class Model(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = torch.nn.Linear(width, 2)

    def forward(self, x):
        return self.linear(x)


def get_inputs():
    return [torch.rand(SHAPE)]


def get_init_inputs():
    return [N]
"""


def problem_of(source: str) -> Problem:
    return Problem("inline", "inline.py", source)


def test_a_directory_stands_for_the_problem_in_it_and_gives_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "my_softmax"
    place.mkdir()
    (place / "problem.py").write_text(GOOD)
    problem = load_problem(place)
    assert problem.name == "my_softmax" and problem.source == GOOD
    assert load_problem(place / "problem.py") == problem
    monkeypatch.chdir(place)
    assert load_problem(Path("problem.py")) == problem


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("def f(:\n", "is not valid Python, line 1"),
        (
            "import torch\n",
            "defines no Model; the KernelBench contract wants Model, a torch.nn.Module",
        ),
        ("class Model: pass\n", "defines no get_inputs"),
        ("x = 'a\x00'\n", "is not valid Python"),
    ],
)
def test_a_file_that_breaks_the_contract_is_refused_before_it_is_run(
    tmp_path, source, message
) -> None:
    file = tmp_path / "broken.py"
    file.write_text(source)
    with pytest.raises(ProblemError, match=message) as caught:
        load_problem(file)
    assert "\n" not in str(caught.value) and str(file) in str(caught.value)


def test_no_such_file_and_an_undecodable_file_are_named(tmp_path) -> None:
    with pytest.raises(ProblemError, match="No problem file at .*nowhere.py; give the path"):
        load_problem(tmp_path / "nowhere.py")
    file = tmp_path / "latin.py"
    file.write_bytes(b"# caf\xe9\n")
    with pytest.raises(ProblemError, match="Cannot read .*UTF-8"):
        load_problem(file)


def test_names_from_imports_and_assignments_count_as_defined(tmp_path) -> None:
    file = tmp_path / "aliases.py"
    file.write_text(
        "from torch.nn import ReLU as Model\nimport torch\nget_inputs = lambda: [torch.rand(2)]\n"
    )
    assert load_problem(file).name == "aliases"


def test_a_top_level_that_raises_is_one_line() -> None:
    with pytest.raises(
        ProblemError, match="inline.py fails when it is run: ZeroDivisionError: division by zero"
    ):
        execute_problem(problem_of("x = 1 / 0"))


def test_a_package_the_problem_needs_is_named() -> None:
    with pytest.raises(
        ProblemError,
        match="inline.py needs the module no_such_package, which is neither installed here",
    ):
        execute_problem(problem_of("import no_such_package.part"))


def test_constants_are_replaced_wherever_they_are_assigned_and_what_follows_from_them_follows() -> (
    None
):
    module = execute_problem(problem_of(GOOD), Workload("small", (("M", 4), ("A", 1))))
    assert (module.M, module.N, module.SHAPE, module.A, module.B) == (4, 6, [4, 6], 1, 2)


def test_a_list_constant_stays_a_list_and_a_tuple_a_tuple() -> None:
    source = "S = [100, 3]\nT = (100,)\nU = [1] + S\nV = (1,) + T\n"
    module = execute_problem(problem_of(source), Workload("small", (("S", (5, 3)), ("T", (7,)))))
    assert (module.U, module.V) == ([1, 5, 3], (1, 7))


def test_small_inputs_of_the_problem_take_the_place_of_its_inputs() -> None:
    source = GOOD + "\n\ndef get_small_inputs():\n    return [torch.rand(1, N)]\n"
    module = execute_problem(problem_of(source), Workload("small", small_inputs=True))
    assert [tuple(value.shape) for value in build_inputs(module, "cpu")] == [(1, 6)]


def test_model_and_inputs_are_built_on_the_device_and_cast_for_bf16() -> None:
    module = execute_problem(problem_of(GOOD))
    model = build_model(module, "cpu", Precision.BF16)
    inputs = build_inputs(module, "cpu", Precision.BF16)
    assert model.linear.weight.dtype is inputs[0].dtype is torch.bfloat16
    assert model.training
    assert build_model(module, "meta").linear.weight.is_meta


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (
            "raise ValueError('no data\\nat all')",
            r"get_inputs\(\) raised ValueError: no data; it must run in PyTorch as it is$",
        ),
        ("return None", r"get_inputs\(\) returned None; it must return the list"),
        ("return []", r"get_inputs\(\) returned an empty list; it must return the list"),
        (
            "import torch\n    return torch.rand(2)",
            r"get_inputs\(\) returned a tensor; it must return the list of forward's inputs$",
        ),
    ],
)
def test_inputs_that_raise_or_are_missing_are_one_line(inputs, message) -> None:
    module = execute_problem(problem_of(f"class Model: pass\ndef get_inputs():\n    {inputs}\n"))
    with pytest.raises(ProblemError, match=message):
        build_inputs(module, "cpu")


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("class Model:\n    pass", r"Model makes a Model; the contract wants a torch.nn.Module"),
        (
            "class Model:\n    def __init__(self, a):\n        raise KeyError('width')",
            r"Model\(\[1, 2\]\) raised KeyError: 'width'",
        ),
    ],
)
def test_a_constructor_that_raises_or_makes_no_module_is_one_line(model, message) -> None:
    init = "[[1, 2]]" if "KeyError" in model else "[]"
    module = execute_problem(
        problem_of(
            f"{model}\ndef get_inputs():\n    return [1]\ndef get_init_inputs():\n"
            f"    return {init}\n"
        )
    )
    with pytest.raises(ProblemError, match=message):
        build_model(module, "cpu")


def test_init_inputs_that_raise_are_one_line() -> None:
    module = execute_problem(
        problem_of("class Model: pass\ndef get_init_inputs():\n    return [WIDTH]\n")
    )
    with pytest.raises(
        ProblemError, match="get_init_inputs raised NameError: name 'WIDTH' is not defined"
    ):
        build_model(module, "cpu")


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        ("4", "4"),
        ("None", "None"),
        ("'wide'", "'wide'"),
        ("{'width': 4}", "{'width': 4}"),
        ("torch.rand(2)", "a tensor"),
    ],
)
def test_init_inputs_that_are_no_list_are_named_with_what_is_wanted(returned, said) -> None:
    init = f"import torch\ndef get_init_inputs():\n    return {returned}\n"
    module = execute_problem(problem_of(f"class Model: pass\n{init}"))
    with pytest.raises(ProblemError) as caught:
        build_model(module, "cpu")
    assert str(caught.value) == (
        f"inline.py: get_init_inputs() returned {said}; "
        "it must return the list of Model's arguments, as in [4] or []"
    )


def test_a_full_device_is_an_error_of_its_own_with_advice() -> None:
    module = execute_problem(
        problem_of(
            "import torch\ndef get_inputs():\n"
            "    raise torch.OutOfMemoryError('CUDA out of memory')\n"
        )
    )
    with pytest.raises(
        DeviceMemoryError,
        match="get_inputs.. does not fit the device's memory; make its size constants smaller",
    ):
        build_inputs(module, "cpu")


FORWARD = """
import torch
class Model(torch.nn.Module):
    def forward(self, x):
        {body}
def get_inputs():
    return [torch.rand(1 << 20, 1 << 20)]
"""


def test_a_forward_that_fails_is_found_without_computing_and_says_its_own_error() -> None:
    module = execute_problem(problem_of(FORWARD.format(body="return x @ torch.ones(3, 4)")))
    with pytest.raises(
        ProblemError, match=r"inline.py: forward raised RuntimeError: .*1048576"
    ) as caught:
        check_forward(module)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "body", ["return x.relu()", "return x if x.sum().item() > 0 else -x", "return x[x > 0.5]"]
)
def test_a_forward_that_works_or_depends_on_values_passes_the_check(body) -> None:
    check_forward(execute_problem(problem_of(FORWARD.format(body=body))))


@pytest.mark.parametrize("precision", Precision)
def test_a_module_with_parameters_passes_the_check_at_every_precision(precision) -> None:
    check_forward(execute_problem(problem_of(GOOD)), precision)


NORMED = """
import torch
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.features = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4))
    def forward(self, x):
        return self.features(x).relu()
def get_inputs():
    return [torch.rand({shape})]
"""


@pytest.mark.parametrize("shape", ["2, 3, 5, 6", "1, 3, 3, 4"])
def test_meta_tensors_say_of_a_batch_norm_what_fake_ones_say(shape) -> None:
    module = execute_problem(problem_of(NORMED.format(shape=shape)))
    assert size_forward(module) == check_forward(module)


@pytest.mark.parametrize("size", [size_forward, check_forward])
def test_a_batch_norm_of_one_value_is_refused_on_tensors_without_data(size) -> None:
    module = execute_problem(problem_of(NORMED.format(shape="1, 3, 3, 3")))
    with pytest.raises(ProblemError, match="more than 1 value per channel"):
        size(module)


def test_a_forward_that_wants_other_arguments_fails_the_check() -> None:
    module = execute_problem(
        problem_of(FORWARD.format(body="return x").replace("self, x", "self, x, y"))
    )
    with pytest.raises(ProblemError, match="missing 1 required positional argument: 'y'"):
        check_forward(module, Precision.BF16)


def test_what_a_problem_prints_goes_to_stderr_for_stdout_carries_data(
    capsys: pytest.CaptureFixture[str],
) -> None:
    source = GOOD.replace("M = 8", "M = 8\nprint('at import')").replace(
        "return [torch.rand", "print('inputs'); return [torch.rand"
    )
    build_inputs(execute_problem(problem_of(source)), "cpu")
    assert capsys.readouterr() == ("", "at import\ninputs\n")
