"""PipeMare's theory of stable step sizes as one report: tables and checks to read, figures and numbers to keep."""

from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tqdm import tqdm

from papers.stability import curves, figures, tables
from papers.stability.checks import claim_checks, lemma_checks
from papers.stability.curves import Heatmap, Regression, load
from papers.stability.limits import largest_stable_step, simulated_limit
from papers.stability.tables import Row, Setting, by_delay, by_discrepancy
from pipetrain.data.files import strict_json
from pipetrain.runner.tracking.files import new_folder, write_whole

NO_DATA = """\
fig05.png shows fig. 5(a) alone. For 5(b) give --data FILE: the data set cpusmall in LIBSVM format, from
https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/regression.html"""


def report(setting: Setting, data: Path | None, iterations: int, output: Path | None) -> bool:
    """Prints tables and checks, writes stability.json and the figures; whether the checks of the lemmas hold.

    Args:
        setting: the quadratic model of the tables; the figures keep the paper's.
        data: the regression data of fig. 5(b); None: without it.
        iterations: of that regression.
        output: the directory for the files; None: a new one.

    Raises:
        ConfigError: `data` cannot be read.
    """
    problem = load(data) if data is not None else None
    results: dict[str, Any] = {"setting": {**asdict(setting), "tau_recompute": setting.recompute}}
    results |= _tables(setting)
    lemmas, claims = lemma_checks(), claim_checks()
    _show(tables.check_table("Lemmas 1 to 4 and the formulas in their proofs, λ = 1", lemmas))
    _show(tables.check_table("Claims of app. B.4, λ = 1", claims))
    results["lemmas"], results["claims"] = ([asdict(check) for check in checks] for checks in (lemmas, claims))
    if output is None:
        output = new_folder(Path("stability"))
    output.mkdir(parents=True, exist_ok=True)
    results["figures"] = _figures(output, problem, iterations)
    write_whole(output / "stability.json", strict_json.dumps(results, indent=2) + "\n")
    print(f"written to {output}: fig05.png, fig06.png, fig10.png, fig16.png, stability.json")
    return all(check.holds for check in lemmas)


def _show(lines: Iterable[str]) -> None:
    print(*lines, "", sep="\n", flush=True)


def _tables(setting: Setting) -> dict[str, list[Row]]:
    """Prints and returns what the largest stable step depends on."""
    delays, discrepancies = by_delay(setting), by_discrepancy(setting)
    _show(tables.heading(setting))
    _show(tables.delay_table(setting, delays))
    _show(tables.discrepancy_table(setting, discrepancies))
    simulated = [
        {"roots": largest_stable_step(model), "simulated": simulated_limit(model)}
        for model in setting.models().values()
    ]
    _show(tables.simulated_table(simulated))
    return {"by_delay": delays, "by_discrepancy": discrepancies, "simulated": simulated}


def _figures(output: Path, problem: Regression | None, iterations: int) -> dict[str, Any]:
    """Writes the figures; returns the numbers of figs 5(b) and 10."""
    heatmap = None if problem is None else curves.fig5b(problem, iterations, _watched)
    _show([NO_DATA] if heatmap is None else tables.regression_table(heatmap))
    limits = curves.fig10()
    figures.draw_fig05(output / "fig05.png", curves.fig5a(), heatmap)
    figures.draw_fig06(output / "fig06.png", curves.fig6a(), curves.fig6b())
    figures.draw_fig10(output / "fig10.png", limits)
    figures.draw_fig16(output / "fig16.png", curves.fig16())
    lines = {name: values.tolist() for name, values in limits.lines.items()}
    return {"fig05b": _numbers(heatmap), "fig10": {"discrepancy": limits.x.tolist(), **lines}}


def _numbers(heatmap: Heatmap | None) -> list[Row] | None:
    return None if heatmap is None else tables.regression_rows(heatmap)


def _watched(steps: range) -> Iterable[int]:
    return tqdm(steps, desc="fig. 5(b)", unit=" iterations", disable=None, leave=False)
