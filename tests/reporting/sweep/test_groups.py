"""The runs of a sweep, put together by configuration."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from support.refusals import assert_refused
from support.stored_runs import STAGES, write_run

from papers.results import without_repeats
from pipetrain.reporting.sweep.compared_run import ComparedRun
from pipetrain.reporting.sweep.comparison import collect
from pipetrain.reporting.sweep.groups import SweepGroup, compared_settings, distinct_names, labels_of, legend_of


def test_runs_that_differ_in_the_seed_are_one_group(tmp_path):
    write_run(tmp_path / "0", "method=gpipe", "optimizer.lr=0.1", "seed=0", top1=50.0)
    write_run(tmp_path / "1", "method=gpipe", "optimizer.lr=0.1", "seed=1", top1=60.0)
    write_run(tmp_path / "2", "method=gpipe", "optimizer.lr=0.2", "seed=1")
    first, second = collect([tmp_path], {}).groups
    assert (first.name, second.name) == ("lr=0.1", "lr=0.2")
    assert (first.mean("top1"), first.mean("best_top1")) == (55.0, 60.0)
    assert first.deviation("top1") == pytest.approx(50**0.5)
    assert second.deviation("top1") is None
    assert first.course("top1") == [(1, 54.0, 49.0, 59.0), (2, 55.0, 50.0, 60.0)]
    assert [point.x for point in first.course("top1", "step")] == [5, 10]
    assert [point.x for point in first.course("top1", "wall_s")] == [10.0, 20.0]
    assert first.course("top1", "predicted_s") == []


def test_only_completed_runs_count_where_there_are_any(tmp_path):
    write_run(tmp_path / "0", "method=gpipe", "seed=0", top1=50.0)
    write_run(tmp_path / "1", "method=gpipe", "seed=1", top1=1.0, status="diverged", reason="the loss of step 3 is nan")
    write_run(tmp_path / "2", "method=pipedream", top1=30.0, status="interrupted")
    gpipe, pipedream = collect([tmp_path], {}).groups
    assert gpipe.values("top1") == [50.0]
    assert gpipe.statuses == {"completed": 1, "diverged": 1}
    assert pipedream.values("top1") == [30.0]
    assert pipedream.statuses == {"interrupted": 1}


def test_folder_without_runs_is_refused_by_name(tmp_path):
    assert_refused(f"{tmp_path}: no runs here", collect, [tmp_path], {})


def test_damaged_runs_are_skipped_and_duplicates_count_once(tmp_path):
    for name in ("0", "1"):
        write_run(tmp_path / name, "method=gpipe")
    (tmp_path / "1" / "summary.json").write_text("{")
    (tmp_path / "2" / ".hydra").mkdir(parents=True)
    write_run(tmp_path / "3")
    (tmp_path / "3" / "config.yaml").unlink()
    found = collect([tmp_path, tmp_path / "0"], {})
    assert [(group.name, dict(group.statuses)) for group in found.groups] == [("gpipe", {"completed": 1})]
    assert [run.path.name for run in found.skipped] == ["1", "3"]
    assert "it has no config.yaml" in found.skipped[1].reason


def write_plan(folder, *first, parameters=10, replicas=None):
    plan = {"parameters": parameters, "stages": [{"first": layer} for layer in first]}
    (folder / "plan.json").write_text(json.dumps(plan | ({"replicas": replicas} if replicas else {})))


def test_runs_with_other_cuts_models_or_data_are_not_seeds(tmp_path):
    plans = [{"first": (0, 1)}, {"first": (0, 2)}, {"first": (0, 1, 2)}, {"first": (0, 2), "replicas": [2, 1]},
             {"first": (0, 1), "parameters": 11}]  # fmt: skip
    for seed, plan in enumerate(plans):
        write_run(tmp_path / str(seed), f"seed={seed}", f"partition.path=plan{seed}.json")
        write_plan(tmp_path / str(seed), *plan.pop("first"), **plan)
    write_run(tmp_path / "5", "seed=5", per_stage=STAGES[:1])
    write_plan(tmp_path / "5", 0, 1)
    names = [group.name for group in collect([tmp_path], {}).groups]
    assert len(names) == len(set(names)) == 6
    assert any("cut=0,2 replicas=2,1" in name for name in names)
    assert any("parameters=11" in name for name in names)


def test_runs_of_one_cut_are_seeds_whatever_plan_name(tmp_path):
    for seed in range(3):
        write_run(tmp_path / str(seed), f"seed={seed}", f"partition.path=plan{seed}.json")
        if seed:  # the first one was killed before it had a plan
            write_plan(tmp_path / str(seed), 0, 2)
    (group,) = collect([tmp_path], {}).groups
    assert len(group.runs) == 3
    assert group.staleness == [2, 0]
    write_run(tmp_path / "3", "seed=3")
    write_plan(tmp_path / "3", 0, 1)
    found = collect([tmp_path], {}).groups
    assert sorted(len(group.runs) for group in found) == [1, 1, 2], "of which cut the first one was is not known"


def test_drains_and_data_seed_separate_runs_not_checkpoints(tmp_path):
    write_run(tmp_path / "0", "seed=0")
    write_run(tmp_path / "1", "seed=1", "checkpoint.every_epochs=2", "train.max_steps=null")
    write_run(tmp_path / "2", "seed=2", "checkpoint.every_steps=2")
    write_run(tmp_path / "3", "seed=3", "dataset.seed=1")
    assert sorted(len(group.runs) for group in collect([tmp_path], {}).groups) == [1, 1, 2]


def test_metric_of_checkpoints_separates_runs_that_end_by_it(tmp_path):
    for number, metric in enumerate(("loss", "top1")):
        write_run(tmp_path / "stops" / metric, f"checkpoint.metric={metric}", "train.patience=2", f"seed={number}")
        write_run(tmp_path / "keeps" / metric, f"checkpoint.metric={metric}", f"seed={number}")
    assert [len(group.runs) for group in collect([tmp_path / "stops"], {}).groups] == [1, 1]
    assert [len(group.runs) for group in collect([tmp_path / "keeps"], {}).groups] == [2]


def test_classes_of_objects_separate_runs(tmp_path):
    for number, kind in enumerate(("torch.optim.SGD", "torch.optim.Adam")):
        write_run(tmp_path / str(number), f"optimizer._target_=object:{kind}", f"seed={number}")
    assert [group.settings for group in collect([tmp_path], {}).groups] == [
        {"_target_": "object:torch.optim.SGD"}, {"_target_": "object:torch.optim.Adam"}
    ]  # fmt: skip


def test_seed_counts_once_by_its_newest_completed_run(tmp_path):
    ends = [(0, "2026-01-02", 50.0, "completed"), (0, "2026-01-01", 10.0, "completed"),
            (0, "2026-01-03", 1.0, "failed"), (1, "2026-01-01", 60.0, "completed")]  # fmt: skip
    for number, (seed, day, top1, status) in enumerate(ends):
        started = f"{day}T00:00:00+00:00"
        write_run(tmp_path / str(number), f"seed={seed}", top1=top1, started_at=started, status=status)
    (group,) = collect([tmp_path], {}).groups
    assert group.values("top1") == [50.0, 60.0]
    assert group.deviation("top1") == pytest.approx(50**0.5)
    assert group.course("top1")[-1] == (2, 55.0, 50.0, 60.0)
    assert [run.path.name for run in without_repeats(group)] == ["0", "2", "3"]
    (alone,) = collect([tmp_path / "0", tmp_path / "1"], {}).groups
    assert alone.deviation("top1") is None


def test_newest_run_of_seed_is_found_across_dst_end(tmp_path):
    for number, started in enumerate(["2026-10-25T02:50:00+02:00", "2026-10-25T02:10:00+01:00"]):
        write_run(tmp_path / str(number), "seed=0", top1=10.0 * number, started_at=started)
    (group,) = collect([tmp_path], {}).groups
    assert [run.path.name for run in group.counted] == ["1"]


def test_run_that_began_after_a_failed_one_of_its_seed_counts(tmp_path):
    write_run(tmp_path / "b", "method=gpipe", status="failed", started_at="2026-01-01T00:00:00+00:00")
    write_run(tmp_path / "a", "method=gpipe")
    (tmp_path / "a" / "summary.json").unlink()
    (group,) = collect([tmp_path], {}).groups
    assert [run.path.name for run in group.counted] == ["a"]


def test_run_without_a_summary_reaches_targets_as_the_others_do(tmp_path):
    for name in ("a", "b"):
        write_run(tmp_path / name, "method=gpipe", lower_is_better=["top1"])
    (tmp_path / "a" / "summary.json").unlink()
    (group,) = collect([tmp_path], {"top1": 49.5}).groups
    assert [run.numbers["target_s"] for run in group.runs] == [10.0, 10.0]
    (group,) = collect([tmp_path], {"top1": 48.5}).groups
    assert ["target_s" in run.numbers for run in group.runs] == [False, False]


def test_runs_of_different_commits_are_separated_on_request(tmp_path):
    for seed, commit in enumerate(("a" * 40, "b" * 40, "b" * 40)):
        write_run(tmp_path / str(seed), f"seed={seed}", git_commit=commit, git_dirty=seed == 2, host="here")
    (group,) = collect([tmp_path], {}).groups
    assert len(group.commits) == 3
    names = [group.name for group in collect([tmp_path], {}, by=["commit"]).groups]
    assert names == ["commit=aaaaaaaaaa", "commit=bbbbbbbbbb", "commit=bbbbbbbbbb+changes"]
    assert len(collect([tmp_path], {}, by=["host"]).groups) == 1


def test_course_ends_where_one_of_the_seeds_ended(tmp_path):
    for seed in (0, 1):
        write_run(tmp_path / str(seed), f"seed={seed}", top1=60.0 + seed)
    metrics = tmp_path / "1" / "metrics.jsonl"
    metrics.write_text("".join(metrics.read_text().splitlines(keepends=True)[:2]))
    (group,) = collect([tmp_path], {}).groups
    assert group.course("top1") == [(1, 59.5, 59.0, 60.0)]


def test_numbers_take_the_place_of_names_where_one_is_long():
    groups = [SweepGroup(name, [ComparedRun(Path("a"), "completed", settings={"method": "gpipe"})])
              for name in ("gpipe", "gpipe lr=0.1")]  # fmt: skip
    assert (labels_of(groups, 12), legend_of(groups, 12)) == (["gpipe", "gpipe lr=0.1"], [])
    assert labels_of(groups, 11) == ["1 gpipe", "2 gpipe"]
    assert legend_of(groups, 11) == [("", "1", "2"), ("run", "gpipe", "gpipe lr=0.1")]
    told = [replace(groups[0], settings={"method": "gpipe"}), replace(groups[1], settings={"lr": "0.1"})]
    assert legend_of(told, 11) == [("", "1", "2"), ("method", "gpipe", "-"), ("lr", "-", "0.1")]


def test_run_that_left_no_directory_is_a_group_too(tmp_path):
    write_run(tmp_path / "0", "method=gpipe")
    refused = ComparedRun(tmp_path / "1", "refused", settings={"method": "lwp"}, asked=["method"])
    assert [group.method for group in collect([tmp_path], {}, [refused]).groups] == ["gpipe", "lwp"]


def run(asked, **settings):
    return ComparedRun(Path("a"), "completed", settings={**asked, **settings}, asked=list(asked))


GIVEN = {"method": "gpipe", "model": "lenet5"}
FOLLOWING = {"model.depth": 1, "model.width": 1, "model.classes": 1}


@pytest.mark.parametrize(
    ("runs", "names"),
    [
        (
            [
                run({**GIVEN, "optimizer.lr": 0.1}, schedule="gpipe"),
                run({**GIVEN, "method": "pipedream", "optimizer.lr": 0.2}, schedule="1f1b"),
            ],
            ["gpipe lr=0.1", "pipedream lr=0.2"],
        ),
        ([run({"method": "pipemare"}, **{"method.t1": True}), run({"method": "gpipe"})], ["pipemare", "gpipe"]),
        ([run({"partition.stages": 4}), run({}, **{"partition.stages": 2})], ["stages=4", "stages=2"]),
        (
            [run({"train.batch_size": 1, "eval.batch_size": 2}), run({"train.batch_size": 3, "eval.batch_size": 4})],
            ["eval.batch_size=2 train.batch_size=1", "eval.batch_size=4 train.batch_size=3"],
        ),
        ([run({"method": "pipemare"}, **{"method.t1": flag}) for flag in (True, False)], ["t1=true", "t1=false"]),
        ([run({"method": "gpipe", "optimizer.lr": 0.1})], ["gpipe"]),
        (
            [
                run({}, model="a", **FOLLOWING),
                run({}, model="b", **dict.fromkeys(FOLLOWING, 2)),
                run({}, model="b", **dict.fromkeys(FOLLOWING, 2), threads=1),
            ],
            ["model=a", "model=b", "model=b threads=1"],
        ),
        ([run({"method": "a\x1b[31m"})], ["a?[31m"]),
        ([run({"method": "a\x1b[31m"}), run({"method": "b"})], ["a?[31m", "b"]),
    ],
    ids=[
        *("asked for and different", "following from the method", "given to one alone", "ending alike", "unexpected"),
        *("a single run", "the fewest", "control characters of one", "and of two"),
    ],
)
def test_runs_are_called_by_what_was_asked_for_and_differs(runs, names):
    assert distinct_names(runs) == names


def test_seed_and_recorded_only_values_do_not_separate_runs():
    one = run({"method": "gpipe", "seed": 1, "log.every_steps": 2, "resume": "auto", "method.seed": 1})
    other = run({"method": "gpipe", "seed": 2})
    assert compared_settings(one) == compared_settings(other)
    assert compared_settings(one) != compared_settings(run({"method": "gpipe", "optimizer.lr": 1}))
