"""What emissions are written with: calls laid out as text, settings as records, and the rates of a
device.
"""

import ast
from dataclasses import dataclass, replace

import pytest

from kmem.codegen.rates import (
    by_card,
    by_clock,
    ceiling,
    clock_hz,
    issues_per_s,
    l1_bytes_per_s,
    sm_issues_per_s,
)
from kmem.codegen.settings import read_settings
from kmem.codegen.text.calls import write_call, write_launch, write_launch_function
from kmem.codegen.text.definitions import define
from kmem.devices import TARGETS, named_target

H200 = named_target("h200")


def test_a_call_that_fits_is_one_line() -> None:
    assert write_launch("kmem_x", 12, "x, y", "", "N=3") == "kmem_x[(12,)](x, y, N=3)"


def test_a_longer_call_has_a_line_for_each_group_of_arguments() -> None:
    sizes = ", ".join(f"SIZE_{index}={10**index}" for index in range(9))
    assert write_launch("kmem_x", 12, "x, y", sizes, "num_warps=4") == (
        "kmem_x[(12,)](\n"
        "    x, y,\n"
        "    SIZE_0=1, SIZE_1=10, SIZE_2=100, SIZE_3=1000, SIZE_4=10000, SIZE_5=100000,"
        " SIZE_6=1000000,\n"
        "    SIZE_7=10000000, SIZE_8=100000000,\n"
        "    num_warps=4,\n"
        ")"
    )


def test_no_line_of_a_launcher_is_longer_than_a_hundred_columns() -> None:
    arguments = ", ".join(f"argument_{index}" for index in range(60))
    text = write_launch_function(["x"], [write_launch("kmem_x", 1, arguments), "return x"])
    assert max(map(len, text.splitlines())) <= 100
    assert len(ast.parse(text).body[0].body[0].value.args) == 60


def test_a_comma_within_brackets_parts_no_argument() -> None:
    shape = repr(tuple(range(20)))
    text = write_call("y = torch.empty", f"{shape}, dtype=torch.float32", "device=x.device")
    assert f"\n    {shape}, dtype=torch.float32,\n    device=x.device,\n)" in text


LINES = """
first = tl.load(p0 + N)
here, there = both(first)
only = there + K
for step in range(N):
    unread = first * M
    also = unread
    first = tl.where(
        first < N, there, 0.0
    )
tl.store(q0, first)
""".strip()


def test_a_generated_kernel_has_nothing_that_nothing_reads() -> None:
    kernel = define("kmem_x", ["p0", "p1", "q0"], ["K", "M", "N"], LINES.splitlines(), "What for.")
    assert (kernel.pointers, kernel.constants) == (("p0", "q0"), ("N",))
    name, text = kernel.kernel
    assert text == (
        f"@triton.jit\ndef {name}(p0, q0, N: tl.constexpr):\n"
        '    """What for."""\n'
        "    first = tl.load(p0 + N)\n"
        "    _here, there = both(first)\n"
        "    for step in range(N):\n"
        "        first = tl.where(\n"
        "            first < N, there, 0.0\n"
        "        )\n"
        "    tl.store(q0, first)\n"
    )
    launch = kernel.write_launch("12", {"q0": "out", "N": 7, "M": 1}, {"num_warps": 4})
    assert launch == f"{name}[(12,)](p0, out, N=7, num_warps=4)"


def test_generated_kernels_of_one_text_are_one() -> None:
    lines = ["tl.store(q0, N)"]
    names = [define("kmem_x", ["q0"], ["N", *more], lines, "Says.").name for more in ((), ("K",))]
    names += [define("kmem_x", ["q0"], ["N"], ["tl.store(q0, N + 1)"], "Says.").name]
    assert names[0] == names[1] != names[2]


@dataclass(frozen=True, slots=True)
class Knobs:
    block: int
    warps: int
    form: str = "plain"


def test_settings_are_read_by_name_and_a_missing_knob_takes_its_default() -> None:
    assert read_settings(Knobs, {"warps": 4, "block": 8, "other": 1}) == Knobs(8, 4, "plain")
    assert read_settings(Knobs, {"warps": 4, "block": 8, "form": "odd"}).form == "odd"
    with pytest.raises(TypeError, match="block"):
        read_settings(Knobs, {"warps": 4})


def test_an_h200_reaches_what_was_measured_on_one_calibrated_or_not() -> None:
    slower = {**H200.peak_flops_per_s, "special": 0.76 * H200.peak_flops_per_s["special"]}
    for device in (H200, replace(H200, peak_flops_per_s=slower, measured=True)):
        assert clock_hz(device) == 1.7e9
        assert by_clock(3e9, device) == 3e9
        assert by_card(5e12, device) == 5e12
        assert l1_bytes_per_s(device) == 132 * 128 * 1.7e9
        assert issues_per_s(device) == 132 * sm_issues_per_s(device) == 132 * 4 * 1.7e9


@pytest.mark.parametrize(("name", "clock"), [("a100", 1.41), ("l40s", 2.52), ("mi300x", 2.1)])
def test_other_devices_scale_with_their_clock_and_multiprocessors(name: str, clock: float) -> None:
    device = TARGETS[name]
    assert clock_hz(device) == pytest.approx(1.7e9 * clock / 1.98)
    assert by_card(132.0, device) == pytest.approx(device.sm_count * clock / 1.98)


def test_a_measured_ceiling_is_taken_as_it_is() -> None:
    assert ceiling(replace(H200, measured=True), "bf16") == H200.peak_flops_per_s["bf16"]
    assert ceiling(H200, "bf16") == pytest.approx(0.8 * H200.peak_flops_per_s["bf16"])
