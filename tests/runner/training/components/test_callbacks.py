"""Trackers and callbacks that a run cannot have are refused before it starts."""

import importlib.util

import pytest
from support.one_run import carried_out
from support.refusals import assert_refused
from support.worker_pool import settings

from pipetrain.engine.errors import ConfigError, ExitCode
from pipetrain.runner.training.components import callbacks
from pipetrain.runner.training.components.callbacks import build_callbacks, check_callbacks

OWN = "support.own_callbacks"


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("Nope", {}, rf"callbacks\[0\]\._target_={OWN}.Nope: .*has no Nope"),
        ("Needy", {}, "needs path; write {_target_"),
        ("Needy", {"path": "a", "optoin": 3}, r"callbacks\[0\].optoin=3: .*did you mean callbacks\[0\].option"),
        ("Needy", {"path": "a", "option": "x"}, r"callbacks\[0\].option=x: must be a whole number"),
        ("Misspelled", {}, "overrides no method .*did you mean on_step"),
        ("no_class", {}, "must be a subclass of pipetrain.Callback"),
        ("Path", {}, "must be a subclass of pipetrain.Callback"),
    ],
)
def test_target_that_is_no_callback_is_refused(name, options, message):
    callbacks = settings("gpipe", callbacks=[{"_target_": f"{OWN}.{name}", **options}]).callbacks
    assert_refused(message, check_callbacks, (), callbacks)


def test_callbacks_follow_trackers_in_the_order_given():
    own = [{"_target_": f"{OWN}.Calls", "file": "a"}, {"_target_": f"{OWN}.Meddling"}]
    built = build_callbacks(["tensorboard"], settings("gpipe", callbacks=own).callbacks)
    assert [type(each).__name__ for each in built.values()] == ["TensorBoard", "Calls", "Meddling"]
    assert next(iter(built)) == "log.to=[tensorboard]"


@pytest.mark.parametrize("name", ["mlflow", "wandb"])
def test_tracker_without_its_package_is_refused(tmp_path, monkeypatch, capsys, name):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda each, *rest: None if each == name else found(each, *rest))
    assert carried_out(tmp_path / "run", f"log.to=[{name}]") is ExitCode.WRONG_USAGE
    error = capsys.readouterr().err
    assert f'log.to=[{name}] needs {name}, which is not installed: pip install "pipetrain[{name}]"' in error
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


@pytest.mark.parametrize("module", ["pipetrain.runner.tracking.trackers.gone", "pipetrain.gone.tensorboard"])
def test_tracker_that_was_left_out_of_the_installation_is_refused(monkeypatch, module):
    monkeypatch.setitem(callbacks.TRACKERS, "tensorboard", f"{module}.TensorBoard")
    with pytest.raises(ConfigError, match=rf"log\.to=\[tensorboard\]: .*without {module}"):
        check_callbacks(("tensorboard",), ())
