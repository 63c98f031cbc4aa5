"""Every subcommand answers wrong input in one line, with exit code 2, and leaves no file behind."""

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
run model=lenet5 model.strict=maybe
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


@pytest.mark.parametrize("line", every(6, WRONG.splitlines()))
def test_wrong_input_is_answered_in_one_line(line, tmp_path, monkeypatch, capfd):
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
    assert sorted(tmp_path.rglob("*")) == before
