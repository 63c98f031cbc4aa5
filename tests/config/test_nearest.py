"""What is said of a setting that there is not."""

import pytest

from pipetrain.config.nearest import known_names, unknown_setting


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("lr", "lr=0.1", "lr=0.1: no such setting; did you mean optimizer.lr?"),
        ("optimizer.learning_rate", None, "optimizer.learning_rate: no such setting; did you mean optimizer.lr?"),
        ("dataset.num_workers", None, "dataset.num_workers: no such setting; did you mean dataset.workers?"),
        ("batch_size", None, "batch_size: no such setting; did you mean train.batch_size or eval.batch_size?"),
        ("methd", "methd=gpipe", "methd=gpipe: no such setting; did you mean method?"),
        ("amp", "amp=true", "amp=true: no such setting; `pipetrain run --help` lists them"),
        ("hydra.foo", None, "hydra.foo: no such setting; `pipetrain run --hydra-help` lists them"),
        (
            "method.decay",
            "method.decay=1",
            "method.decay=1: not a setting of the chosen method; it is one of method=pipemare, method=pipemare_w",
        ),
        (
            "model.thickness",
            "model.thickness=8",
            "model.thickness=8: not a setting of the chosen model; if its target takes it, write +model.thickness=8",
        ),
    ],
)
def test_unknown_setting_is_answered_with_what_was_meant(name, given, message):
    assert unknown_setting(name, given) == message


def test_settings_of_every_run_groups_and_settings_of_choices_are_known():
    assert {"train.epochs", "dataset.limit", "seed", "experiment", "checkpoint", "method.decay"} <= set(known_names())
