"""The page of a paper in Markdown: claims, numbers recomputed, numbers computed without training, figures."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from pipetrain.config.choices import choice_of
from pipetrain.report.text_table import counted, markdown_table
from pipetrain.reproduce.comparison import Agreement, Comparison, shown
from pipetrain.reproduce.measured_section import measured_section
from pipetrain.reproduce.paper import Paper
from pipetrain.reproduce.published import Row, Tables
from pipetrain.reproduce.results import Results
from pipetrain.reproduce.verdict import NOT_TESTED, Verdict

_MADE = "<!-- made by `pipetrain report papers`; edits are lost -->"
_MACHINES = "the paper's machines, or several of them"
_SHOWN_RELATION = {"=": "", "<=": "at most ", ">=": "at least "}


def page(paper: Paper, tables: Tables, results: Results, folder: Path) -> str:
    """The whole page; figures that need no training lie in `images/` beside it.

    Args:
        paper: what is known of it.
        tables: its printed numbers.
        results: what its experiments measured.
        folder: of the page.
    """
    stated, exact = list(paper.stated(tables)), list(paper.exact(tables))
    blocks = [
        [f"# Reproduction: {paper.citation.partition(':')[2].strip()}"],
        [_MADE],
        [f"{paper.citation.partition(':')[0]}. Printed numbers are those of `results/published/{paper.name}/`."],
        *_claims(paper, tables, results),
        *measured_section(paper, tables, results, folder),
        *_computed(exact),
        *([f"![{each.caption}](images/{each.name})", "", each.caption] for each in paper.figures),
        *_recomputed(stated),
        *_remarks(paper),
    ]
    return "\n\n".join("\n".join(block) for block in blocks) + "\n"


def _claims(paper: Paper, tables: Tables, results: Results) -> Iterator[Sequence[str]]:
    verdicts = paper.judged(tables, results)
    rows = [(row, verdicts.get(row["name"])) for row in tables["claims"].rows]
    yield ["## Claims"]
    tested = {name for name, verdict in verdicts.items() if verdict.verdict != NOT_TESTED}
    trained = len(tested - paper.verdicts(tables).keys())
    by = f"{trained} of them by training" if trained else "all of them without training"
    yield [f"{len(tested)} of {counted(len(rows), 'claim', 'claims')} tested, {by}."]
    cells = ((row["claim"], row["source"], *_verdict(paper, row, verdict)) for row, verdict in rows)
    yield markdown_table(("claim", "source", "verdict", "from what, or what it would take"), cells)


def _verdict(paper: Paper, row: Row, verdict: Verdict | None) -> tuple[str, str]:
    if verdict is not None:
        return verdict.verdict if verdict.verdict == NOT_TESTED else f"**{verdict.verdict}**", verdict.why
    if not row["experiment"]:
        return NOT_TESTED, f"no experiment: it takes {row.get('takes') or _MACHINES}"
    experiment = f"{paper.name}/{row['experiment']}"
    cost = choice_of("experiment", experiment).remarks["cost"]
    return NOT_TESTED, f"`pipetrain reproduce {experiment}`; in full {cost}"


def _computed(exact: Sequence[Comparison]) -> Iterator[Sequence[str]]:
    yield ["## Computed without training"]
    yield [f"At the digits that are printed, {_tally(exact)}."]
    yield _table(exact)


def _recomputed(stated: Sequence[Comparison]) -> Iterator[Sequence[str]]:
    yield ["## The text against the paper's own tables"]
    yield [f"Averages, totals and ratios of the text, computed again from its tables: {_tally(stated)}."]
    wrong = [each for each in stated if each.agreement is not Agreement.EXACT]
    yield _table([*wrong, *(each for each in stated if each.agreement is Agreement.EXACT)])


def _remarks(paper: Paper) -> Iterator[Sequence[str]]:
    if paper.remarks:
        yield ["## What else the paper leaves open"]
        yield [f"- {remark}" for remark in paper.remarks]


def _tally(comparisons: Sequence[Comparison]) -> str:
    counts = {kind: sum(each.agreement is kind for each in comparisons) for kind in Agreement}
    verb = "agree" if counts[Agreement.EXACT] != 1 else "agrees"
    text = f"{counts[Agreement.EXACT]} of {counted(len(comparisons), 'number', 'numbers')} {verb}"
    differ = {"explained": counts[Agreement.EXPLAINED], "open": counts[Agreement.OPEN]}
    others = [f"{count} {'differs' if count == 1 else 'differ'}, {kind}" for kind, count in differ.items() if count]
    unknown = counts[Agreement.UNDETERMINED]
    return "; ".join([text, *others, *([f"{unknown} cannot be computed from what the paper tells"] if unknown else [])])


def _table(comparisons: Sequence[Comparison]) -> list[str]:
    cells = (
        (
            each.what.replace("|", "\\|"),
            each.source,
            _SHOWN_RELATION[each.relation] + each.printed,
            shown(each.ours, each.printed),
            each.agreement.value,
            "" if each.agreement is Agreement.EXACT else each.note.replace("|", "\\|"),
        )
        for each in comparisons
    )
    return markdown_table(("number", "source", "printed", "ours", "", "why"), cells)
