"""What the runs of a sweep are called."""

import pytest

from pipetrain.commands.run.sweep_report import constant, folder_name, number_of_runs


@pytest.mark.parametrize(
    ("differing", "name"),
    [
        ("method=pipedream optimizer.lr=0.1 seed=0", "3_pipedream_lr=0.1_seed=0"),
        ("executor=simulated method=gpipe", "3_gpipe_executor=simulated"),
        ("partition.ppv=[1,2] +model.width=32", "3_ppv=-1-2-_width=32"),
        ("dataset.root=/data/a", "3_root=-data-a"),
        ("", "3"),
        ("method._target_=mylib.Nesterov seed=0", "3_Nesterov_seed=0"),
        ("dataset.root=" + "a/very/long/path" * 8, "3"),
    ],
)
def test_run_folder_is_named_by_differences_in_safe_characters(differing, name):
    assert folder_name(3, differing) == name


def test_settings_equal_in_all_runs_are_not_in_names():
    words = ["method=gpipe,pipedream", "model=lenet5", "+model.width=32", "optimizer.lr=choice(0.1,0.2)", "seed=7"]
    assert constant(words, {}) == ["model", "model.width", "seed"]
    assert constant(["method=gpipe"], {"method": "gpipe,lwp", "seed": "0,1", "train.epochs": 3}) == [
        "method",
        "train.epochs",
    ]


@pytest.mark.parametrize(
    ("words", "swept", "count"),
    [
        (["method=gpipe,lwp", "seed=0,1,2", "model=lenet5"], {}, 6),
        (["seed=5"], {"method": "gpipe,lwp", "seed": "0,1,2"}, 2),
        (["seed=range(0,4)"], {}, 4),
        (["executor=glob(*)", "seed=0,1"], {}, 4),
        (["optimizer.lr=interval(0,1)"], {}, None),
    ],
)
def test_runs_of_a_sweep_are_counted(words, swept, count):
    assert number_of_runs(words, swept) == count
