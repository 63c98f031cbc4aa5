"""The page of a paper in Markdown: claims, numbers recomputed, numbers computed without training, figures."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from pipetrain.config.choices import choice_of
from pipetrain.report.text_table import counted, markdown_table
from pipetrain.reproduce.comparison import Agreement, Comparison, shown
from pipetrain.reproduce.extent import extent
from pipetrain.reproduce.measured_section import measured_section
from pipetrain.reproduce.paper import Paper
from pipetrain.reproduce.published import Row, Tables
from pipetrain.reproduce.results import Results
from pipetrain.reproduce.targets import SMALL, targets_of
from pipetrain.reproduce.verdict import NOT_TESTED, UNDECIDED, Verdict

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
        [extent(paper.name, results)],
        *_claims(paper, tables, results),
        *measured_section(paper, tables, results, folder),
        *_computed(exact),
        *([f"![{each.caption}](images/{each.name})", "", each.caption] for each in paper.figures),
        *_recomputed(stated),
        *_remarks(paper),
    ]
    return "\n\n".join("\n".join(block) for block in blocks) + "\n"


def _claims(paper: Paper, tables: Tables, results: Results) -> Iterator[Sequence[str]]:
    """The verdicts in a table, and below it from what each is, an item for each claim."""
    judged = paper.judged(tables, results)
    rows = [(row, judged.get(row["name"]) or Verdict(NOT_TESTED, [])) for row in tables["claims"].rows]
    yield ["## Claims"]
    yield [_counts([verdict for _, verdict in rows])]
    yield markdown_table(
        ("", "claim", "source", "verdict"),
        (
            (f"{number}", row["claim"], row["source"], f"**{verdict.verdict}**" if verdict.tested else NOT_TESTED)
            for number, (row, verdict) in enumerate(rows, start=1)
        ),
    )
    yield ["From what, and what it would take:"]
    yield [
        line
        for number, (row, verdict) in enumerate(rows, start=1)
        for line in _evidence(number, row, verdict, _what_is_left(paper, row, verdict, results))
    ]


def _counts(verdicts: Sequence[Verdict]) -> str:
    by_runs = sum("seen" in verdict.verdict for verdict in verdicts)
    undecided = sum(verdict.verdict == UNDECIDED for verdict in verdicts)
    untested = sum(not verdict.tested for verdict in verdicts)
    computed = len(verdicts) - by_runs - undecided - untested
    parts = {
        "judged by arithmetic": computed,
        "judged by runs": by_runs,
        "undecided by them": undecided,
        "not tested here": untested,
    }
    text = ", ".join(f"{count} {what}" for what, count in parts.items() if count)
    return f"{counted(len(verdicts), 'claim', 'claims')}: {text}. [README.md](README.md#verdicts) says what that means."


def _evidence(number: int, row: Row, verdict: Verdict, left: Sequence[str]) -> list[str]:
    head = f"{number}. {row['claim']}: {verdict.verdict}."
    return [head, *(f"    - {line}" for line in (*verdict.why, *left))]


def _what_is_left(paper: Paper, row: Row, verdict: Verdict, results: Results) -> list[str]:
    """What a claim that runs did not decide takes, in words and as a command."""
    decided = verdict.tested and verdict.verdict != UNDECIDED
    takes = [f"a {'fairer' if decided else 'fair'} test takes {row['takes']}"] if row["takes"] else []
    if decided:
        return takes
    if not row["experiment"]:
        return takes or [f"no experiment: it takes {_MACHINES}"]
    rules = paper.rules.get(row["name"], ())
    full = bool(rules) and all(rule.full for rule in rules)
    experiment = f"{paper.name}/{row['experiment']}"
    return [*takes, _what_it_takes(experiment, measured=row["experiment"] in results, full=full)]


def _what_it_takes(experiment: str, *, measured: bool, full: bool) -> str:
    """The command, what the small scale takes, and what the full one does.

    Args:
        experiment: with its paper.
        measured: whether the small scale was run, and does not tell.
        full: whether the small scale cannot tell.
    """
    targets = targets_of(experiment, SMALL)
    costs = "; ".join(dict.fromkeys(choice_of("experiment", each.experiment).remarks["cost"] for each in targets))
    command = f"pipetrain reproduce {experiment}"
    if full:
        return f"`{command} --scale full`, {costs}; the small scale cannot tell"
    if measured:
        return f"`{command} --scale full`, {costs}"
    minutes = counted(round(sum(each.minutes for each in targets)), "minute", "minutes")
    return f"`{command}`, about {minutes} at the small scale; `--scale full`, {costs}"


def _computed(exact: Sequence[Comparison]) -> Iterator[Sequence[str]]:
    yield ["## Computed without training"]
    yield [f"At the digits that are printed, {_tally(exact)}."]
    yield from _table(exact)


def _recomputed(stated: Sequence[Comparison]) -> Iterator[Sequence[str]]:
    yield ["## The text against the paper's own tables"]
    yield [f"Averages, totals and ratios of the text, computed again from its tables: {_tally(stated)}."]
    wrong = [each for each in stated if each.agreement is not Agreement.EXACT]
    yield from _table([*wrong, *(each for each in stated if each.agreement is Agreement.EXACT)])


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


def _table(comparisons: Sequence[Comparison]) -> Iterator[Sequence[str]]:
    """The numbers, and below them why ours are not those that are printed."""
    notes = list(dict.fromkeys(each.note for each in comparisons if _differs(each) and each.note))
    cells = (
        (
            each.what.replace("|", "\\|"),
            each.source,
            _SHOWN_RELATION[each.relation] + each.printed,
            shown(each.ours, each.printed),
            each.agreement.value + (f" ({notes.index(each.note) + 1})" if _differs(each) and each.note else ""),
        )
        for each in comparisons
    )
    yield markdown_table(("number", "source", "printed", "ours", ""), cells)
    if notes:
        yield [f"{number}. {note}" for number, note in enumerate(notes, start=1)]


def _differs(comparison: Comparison) -> bool:
    return comparison.agreement is not Agreement.EXACT
