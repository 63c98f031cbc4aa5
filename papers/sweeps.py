"""The reports of single experiments, which no page shows: written from what is kept of their runs."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from papers.kept_runs import read_groups
from papers.publications import PAPERS
from papers.results import read_results
from pipetrain.reporting.sweep import sweep_files
from pipetrain.reporting.sweep.comparison import ComparedGroups


def write_sweeps(names: Sequence[str], results: Path, outputs: Path) -> Iterator[Path]:
    """Writes tables, numbers, figure and page of every experiment, as `pipetrain report runs` does; yields the files.

    Args:
        names: of papers; none: all.
        results: the folder with what experiments measured.
        outputs: for the files, which go to `PAPER/NAME/SCALE/` in it.

    Raises:
        ConfigError: results are damaged.
    """
    for paper in (name for name in names or PAPERS if name in PAPERS):
        for measured in read_results(results, paper).values():
            folder = outputs / measured.folder.relative_to(results)
            folder.mkdir(parents=True, exist_ok=True)
            compared = ComparedGroups(read_groups(measured.folder), measured.metric)
            yield from sweep_files.write(compared, folder / "sweep", f"{paper}/{measured.experiment}")
