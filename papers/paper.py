"""One paper: its printed numbers, those recomputed, and the claims that runs or arithmetic decide."""

import csv
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

from papers.claims import NOT_TESTED, Rule, Verdict
from papers.judgement import judge
from papers.results import Results
from pipetrain.engine.errors import ConfigError

Value = Fraction | float | str


class Agreement(Enum):
    """Agreement of a printed number with ours."""

    EXACT = "agrees"
    EXPLAINED = "differs, explained"
    OPEN = "differs, open"
    UNDETERMINED = "cannot be computed"


@dataclass(frozen=True)
class Comparison:
    """One printed number next to ours.

    Attributes:
        what: what the number is.
        source: where the paper prints it.
        printed: it, with the paper's digits.
        ours: what we find; a text where the paper prints one, None if it gives too little to compute it from.
        relation: `=`, `<=` or `>=`, as the paper puts it: ours to the printed number.
        note: why they differ, or what else is to be said.
        explained: True if the note says why they differ; else the question is open.
    """

    what: str
    source: str
    printed: str
    ours: Value | None
    relation: str = "="
    note: str = ""
    explained: bool = True

    @property
    def agreement(self) -> Agreement:
        """Agreement of the two numbers; if they differ, it says if the reason is known."""
        if self.ours is None:
            return Agreement.UNDETERMINED
        if agrees(self.printed, self.ours, self.relation):
            return Agreement.EXACT
        return Agreement.EXPLAINED if self.note and self.explained else Agreement.OPEN


def agrees(printed: str, ours: Value, relation: str = "=") -> bool:
    """True if rounding our number can give the printed one, or if ours satisfies the printed bound."""
    if isinstance(ours, str):
        return printed == ours
    text = printed.lstrip("<>")
    half = Fraction(1, 2 * 10 ** _decimals(text))
    gap = Fraction(ours) - Fraction(text)
    return {"=": abs(gap) <= half, "<=": gap <= 0, ">=": gap >= 0}[relation]


def shown(value: Value | None, printed: str) -> str:
    """Our number with one digit more than is printed; whole numbers without any, empty if there is no number."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if Fraction(value).denominator == 1:
        return str(int(value))
    return f"{float(value):.{_decimals(printed.lstrip('<>')) + 1}f}"


def _decimals(text: str) -> int:
    """Digits after the decimal point, also of a number such as 5e-4."""
    mantissa, _, exponent = text.partition("e")
    return max(0, len(mantissa.partition(".")[2]) - int(exponent or 0))


Row = Mapping[str, str]


@dataclass(frozen=True)
class PublishedTable:
    """One table, or the numbers that a paper states in its text; every row names its source.

    Attributes:
        name: of the file, such as `table4`.
        rows: column -> what is printed, from top to bottom.
    """

    name: str
    rows: tuple[Row, ...]

    def row(self, **keys: str) -> Row:
        """The only row with these entries."""
        found = [row for row in self.rows if all(row[key] == value for key, value in keys.items())]
        if len(found) != 1:
            raise KeyError(f"{self.name}: {len(found)} rows have {keys}")
        return found[0]

    def number(self, column: str, **keys: str) -> Fraction:
        """An entry of that row, exactly."""
        return Fraction(self.row(**keys)[column].lstrip("<>"))


Tables = Mapping[str, PublishedTable]
"""Name -> table, of one paper."""


def read_tables(folder: Path, paper: str) -> Tables:
    """All tables of a paper.

    Raises:
        ConfigError: there are none.
    """
    paths = sorted((folder / "published" / paper).glob("*.csv"))
    if not paths:
        raise ConfigError(f"--results {folder}: no {folder}/published/{paper}/*.csv; a checkout of pipetrain has them")
    return {path.stem: PublishedTable(path.stem, _rows(path)) for path in paths}


def _rows(path: Path) -> tuple[Row, ...]:
    with path.open(encoding="utf-8", newline="") as file:
        return tuple(csv.DictReader(file))


Recomputed = Callable[[Tables], Mapping[str, Value]]
"""Name in `stated.csv` -> the number, from the paper's own tables."""


def no_numbers(_tables: Tables) -> Mapping[str, Value]:
    """The paper's tables determine no number of its text."""
    return {}


def no_comparisons(_tables: Tables) -> Sequence[Comparison]:
    """No number of the paper can be computed without training."""
    return []


Verdicts = Callable[[Tables], Mapping[str, Verdict]]
"""Name in `claims.csv` -> the verdict, of claims that need no training."""


def no_verdicts(_tables: Tables) -> Mapping[str, Verdict]:
    """All claims of the paper need training."""
    return {}


Printed = Callable[[Tables, str], Mapping[str, str]]
"""Tables and an experiment -> name of a group -> what the paper prints for its metric."""


def nothing_printed(_tables: Tables, _experiment: str) -> Mapping[str, str]:
    """The paper prints no numbers of its experiments."""
    return {}


@dataclass(frozen=True)
class PaperFigure:
    """A figure of the paper that needs no training.

    Attributes:
        part: its name in the paper, such as `fig8`.
        name: of its file.
        caption: below it.
        draw: writes it to a path.
    """

    part: str
    name: str
    caption: str
    draw: Callable[[Path], None]


class Claim(NamedTuple):
    """A claim of a paper.

    Attributes:
        number: from 1, in the order of `claims.csv`.
        row: of that file.
        verdict: on it.
    """

    number: int
    row: Row
    verdict: Verdict


class Finding(NamedTuple):
    """A sentence on what came out.

    Attributes:
        text: it.
        claims: name in `claims.csv` -> how the verdict begins that the sentence is about.
    """

    text: str
    claims: Mapping[str, str]


@dataclass(frozen=True)
class Paper:
    """One of the papers.

    Attributes:
        name: of its folders and of its page.
        short: its name in a list of papers.
        citation: authors, title, year.
        about: what it proposes and tests, in a sentence.
        findings: what came out here; those whose claims have other verdicts are left out.
        provenance: what its formulas and numbers were taken from, if not from the paper itself.
        remarks: what its numbers make one ask, a paragraph each.
        recomputed: stated numbers from its tables.
        notes: name in `stated.csv` -> why text and tables differ there.
        exact: what needs no training.
        verdicts: on claims, without training.
        rules: name in `claims.csv` -> what trained models have to show for it.
        superlatives: names of the rules that put one before all others.
        tried: name in `claims.csv` -> what was run in addition to the experiments because they do not show the claim.
        best: True if its tables have the best evaluation of a run in place of the last.
        printed: numbers of trained models.
        figures: of the page.
        computed: further tables and figures that need no training, such as `table1` -> what draws its files into a
            folder and returns its lines.
    """

    name: str
    short: str
    citation: str
    about: str = ""
    findings: Sequence[Finding] = ()
    provenance: str = ""
    recomputed: Recomputed = no_numbers
    exact: Callable[[Tables], Sequence[Comparison]] = no_comparisons
    notes: Mapping[str, str] = field(default_factory=dict)
    remarks: Sequence[str] = ()
    verdicts: Verdicts = no_verdicts
    rules: Mapping[str, Sequence[Rule]] = field(default_factory=dict)
    superlatives: Collection[str] = ()
    tried: Mapping[str, str] = field(default_factory=dict)
    best: bool = False
    printed: Printed = nothing_printed
    figures: Sequence[PaperFigure] = ()
    computed: Mapping[str, Callable[[Path], Sequence[str]]] = field(default_factory=dict)

    def judged(self, tables: Tables, results: Results) -> Mapping[str, Verdict]:
        """Name in `claims.csv` -> the verdict, of the claims that were tested."""
        trained = {
            name: judge(rules, results, superlative=name in self.superlatives, best=self.best)
            for name, rules in self.rules.items()
        }
        return {**self.verdicts(tables), **{claim: found for claim, found in trained.items() if found}}

    def claims(self, tables: Tables, results: Results) -> list[Claim]:
        """All claims with their verdicts."""
        judged = self.judged(tables, results)
        untested = Verdict(NOT_TESTED, [])
        rows = tables["claims"].rows
        return [Claim(number, row, judged.get(row["name"], untested)) for number, row in enumerate(rows, start=1)]

    def stated(self, tables: Tables) -> Iterator[Comparison]:
        """Every number of its text that its own tables determine, next to the value from the tables."""
        ours = self.recomputed(tables)
        for row in tables["stated"].rows:
            if row["name"] in ours:
                yield self._stated(row, ours[row["name"]])

    def _stated(self, row: Row, ours: Value) -> Comparison:
        note = self.notes.get(row["name"], "")
        return Comparison(row["statement"], row["source"], row["value"], ours, row["relation"], note)
