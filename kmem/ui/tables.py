"""Tables of pages: sorted by a link, filtered by a form, exported whole as JSON or CSV.

    COLUMNS = (Column("problem", "Problem"), Column("ms", "Time", numeric=True))
    rows = [{"problem": Cell("softmax"), "ms": Cell(0.21, "0.21 ms")}]
    view = view_table("runs", COLUMNS, rows, request)

A cell keeps its value beside its text: tables sort by values and export values.
"""

import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from kmem.ui.requests import Export, PageRequest

Value: TypeAlias = "str | int | float | bool | None"

ROWS_ON_A_PAGE = 100
#: Tables beside the first of a page have no filter in sight up to so many rows.
_SHORT = 8
#: What starts a formula in a spreadsheet that opens an export. Source: owasp.org, "CSV Injection".
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")


@dataclass(frozen=True, slots=True)
class Column:
    """One column: what it is called in addresses and exports, and its heading."""

    key: str
    title: str
    numeric: bool = False
    sortable: bool = True
    shown: bool = True  # False: in exports alone
    wraps: bool = False  # long texts, in several lines
    names_row: bool = (
        False  # no two rows have the same: a row is known again when a page is renewed
    )


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell: its value, and how it is shown.

    `kind` chooses a style: "status", "code", "estimated", "measured"; `hint` is shown on demand.
    """

    value: Value
    text: str | None = None  # by default the value
    href: str = ""
    kind: str = ""
    hint: str = ""

    @property
    def shown(self) -> str:
        """The text of the cell."""
        if self.text is not None:
            return self.text
        return "" if self.value is None else str(self.value)


Row: TypeAlias = "Mapping[str, Cell]"


@dataclass(frozen=True, slots=True)
class Heading:
    """A column's heading with the address that sorts by it."""

    column: Column
    href: str
    order: str  # "ascending", "descending" or "none", as aria-sort has it


@dataclass(frozen=True, slots=True)
class TableView:
    """What a template needs to show a table.

    `total` counts the rows that fit the filter, on all pages.
    """

    name: str
    headings: tuple[Heading, ...]
    rows: Sequence[Row]
    total: int
    first: int
    query: str
    sort: str
    previous: str = ""
    following: str = ""
    json_href: str = ""
    csv_href: str = ""
    prefix: str = ""  # of the parameters of its filter
    kept: Mapping[str, str] = field(default_factory=dict)  # other parameters, kept by the filter

    @property
    def is_long(self) -> bool:
        """Whether it is worth a filter in sight; a short one is filtered by its address alone."""
        return bool(self.total > _SHORT or self.query or not self.prefix)


@dataclass(frozen=True, slots=True)
class Order:
    """By which column a table is sorted."""

    key: str
    descending: bool

    def __str__(self) -> str:
        return f"-{self.key}" if self.descending else self.key


def read_order(request: PageRequest, columns: Sequence[Column], default: str) -> Order:
    """The order that an address asks for; an unknown one is the default."""
    asked = request.ask("sort", default)
    known = {column.key for column in columns if column.sortable}
    if asked.removeprefix("-") not in known:
        asked = default
    return Order(asked.removeprefix("-"), asked.startswith("-"))


def read_page(request: PageRequest) -> int:
    """The page of a table that an address asks for, from 0."""
    asked = request.ask("page", "1")
    return max(0, int(asked) - 1) if asked.isascii() and asked.isdigit() and len(asked) < 9 else 0


def view_table(
    name: str,
    columns: Sequence[Column],
    rows: Sequence[Row],
    request: PageRequest,
    default: str = "",
) -> "TableView | Export":
    """A table of rows that are all at hand: filtered, sorted and cut to the page asked for.

    Args:
        default: the order of an address that names none; empty leaves the rows as they are.

    Returns: the view, or the export if the address asks for one.
    """
    words = request.ask("q").casefold().split()
    found = [row for row in rows if _has_words(row, words)] if words else list(rows)
    order = read_order(request, columns, default)
    if order.key:
        found = _sorted(found, order)
    if request.ask("format"):
        return export_rows(name, columns, found, request.ask("format"))
    first = read_page(request) * ROWS_ON_A_PAGE
    if first >= len(found):
        first = 0
    return present(
        name, columns, found[first : first + ROWS_ON_A_PAGE], request, order, first, len(found)
    )


def present(
    name: str,
    columns: Sequence[Column],
    rows: Sequence[Row],
    request: PageRequest,
    order: Order,
    first: int,
    total: int,
) -> TableView:
    """A view of rows that are filtered, sorted and cut already.

    Args:
        first: how many rows lie on the pages before.
        total: how many fit the filter.
    """
    page = first // ROWS_ON_A_PAGE + 1
    more = first + len(rows) < total
    return TableView(
        name,
        tuple(_heading(column, request, order) for column in columns if column.shown),
        rows,
        total,
        first,
        request.ask("q"),
        request.ask("sort"),
        request.address(page=str(page - 1)) if page > 1 else "",
        request.address(page=str(page + 1)) if more else "",
        request.address(format="json", page=""),
        request.address(format="csv", page=""),
        request.prefix,
        _kept(request),
    )


def export_rows(name: str, columns: Sequence[Column], rows: Sequence[Row], form: str) -> Export:
    """All rows as one JSON object under the table's name, or as CSV with a line of names."""
    if form == "json":
        data = [{column.key: row[column.key].value for column in columns} for row in rows]
        return Export(json.dumps({name: data}, indent=1), "application/json", f"{name}.json")
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([column.key for column in columns])
    writer.writerows([_plain(row[column.key].value) for column in columns] for row in rows)
    return Export(text.getvalue(), "text/csv", f"{name}.csv")


def _plain(value: Value) -> Value:
    """A value that no spreadsheet computes."""
    if isinstance(value, str) and value.startswith(_FORMULA):
        return f"'{value}"
    return value


def _has_words(row: Row, words: Sequence[str]) -> bool:
    text = " ".join(cell.shown for cell in row.values()).casefold()
    return all(word in text for word in words)


def _sorted(rows: Sequence[Row], order: Order) -> list[Row]:
    """By values, those without one last whichever way."""
    known = [row for row in rows if row[order.key].value is not None]
    unknown = [row for row in rows if row[order.key].value is None]
    key: Callable[[Row], tuple[bool, Value]] = lambda row: _rank(row[order.key].value)  # noqa: E731
    return sorted(known, key=key, reverse=order.descending) + unknown


def _rank(value: Value) -> tuple[bool, Value]:
    """Numbers before texts, which no comparison could mix."""
    if isinstance(value, str):
        return True, value.casefold()
    return False, value


def _heading(column: Column, request: PageRequest, order: Order) -> Heading:
    if not column.sortable:
        return Heading(column, "", "none")
    if order.key != column.key:
        return Heading(column, request.address(sort=column.key, page=""), "none")
    turned = column.key if order.descending else f"-{column.key}"
    said = "descending" if order.descending else "ascending"
    return Heading(column, request.address(sort=turned, page=""), said)


def _kept(request: PageRequest) -> dict[str, str]:
    """What a filter keeps of an address: all but what it asks itself."""
    own = {f"{request.prefix}{key}" for key in ("q", "page", "format")}
    return {key: value for key, value in request.query.items() if key not in own}


def find_export(*tables: object) -> Export | None:
    """The export that an address asks of one of a page's tables; None if it asks for the page."""
    return next((table for table in tables if isinstance(table, Export)), None)
