"""Tables of plain values: what a recording holds, and what rules read.

A table that was cut from another one holds the numbers of its rows alone, and its columns are made when they are asked for. Most are
asked for one or two columns of a few rows, and to load a library of data frames takes longer than that.
Where a value is missing it is None: it is like no other, and neither smaller nor larger.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
import re
from collections import Counter, namedtuple
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, overload

Test = Callable[[Any, Any], Any]


class Column:
    """Values in order. Comparisons give a column of truths, by which columns and tables are cut."""

    __hash__ = None  # type: ignore[assignment]
    __slots__ = ("values",)

    def __init__(self, values: Iterable[Any] = ()) -> None:
        self.values: list[Any] = values if isinstance(values, list) else list(values)

    def __len__(self) -> int:
        return len(self.values)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.values)

    def __bool__(self) -> bool:
        raise TypeError("a column is neither true nor false: ask for any() or all() of it, or for its length")

    def __getitem__(self, key: Any) -> Any:
        """The value at a place, or the column of those in a slice, or where a column of truths is true."""
        if isinstance(key, slice):
            return Column(self.values[key])
        if isinstance(key, Column | list):
            return Column(itertools.compress(self.values, key))
        return self.values[key]

    def __eq__(self, other: object) -> Column:  # type: ignore[override]
        return self._with(other, operator.eq)

    def __ne__(self, other: object) -> Column:  # type: ignore[override]
        return self._with(other, operator.ne)

    def __lt__(self, other: Any) -> Column:
        return self._compared(other, operator.lt)

    def __le__(self, other: Any) -> Column:
        return self._compared(other, operator.le)

    def __gt__(self, other: Any) -> Column:
        return self._compared(other, operator.gt)

    def __ge__(self, other: Any) -> Column:
        return self._compared(other, operator.ge)

    def __and__(self, other: Column) -> Column:
        return self._with(other, operator.and_)

    def __or__(self, other: Column) -> Column:
        return self._with(other, operator.or_)

    def __invert__(self) -> Column:
        return Column(map(operator.not_, self.values))

    def __add__(self, other: Any) -> Column:
        return self._with(other, operator.add)

    def __sub__(self, other: Any) -> Column:
        return self._with(other, operator.sub)

    def __truediv__(self, other: Any) -> Column:
        return self._with(other, operator.truediv)

    def _with(self, other: Any, does: Test) -> Column:
        return Column(map(does, self.values, _beside(other)))

    def _compared(self, other: Any, does: Test) -> Column:
        try:
            return self._with(other, does)
        except TypeError:
            pairs = zip(self.values, _beside(other), strict=False)
            return Column([a is not None and b is not None and does(a, b) for a, b in pairs])

    @property
    def empty(self) -> bool:
        """True where it has no value."""
        return not self.values

    @property
    def known(self) -> list[Any]:
        """The values that are not missing."""
        return [value for value in self.values if value is not None and value == value]  # noqa: PLR0124 (NaN)

    def tolist(self) -> list[Any]:
        return self.values

    def isin(self, wanted: Iterable[Any]) -> Column:
        """True where a value is one of those."""
        among = {*wanted}
        return Column([value in among for value in self.values])

    def isna(self) -> Column:
        """True where a value is missing."""
        return Column([value is None or value != value for value in self.values])  # noqa: PLR0124 (NaN)

    def notna(self) -> Column:
        return ~self.isna()

    def between(self, first: Any, last: Any) -> Column:
        """True where a value lies between these two, or is one of them."""
        return self.__ge__(first) & self.__le__(last)

    def map(self, function: Callable[[Any], Any]) -> Column:
        """The function's answer to each."""
        return Column(map(function, self.values))

    def astype(self, kind: type) -> Column:
        return self.map(kind)

    def any(self) -> bool:
        return any(self.values)

    def all(self) -> bool:
        return all(self.values)

    def sum(self) -> Any:
        return sum(self.known)

    def min(self) -> Any:
        """NaN where there is none."""
        return min(self.known, default=math.nan)

    def max(self) -> Any:
        """NaN where there is none."""
        return max(self.known, default=math.nan)

    def median(self) -> float:
        """NaN where there is none."""
        from statistics import median  # takes as long to import as all else here

        known = self.known
        return float(median(known)) if known else math.nan

    def mean(self) -> float:
        """NaN where there is none."""
        known = self.known
        return math.fsum(known) / len(known) if known else math.nan

    def quantile(self, share: float) -> float:
        """The value below which that share of them lies, between two of them in proportion; NaN where there is none."""
        known = sorted(self.known)
        if not known:
            return math.nan
        place = share * (len(known) - 1)
        low = math.floor(place)
        high = min(low + 1, len(known) - 1)
        return float(known[low] + (known[high] - known[low]) * (place - low))

    def unique(self) -> list[Any]:
        """Each once, in the order in which they come."""
        return [*dict.fromkeys(self.values)]

    def nunique(self) -> int:
        """The number of different ones, the missing left out."""
        return len({*self.known})

    def value_counts(self) -> Keyed:
        """The number of times that each comes."""
        return Keyed(Counter(self.known))

    @property
    def iloc(self) -> Column:
        """By place."""
        return self

    @property
    def str(self) -> Texts:
        """Questions to texts."""
        return Texts(self.values)


def _beside(other: Any) -> Iterable[Any]:
    if isinstance(other, Column | list):
        return other
    # A plain number is compared faster than a member of an enumeration.
    return itertools.repeat(int(other) if isinstance(other, int) and not isinstance(other, bool) else other)


class Texts:
    """Questions to a column of texts, each of which is asked once: events share a few hundred."""

    def __init__(self, values: list[Any]) -> None:
        self._values = values

    def _asked(self, question: Callable[[str], Any]) -> Column:
        answers = {text: isinstance(text, str) and bool(question(text)) for text in {*self._values}}
        return Column([answers[text] for text in self._values])

    def contains(self, pattern: str, *, regex: bool = True) -> Column:
        return self._asked(re.compile(pattern).search if regex else lambda text: pattern in text)

    def startswith(self, beginning: str) -> Column:
        return self._asked(lambda text: text.startswith(beginning))

    def endswith(self, end: str) -> Column:
        return self._asked(lambda text: text.endswith(end))


class Keyed(dict[Any, Any]):
    """One number of each group."""

    def min(self) -> Any:
        return Column(self.values()).min()

    def max(self) -> Any:
        return Column(self.values()).max()

    def nunique(self) -> int:
        return Column(self.values()).nunique()

    def to_dict(self) -> dict[Any, Any]:
        return dict(self)


class Row(dict[str, Any]):
    """One row; its values by name, and as attributes."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None

    def to_dict(self) -> dict[str, Any]:
        return dict(self)


class Table:
    """Columns of one length, by name; also as attributes, where no method has that name."""

    def __init__(self, columns: Mapping[str, Iterable[Any]], rows: Sequence[int] | None = None) -> None:
        self._base = {name: v if isinstance(v, list) else [*v] for name, v in columns.items()}
        self._rows = range(len(next(iter(self._base.values()), ()))) if rows is None else rows
        self._made: dict[str, Column] = {}

    @classmethod
    def of_rows(cls, rows: Iterable[Sequence[Any]], columns: Sequence[str]) -> Table:
        """From rows whose values come in the order of the columns."""
        return cls(
            dict(zip(columns, map(list, zip(*rows, strict=True)), strict=False)) or {c: [] for c in columns}
        )

    def _cut(self, rows: Sequence[int]) -> Table:
        found = Table({}, rows)
        found._base = self._base
        return found

    def __repr__(self) -> str:
        return f"Table({len(self)} x {self.columns})"

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Row]:
        return map(self.row, range(len(self)))

    def __bool__(self) -> bool:
        raise TypeError("a table is neither true nor false: ask for its length")

    @property
    def columns(self) -> list[str]:
        """Their names."""
        return [*self._base]

    @property
    def index(self) -> Column:
        """The number of each row in the table that this one was cut from first."""
        return Column(self._rows)

    @property
    def empty(self) -> bool:
        """True where it has no row."""
        return not len(self._rows)

    def column(self, name: str) -> Column:
        """Raises KeyError where there is none."""
        if name not in self._made:
            base = self._base[name]
            whole = self._rows == range(len(base))
            self._made[name] = Column(base if whole else [base[row] for row in self._rows])
        return self._made[name]

    def __getattr__(self, name: str) -> Column:
        if name.startswith("_") or name not in self._base:
            raise AttributeError(name)
        return self.column(name)

    @overload
    def __getitem__(self, key: str) -> Column: ...

    @overload
    def __getitem__(self, key: slice | Column | list[Any]) -> Table: ...

    def __getitem__(self, key: str | slice | Column | list[Any]) -> Column | Table:
        """A column by its name; a table by names of columns, by a slice, or by a column of truths."""
        if isinstance(key, str):
            return self.column(key)
        if isinstance(key, slice):
            return self._cut(self._rows[key])
        if isinstance(key, list) and key and isinstance(key[0], str):
            found = self._cut(self._rows)
            found._base = {name: self._base[name] for name in key}
            return found
        return self._cut([*itertools.compress(self._rows, key)])

    @property
    def iloc(self) -> _Places:
        """By place: a row, or the table of a slice."""
        return _Places(self)

    @property
    def loc(self) -> _Wanted:
        """By a column of truths, and a name or several."""
        return _Wanted(self)

    def take(self, places: Iterable[int]) -> Table:
        """The rows at these places, in that order."""
        return self._cut([self._rows[place] for place in places])

    def row(self, place: int) -> Row:
        """One row; from the end, where the place is negative."""
        number = self._rows[place]
        return Row((name, values[number]) for name, values in self._base.items())

    def to_dict(self) -> list[dict[str, Any]]:
        """Its rows as dictionaries."""
        names, columns = self.columns, [self.column(name).values for name in self._base]
        return [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]

    def itertuples(self) -> Iterator[Any]:
        """Its rows as tuples, whose values have names too."""
        kind = _named(tuple(self._base))
        return map(kind._make, zip(*(self.column(name).values for name in self._base), strict=True))

    def assign(self, **columns: Iterable[Any] | float) -> Table:
        """The same with these columns, in place of those of the same name; a number is the same in all rows."""
        own = {name: self.column(name).values for name in self._base if name not in columns}
        made = {n: [v] * len(self) if isinstance(v, int | float) else v for n, v in columns.items()}
        return Table({**own, **made})

    def sort_values(self, by: str) -> Table:
        """By that column, in the order in which they stand where it is equal; the missing last."""
        values = self.column(by).values
        places = sorted(
            range(len(values)), key=lambda n: (values[n] is None, 0 if values[n] is None else values[n])
        )
        return self.take(places)

    def groupby(self, by: str | list[str], *, sort: bool = True) -> Grouped:
        """Rows that agree in one column, or in several."""
        return Grouped(self, by, sort=sort)


class _Places:
    def __init__(self, table: Table) -> None:
        self._table = table

    def __getitem__(self, key: Any) -> Any:
        return self._table[key] if isinstance(key, slice) else self._table.row(key)


class _Wanted:
    def __init__(self, table: Table) -> None:
        self._table = table

    def __getitem__(self, key: Any) -> Any:
        rows, columns = key if isinstance(key, tuple) else (key, self._table.columns)
        return self._table[rows][columns]


class Grouped:
    """A table in groups, by key; those without a key are in none."""

    def __init__(self, table: Table, by: str | list[str], *, sort: bool) -> None:
        self._table = table
        columns = [table.column(name).values for name in ([by] if isinstance(by, str) else by)]
        self._places: dict[Any, list[int]] = {}
        for place, key in enumerate(columns[0] if isinstance(by, str) else zip(*columns, strict=True)):
            if key is not None:
                self._places.setdefault(key, []).append(place)
        if sort:
            self._places = {key: self._places[key] for key in sorted(self._places)}

    def __iter__(self) -> Iterator[tuple[Any, Table]]:
        rows = self._table._rows
        for key, places in self._places.items():
            yield key, self._table._cut([rows[place] for place in places])

    def size(self) -> Keyed:
        """The number of rows of each."""
        return Keyed((key, len(places)) for key, places in self._places.items())

    def cumcount(self) -> Column:
        """For each row of the table, how many of its group stand before it."""
        found = [0] * len(self._table)
        for places in self._places.values():
            for number, place in enumerate(places):
                found[place] = number
        return Column(found)

    def __getattr__(self, name: str) -> GroupedColumn:
        if name.startswith("_"):
            raise AttributeError(name)
        return self[name]

    def __getitem__(self, name: str) -> GroupedColumn:
        return GroupedColumn(self._table.column(name).values, self._places)


def _of_each(number: Callable[[Column], Any]) -> Callable[[GroupedColumn], Keyed]:
    """The method that gives that number of each group."""

    def of(self: GroupedColumn) -> Keyed:
        groups = ((key, [self._values[place] for place in places]) for key, places in self._places.items())
        return Keyed((key, number(Column(values))) for key, values in groups)

    return of


class GroupedColumn:
    """One column of a table in groups."""

    min, max, sum = _of_each(Column.min), _of_each(Column.max), _of_each(Column.sum)
    median, mean = _of_each(Column.median), _of_each(Column.mean)
    nunique, size = _of_each(Column.nunique), _of_each(len)

    def __init__(self, values: list[Any], places: Mapping[Any, list[int]]) -> None:
        self._values, self._places = values, places

    def transform(self, what: str) -> Column:
        """For each row of the table, that number of its group: `min`, `nunique`, ..."""
        found: list[Any] = [None] * len(self._values)
        for key, number in getattr(self, what)().items():
            for place in self._places[key]:
                found[place] = number
        return Column(found)


@functools.lru_cache
def _named(columns: tuple[str, ...]) -> Any:
    return namedtuple("Row", columns)
