"""The tables behind a paper's page: the evidence for each verdict, what was measured, and the numbers compared."""

from collections.abc import Iterator, Mapping, Sequence

from papers.claims import UNDECIDED, Answer, Verdict
from papers.judgement import companions
from papers.paper import Claim, Comparison, Paper, Row, Tables, shown
from papers.presets import choices_in, preset
from papers.results import Measured, MeasuredGroup, Results
from papers.targets import FULL, SMALL, ReproductionTarget, has_small_scale, targets_of
from pipetrain.reporting.sweep.columns import column_of
from pipetrain.runner.terminal.text_table import counted, size_of
from pipetrain.runner.tracking.throughput import MEASURED, PREDICTED

Rows = list[Mapping[str, object]]
MACHINES = "the paper's machines, or several of them"
"""What a claim takes that has no experiment."""
RELATIONS = {"=": "", "<=": "at most ", ">=": "at least "}
"""Relation of our number to the printed one -> what stands before that."""


def tables_of(paper: Paper, tables: Tables, results: Results, claims: Sequence[Claim]) -> Mapping[str, Rows]:
    """Name of a file in `results/PAPER/` -> its rows; the files without rows are left out."""
    found = {
        "verdicts.csv": list(verdict_rows(paper, results, claims)),
        "measured.csv": list(measured_rows(paper, tables, results)),
        "numbers.csv": [*_number_rows("computed", paper.exact(tables)), *_number_rows("text", paper.stated(tables))],
    }
    return {name: rows for name, rows in found.items() if rows}


def network_of(paper: str, measured: Measured) -> str:
    """The model with the sizes that are not its own."""
    if measured.changed("model") or not measured.network:
        return measured.network or choices(paper, measured)["model"]
    return f"{choices(paper, measured)['model']} {measured.network}"


def data_of(paper: str, measured: Measured) -> str:
    """The data set."""
    return measured.data or choices(paper, measured)["dataset"]


def choices(paper: str, measured: Measured) -> dict[str, str]:
    """The choices that the preset brings."""
    return dict(choices_in(f"{paper}/{measured.experiment}"))


def verdict_rows(paper: Paper, results: Results, claims: Sequence[Claim]) -> Iterator[Mapping[str, object]]:
    """A row for each line of evidence, and for each line on what would decide an open claim."""
    for number, row, verdict in claims:
        claim = {"claim": number, "text": row["claim"], "source": row["source"], "verdict": verdict.verdict}
        for place, line in enumerate(verdict.why):
            answer = verdict.answers[place] if place < len(verdict.answers) else None
            kind = answer.word if answer else "not run" if verdict.answers else "arithmetic"
            yield {**claim, "part": kind, **_numbers(paper, answer, results), "evidence": line}
        if row["name"] in paper.tried:
            line = f"also tried: {paper.tried[row['name']]}"
            yield {**claim, "part": "also tried", **_numbers(paper, None, results), "evidence": line}
        for line in _what_is_left(paper, row, verdict, results):
            yield {**claim, "part": "to decide", **_numbers(paper, None, results), "evidence": line}


_EFFECT = ("metric", "first", "other", "gain", "low", "high", "limit", "share", "seeds", "how")


def _numbers(paper: Paper, answer: Answer | None, results: Results) -> Mapping[str, object]:
    """The columns of an answer, empty as far as it has none."""
    columns = ("experiment", "scale", "network", "data", *_EFFECT)
    if answer is None:
        return dict.fromkeys(columns, "")
    there = [each for name in answer.experiments for each in companions(name, results)[:1]]
    places = [
        ", ".join(answer.experiments),
        answer.scale,
        ", ".join(dict.fromkeys(network_of(paper.name, each) for each in there)),
        ", ".join(dict.fromkeys(data_of(paper.name, each) for each in there)),
    ]
    effect = answer.effect
    if effect is None:
        return dict(zip(columns, [*places, *[""] * len(_EFFECT)], strict=True))
    gain = effect.gain
    ends = [gain.middle, gain.low, gain.high] if gain else [None] * 3
    limit, share = effect.limit, effect.share(gain.middle) if gain else None
    values = ["" if each is None else f"{each:.6g}" for each in (*ends, limit, share)]
    scatter = [gain.seeds, gain.how] if gain else ["", ""]
    names = [effect.metric, effect.first, effect.other]
    return dict(zip(columns, [*places, *names, *values, *scatter], strict=True))


def _what_is_left(paper: Paper, row: Row, verdict: Verdict, results: Results) -> list[str]:
    """Remaining work to decide a claim, or to decide it with the settings of today, in words and as a command."""
    there = companions(row["experiment"], results) if row["experiment"] else []
    current = bool(there) and not any(each.outdated for each in there)
    decided = verdict.tested and verdict.verdict != UNDECIDED
    takes = [f"a {'fairer' if decided else 'fair'} test takes {row['takes']}"] if row["takes"] else []
    if decided and (current or not there):
        return takes
    if not row["experiment"]:
        return takes or [f"no experiment: it takes {MACHINES}"]
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


def measured_rows(paper: Paper, tables: Tables, results: Results) -> Iterator[Mapping[str, object]]:
    """A row for each configuration of each experiment, with means and sample standard deviations over seeds."""
    for parts in experiments(results):
        made = preset(f"{paper.name}/{parts[0].experiment}")
        printed, column = paper.printed(tables, parts[0].experiment), ranked(paper, parts[0])
        for part in parts:
            for group in part.groups:
                yield {
                    "experiment": part.experiment,
                    "what": made.summary,
                    "source": made.remarks["paper"],
                    "scale": part.scale,
                    "network": network_of(paper.name, part),
                    "data": data_of(paper.name, part),
                    "name": group.name,
                    "paper": printed.get(group.name, ""),
                    **_columns(group, column),
                    "runs": ", ".join(f"{count} {status}" for status, count in sorted(group.ended.items())),
                    **_made(paper, part),
                }


def experiments(results: Results) -> Iterator[Sequence[Measured]]:
    """Each experiment with its companions, in the order of their names."""
    for name in sorted(results):
        if not any(name.startswith(f"{other}_") for other in results):
            yield companions(name, results)


def ranked(paper: Paper, measured: Measured) -> str | None:
    """The column by which the paper ranks the configurations of an experiment."""
    return f"best_{measured.metric}" if measured.metric and paper.best else measured.metric


def _columns(group: MeasuredGroup, column: str | None) -> Mapping[str, str]:
    means = group.means
    return {
        "metric": column_of(column).head if column else "",
        "value": mean_of(group, column) if column else "",
        column_of("target_epochs").head: _target(group),
        column_of("loss_steps").head: _steps(group),
        "samples/s": throughput_of(group),
        "idle": f"{means['idle_share']:.0%}" if "idle_share" in means else "",
        **{
            column_of(name).head: size_of(means[name]) if name in means else ""
            for name in ("weight_bytes", "activation_bytes", "stage_bytes")
        },
    }


def mean_of(group: MeasuredGroup, metric: str) -> str:
    """Mean and standard deviation of a column; empty if it was not measured."""
    if metric not in group.means:
        return ""
    decimals = 3 if metric.endswith("loss") else 2
    spread = f" ± {group.deviations[metric]:.{decimals}f}" if metric in group.deviations else ""
    return f"{group.means[metric]:.{decimals}f}{spread}"


def _target(group: MeasuredGroup) -> str:
    """Epochs to the target, and how many runs reached it if some did not."""
    if not 0 < group.reached < group.conclusive:
        return mean_of(group, "target_epochs")
    return f"{group.means['target_epochs']:.2f} ({group.reached} of {group.conclusive})"


def _steps(group: MeasuredGroup) -> str:
    """Mean number of steps to the baseline's loss, and how many runs reached it if some did not."""
    reached = sum("loss_steps" in run for run in group.by_seed.values())
    some = f" ({reached} of {group.conclusive})" if reached < group.conclusive else ""
    return f"{group.means['loss_steps']:.0f}{some}" if reached else ""


def throughput_of(group: MeasuredGroup) -> str:
    """Samples per second, after ~ if predicted; empty if not known."""
    signs = {MEASURED: "", PREDICTED: "~"}
    return next((f"{sign}{_rate(group.means[name])}" for name, sign in signs.items() if name in group.means), "")


def _rate(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _made(paper: Paper, part: Measured) -> Mapping[str, object]:
    """How the runs were made, and how long they take on an idle machine where another one was shared."""
    machine, minutes = part.made["made_with"], part.made["wall_s"] / 60
    timed = part.made.get("timed", True)
    announced = ReproductionTarget(f"{paper.name}/{part.experiment}", SMALL).minutes
    longer = not timed and part.scale == SMALL and not part.outdated and minutes > announced
    return {
        "minutes": max(1, round(minutes)),
        "machine": f"{counted(machine['cores'], 'core', 'cores')} ({machine['cpu']}){'' if timed else ', shared'}",
        "minutes if idle": max(1, round(announced)) if longer else "",
        "settings of today": "no" if part.outdated else "yes",
        "command": part.made["command"],
    }


def _number_rows(kind: str, comparisons: Sequence[Comparison] | Iterator[Comparison]) -> Rows:
    return [
        {
            "from": kind,
            "number": each.what,
            "source": each.source,
            "printed": RELATIONS[each.relation] + each.printed,
            "ours": shown(each.ours, each.printed),
            "agreement": each.agreement.value,
            "note": each.note,
        }
        for each in comparisons
    ]
