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
from pipetrain.reproduce.targets import SMALL, targets_of
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
    cells = ((row["claim"], row["source"], *_verdict(paper, row, verdict, results)) for row, verdict in rows)
    yield markdown_table(("claim", "source", "verdict", "from what, or what it would take"), cells)


def _verdict(paper: Paper, row: Row, verdict: Verdict | None, results: Results) -> tuple[str, str]:
    if verdict is not None:
        return verdict.verdict if verdict.verdict == NOT_TESTED else f"**{verdict.verdict}**", verdict.why
    if not row["experiment"]:
        return NOT_TESTED, f"no experiment: it takes {row.get('takes') or _MACHINES}"
    measured = row["experiment"] in results
    full = any(rule.full for rule in paper.rules.get(row["name"], ()))
    return NOT_TESTED, _what_it_takes(f"{paper.name}/{row['experiment']}", measured=measured, full=full)


def _what_it_takes(experiment: str, *, measured: bool, full: bool) -> str:
    """The command, what the small scale takes, and what the full one does.

    Args:
        experiment: with its paper.
        measured: whether the small scale was run and does not tell, so that its times must have been left out.
        full: whether the small scale cannot tell.
    """
    targets = targets_of(experiment, SMALL)
    costs = "; ".join(dict.fromkeys(choice_of("experiment", each.experiment).remarks["cost"] for each in targets))
    command = f"pipetrain reproduce {experiment}"
    if full:
        return f"`{command} --scale full`, {costs}; the small scale cannot tell"
    if measured:
        return f"`{command}` on a machine that does nothing else, as times were left out; `--scale full`, {costs}"
    minutes = counted(round(sum(each.minutes for each in targets)), "minute", "minutes")
    return f"`{command}`, about {minutes} at the small scale; `--scale full`, {costs}"


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
    return "; ".join([text, *others, *([f"{unknown} cannot be computed from what the paper gives"] if unknown else [])])


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
