"""`pipetrain report runs`: the runs of a sweep side by side, in files as well."""

import errno
import json

import pytest
from support.refusals import assert_refused
from support.stored_runs import write_run

from pipetrain import cli
from pipetrain.reporting.sweep import sweep_figure, sweep_files, sweep_tables
from pipetrain.reporting.sweep.comparison import collect, ranked, target_of


@pytest.fixture
def folder(tmp_path):
    """Three methods, one of which did not complete."""
    runs = {"a": ("gpipe", 80.0, 2.0, 9.0), "b": ("pipedream", 90.0, 3.0, 5.0), "c": ("lwp", 95.0, 1.0, 1.0)}
    for name, (method, top1, loss, wall) in runs.items():
        came_to = {"final": {"top1": top1, "loss": loss}, "best": {"top1": 100 - top1, "loss": 4 - loss}}
        status = "failed" if name == "c" else "completed"
        write_run(tmp_path / "sweep" / name, f"method={method}", status=status, wall_s=wall, **came_to)
    return tmp_path / "sweep"


@pytest.mark.parametrize(
    ("metric", "best"), [("top1", "pipedream"), ("loss", "gpipe"), ("best_top1", "gpipe"), ("wall_s", "pipedream")]
)
def test_groups_rank_by_final_value_and_failed_ones_last(folder, metric, best):
    groups = ranked(collect([folder], {}), metric).groups
    assert (groups[0].name, groups[-1].name) == (best, "lwp")


def test_group_with_a_value_that_is_not_finite_ranks_behind_and_says_so(tmp_path):
    for method, losses in {"gpipe": (0.5, 0.6), "stale": (None, 0.4)}.items():
        for seed, loss in enumerate(losses):
            write_run(tmp_path / method / str(seed), f"method={method}", f"seed={seed}", final={"loss": loss})
    compared = ranked(collect([tmp_path], {}), "loss")
    assert [group.name for group in compared.groups] == ["gpipe", "stale"]
    assert "0.4000 (1 of 2)" in sweep_tables.text(compared)


def test_metric_that_no_run_has_is_refused_with_those_there_are(folder):
    assert_refused(r"--metric bleu: .*loss.*samples_per_second.*top1", ranked, collect([folder], {}), "bleu")


@pytest.mark.parametrize(
    ("final", "chosen"), [({"loss": 1.0, "top1": 2.0}, "top1"), ({"loss": 1.0}, "loss"), ({}, None)]
)
def test_runs_rank_by_available_value_without_named_metric(tmp_path, final, chosen):
    write_run(tmp_path / "a", final=final, best=final)
    assert ranked(collect([tmp_path], {}), None).metric == chosen


def test_report_writes_tables_numbers_and_a_figure_where_it_says(folder, tmp_path, capsys):
    assert cli.carry_out(["report", "runs", str(folder), "-o", str(tmp_path / "mine.v2"), "--target", "top1=80"]) == 0
    files = [tmp_path / f"mine.v2.{ending}" for ending in ("md", "json", "png", "html")]
    assert capsys.readouterr().out.splitlines()[-1] == f"written to {', '.join(map(str, files))}"
    assert sorted(path for path in tmp_path.iterdir() if path.is_file()) == sorted(files)
    assert files[2].read_bytes().startswith(b"\x89PNG")
    groups = json.loads(files[1].read_text())["groups"]
    assert [group["name"] for group in groups] == ["pipedream", "gpipe", "lwp"]
    assert groups[2]["runs"][0]["status"] == "failed"
    (run,) = groups[1]["runs"]
    assert (run["final"]["top1"], run["best"]["top1"], run["wall_s"], run["idle_share"]) == (80.0, 20.0, 9.0, 0.375)


@pytest.mark.parametrize("ending", ["md", "json", "png", "html"])
def test_unwritable_file_is_named_and_others_are_unchanged(folder, tmp_path, capsys, monkeypatch, ending):
    (tmp_path / "mine.md").write_text("earlier")

    def filling(write):
        def filled(path, *args, **more):
            write(path, *args, **more)
            if path.name == f"mine.{ending}.partial":
                raise OSError(errno.ENOSPC, "No space left on device")

        return filled

    monkeypatch.setattr(sweep_files, "write_whole", filling(sweep_files.write_whole))
    monkeypatch.setattr(sweep_figure, "draw", filling(lambda path, *_: path.write_bytes(b"")))
    code = cli.carry_out(["report", "runs", str(folder), "-o", str(tmp_path / "mine")])
    assert code == 1
    path = tmp_path / f"mine.{ending}"
    assert capsys.readouterr().err == f"pipetrain: error: {path}: No space left on device\n"
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["mine.md"]
    assert (tmp_path / "mine.md").read_text() == "earlier"


def test_report_on_one_folder_writes_its_page_there(folder, tmp_path, capsys):
    assert cli.carry_out(["report", "runs", str(folder)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"written to {folder / 'report.html'}"
    assert "<title>sweep</title>" in (folder / "report.html").read_text(encoding="utf-8")
    assert cli.carry_out(["report", "runs", str(folder / "a"), str(folder / "b")]) == 0
    assert [path.name for path in tmp_path.rglob("report.html")] == ["report.html"]


def test_report_writes_nothing_into_folders_that_do_not_exist(folder, tmp_path, capsys):
    assert cli.carry_out(["report", "runs", str(folder), "-o", str(tmp_path / "new" / "table")]) == 2
    assert f"there is no folder {tmp_path / 'new'}; make it first" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


@pytest.mark.slow
def test_report_on_any_column_shows_it(folder, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    assert cli.carry_out(["report", "runs", str(folder), "--metric", "memory_bytes"]) == 0
    heads = capsys.readouterr().out.splitlines()[0]
    shown = [head.strip() for head in heads.split("  ") if head.strip()]
    assert shown == ["peak memory", "from the best", "final top1", "best top1", "samples/s", "wall time, s", "runs"]
    assert cli.carry_out(["report", "runs", str(folder), "--json", "--metric", "samples_per_second"]) == 0
    assert json.loads(capsys.readouterr().out)["metric"] == "samples_per_second"


def test_unevaluated_target_metric_is_refused_with_known_ones(folder, capsys):
    assert cli.carry_out(["report", "runs", str(folder), "--target", "top9=20"]) == 2
    assert capsys.readouterr().err == "pipetrain: error: --target top9=20: no run has it; available: loss, top1\n"


def test_target_that_is_no_number_is_refused():
    assert target_of(["top1=80", "loss=.5"]) == {"top1": 80.0, "loss": 0.5}
    assert_refused("--target top1: must be a metric and a number", target_of, ["top1"])
