"""The page of a paper in Markdown: what came out, the claims as a picture and a table, curves, and numbers compared."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from papers import svg
from papers.claims import NOT_SEEN, NOT_TESTED, SEEN, UNDECIDED, UNTESTED, Answer, Verdict
from papers.curves import curve_of
from papers.evidence import MACHINES, RELATIONS, data_of, experiments, network_of
from papers.forest import shown as shown_in_forest
from papers.kept_runs import read_groups
from papers.paper import Agreement, Claim, Comparison, Paper, Tables, shown
from papers.presets import preset, presets
from papers.results import Measured, Results
from papers.targets import FULL
from pipetrain.reporting.sweep.columns import column_of
from pipetrain.runner.terminal.text_table import counted, markdown_table

_MADE = "<!-- made by `python -m papers pages`; edits are lost -->"
_SIGNS = {SEEN: "●", NOT_SEEN: "✕", UNDECIDED: "○", UNTESTED: "·"}
"""Word for a part of a claim -> the mark that it has in the figure."""
_LONGEST = 190
"""Letters of a sentence in a cell."""
_FOREST = (
    "*A row is a comparison: the gain of the first over the second, with its 95 % interval. Gray: where the claim "
    "holds, from 0 or the margin on; without gray, it says that the first fails altogether. ● seen, ✕ not seen, "
    "○ undecided, · not tested.*"
)
_CURVES = (
    "A panel for each configuration: mean and range over seeds in black, the others in gray; below its name the result "
    "in the paper's measure. The networks are smaller than the paper's, and trained for fewer epochs, so values "
    "differ; their order may not."
)


def forest_of(paper: Paper) -> str:
    """The file name of the figure of its claims."""
    return f"{paper.name}_claims.svg"


def figure_of(paper: Paper, parts: Sequence[Measured]) -> str:
    """The file name of the figure of an experiment and its companions."""
    return f"{paper.name}_{parts[0].experiment}.svg"


def timings_of(paper: Paper) -> str:
    """The file name of the figure of what was only timed."""
    return f"{paper.name}_timings.svg"


def page(paper: Paper, tables: Tables, results: Results, claims: Sequence[Claim]) -> str:
    """The whole page; its figures are in `images/` next to it.

    Args:
        paper: what is known of it.
        tables: its printed numbers.
        results: what its experiments measured.
        claims: its claims with their verdicts.
    """
    authors, _, title = paper.citation.partition(":")
    blocks = [
        f"# Reproduction: {title.strip()}",
        _MADE,
        f"*{authors}*",
        f"**What the paper is about.** {paper.about}",
        f"**Scale.** {extent(paper.name, results)}",
        *_findings(paper, claims),
        *([svg.shown(forest_of(paper), "Claims with a difference: gain, interval and verdict"), _FOREST]
          if any(shown_in_forest(claim.verdict) for claim in claims) else []),
        *_claims(paper, claims),
        *_measured(paper, results),
        *(f"![{each.part}](images/{each.name})\n\n{each.caption}" for each in paper.figures),
        *_numbers(paper, tables),
        *_remarks(paper),
    ]  # fmt: skip
    return "\n\n".join(blocks) + "\n"


def extent(paper: str, results: Results) -> str:
    """Summary of the presets that were run, with scale, networks and duration."""
    total = sum(name.startswith(f"{paper}/") for name in presets())
    full = [each for each in results.values() if each.scale == FULL]
    small = [each for each in results.values() if each.scale != FULL]
    run = f"{len(results)} of {counted(total, 'preset', 'presets')} of this paper were run"
    if full:
        head = f"{run}, {len(full)} of them at the paper's size."
    else:
        head = f"No experiment was run at the paper's size: {run}, none at full scale."
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
    """The networks on each data set."""
    by_data: dict[str, dict[str, None]] = {}
    for each in found:
        by_data.setdefault(data_of(paper, each), {})[f"`{network_of(paper, each)}`"] = None
    return "; ".join(f"{', '.join(networks)} on `{data}`" for data, networks in by_data.items())


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


def _spread(values: Sequence[float], noun: str) -> str:
    """Minimum and maximum, after a comma; empty if there are none, as when all runs diverged."""
    if not values:
        return ""
    least, most = min(values), max(values)
    if round(least) == round(most) == 1:
        return f", 1 {noun.removesuffix('s')}"
    return f", {least:,.0f} {noun}" if round(least) == round(most) else f", {least:,.0f} to {most:,.0f} {noun}"


def _findings(paper: Paper, claims: Sequence[Claim]) -> Iterator[str]:
    """What came out, as far as the verdicts are those that the sentences are about."""
    verdicts = {claim.row["name"]: claim.verdict.verdict for claim in claims}
    kept = [each.text for each in paper.findings if holds(each.claims, verdicts)]
    if kept:
        yield f"**What came out.** {' '.join(kept)}"


def holds(expected: Mapping[str, str], verdicts: Mapping[str, str]) -> bool:
    """True if all these claims have verdicts that begin so."""
    return all(verdicts.get(name, "").startswith(word) for name, word in expected.items())


def _claims(paper: Paper, claims: Sequence[Claim]) -> Iterator[str]:
    """The verdicts in a table, each with its reason in a sentence."""
    yield "## Claims"
    evidence = f"[verdicts.csv](../../results/{paper.name}/verdicts.csv)"
    yield (
        f"{_counts([claim.verdict for claim in claims])} [README.md](README.md#verdicts) defines the verdicts; "
        f"{evidence} has all evidence, and what would decide the open ones."
    )
    rows = [
        (
            f"{claim.number}",
            f"{claim.row['claim']} ({claim.row['source']})",
            f"**{claim.verdict.verdict}**" if claim.verdict.tested else NOT_TESTED,
            sentence(claim),
        )
        for claim in claims
    ]
    yield "\n".join(markdown_table(("", "claim", "verdict", "seen here"), rows))


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
    return f"{counted(len(verdicts), 'claim', 'claims')}: {text}."


def sentence(claim: Claim) -> str:
    """Why the verdict is what it is, in a sentence that fits a cell."""
    verdict, row = claim.verdict, claim.row
    if not verdict.answers:
        takes = row["takes"] or ("" if row["experiment"] else MACHINES)
        return _cut(verdict.why[0] if verdict.why else f"takes {takes}" if takes else "not run")
    tried = [each for each in verdict.answers if each.tested]
    if not tried:
        return _cut("; ".join(dict.fromkeys(each.reason for each in verdict.answers)))
    counts = [
        f"{count} {sign}" for word, sign in _SIGNS.items() if (count := sum(e.word == word for e in verdict.answers))
    ]
    decisive = [each for each in tried if each.holds is not None] or tried
    strongest = max(decisive, key=_size)
    head = f"{', '.join(counts)}: " if len(verdict.answers) > 1 else ""
    return _cut(head + _compared(strongest))


def _size(answer: Answer) -> float:
    """The gain that an answer is about, as a share."""
    gain = answer.effect.gain if answer.effect else None
    return abs(answer.effect.share(gain.middle)) if answer.effect and gain else 0.0


def _compared(answer: Answer) -> str:
    """What is compared, and how it stands."""
    effect = answer.effect
    if effect and effect.gain and effect.gain.of_ratio:
        gain, column = effect.gain, column_of(effect.metric)
        names = (effect.first, effect.other) if column.higher else (effect.other, effect.first)
        return f"{column.head}: {' over '.join(names)} {gain.middle:.2f} ({gain.low:.2f} to {gain.high:.2f})"
    stated, _, reading = re.sub(r" \(\d+ runs?\)", "", answer.text.partition(": ")[2]).partition("; ")
    ends = re.match(r"gain ([^,]*), 95 % ([^,]*)", reading)
    interval = f"; gain {ends[1]} ({ends[2]})" if ends else ""
    return f"{column_of(effect.metric).head if effect else ''}: {stated}{interval}"


def _cut(words: str) -> str:
    """The words as far as they fit, up to a semicolon, or else a comma or a colon."""
    words = words.replace("|", "\\|")
    if len(words) <= _LONGEST:
        return words
    ends = (found[-1].start() for mark in ("; ", "[,:] ") if (found := _before(mark, words)))
    return words[: next(ends, _LONGEST)]


def _before(mark: str, words: str) -> list[re.Match[str]]:
    return [found for found in re.finditer(mark, words) if found.start() <= _LONGEST]


def _measured(paper: Paper, results: Results) -> Iterator[str]:
    """A figure for each experiment, and one for all that were only timed."""
    if not results:
        return
    yield "## Measured"
    yield (
        f"{_CURVES} All numbers, commands and changed settings: "
        f"[measured.csv](../../results/{paper.name}/measured.csv)."
    )
    timed = False
    for parts in experiments(results):
        groups = [group for part in parts for group in read_groups(part.folder)]
        if curve_of(groups, parts[0].metric):
            yield f"![{caption_of(paper, parts)[0]}](images/{figure_of(paper, parts)})"
        else:
            timed = True
    if timed:
        yield "Samples per second; ~ in a simulated pipeline, predicted from the measured times of its stages:"
        yield f"![Samples per second](images/{timings_of(paper)})"


def caption_of(paper: Paper, parts: Sequence[Measured]) -> tuple[str, str]:
    """What an experiment of the paper is, and what it trains here under how many seeds."""
    runs = [sum(group.ended.values()) for part in parts for group in part.groups]
    seeds = f"{min(runs)} to {max(runs)} seeds" if min(runs) < max(runs) else counted(runs[0], "seed", "seeds")
    outdated = "; from before the small scale was changed" if any(part.outdated for part in parts) else ""
    where = f"{network_of(paper.name, parts[0])} on {data_of(paper.name, parts[0])}"
    summary = preset(f"{paper.name}/{parts[0].experiment}").summary
    return summary, f"{parts[0].experiment}, {parts[0].scale} scale: {where}, {seeds}{outdated}"


def _numbers(paper: Paper, tables: Tables) -> Iterator[str]:
    """How many numbers that need no training agree, and those of the text that its own tables do not bear out."""
    exact, stated = list(paper.exact(tables)), list(paper.stated(tables))
    if not exact and not stated:
        return
    yield "## Numbers without training"
    every = f"[numbers.csv](../../results/{paper.name}/numbers.csv) has all of them, and why they differ."
    wrong = Counter(each.source for each in exact if each.agreement in _DIFFER)
    differ = ", ".join(f"{count} in {source}" for source, count in wrong.items())
    computed = f"Computed without training, {_tally(exact)}{f' ({differ})' if differ else ''}. " if exact else ""
    text = f"Of the text, recomputed from the paper's own tables, {_tally(stated)}. " if stated else ""
    yield f"{computed}{text}{every}"
    if differing := [each for each in stated if each.agreement in _DIFFER]:
        cells, notes = comparison_cells(differing)
        rows = ([each.replace("|", "\\|") for each in row] for row in cells)
        yield "\n".join(markdown_table(HEADS, rows))
        if notes:
            yield "\n".join(notes)


def _remarks(paper: Paper) -> Iterator[str]:
    if paper.provenance or paper.remarks:
        yield "## Remarks"
    if paper.provenance:
        yield paper.provenance
    if paper.remarks:
        yield "\n".join(f"- {remark}" for remark in paper.remarks)


def _tally(comparisons: Sequence[Comparison]) -> str:
    counts = {kind: sum(each.agreement is kind for each in comparisons) for kind in Agreement}
    verb = "agree" if counts[Agreement.EXACT] != 1 else "agrees"
    text = f"{counts[Agreement.EXACT]} of {counted(len(comparisons), 'number', 'numbers')} {verb}"
    differ = {"explained": counts[Agreement.EXPLAINED], "open": counts[Agreement.OPEN]}
    others = [f"{count} {'differs' if count == 1 else 'differ'}, {kind}" for kind, count in differ.items() if count]
    unknown = counts[Agreement.UNDETERMINED]
    return "; ".join([text, *others, *([f"{unknown} cannot be computed from what the paper gives"] if unknown else [])])


_DIFFER = (Agreement.EXPLAINED, Agreement.OPEN)
HEADS = ("number", "source", "printed", "ours", "")


def comparison_cells(comparisons: Sequence[Comparison]) -> tuple[list[tuple[str, ...]], list[str]]:
    """The rows of a table below `HEADS`, and numbered lines on why ours are not the printed numbers."""
    notes = list(dict.fromkeys(each.note for each in comparisons if _differs(each) and each.note))
    cells: list[tuple[str, ...]] = [
        (
            each.what,
            each.source,
            RELATIONS[each.relation] + each.printed,
            shown(each.ours, each.printed),
            each.agreement.value + (f" ({notes.index(each.note) + 1})" if _differs(each) and each.note else ""),
        )
        for each in comparisons
    ]
    return cells, [f"{number}. {note}" for number, note in enumerate(notes, start=1)]


def _differs(comparison: Comparison) -> bool:
    return comparison.agreement is not Agreement.EXACT
