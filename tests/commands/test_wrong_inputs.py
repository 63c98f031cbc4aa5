"""Every subcommand answers wrong input in one line, with exit code 2, and leaves no file behind."""

import re
import shlex

import pytest
from support.quick_cases import every

from pipetrain import cli
from pipetrain.engine.errors import ExitCode

WRONG = """\
run partition.stages=2.5
run train.batch_size=100000 dataset.limit=64 model=lenet5
run experiment=null
run --multirun partition=2,4
run dataset=text_file dataset.path=/nonexistent.txt model=gpt
run model=lenet5 dataset=synthetic_images dataset.size=2
run executor=simulate
run train.precision=fp8
run resume=plain.txt
run partition=file partition.path=bad.json
run metrics.f1._target_=nolib.F1
run lr_schedule=step lr_schedule.gamma=x
run method=gpipe,pipedream model=lenet5
run hydra.run.dir=plain.txt model=lenet5 dataset.limit=64 train.max_steps=1
run hydra.sweep.dir="" --multirun seed=0,1
run hydra.run.dir=notes model=lenet5 dataset.limit=64 train.max_steps=1
run --cfg job --package nothing
run optimizer.lr=${oc.env:NOTHERE}
run optimizer.lr=${eval:1}
run =3
run --package train
run -cn other
run --multirun seed= model=lenet5
run --multirun optimizer=adam,nonsense model=lenet5
eval /nonexistent
eval plain.txt
eval empty --step few
export empty -o a.pt
export empty -o a.safetensors --format torch2
timeline partition.stages=two
timeline empty
timeline partition.stages=range(4,4)
profile profile=bad.json
profile model=lenet5 train.batch_size=0
plan profile=empty.json
plan profile=/nonexistent.json
plan --bogus
predict profile=bad.json
predict partition=4
predict method=glob(pipe_dream*)
compare method=glob(pipe_dream*)
predict profile=empty.json method=gpip
report
report runs empty
report runs /nonexistent
report distances
doctor --bogus
completion tcsh
list modles
list --config-dir /nonexistent
trian model=lenet5
"""
NAMED = r"""
run model=nope                                        model=nope: .*resnet20
run method=pipeoptim schedule=gpipe                   schedule=gpipe; .*schedule=1f1b.* method=.*gpipe
run dataset=cifar10 dataset.root=/nowhere             dataset.root=/nowhere.*dataset.download=true
run resume=/nowhere                                   resume=/nowhere: no such folder
run model=lenet5 partition.stages=8                   partition.stages=8.*7
run dataset=image_folder dataset.root=/nowhere        dataset.root=/nowhere
run partition=ppv partition.ppv=[20]                  partition.ppv=\[20\].* 1 and 19
run partition=explicit partition.boundaries=[3,3]     partition.boundaries=\[3, ?3\]
run optimizer=custom optimizer._target_=torch.optim.Rprop +optimizer.lr=1   Rprop .*SGD, Adam, AdamW
run optimizer=adam +optimizer.amsgrad=true            optimizer.amsgrad=true
run optimizer.lrr=1                                   optimizer.lrr
run train.epoch=1                                     train.epoch=1: no such setting; did you mean train.epochs
run model=lenet5 model.strict=maybe                   model.strict=maybe: true or false
run model=lenet5 model.weights=absent.pt              model.weights=absent.pt: No such file
run +optimizer.lrr=1                                  optimizer.*lrr
run model=custom                                      model._target_
run lr_schedule=multistep                             lr_schedule.milestones
run schedule.depth=0                                  schedule.depth=0
run method=gpipe schedule=interleaved_1f1b partition.stages=5               partition.stages=5: .* 2 stages .*=4 or 6
run method=gpipe schedule=interleaved_1f1b partition.stages=4 train.microbatches=1    train.microbatches=1: .*=2 works
run method=gpipe schedule=looped_bfs schedule.chunks=1                      schedule.chunks=1: .* 2, as schedule=gpipe
run method=pipedream schedule=1f1b_v partition.stages=3                 partition.stages=3: .*partition.stages=2 or 4
run method=pipedream schedule=zb_v partition.stages=4                       schedule=zb_v; use schedule=1f1b,
run method=gpipe schedule=zb_v partition.stages=4 partition.replicas=[2,2,2,2]   partition.replicas=\[2.*: schedule=zb_v
run dataset.workers=50000                             dataset.workers=50000: must be at most \d+
run train.target=66                                   train.target=66.*top1
run log.every_steps=0                                 log.every_steps=0
run +hydra.run.dri=here                               hydra.run.dri: no such setting
run dataset.limit=32 train.batch_size=64              train.batch_size=64: .* 32 .*dataset.limit=32
"""
"""Words, and what the error names: the setting, its value and what would work."""


@pytest.mark.parametrize("line", every(6, [*WRONG.splitlines(), *NAMED.strip().splitlines()]))
def test_wrong_input_is_answered_in_one_line(line, tmp_path, monkeypatch, capfd):
    line, _, named = line.partition("   ")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    for name, text in (("plain.txt", "text\n"), ("bad.json", "{"), ("empty.json", "{}")):
        (tmp_path / name).write_text(text)
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "config.yaml").write_text("title: notes\n")
    before = sorted(tmp_path.rglob("*"))
    try:
        code = cli.carry_out(shlex.split(line))
    except SystemExit as end:
        code = end.code
    said = capfd.readouterr()
    assert (code, said.out, said.err.count("\n")) == (ExitCode.WRONG_USAGE, "", 1), said
    assert said.err.startswith("pipetrain: error: ")
    assert re.search(named.strip(), said.err), said.err
    assert sorted(tmp_path.rglob("*")) == before
