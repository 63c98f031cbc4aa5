"""The page of a paper in Markdown: claims, numbers recomputed, numbers computed without training, figures."""

from collections.abc import Iterator, Sequence

from papers.claims import NOT_TESTED, UNDECIDED, Verdict
from papers.judgement import companions
from papers.measured_section import measured_section
from papers.paper import Agreement, Comparison, Paper, Row, Tables, shown
from papers.presets import choices_in, preset, presets
from papers.results import Measured, Results
from papers.targets import FULL, SMALL, has_small_scale, targets_of
from pipetrain.runner.terminal.text_table import counted, markdown_table


def extent(paper: str, results: Results) -> str:
    """Summary of the presets that were run, with scale, networks and duration."""
    total = sum(name.startswith(f"{paper}/") for name in presets())
    full = [each for each in results.values() if each.scale == FULL]
    small = [each for each in results.values() if each.scale != FULL]
    run = f"{len(results)} of {counted(total, 'preset', 'presets')} of this paper were run"
    if full:
        head = f"**{run}, {len(full)} of them at the paper's size.**"
    else:
        head = f"**No experiment was run at the paper's size.** {run}, none at full scale."
    return " ".join([head, *_small(paper, small, "Other" if full else "All")])


def _small(paper: str, found: Sequence[Measured], which: str) -> Iterator[str]:
    """Sentences on what was measured at small scale; `which` is All or Other."""
    trained = [each for each in found if each.metric]
    timed = [each for each in found if not each.metric]
    if trained:
        samples = [size for each in trained if (size := _samples(paper, each))]
        sizes = _spread(samples, "samples"), _spread(_means(trained, "epochs"), "epochs")
        yield f"{which} training is at small scale{''.join(sizes)}: {_on(paper, trained)}."
    if timed:
        yield f"{which} timing is at small scale{_spread(_means(timed, 'steps'), 'steps')}: {_on(paper, timed)}."


def _means(found: Sequence[Measured], column: str) -> list[float]:
    return [group.means[column] for each in found for group in each.groups if column in group.means]


def _on(paper: str, found: Sequence[Measured]) -> str:
    """The networks, each with its data."""
    places = (f"`{_network(paper, each)}` on `{each.data or _of(paper, each)['dataset']}`" for each in found)
    return ", ".join(dict.fromkeys(places))


def _network(paper: str, measured: Measured) -> str:
    """The model with the sizes that are not its own."""
    if measured.changed("model") or not measured.network:
        return measured.network or str(_of(paper, measured)["model"])
    return f"{_of(paper, measured)['model']} {measured.network}"


def _samples(paper: str, measured: Measured) -> float | None:
    """Number of training samples: the limit, or computed from steps and epochs; None if minibatches vary in size."""
    if limit := measured.changed("dataset.limit"):
        return float(limit)
    own = preset(f"{paper}/{measured.experiment}").content.get("train", {}).get("batch_size")
    batch = measured.changed("train.batch_size") or own
    means = measured.groups[0].means if measured.groups else {}
    if not batch or "," in str(batch) or "steps" not in means or not means.get("epochs"):
        return None
    return round(means["steps"] * int(batch) / means["epochs"], -2)


def _of(paper: str, measured: Measured) -> dict[str, str]:
    """The choices that the preset brings."""
    return dict(choices_in(f"{paper}/{measured.experiment}"))


def _spread(values: Sequence[float], noun: str) -> str:
    """Minimum and maximum, after a comma; empty if there are none, as when all runs diverged."""
    if not values:
        return ""
    least, most = min(values), max(values)
    if round(least) == round(most) == 1:
        return f", 1 {noun.removesuffix('s')}"
    return f", {least:,.0f} {noun}" if round(least) == round(most) else f", {least:,.0f} to {most:,.0f} {noun}"


_MADE = "<!-- made by `python -m papers pages`; edits are lost -->"
_MACHINES = "the paper's machines, or several of them"
_SHOWN_RELATION = {"=": "", "<=": "at most ", ">=": "at least "}


def page(paper: Paper, tables: Tables, results: Results) -> str:
    """The whole page; figures that need no training are in `images/` next to it.

    Args:
        paper: what is known of it.
        tables: its printed numbers.
        results: what its experiments measured.
    """
    stated, exact = list(paper.stated(tables)), list(paper.exact(tables))
    blocks = [
        [f"# Reproduction: {paper.citation.partition(':')[2].strip()}"],
        [_MADE],
        [f"{paper.citation.partition(':')[0]}. Printed numbers are those of `results/published/{paper.name}/`."],
        *([[paper.provenance]] if paper.provenance else []),
        [extent(paper.name, results)],
        *_claims(paper, tables, results),
        *measured_section(paper, tables, results),
        *_computed(exact),
        *([f"![{each.caption}](images/{each.name})", "", each.caption] for each in paper.figures),
        *_recomputed(stated),
        *_remarks(paper),
    ]
    return "\n\n".join("\n".join(block) for block in blocks) + "\n"


def _claims(paper: Paper, tables: Tables, results: Results) -> Iterator[Sequence[str]]:
    """The verdicts in a table, and below it the evidence, an item for each claim."""
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
    yield ["The evidence for each verdict, and what would decide the open ones:"]
    yield [
        line
        for number, (row, verdict) in enumerate(rows, start=1)
        for line in _evidence(number, row, verdict, _tried(paper, row), _what_is_left(paper, row, verdict, results))
    ]


def _counts(verdicts: Sequence[Verdict]) -> str:
    by_runs = sum("seen" in verdict.verdict for verdict in verdicts)
    undecided = sum(verdict.verdict == UNDECIDED for verdict in verdicts)
    untested = sum(not verdict.tested for verdict in verdicts)
    computed = len(verdicts) - by_runs - undecided - untested
    parts = {
        "decided by arithmetic": computed,
        "decided by runs": by_runs,
        "undecided": undecided,
        "not tested here": untested,
    }
    text = ", ".join(f"{count} {what}" for what, count in parts.items() if count)
    return f"{counted(len(verdicts), 'claim', 'claims')}: {text}. [README.md](README.md#verdicts) defines the verdicts."


def _evidence(number: int, row: Row, verdict: Verdict, *more: Sequence[str]) -> list[str]:
    head = f"{number}. {row['claim']}: {verdict.verdict}."
    return [head, *(f"    - {line}" for lines in (verdict.why, *more) for line in lines)]


def _tried(paper: Paper, row: Row) -> list[str]:
    return [f"also tried: {paper.tried[row['name']]}"] if row["name"] in paper.tried else []


def _what_is_left(paper: Paper, row: Row, verdict: Verdict, results: Results) -> list[str]:
    """Remaining work to decide a claim, or to decide it with the settings of today, in words and as a command."""
    there = companions(row["experiment"], results) if row["experiment"] else []
    current = bool(there) and not any(each.outdated for each in there)
    decided = verdict.tested and verdict.verdict != UNDECIDED
    takes = [f"a {'fairer' if decided else 'fair'} test takes {row['takes']}"] if row["takes"] else []
    if decided and (current or not there):
        return takes
    if not row["experiment"]:
        return takes or [f"no experiment: it takes {_MACHINES}"]
    rules = paper.rules.get(row["name"], ())
    experiment = f"{paper.name}/{row['experiment']}"
    full = not has_small_scale(experiment) or (bool(rules) and all(rule.full for rule in rules))
    return [*takes, _what_it_takes(experiment, measured=current, full=full)]


def _what_it_takes(experiment: str, *, measured: bool, full: bool) -> str:
    """The command, what the small scale takes, and what the full one does.

    Args:
        experiment: with its paper.
        measured: True if the small scale was run, and did not decide.
        full: True if there is no small scale, or it cannot decide.
    """
    targets = targets_of(experiment, FULL)
    costs = "; ".join(dict.fromkeys(preset(each.experiment).remarks["cost"] for each in targets))
    command = f"python -m papers reproduce {experiment}"
    if full:
        return f"`{command} --scale full`, {costs}; the small scale cannot decide this"
    if measured:
        return f"`{command} --scale full`, {costs}"
    minutes = counted(round(sum(each.minutes for each in targets_of(experiment, SMALL))), "minute", "minutes")
    return f"`{command}`, about {minutes} at the small scale; `--scale full`, {costs}"


def _computed(exact: Sequence[Comparison]) -> Iterator[Sequence[str]]:
    if not exact:
        return
    yield ["## Computed without training"]
    yield [f"At the printed precision, {_tally(exact)}."]
    yield from _table(exact)


def _recomputed(stated: Sequence[Comparison]) -> Iterator[Sequence[str]]:
    if not stated:
        return
    yield ["## The text against the paper's own tables"]
    yield [f"Averages, totals and ratios in the text, recomputed from the paper's tables: {_tally(stated)}."]
    wrong = [each for each in stated if each.agreement is not Agreement.EXACT]
    yield from _table([*wrong, *(each for each in stated if each.agreement is Agreement.EXACT)])


def _remarks(paper: Paper) -> Iterator[Sequence[str]]:
    if paper.remarks:
        yield ["## Other open questions"]
        yield [f"- {remark}" for remark in paper.remarks]


def _tally(comparisons: Sequence[Comparison]) -> str:
    counts = {kind: sum(each.agreement is kind for each in comparisons) for kind in Agreement}
    verb = "agree" if counts[Agreement.EXACT] != 1 else "agrees"
    text = f"{counts[Agreement.EXACT]} of {counted(len(comparisons), 'number', 'numbers')} {verb}"
    differ = {"explained": counts[Agreement.EXPLAINED], "open": counts[Agreement.OPEN]}
    others = [f"{count} {'differs' if count == 1 else 'differ'}, {kind}" for kind, count in differ.items() if count]
    unknown = counts[Agreement.UNDETERMINED]
    return "; ".join([text, *others, *([f"{unknown} cannot be computed from what the paper gives"] if unknown else [])])


HEADS = ("number", "source", "printed", "ours", "")


def comparison_cells(comparisons: Sequence[Comparison]) -> tuple[list[tuple[str, ...]], list[str]]:
    """The rows of a table below `HEADS`, and numbered lines on why ours are not the printed numbers."""
    notes = list(dict.fromkeys(each.note for each in comparisons if _differs(each) and each.note))
    cells: list[tuple[str, ...]] = [
        (
            each.what,
            each.source,
            _SHOWN_RELATION[each.relation] + each.printed,
            shown(each.ours, each.printed),
            each.agreement.value + (f" ({notes.index(each.note) + 1})" if _differs(each) and each.note else ""),
        )
        for each in comparisons
    ]
    return cells, [f"{number}. {note}" for number, note in enumerate(notes, start=1)]


def _table(comparisons: Sequence[Comparison]) -> Iterator[Sequence[str]]:
    cells, notes = comparison_cells(comparisons)
    yield markdown_table(HEADS, ([each.replace("|", "\\|") for each in row] for row in cells))
    if notes:
        yield notes


def _differs(comparison: Comparison) -> bool:
    return comparison.agreement is not Agreement.EXACT
