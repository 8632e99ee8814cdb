"""Plots of pages: rooflines, treemaps, heat maps, histories; they hold together for any input."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from page_server import LANDSCAPES

from kmem.devices import TARGETS
from kmem.learning.landscape import LandscapeDirectory
from kmem.records import Bound, Launch, Profile
from kmem.ui.figures import Origin, describe_ms, describe_rate
from kmem.ui.plots.frame import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, log_scale, log_ticks
from kmem.ui.plots.heat_map import axes_of, draw_heat_map
from kmem.ui.plots.history import draw_history
from kmem.ui.plots.roofline import Timed, draw_roofline, moved_bytes
from kmem.ui.plots.treemap import draw_treemap, fill_area

H200 = TARGETS["h200"]
BOUND = Bound(1_000_000_000, {"fp32": 67e9, "special": 1e6}, 0.2084, "bytes")


def profile(*times: float | None, metrics: dict[str, float] | None = None) -> Profile:
    launches = tuple(
        Launch(f"launch {number}", time_ms, None, None, metrics or {})
        for number, time_ms in enumerate(times)
    )
    return Profile("k", "ncu", "h200", False, launches)


def test_a_kernel_stands_under_the_roof_where_its_time_and_bytes_put_it() -> None:
    drawn = draw_roofline(BOUND, H200, [Timed("best", "this", 2.0), Timed("parent", "it", 4.0)])
    assert drawn is not None
    assert drawn.arithmetic == "fp32", "1 ms at the peak, where the others need less"
    # 67 GFLOP over 2 ms; at 67 operations a byte the fp32 units limit, not the memory
    assert drawn.summary == (
        "33.5 T fp32 operations/s, 50% of what fp32 allows at 67 operations a byte"
    )
    this, parent = drawn.marks
    assert this.x == parent.x and this.y < parent.y
    assert LEFT < this.x < WIDTH - RIGHT and TOP < this.y < HEIGHT - BOTTOM
    more = draw_roofline(BOUND, H200, [Timed("best", "this", 2.0, moved=1e10)])
    assert more is not None and more.marks[0].x < this.x, "it moves ten times the bytes"
    assert "of what memory allows at 6.7 operations a byte" in more.summary


def test_what_computes_nothing_or_has_no_time_has_no_roofline() -> None:
    timed = [Timed("best", "this", 2.0)]
    assert draw_roofline(replace(BOUND, flops={}), H200, timed) is None
    assert draw_roofline(replace(BOUND, flops={"unknown": 5.0}), H200, timed) is None
    assert draw_roofline(BOUND, H200, []) is None
    assert draw_roofline(replace(BOUND, bytes=0), H200, timed) is None


def test_moved_bytes_are_known_only_if_every_launch_counted_them() -> None:
    counted = {"dram__bytes_read.sum": 3.0, "dram__bytes_write.sum": 4.0}
    assert moved_bytes(profile(1.0, 1.0, metrics=counted)) == 14.0
    assert moved_bytes(profile(1.0, metrics={"dram__bytes_read.sum": 3.0})) is None
    assert moved_bytes(None) is None


@given(st.lists(st.floats(1e-4, 1e4), min_size=1, max_size=60))
def test_areas_fill_the_whole_and_are_as_large_as_their_sizes(sizes: list[float]) -> None:
    ranked = sorted(sizes, reverse=True)
    areas = fill_area(ranked, 860.0, 240.0)
    for size, area in zip(ranked, areas, strict=True):
        wanted = 860.0 * 240.0 * size / sum(ranked)
        assert area.width * area.height == pytest.approx(wanted, rel=1e-3)
        assert area.x >= -1e-6 and area.x + area.width <= 860.0 + 1e-3
        assert area.y >= -1e-6 and area.y + area.height <= 240.0 + 1e-3


def test_a_treemap_names_the_longest_and_puts_slivers_together() -> None:
    drawn = draw_treemap(profile(*(1.0 for _ in range(40)), 60.0, None))
    assert drawn is not None
    assert len(drawn.tiles) == 24
    assert drawn.tiles[0].name == "launch 40" and drawn.tiles[0].time == "60 ms, 60%"
    assert drawn.tiles[-1].name == "18 more launches"
    assert drawn.summary == "41 launches, 100 ms; launch 40 takes 60%"
    assert draw_treemap(profile(1.0)) is None and draw_treemap(profile(None, None)) is None


def test_a_heat_map_has_the_best_of_each_pair_of_values() -> None:
    landscape = LandscapeDirectory(LANDSCAPES).find("argmax_columns_4k")
    assert landscape is not None
    axes = axes_of(landscape)
    assert [axis.knob for axis in axes][:2] == ["SPLIT", "BR"]
    drawn = draw_heat_map(landscape, axes[0], axes[1])
    shades = [square.shade for _, squares in drawn.rows for square in squares]
    assert shades.count("h0") >= 1 and "none" in shades
    assert len(drawn.rows) == len(axes[1].values)
    best = describe_ms(landscape.best.latency_ms)
    assert best in [square.text for _, squares in drawn.rows for square in squares]


def test_histories_keep_devices_and_estimates_apart() -> None:
    def origin(estimated: bool, device: str) -> Origin:
        return Origin(estimated, device, "2026-01-01T00:00:00+00:00")

    runs = [
        (origin(True, "h200"), "a", 4.0, None),
        (origin(False, "h200"), "b", 3.0, 1.5),
        (origin(True, "h200"), "c", 2.0, None),
        (origin(False, "h200"), "d", 3.5, 1.3),
        (origin(False, "a100"), "e", 9.0, None),
    ]
    drawn = {plot.name: plot for plot in draw_history(runs)}
    assert set(drawn) == {"h200, estimated", "h200, measured"}
    assert [dot.leads for dot in drawn["h200, measured"].dots] == [True, False]
    assert "estimated for h200" in drawn["h200, estimated"].summary


@given(st.floats(1e-4, 1e4), st.floats(1.0, 1e5))
def test_an_axis_has_a_few_ticks_that_rise_and_stay_inside(low: float, factor: float) -> None:
    scale = log_scale([low, low * factor])
    ticks = log_ticks(scale, describe_ms)
    places = [tick.place for tick in ticks]
    assert 2 <= len(ticks) <= 16
    assert places == sorted(places, reverse=True) and len({tick.text for tick in ticks}) > 1
    assert all(TOP <= place <= HEIGHT - BOTTOM for place in places)


@pytest.mark.parametrize(
    ("rate", "text"), [(4.8e12, "4.8 T"), (3.1e11, "310 G"), (2e3, "2 k"), (5.0, "5 ")]
)
def test_a_rate_has_its_letter(rate: float, text: str) -> None:
    assert describe_rate(rate) == text
