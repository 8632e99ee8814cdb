"""Which launches of a forward are counted, and a whole forward put together from these."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kmem.profile.picking import MOST, SHARE, Span, pick, put_together, read_spans, write_spans
from kmem.records import Launch

GRID = (8, 1, 1)


def launch(name: str, ms: float, grid: tuple[int, int, int] = GRID) -> Span:
    return Span(name, grid, ms)


def library(ms: float) -> Span:
    return Span("", None, ms)


def row(name: str, count: float = 1.0) -> Launch:
    return Launch(name, 0.5, GRID, (128, 1, 1), {"dram__bytes.sum": count})


def test_of_equal_launches_the_first_is_counted_and_of_short_ones_none() -> None:
    layer = [launch("product", 2.0), launch("norm", 0.5)]
    spans = pick([library(0.0), *layer, *layer, *layer, launch("last", 0.1), library(0.001)])
    assert [span.name for span in spans if span.counted] == ["product", "norm"]
    assert [place for place, span in enumerate(spans) if span.counted] == [1, 2]


def test_a_kernel_over_another_grid_is_another_launch() -> None:
    spans = pick([launch("product", 2.0), launch("product", 2.0, (9, 1, 1))])
    assert all(span.counted for span in spans)


@pytest.mark.parametrize("ms", [3.0, 0.0])
def test_a_module_without_kernels_is_counted_whole(ms: float) -> None:
    spans = pick([library(ms)])
    rows = [row("gemm"), row("reduce"), row("gemm")]
    assert put_together(spans, rows) == tuple(rows)


def test_what_is_not_counted_has_an_equal_ones_counters_or_its_time() -> None:
    spans = pick(
        [
            library(0.0),
            launch("product", 2.0),
            launch("tiny", 0.001),
            library(1.0),
            launch("product", 2.1),
            library(0.002),
        ]
    )
    product, gemm, copy = row("product", 7.0), row("gemm"), row("copy")
    found = put_together(spans, [product, gemm, copy])
    assert found == (product, Launch("tiny", 0.001, GRID, None, {}), gemm, copy, product)


@pytest.mark.parametrize(
    "names", [[], ["other"], ["gemm", "product"], ["product", "gemm", "norm", "gemm"]]
)
def test_rows_that_do_not_fit_are_handed_on_as_they_are(names: list[str]) -> None:
    spans = pick([library(0.0), launch("product", 2.0), library(0.001), launch("norm", 2.0)])
    rows = [row(name) for name in names]
    assert put_together(spans, rows) == tuple(rows)


SPANS = st.lists(
    st.builds(
        Span,
        st.sampled_from(["", "a", "b", "c"]),
        st.sampled_from([GRID, (2, 3, 4)]),
        st.floats(0, 10),
    ),
    min_size=1,
    max_size=60,
)


@given(SPANS)
def test_every_launch_comes_back(drawn: list[Span]) -> None:
    spans = pick(drawn)
    assert read_spans(write_spans(spans)) == spans
    counted = [span for span in spans if span.counted]
    assert 1 <= len(counted) <= MOST
    known = {(span.name, span.grid) for span in counted if span.name}
    total = sum(span.ms for span in spans)
    covered = sum(span.ms for span in spans if span.counted or (span.name, span.grid) in known)
    assert len(counted) == MOST or covered >= SHARE * total * (1 - 1e-9)
    rows = [row(span.name or "gemm") for span in counted]
    found = put_together(spans, rows)
    expected = [span.name or "gemm" for span in spans if span.counted or span.name]
    names = [each.name for each in found]
    assert sorted(names) == sorted(expected)
    for kind in ({"gemm"}, {"a", "b", "c"}):
        assert [n for n in names if n in kind] == [n for n in expected if n in kind]
