"""Runs from Python: the command's results, objects in place of targets, and what a program finds unchanged."""

import copy
import functools
import io
import logging
import os
import random
import signal
import subprocess
import sys
import threading
import types
from pathlib import Path

import pytest
import torch
from hydra import initialize_config_dir
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.global_hydra import GlobalHydra
from support import cli, ragged_data
from support.own_metrics import Ordered
from support.quick_cases import every
from support.refusals import assert_refused
from support.small_model import build
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import pipetrain
from pipetrain.data.loader import Loader
from pipetrain.engine.losses import CrossEntropy
from pipetrain.engine.methods.pipedream import PipeDream
from pipetrain.engine.schedules.one_f_one_b import OneFOneB
from pipetrain.runner.api.runs import _composed, _with_params
from pipetrain.runner.api.surroundings import kept
from pipetrain.runner.config.choices import papers_folder
from pipetrain.runner.config.composition import Composition, combinations, overrides_of, with_choices_of
from pipetrain.runner.config.schema import config_dir
from pipetrain.runner.partition.rules import Even
from pipetrain.runner.training.checkpoint.contents import named_state
from pipetrain.zoo.data.images.synthetic import synthetic_images
from pipetrain.zoo.messages.integers import Integers
from pipetrain.zoo.messages.tah import TahQuant
from pipetrain.zoo.optim.lr_schedules import Polynomial
from pipetrain.zoo.optim.matrices import Muon

SIMULATED = ("executor=simulated", "threads=1", "device=cpu", "train.batch_size=4", "train.epochs=2")
SIZES = {"channels": 1, "classes": 4, "size": 8, "train": 22, "eval": 10}
TARGETS = (
    *("model=custom", "model._target_=support.small_model.build", "dataset=synthetic_images"),
    *(f"dataset.{name}={value}" for name, value in SIZES.items()),
)
HASHES = ("loss_sha256", "weights_sha256")


def hashes(run):
    return [run.summary[name] for name in HASHES]


def small(seed=0):
    torch.manual_seed(seed)
    return build(1, 4)


MODEL = small()


def objects(**others):
    return {"model": small(), "dataset": synthetic_images(**SIZES), **others}


def vectors(kind=torch.float32, label=torch.int64):
    samples = TensorDataset(torch.ones(22, 12).to(kind), (torch.arange(22) % 4).to(label))
    return types.SimpleNamespace(train=samples, eval=samples)


class Branch(nn.Module):
    """No chain of layers."""

    def __init__(self, first):
        super().__init__()
        self.first, self.last = first, nn.Linear(12, 4)

    def forward(self, x):
        return self.last(self.first(x[:, None]).flatten(1))


def chain():
    return nn.Sequential(nn.Linear(12, 8), nn.Linear(8, 4))


class Huber(nn.HuberLoss):
    def forward(self, outputs, targets):
        return super().forward(outputs[:, 0], targets)


GRAPH = Branch(nn.Conv1d(1, 1, 1))
FLOATS = "the weights of the model float32: return them as float32"
NEVER = "eval.every_epochs=0"


class Local(nn.Linear):
    """As if defined in a notebook."""


Local.__module__ = "__main__"


@pytest.fixture
def run(tmp_path, monkeypatch):
    """`pipetrain.run` on two simulated stages of seven small layers, without output."""
    monkeypatch.chdir(tmp_path)
    return functools.partial(pipetrain.run, progress=False)


@pytest.fixture(scope="module")
def given(tmp_path_factory):
    """A run that was given a model and data."""
    words, folder = [*SIMULATED, "checkpoint.at_start=true"], tmp_path_factory.mktemp("given") / "run"
    return pipetrain.run(words, path=folder, progress=False, **objects(model=MODEL))


def test_run_has_the_bits_and_files_of_the_command(tmp_path, run):
    words = [*TARGETS, *SIMULATED, "train.epochs=1"]
    cli.run_here(tmp_path / "command", *words)
    ours = run(words, path=tmp_path / "python")
    commands = cli.summary(tmp_path / "command")
    assert hashes(ours) == [commands[name] for name in HASHES]
    assert ours.summary.keys() == commands.keys()
    assert ours.stages[0].keys() == commands["per_stage"][0].keys()
    for file in ("config.yaml", "plan.json", ".hydra/overrides.yaml"):
        assert (tmp_path / "command" / file).read_text() == (ours.path / file).read_text()


def test_modes_of_the_program_do_not_reach_the_run(run, given):
    with torch.set_grad_enabled(False), torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        assert hashes(run(SIMULATED, **objects())) == hashes(given)


class Mixed(nn.Linear):
    """Computes in bfloat16, whatever the run does."""

    def forward(self, inputs):
        with torch.autocast("cpu", torch.bfloat16):
            return super().forward(inputs).float()


class Decorated(nn.Linear):
    """The same with a region that was made, cache and all, before the run."""

    @torch.autocast("cpu", torch.bfloat16)
    def forward(self, inputs):
        return super().forward(inputs).float()


@pytest.mark.parametrize("kind", [Mixed, pytest.param(Decorated, marks=pytest.mark.slow)])
def test_own_region_of_autocast_sees_the_newest_weights(run, kind):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), kind(64, 16), nn.ReLU(), nn.Linear(16, 4))
    done = run([*SIMULATED, "method=gpipe", "optimizer.lr=0.1", "train.max_steps=3", "log.every_steps=1"],
               **objects(model=copy.deepcopy(model)))  # fmt: skip
    net, split = copy.deepcopy(model), synthetic_images(**SIZES).train
    order = Loader(split, batch_size=4, seed=0).minibatches(0)
    optimizer, losses = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9), []
    for indices in order[:3]:
        inputs, targets = zip(*(split[index] for index in indices), strict=True)
        loss = F.cross_entropy(net(torch.stack(inputs)), torch.as_tensor(targets))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert [row["loss"] for row in done.metrics if row["kind"] == "interval"] == pytest.approx(losses, rel=1e-4)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.flat, self.first, self.last = nn.Flatten(), nn.Linear(64, 64), nn.Linear(64, 64)
        self.last.weight = self.first.weight

    def forward(self, inputs):
        return self.last(torch.relu(self.first(self.flat(inputs))))


@pytest.mark.slow
def test_model_of_a_run_that_untied_has_both_values(run):
    done = run([*SIMULATED, "model.untie=true", "method=pipedream"], **objects(model=Tied()))
    model = done.model()
    assert not torch.equal(model.first.weight, model.last.weight)
    weights = dict(model.named_parameters(remove_duplicate=False))
    assert set(weights) == {"first.weight", "first.bias", "last.weight", "last.bias"}


class Twice(nn.Module):
    """A layer that holds a weight under two names."""

    def __init__(self, weight):
        super().__init__()
        self.one, self.other = nn.Linear(64, 64), nn.Linear(64, 64)
        self.one.weight = self.other.weight = weight

    def forward(self, inputs):
        return self.other(torch.relu(self.one(inputs)))


def test_model_of_a_run_that_untied_keeps_the_ties_within_a_layer(run):
    first = nn.Sequential(nn.Flatten(), nn.Linear(64, 64))
    done = run([*SIMULATED, "model.untie=true", "method=pipedream"],
               **objects(model=nn.Sequential(first, Twice(first[1].weight))))  # fmt: skip
    model = done.model()
    assert model[1].one.weight is model[1].other.weight
    assert not torch.equal(model[0][1].weight, model[1].one.weight)
    saved = done.checkpoint()
    named = named_state(saved, averaged=True)
    assert all(torch.equal(value, named[name]) for name, value in model.state_dict().items())


def test_default_directory_and_output_are_the_commands(tmp_path, run, capsys):
    done = run([*TARGETS, *SIMULATED, "train.epochs=1", NEVER], progress=True)
    assert done.path.relative_to(tmp_path / "outputs").parts[0].count("-") == 2
    assert "stage  layers" in (out := capsys.readouterr().out)
    assert "completed after 6 steps" in out
    assert not GlobalHydra.instance().is_initialized()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("targets", "words", "given"),
    [
        (
            [
                "method=pipedream", "optimizer=adam", "optimizer.lr=0.01", "lr_schedule=polynomial",
                "lr_schedule.unit=step", "partition.stages=3", "metrics.own._target_=support.own_metrics.Ordered",
            ],
            [],
            lambda: {
                "method": PipeDream(), "schedule": OneFOneB(), "partition": Even(3), "loss": CrossEntropy(),
                "optimizer": functools.partial(torch.optim.Adam, lr=0.01), "lr_schedule": Polynomial(unit="step"),
                "metrics": {"own": Ordered()},
            },
        ),
        (
            [
                "optimizer=sgd", "optimizer.lr=0.1", "lr_schedule=custom",
                "lr_schedule._target_=torch.optim.lr_scheduler.StepLR", "+lr_schedule.step_size=1",
                "+lr_schedule.gamma=0.5",
            ],
            [],
            lambda: {
                "optimizer": lambda parameters: torch.optim.SGD(parameters, lr=0.1, fused=True),
                "lr_schedule": lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5),
            },
        ),
        (
            ["optimizer=sgdm", "optimizer.lr=0.05", "optimizer.momentum=0.9", "optimizer.weight_decay=0.1"],
            ["optimizer.groups=[{max_dims: 1, weight_decay: 0, lr_scale: 2}]"],
            lambda: {"optimizer": functools.partial(torch.optim.SGD, lr=0.05, momentum=0.9, weight_decay=0.1)},
        ),
    ],
    ids=["every section", "torch's scheduler", "parameter groups"],
)  # fmt: skip
def test_objects_give_the_bits_of_the_same_targets(run, targets, words, given):
    of_targets = run([*TARGETS, *SIMULATED, *targets, *words])
    of_objects = run([*SIMULATED, *words], **objects(**given()))
    assert hashes(of_objects) == hashes(of_targets)
    assert of_objects.summary["final"] == of_targets.summary["final"]
    assert of_objects.summary["method"] == ("PipeDream" if "method=pipedream" in targets else "pipeoptim")


def test_given_model_keeps_its_weights_and_is_not_trained(given):
    first, last, own, before = (
        each.state_dict() for each in (given.model(step=0), given.model(), MODEL.module, small().module)
    )
    assert all(torch.equal(value, first[name]) and torch.equal(value, own[name]) for name, value in before.items())
    assert any(not torch.equal(value, first[name]) for name, value in last.items())


def test_choice_next_to_an_object_stays_chosen(run):
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 10), nn.ReLU(), nn.Linear(10, 10))
    words = ["model=lenet5", "dataset.limit=8", *SIMULATED, "train.max_steps=1", NEVER]
    done = run(words, model=model)
    assert (done.summary["model"], done.stages[0]["parameters"]) == ("lenet5", 7850)


class Kinds(pipetrain.Callback):
    def __init__(self):
        self.seen = []

    def on_record(self, record):
        self.seen.append(record["kind"])


@pytest.mark.slow
def test_callback_is_the_object_itself_and_changes_no_bits(tmp_path, run, given):
    callback, of_words = Kinds(), f"callbacks=[{{_target_: {__name__}.Kinds}}]"
    done = run([*SIMULATED, of_words], **objects(callbacks=[callback]))
    assert hashes(done) == hashes(given)
    assert callback.seen == [record["kind"] for record in done.metrics]
    assert done.model().state_dict().keys() == given.model().state_dict().keys()
    assert pipetrain.load(done.path, model=small(), dataset=synthetic_images(**SIZES)).model()
    with pytest.raises(pipetrain.ConfigError, match=r"callbacks\[0\]=torch.nn.modules.linear.Linear"):
        run(SIMULATED, path=tmp_path / "wrong", **objects(callbacks=[nn.Linear(1, 1)]))


def test_formats_of_messages_are_those_of_the_command(run):
    words = [*SIMULATED, "train.epochs=1", "partition.stages=2"]
    ours = run(words, **objects(messages={"activations": Integers(bits=4), "gradients": None}))
    named = run([*words, "messages.activations=int8", "messages.activations.bits=4"], **objects())
    assert hashes(ours) == hashes(named) != hashes(run(words, **objects()))


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "batch_size"), [(ragged_data.Images, 1), (ragged_data.GroupedBySize, 2)])
def test_samples_of_several_shapes_match_in_both_executors(run, kind, batch_size):
    words = [*SIMULATED, f"train.batch_size={batch_size}", "train.microbatches=1", "partition.stages=2"]
    ours = [
        run([*words, f"executor={each}"], model=ragged_data.chain(), dataset=ragged_data.data(kind))
        for each in ("simulated", "distributed")
    ]
    assert hashes(ours[0]) == hashes(ours[1])


@pytest.mark.slow
def test_distributed_run_on_objects_has_the_simulated_bits(run, given):
    model = small()
    done = run([*SIMULATED, "executor=distributed"], **objects(model=model))
    assert hashes(done) == hashes(given)
    assert not next(model.module.parameters()).is_shared()


@pytest.mark.slow
def test_script_without_main_guard_runs_once(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import pipetrain\n"
        "print('begins')\n"
        f"run = pipetrain.run({[*TARGETS, *SIMULATED, 'executor=distributed']}, progress=False)\n"
        "print(run.status)\n"
    )
    command = [sys.executable, str(script)]
    done = subprocess.run(command, cwd=tmp_path, env=cli.environment(), capture_output=True, text=True, timeout=200)
    assert done.stdout == "begins\ncompleted\n", done.stderr


@pytest.mark.parametrize(
    ("words", "others", "named"),
    every(
        3,
        [
            (["method=pipedreem"], {}, "method=pipedreem"),
            (["seed=0,1"], {}, "seed=0,1: several values; pipetrain.sweep"),
            (["method.beta=1"], {"method": PipeDream()}, "method.beta"),
            (["+method.beta=1"], {"method": PipeDream()}, "method.beta=1: .*PipeDream has no such parameter"),
            (["partition.stages=9"], {}, "partition.stages=9"),
            ([], {"modell": 1}, "modell=.*did you mean model"),
            ([], {"model": "lenet5"}, "model='lenet5': must be an object"),
            ([], {"metrics": Ordered()}, "metrics=.*must be a mapping of names"),
            ([], {"metrics": {"a b": Ordered()}}, "metrics.a b"),
            ([], {"messages": Integers()}, "messages=.*must be a mapping of activations, gradients or both"),
            ([], {"messages": {"gradient": Integers()}}, "messages.gradient._target_=.*no such setting"),
            ([], {"messages": {"gradients": Ordered()}}, "messages.gradients=.*is not a pipetrain.MessageFormat"),
            ([], {"messages": {"gradients": TahQuant()}}, "messages.gradients=tah: TAH-Quant is for activations"),
            (["messages.gradients.bits=4"], {"messages": {"gradients": Integers()}}, "messages.gradients.bits=4"),
            ([], {"method": object()}, "method=builtins.object: object is not a pipetrain.Method"),
            ([], {"loss": nn.MSELoss}, "loss=torch.nn.modules.loss.MSELoss: type is not a function"),
            ([], {"optimizer": torch.optim.SGD([nn.Parameter(torch.zeros(1))])}, "optimizer: must be a function"),
            (["executor=distributed"], {"loss": lambda outputs, _: outputs.sum()}, "loss=.*executor=simulated"),
            (["executor=distributed"], {"model": Local(2, 2)}, "model=.*Local is defined in the main"),
            (["method=pipemare_w"], {"method": PipeDream()}, "method: .*`phases`"),
            ([], {"model": chain(), "dataset": vectors(torch.float64)}, f"inputs are float64, and {FLOATS}"),
            (
                [],
                {"model": chain().double(), "dataset": vectors()},
                "inputs are float32, and .* return them as float64",
            ),
            ([], {"model": GRAPH, "dataset": vectors(torch.int64)}, f"inputs are int64, and {FLOATS}"),
            (
                [],
                {"model": chain(), "dataset": vectors(label=torch.int32)},
                "targets int32 .*return the targets as int64",
            ),
            ([NEVER], {"model": chain(), "dataset": vectors(label=torch.float32)}, "return the targets as int64"),
            ([], {"model": chain(), "dataset": vectors(), "loss": Huber()}, "return the targets as float32"),
        ],
    ),
)
def test_wrong_word_or_object_is_named_and_leaves_nothing(tmp_path, run, words, others, named):
    assert_refused(named, run, [*SIMULATED, *words], **objects(**others))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_failed_run_raises_its_cause_and_the_next_one_works(tmp_path, run):
    def fails(outputs, _targets):
        calls.append(outputs)
        if len(calls) > 10:
            raise ValueError("no more")
        return outputs.sum()

    calls = []
    with pytest.raises(pipetrain.RunError, match=r"ValueError: no more .*test_api.py") as caught:
        run(SIMULATED, path=tmp_path / "run", **objects(loss=fails))
    assert isinstance(caught.value.__cause__, ValueError)
    assert pipetrain.load(tmp_path / "run").status == "failed"
    assert run(SIMULATED, path=tmp_path / "run", **objects()).status == "completed"


def test_diverged_run_is_a_result(run):
    done = run([*SIMULATED, "optimizer.lr=1e30"], **objects())
    assert (done.status, "diverged" in repr(done)) == ("diverged", True)
    assert done.summary["diverged_at_step"] > 0


class Interrupting(CrossEntropy):
    """A loss whose nth call gets a Ctrl-C."""

    def __init__(self, nth):
        super().__init__()
        self.left = [nth]  # shared by copies

    def forward(self, *args):
        self.left[0] -= 1
        if self.left[0] == 0:
            os.kill(os.getpid(), signal.SIGINT)
        return super().forward(*args)

    def __deepcopy__(self, _memo):
        return self


@pytest.mark.slow
def test_interrupted_run_resumes_to_the_bits_of_a_whole_one(tmp_path, run, given):
    in_step_5 = Interrupting(14)  # after which the pipeline drains anyway
    with pytest.raises(KeyboardInterrupt, match=r"step \d+ is saved; resume="):
        run(SIMULATED, path=tmp_path / "run", **objects(loss=in_step_5))
    assert pipetrain.load(tmp_path / "run").status == "interrupted"
    resumed = run([*SIMULATED, f"resume={tmp_path / 'run'}"], path=tmp_path / "run", **objects())
    assert hashes(resumed) == hashes(given)


def test_run_interrupted_before_its_first_checkpoint_names_the_one_it_resumed(tmp_path, run, given, monkeypatch):
    def simulate(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("pipetrain.runner.launch.worker.run_simulated", simulate)
    words = [*SIMULATED, f"resume={given.path}", "train.epochs=3"]
    with pytest.raises(KeyboardInterrupt, match=rf"resume={given.path}/checkpoints/step-\d+ continues"):
        run(words, path=tmp_path / "run", **objects())


def state_of_process():
    return {
        "torch": torch.get_rng_state().tolist(),
        "python": random.getstate(),
        "threads": torch.get_num_threads(),
        "signals": [signal.getsignal(number) for number in range(1, 16) if number != 9],
        "environment": dict(os.environ),
        "directory": Path.cwd(),
        "handlers": [logging.root.handlers[:], logging.getLogger("pipetrain").handlers[:]],
        "level": logging.root.level,
        "hydra": GlobalHydra.instance().hydra,
        "main": sys.modules["__main__"],
    }


@pytest.mark.parametrize("words", [[], ["train.epochs=0"], pytest.param(["optimizer.lr=1e30"], marks=pytest.mark.slow)])
def test_program_around_a_run_finds_all_as_it_was(run, words):
    torch.set_num_threads(2)
    with initialize_config_dir(str(config_dir()), version_base="1.3"):
        made, before = objects(), state_of_process()
        try:
            run([*SIMULATED, "deterministic=true", "train.max_steps=2", *words], **made)
        except pipetrain.ConfigError:
            assert words == ["train.epochs=0"]
        assert state_of_process() == before


def test_program_around_a_run_has_its_own_cuda_device(monkeypatch):
    current = [1]
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: current[-1])
    monkeypatch.setattr(torch.cuda, "set_device", current.append)
    with kept():
        torch.cuda.set_device(0)
    assert current == [1, 0, 1]


@pytest.mark.slow
def test_runs_of_threads_have_the_bits_of_the_main_one(run, given, tmp_path):
    found = {}

    def thread(number):
        found[number] = hashes(run(SIMULATED, path=tmp_path / str(number), **made[number]))

    made = [objects() for _ in range(2)]
    threads = [threading.Thread(target=thread, args=(number,)) for number in range(2)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert found == {0: hashes(given), 1: hashes(given)}


@pytest.mark.slow
def test_sweep_has_the_commands_order_and_a_table(tmp_path, capsys):
    words = ["method=gpipe,pipedream", "seed=0,1", *SIMULATED]
    swept = pipetrain.sweep(words, path=tmp_path / "sweep", **objects())
    assert [row["method"] for row in swept.table] == ["gpipe", "gpipe", "pipedream", "pipedream"]
    assert [row["seed"] for row in swept.table] == [0, 1, 0, 1]
    assert swept.table[0]["run"] == swept[0].path.name == "0_gpipe_seed=0"
    assert swept.table[3]["best_top1"] == swept[3].summary["best"]["top1"]
    assert {row["status"] for row in swept.table} == {"completed"}
    assert "run 4 of 4: method=pipedream seed=1" in capsys.readouterr().out
    assert hashes(swept[0]) != hashes(swept[1])
    assert len(swept[1:3]) == 2


def test_sweep_of_a_preset_has_the_members_of_the_command_in_its_order():
    words = ["experiment=pipeoptim/table4_alexnet", "optimizer.lr=0.1,0.2", "seed=0,1", "seed=2,3"]
    params = Composition.of(with_choices_of(papers_folder(), words[:1])).hydra.sweeper.params
    swept = [f"{name}={value}" for name, value in params.items()]
    [commands] = BasicSweeper.split_arguments(overrides_of([*swept, *words]), None)
    assert list(combinations(_with_params(words, {}, papers_folder()))) == commands


@pytest.mark.slow
def test_sweep_goes_on_after_a_refused_run(tmp_path, capsys):
    words = ["method=pipedream_2bw,pipedream", *SIMULATED]
    swept = pipetrain.sweep(words, path=tmp_path / "sweep", progress=False, **objects())
    assert [run.status for run in swept] == ["refused", "completed"]
    assert "train.microbatches" in swept[0].summary["reason"]
    assert capsys.readouterr() == ("", "")


def test_sweep_writes_nothing_through_links_in_its_folder(tmp_path):
    elsewhere, sweep = tmp_path / "elsewhere", tmp_path / "sweep"
    elsewhere.mkdir()
    sweep.mkdir()
    (sweep / "0").symlink_to(elsewhere)
    words = ["seed=0", *SIMULATED]
    (run,) = pipetrain.sweep(words, path=sweep, progress=False, **objects())
    assert "is a symbolic link" in run.summary["reason"]
    (sweep / ".mlflow-parent").symlink_to(elsewhere / "parent")
    with pytest.raises(pipetrain.ConfigError, match=r"mlflow-parent: is a symbolic link"):
        pipetrain.sweep(words, path=sweep, progress=False, **objects())
    assert not list(elsewhere.iterdir())


@pytest.mark.slow
def test_refused_run_of_a_used_folder_has_no_results_of_before(tmp_path):
    words = ["seed=0,1", *SIMULATED, "train.epochs=1"]
    sweep = functools.partial(pipetrain.sweep, path=tmp_path / "sweep", progress=False)
    assert [each.status for each in sweep(words, **objects())] == ["completed"] * 2
    again = sweep([*words, "partition.stages=99"], **objects())
    assert [row["status"] for row in again.table] == [each.status for each in again] == ["refused"] * 2
    assert "99" in again[0].summary["reason"]


@pytest.mark.slow
def test_sweep_varies_what_a_preset_varies(tmp_path):
    (tmp_path / "experiment").mkdir()
    text = "# @package _global_\nhydra: {sweeper: {params: {method: 'gpipe,pipedream', seed: '0,1'}}}\n"
    (tmp_path / "experiment" / "mine.yaml").write_text(text)
    words = ["experiment=mine", "seed=3", *SIMULATED, "train.max_steps=1"]
    swept = pipetrain.sweep(words, path=tmp_path / "sweep", config_dir=tmp_path, progress=False, **objects())
    assert [(row["method"], run.summary["seed"]) for row, run in zip(swept.table, swept, strict=True)] == [
        ("gpipe", 3), ("pipedream", 3)
    ]  # fmt: skip


def test_rate_of_an_optimizer_with_groups_of_its_own_is_its_common_rate(run):
    def two_rates(parameters, lr=0.02):
        parameters = list(parameters)
        return torch.optim.SGD([{"params": parameters[:1]}, {"params": parameters[1:], "lr": 10 * lr}], lr=lr)

    def without_default(parameters):
        return torch.optim.SGD([{"params": list(parameters), "lr": 0.02}])

    def tenfold(parameters, lr=0.02):
        return torch.optim.SGD([{"params": list(parameters), "lr": 10 * lr}])

    for optimizer in (functools.partial(Muon, lr=0.02), without_default, tenfold):
        assert _composed(SIMULATED, {"optimizer": optimizer}, None).config.optimizer.lr == 0.02
    words = [*SIMULATED, "method=pipedream", "train.max_steps=1", "eval.every_epochs=0"]
    assert run(words, **objects(optimizer=two_rates)).metrics[1]["lr"] == 0.02


def test_sweep_over_presets_that_sweep_by_themselves_is_refused(tmp_path):
    (tmp_path / "experiment").mkdir()
    for name, seeds in (("three", "0,1,2"), ("two", "0,1")):
        text = f"# @package _global_\nhydra: {{sweeper: {{params: {{seed: '{seeds}'}}}}}}\n"
        (tmp_path / "experiment" / f"{name}.yaml").write_text(text)
    words = ["experiment=three,two", *SIMULATED]
    with pytest.raises(pipetrain.ConfigError, match=r"experiment=three itself sweeps seed=0,1,2"):
        pipetrain.sweep(words, path=tmp_path / "sweep", config_dir=tmp_path, progress=False, **objects())


@pytest.mark.parametrize("words", [["seed=0,x"], ["hydra/sweeper=optuna"], ["seed=glob(none*)"]])
def test_sweep_that_cannot_run_is_refused_whole(tmp_path, words):
    with pytest.raises(pipetrain.ConfigError, match=words[0].partition("=")[0]):
        pipetrain.sweep([*words, *SIMULATED], path=tmp_path / "sweep", progress=False, **objects())
    assert not (tmp_path / "sweep").exists()


def test_loaded_run_has_results_and_the_model(given):
    loaded = pipetrain.load(given.path, model=small(seed=9))
    assert loaded.status == "completed"
    assert loaded.summary == given.summary
    assert [record["kind"] for record in loaded.metrics][:2] == ["start", "interval"]
    assert loaded.checkpoint() == given.checkpoint() == given.checkpoint(step=12)
    state = given.model().state_dict()
    assert all(torch.equal(value, state[name]) for name, value in loaded.model().state_dict().items())


@pytest.mark.slow
def test_data_of_a_run_are_the_given_object_or_built_again(given, run):
    data = synthetic_images(**SIZES)
    assert pipetrain.load(given.path, dataset=data).dataset() is data
    assert_refused(r"dataset=.*pipetrain.load\(RUN, dataset=...\)", lambda: pipetrain.load(given.path).dataset())
    built = run([*TARGETS, *SIMULATED, "train.max_steps=1", NEVER]).dataset()
    assert all(torch.equal(built.train[i][0], data.train[i][0]) for i in range(SIZES["train"]))


def test_model_is_what_export_writes(given, tmp_path, main, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["pipetrain", "export", str(given.path), "-o", str(tmp_path / "weights.pt")])
    with pytest.raises(SystemExit, match="0"):
        main()
    exported = torch.load(io.BytesIO((tmp_path / "weights.pt").read_bytes()), weights_only=True)
    state = given.model().state_dict()
    assert exported.keys() == state.keys()
    assert all(torch.equal(value, state[name]) for name, value in exported.items())


def test_model_draws_the_numbers_of_the_run(run, monkeypatch):
    drawn = []

    def model(channels, classes):
        drawn.append(random.random())
        return build(channels, classes)

    def data(**options):
        random.random()
        return synthetic_images(**options)

    monkeypatch.setitem(sys.modules, "drawing_targets", types.SimpleNamespace(model=model, data=data))
    words = [word.replace("support.small_model.build", "drawing_targets.model") for word in TARGETS]
    words += ["dataset._target_=drawing_targets.data", *SIMULATED, "train.max_steps=1", "eval.every_epochs=0"]
    done = run(words)
    pipetrain.load(done.path, trust=True).model()
    assert len(drawn) > 1
    assert set(drawn) == {drawn[0]}


def test_model_is_built_with_the_weights_that_its_constructor_takes(run, monkeypatch):
    def model(channels, classes, weights=None):
        assert channels == 1
        return nn.Sequential(nn.Flatten(), nn.Linear(64, classes, bias=weights == "BIASED"))

    monkeypatch.setitem(sys.modules, "weighted_targets", types.SimpleNamespace(model=model))
    words = [word.replace("support.small_model.build", "weighted_targets.model") for word in TARGETS]
    done = run([*words, "model.weights=BIASED", *SIMULATED, "partition.stages=1", "train.max_steps=1"])
    assert set(pipetrain.load(done.path, trust=True).model().state_dict()) == {"1.weight", "1.bias"}


@pytest.mark.slow
def test_model_needs_the_object_or_trust(given, run):
    assert_refused(r"model=.*LayerChain.*pipetrain.load\(RUN, model=...\)", lambda: pipetrain.load(given.path).model())
    with pytest.raises(pipetrain.ConfigError, match=r"model=.*Linear: does not take the weights"):
        pipetrain.load(given.path, model=nn.Linear(2, 2)).model()
    named = run([*TARGETS, *SIMULATED])
    with pytest.raises(pipetrain.ConfigError, match=r"small_model.build is not pipetrain's own .* trust=True"):
        pipetrain.load(named.path).model()
    assert pipetrain.load(named.path, trust=True).model().state_dict().keys() == given.model().state_dict().keys()


@pytest.mark.parametrize(
    "words",
    [
        ("eval", "--trust"),
        ("run", *TARGETS, *SIMULATED, "resume=RUN"),
        pytest.param(("run", "model=lenet5", *SIMULATED, "resume=RUN"), marks=pytest.mark.slow),
    ],
)
def test_command_says_that_the_run_was_given_objects(given, words, main, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    words = [word.replace("RUN", str(given.path)) for word in words]
    monkeypatch.setattr(sys, "argv", ["pipetrain", *words, *([str(given.path)] if words[0] == "eval" else [])])
    with pytest.raises(SystemExit, match="2"):
        main()
    assert "Python program" in (line := capsys.readouterr().err)
    assert "pipetrain." in line
    assert line.count("\n") == 1


def test_what_is_neither_words_nor_a_run_is_refused(tmp_path, run):
    assert_refused("must be a list of words", run, "method=pipedream")
    assert_refused("not a run directory", pipetrain.load, tmp_path)


def test_interrupted_run_is_the_last_of_its_sweep(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        pipetrain.sweep(["seed=0,1", *SIMULATED], path=tmp_path / "sweep", **objects(loss=Interrupting(1)))
    assert len(list((tmp_path / "sweep").iterdir())) <= 1
