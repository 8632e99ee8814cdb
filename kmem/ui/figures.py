"""Figures as text: every time says whether it was measured or estimated, on what, and when."""

from dataclasses import dataclass

from kmem.ui.tables import Cell

MEASURED, ESTIMATED = "measured", "estimated"


@dataclass(frozen=True, slots=True)
class Origin:
    """Where figures come from: how they were found, for which device, and when."""

    estimated: bool
    device: str
    date: str  # ISO 8601

    @property
    def kind(self) -> str:
        return ESTIMATED if self.estimated else MEASURED

    def __str__(self) -> str:
        place = "for" if self.estimated else "on"
        return f"{self.kind} {place} {self.device}, {describe_date(self.date)}"


@dataclass(frozen=True, slots=True)
class Fact:
    """One figure of the head of a page: what it is, its value, and what is to be known of it."""

    name: str
    value: str
    note: str = ""
    kind: str = ""


def describe_date(moment: str) -> str:
    """A date of a record with its minutes: "2026-01-31 14:05 UTC"; any other text as it is."""
    if len(moment) >= 16 and moment[10:11] == "T":
        return f"{moment[:10]} {moment[11:16]} UTC"
    return moment


def describe_ms(time_ms: float | None) -> str:
    """A time with its unit; empty if there is none."""
    if time_ms is None:
        return ""
    return f"{1e3 * time_ms:.4g} µs" if time_ms < 1.0 else f"{time_ms:.4g} ms"


def describe_rate(per_second: float) -> str:
    """A rate without its unit: "4.8 T", "310 G"."""
    for factor, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if per_second >= factor:
            return f"{per_second / factor:.3g} {letter}"
    return f"{per_second:.3g} "


def describe_factor(factor: float | None) -> str:
    """A speedup; empty if there is none."""
    return f"{factor:.2f}×" if factor is not None else ""


def describe_share(share: float | None) -> str:
    """A ratio 0..1 as a percentage; empty if there is none."""
    return f"{share:.0%}" if share is not None else ""


def time_cell(time_ms: float | None, origin: Origin | None) -> Cell:
    """A time as a cell of a table, with its origin as the hint."""
    if time_ms is None or origin is None:
        return Cell(None)
    return Cell(time_ms, describe_ms(time_ms), kind=origin.kind, hint=str(origin))


def date_cell(moment: str) -> Cell:
    """A moment as a cell."""
    return Cell(moment, describe_date(moment).removesuffix(" UTC"), hint=f"{moment} (UTC)")
