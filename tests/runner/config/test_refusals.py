"""Wrong settings are refused in one line that begins with the setting, before model and data are built."""

import shlex

import pytest
from omegaconf import OmegaConf
from support.methods import MethodCase
from support.worker_pool import CONFIG

from pipetrain.engine.errors import ConfigError
from pipetrain.runner.config.composition import composed, settings_of
from pipetrain.runner.config.hydra_errors import CONFIGURATION_ERRORS
from pipetrain.runner.terminal.error_line import message

BASE = OmegaConf.create({**CONFIG, **MethodCase.named("gpipe").sections()})


def checked(*words):
    """The settings of a tiny run with `words` such as `threads=1`, which Hydra does not read."""
    dotlist = [word.replace(":", ": ") for word in words]  # as YAML wants it
    return settings_of(OmegaConf.merge(BASE, OmegaConf.from_dotlist(dotlist)), {})


def refusal(read, words):
    """The message for these words."""
    with pytest.raises((ConfigError, *CONFIGURATION_ERRORS)) as caught:
        read(*words)
    said = message(caught.value)
    assert "\n" not in said
    return said


VALUES = """\
train.epochs=0
train.max_steps=0
train.ema=1
train.ema=0
averaging.average=momentum
averaging.share=0
averaging.share=1.1
averaging.delay=-1
averaging.correction=half
averaging.strength=-1
averaging.decay=1
averaging.rise_after=-1
train.patience=0
train.min_improvement=-1
train.min_improvement=0.5
train.batch_size=10 train.microbatches=3 -> train.batch_size=10: must be a multiple of train.microbatches=3
train.target=66
train.target={}
train.target={top1:.nan}
train.target={top1:high}
eval.every_epochs=0 train.target={top1:66}
eval.every_epochs=0 train.patience=2
eval.every_epochs=0 checkpoint.keep_best=2
eval.every_epochs=-1
eval.batch_size=0
eval.beam_width=0
eval.decode_every_epochs=0
eval.length_penalty=-1
eval.length_penalty_form=wu
planner.cost_model=ring
planner.repeats=0
planner.objective=cost
topology.devices=0
checkpoint.every_epochs=-1
checkpoint.every_steps=0
checkpoint.every_minutes=0
checkpoint.keep_last=0
checkpoint.keep_best=0
threads=0
seed=-1
seed=9223372036854775808
executor.name=cloud
device=tpu
partition.stages=0
partition.replicas=[2,0]
dataset.limit=0
dataset.shuffle=3
dataset.workers=-1
dataset.prefetch=0
dataset.prefetch=3
dataset.pin_memory=2
dataset.input_key=text
dataset.target_key=7
dataset.target_key=[]
model.strict=false
model.weights=7
metrics.loss._target_=mylib.F1 -> metrics.loss
metrics.f1=3
metrics=3
callbacks=3
callbacks=mylib.Mine
callbacks=[mylib.Mine] -> callbacks
callbacks=[{option:3}] -> callbacks
log.to=wandb
log.to=null
log.to=[tensorbord]
log.to=[wandb,3]
log.to=[wandb,wandb]
log.to=[cvs]
log.every_steps=0
log.progress_seconds=nan
launch.hang_timeout=nan
launch.hang_timeout=0
launch.start_timeout=0
optimizer.lr=0
optimizer.lr=nan
optimizer.lr=inf
optimizer.lr=fast
optimizer.clip_norm=0
optimizer.clip_norm=true
optimizer.error_feedback=0
optimizer.lr_by_delay=0
optimizer.momentum_by_stage=0.9
optimizer.momentum_by_stage=[0.9]
optimizer.momentum_by_stage=[a,b]
optimizer.momentum_by_stage=[0.9,1.0]
optimizer.momentum_by_stage=[0,0.9]
optimizer.momentum=1.5
optimizer.momentum=-0.1
optimizer.dampening=2
optimizer.weight_decay=-1
optimizer.eps=-1e-8
optimizer.betas=0.9
optimizer.betas=[0.9]
optimizer.betas=[0.9,1.0]
optimizer.nesterov=3
optimizer.groups={max_dims:1}
optimizer.groups=[bias] -> optimizer.groups[0]=bias
optimizer.groups=[{max_dims:1},{weight_decay:0}] -> optimizer.groups[1]=
optimizer.groups=[{match:null,weight_decay:0}] -> optimizer.groups[0]=
optimizer.groups=[{match:[]}] -> optimizer.groups[0].match=[]
optimizer.groups=[{match:[3]}] -> optimizer.groups[0].match=[3]
optimizer.groups=[{max_dims:-1}] -> optimizer.groups[0].max_dims=-1
optimizer.groups=[{max_dims:1.0}] -> optimizer.groups[0].max_dims=1.0
optimizer.groups=[{max_dims:1,lr_scale:-1}] -> optimizer.groups[0].lr_scale=-1
optimizer.groups=[{max_dims:1,lr_scale:null}] -> optimizer.groups[0].lr_scale=null
optimizer.groups=[{max_dims:1,weight_decay:no}] -> optimizer.groups[0].weight_decay=
optimizer.groups=[{max_dims:1,nesterov:1}] -> optimizer.groups[0].nesterov=1
train.eopchs=3 -> train.eopchs=3: no such setting; did you mean train.epochs?
trian.epochs=3 -> trian.epochs=3: no such setting; did you mean train.epochs?
pace=3 -> pace=3: no such setting
phases=gpipe
phases=[]
phases=[gpipe] -> phases[0]=gpipe
phases=[{epoch:2}] -> phases[0]=
phases=[{steps:2},{steps:0}] -> phases[1].steps=0
phases=[{epochs:1.5}] -> phases[0].epochs=1.5
phases=[{steps:true}] -> phases[0].steps=true
phases=[{steps:"3"}] -> phases[0].steps=3
phases=[{steps:2,epochs:1}] -> phases[0]: set either steps=2 or epochs=1
phases=[{steps:2},{},{epochs:1}] -> phases[1]: needs steps or epochs
phases=[{schedule:gpip}] -> phases[0].schedule=gpip: no such schedule; did you mean gpipe?
phases=[{method:{name:pipemar}}] -> phases[0].method=pipemar: no such method; did you mean pipemare
phases=[{method:adagrad}] -> phases[0].method=adagrad: no such method; choose from asp,
phases=[{method:../schedule/gpipe}] -> phases[0].method=../schedule/gpipe: no such method
phases=[{method:[stale]}] -> phases[0].method=
phases=[{method:{decay:0.1}}] -> phases[0].method=
"""


def rows(table):
    return [pytest.param(*line.partition(" -> ")[::2], id=line) for line in table.splitlines()]


@pytest.mark.parametrize(("line", "named"), rows(VALUES))
def test_value_that_cannot_work_is_refused_by_name(line, named):
    words = line.split(" ")
    assert refusal(checked, words).startswith(named or f"{words[-1].partition('=')[0]}=")


COMMANDS = """\
lr=0.1 -> lr=0.1: no such setting; did you mean optimizer.lr?
++lr=0.1 -> lr=0.1: no such setting; did you mean optimizer.lr?
+methd=gpipe -> methd=gpipe: no such setting; did you mean method?
~nope -> nope: no such setting
~lr_schedule
~train
~train.epochs=10 -> ~train.epochs
method=pipoptim -> method=pipoptim: no such method; did you mean pipeoptim?
method=[gpipe] -> method=
loss=mse -> loss=mse: no such loss; choose from cross_entropy, custom, token_cross_entropy
partition=4 -> partition=4: no such partition; did you mean partition.stages=4?
experiment=multi30 -> experiment=multi30: no such experiment; did you mean multi30k?
experiment=none -> experiment=none: no such experiment
hydra/launcher=ray
hydra.run.dir=
hydra.output_subdir=here
train.epochs -> train.epochs: must be NAME=VALUE
gpipe -> gpipe: must be NAME=VALUE; did you mean schedule=gpipe or method=gpipe?
'train.target={top1:' -> train.target=
train.epochs=abc
launch.hang_timeout=soon
train.epochs=null
trace=maybe
train=3 -> train=3: train is a section of settings, such as train.
messages=int8 -> messages=int8: messages is a section of settings, such as messages.activations=...
topology.workers=4
seed.x=1
optimizer=sgdm,adam -> Ambiguous value for argument 'optimizer=sgdm,adam'
+seed=1 -> Could not append to config. An item is already at 'seed'.
+model=lenet5 -> Multiple values for model.
seed=${nope} -> seed:
seed=${oc.env:NOPE} -> seed:
model=resnet20 dataset=austen -> model=resnet20 dataset=austen: the model is for image classification, the data set
model=gpt dataset=multi30k -> model=gpt dataset=multi30k: the model is for language modeling, the data set for transl
method=pipemare_w +method.decya=3 -> method.decya=3: no phase reads it; did you mean method.decay?
method=pipemare_w +method.scale=3 -> method.scale=3: no phase reads it; choose from method.warm_up_epochs, method.t1,
method=pipemare method.decay=0.1 phases=[{schedule:gpipe,method:gpipe,epochs:1},{method:pipemare}] -> method.decay=0.1
+optimizer.momentun=0.3 -> optimizer.momentun=0.3: torch.optim.SGD has no such parameter; did you mean optimizer.mom
+schedule.dept=3 -> schedule.dept=3: pipetrain.engine.schedules.one_f_one_b.OneFOneB has no such parameter
phases=[{method:{name:stale,scale:2}}] -> phases[0]: method.scale=2: pipetrain.engine.methods.stale.Stale has no such
"""


@pytest.mark.parametrize(("line", "named"), rows(COMMANDS))
def test_command_line_that_cannot_work_is_refused_by_name(line, named):
    words = shlex.split(line)
    said = refusal(lambda *given: composed(given).check_targets(), words)
    assert said.startswith(named or f"{line}: ")


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("train: {eopchs: 3}", "experiment/mine.yaml: train.eopchs: no such setting; did you mean train.epochs?"),
        ("train: {epochs: many}", "experiment/mine.yaml: train.epochs: "),
        ("defaults: [override /methd: lwp]", "experiment/mine.yaml: methd: no such setting; did you mean method?"),
        ("train: [1", "mine.yaml, line 3: expected ',' or ']', but got '<stream end>'"),
    ],
)
def test_refusal_of_a_users_file_names_it(tmp_path, text, named):
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text(f"# @package _global_\n{text}\n")
    assert named in refusal(
        lambda *given: composed(given), ["experiment=mine", f"hydra.searchpath=[file://{tmp_path}]"]
    )


def test_missing_setting_is_named_with_what_gives_it():
    def resolved(*_):
        OmegaConf.to_container(OmegaConf.create({"model": {"_target_": "???"}}), throw_on_missing=True)

    assert refusal(resolved, []) == "model._target_ is not set; name your function or class: model._target_=mylib.Thing"


@pytest.mark.parametrize(
    "words",
    [
        ["model=residual_lstm", "dataset=imdb"],
        ["model=lenet5", "dataset=austen", "dataset._target_=mine.images"],
        ["model=custom", "model._target_=mine.model", "dataset=austen", "~optimizer.momentum"],
    ],
)
def test_model_and_data_set_of_one_task_or_of_a_users_own_pass(words):
    assert composed(words).train.epochs


def test_settings_at_their_least_are_taken():
    words = ["train.epochs=1", "eval.every_epochs=1", "checkpoint.every_epochs=0", "threads=1", "train.max_steps=1"]
    assert checked("eval.every_epochs=0").eval.every_epochs == 0
    assert checked(*words, "train.target={loss: 2, top1: 60.5}").train.target == {"loss": 2, "top1": 60.5}
