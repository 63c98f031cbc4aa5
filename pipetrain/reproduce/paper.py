"""What is known of one paper: its numbers recomputed from each other, and those that need no training computed anew."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pipetrain.reproduce.comparison import Comparison, Value
from pipetrain.reproduce.orders import verdict
from pipetrain.reproduce.published import Row, Tables
from pipetrain.reproduce.results import Results
from pipetrain.reproduce.rules import Rule
from pipetrain.reproduce.verdict import Verdict

Recomputed = Callable[[Tables], Mapping[str, Value]]
"""Name in `stated.csv` -> the number, from the paper's own tables."""


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
        name: of its file.
        caption: below it.
        draw: writes it to a path.
    """

    name: str
    caption: str
    draw: Callable[[Path], None]


@dataclass(frozen=True)
class Paper:
    """One of the five papers.

    Attributes:
        name: of its folders and of its page.
        citation: authors, title, year.
        remarks: what its numbers make one ask, a paragraph each.
        recomputed: stated numbers from its tables.
        notes: name in `stated.csv` -> why text and tables differ there.
        exact: what needs no training.
        verdicts: on claims, without training.
        rules: name in `claims.csv` -> what trained models have to show for it.
        superlatives: names of the rules that put one before all others.
        best: whether its tables have the best evaluation of a run in place of the last.
        printed: numbers of trained models.
        figures: of the page.
    """

    name: str
    citation: str
    recomputed: Recomputed
    exact: Callable[[Tables], Sequence[Comparison]]
    notes: Mapping[str, str] = field(default_factory=dict)
    remarks: Sequence[str] = ()
    verdicts: Verdicts = no_verdicts
    rules: Mapping[str, Sequence[Rule]] = field(default_factory=dict)
    superlatives: Collection[str] = ()
    best: bool = False
    printed: Printed = nothing_printed
    figures: Sequence[PaperFigure] = ()

    def judged(self, tables: Tables, results: Results) -> Mapping[str, Verdict]:
        """Name in `claims.csv` -> the verdict, of the claims that were tested."""
        trained = {
            name: verdict(rules, results, superlative=name in self.superlatives, best=self.best)
            for name, rules in self.rules.items()
        }
        return {**self.verdicts(tables), **{claim: found for claim, found in trained.items() if found}}

    def stated(self, tables: Tables) -> Iterator[Comparison]:
        """Every number of its text that its own tables determine, beside what they say."""
        ours = self.recomputed(tables)
        for row in tables["stated"].rows:
            if row["name"] in ours:
                yield self._stated(row, ours[row["name"]])

    def _stated(self, row: Row, ours: Value) -> Comparison:
        note = self.notes.get(row["name"], "")
        return Comparison(row["statement"], row["source"], row["value"], ours, row["relation"], note)
