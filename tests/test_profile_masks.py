"""What masks leave out of a kernel's loads, and loops whose length a launch says: Triton's IR."""

import pytest

from kmem.devices import named_target
from kmem.profile.compile.masks import kept_shares
from kmem.profile.compile.ttir import count_program_work
from kmem.profile.derive import add_derived
from kmem.records import Launch

# The row of a matrix, as Triton 3.9 has it without locations; COLUMNS is an argument.
ROW = """
module {
  tt.func public @k(%x: !tt.ptr<f32>, %out: !tt.ptr<f32>, %columns: i32, %rows: i32) attributes {} {
    %c1024_i32 = arith.constant 1024 : i32
    %c0_i32 = arith.constant 0 : i32
    %cst = arith.constant dense<0.000000e+00> : tensor<1024xf32>
    %row = tt.get_program_id x : i32
    %acc = scf.for %start = %c0_i32 to %columns step %c1024_i32 iter_args(%acc_0 = %cst) \
-> (tensor<1024xf32>)  : i32 {
      %c = tt.make_range {end = 1024 : i32, start = 0 : i32} : tensor<1024xi32>
      %c_1 = tt.splat %start : i32 -> tensor<1024xi32>
      %c_2 = arith.addi %c_1, %c : tensor<1024xi32>
      %c_3 = tt.splat %columns : i32 -> tensor<1024xi32>
      %c_4 = arith.cmpi slt, %c_2, %c_3 : tensor<1024xi32>
      %at = tt.addptr %p, %c_2 : tensor<1024x!tt.ptr<f32>>, tensor<1024xi32>
      %v = tt.load %at, MASK, %cst : tensor<1024x!tt.ptr<f32>>
      scf.yield %v : tensor<1024xf32>
    }
    tt.return
  }
}
"""
SQUARE = """
module {
  tt.func public @k(%x: !tt.ptr<f32>) attributes {} {
    %n = arith.constant dense<48> : tensor<64x1xi32>
    %r = tt.make_range {end = 64 : i32, start = 0 : i32} : tensor<64xi32>
    %rows = tt.expand_dims %r {axis = 1 : i32} : tensor<64xi32> -> tensor<64x1xi32>
    %columns = tt.expand_dims %r {axis = 0 : i32} : tensor<64xi32> -> tensor<1x64xi32>
    %a = arith.cmpi slt, %rows, %n : tensor<64x1xi32>
    %wide = tt.broadcast %a : tensor<64x1xi1> -> tensor<64x64xi1>
    %upper = tt.broadcast %rows : tensor<64x1xi32> -> tensor<64x64xi32>
    %across = tt.broadcast %columns : tensor<1x64xi32> -> tensor<64x64xi32>
    %below = arith.cmpi sge, %upper, %across : tensor<64x64xi32>
    %both = arith.andi %wide, %below : tensor<64x64xi1>
    tt.store %p, %v, %both : tensor<64x64x!tt.ptr<f32>>
    tt.return
  }
}
"""


@pytest.mark.parametrize(
    ("columns", "turns", "kept"),
    [(70, 1, 70 / 1024), (1024, 1, 1.0), (1536, 2, 0.75), (4096, 4, 1.0)],
)
def test_a_launch_says_how_long_a_loop_is_and_what_its_mask_leaves_in(
    columns: int, turns: int, kept: float
) -> None:
    text = ROW.replace("MASK", "%c_4")
    assert count_program_work(text) == {}, "nobody says how often it runs"
    work = count_program_work(text, {"columns": columns, "rows": 7, "flag": 1})
    loaded, left_out = work["static__program_load_bytes"], turns * 4096 * (1 - kept)
    assert loaded == turns * 4096
    assert work.get("static__program_left_out_bytes", 0.0) == pytest.approx(left_out)


def test_a_mask_that_hangs_on_what_was_loaded_tells_nothing() -> None:
    work = count_program_work(ROW.replace("MASK", "%loaded"), {"columns": 70, "rows": 7})
    assert "static__program_left_out_bytes" not in work


def test_masks_of_two_dimensions_are_worked_out_lane_by_lane() -> None:
    lines = SQUARE.splitlines()
    (share,) = kept_shares(lines, {}).values()
    assert share == sum(row + 1 for row in range(48)) / 64**2


def test_lanes_that_masks_leave_out_of_loads_count_as_masked_out() -> None:
    metrics = {
        "static__instructions": 10.0,
        "static__blocks_per_sm": 8.0,
        "static__argument_bytes": 7e6,
        **count_program_work(ROW.replace("MASK", "%c_4"), {"columns": 70}),
    }
    launch = Launch("k", 1.0, (25000, 1, 1), (128, 1, 1), metrics)
    (derived,) = add_derived([launch], None, named_target("h200"))
    assert derived.metrics["derived__masked_out_pct"] == pytest.approx(100 * (1 - 70 / 1024))
