"""The messages that users meet most, in full; everywhere else a test looks for the setting that a message names."""

import shlex

import pytest
from support.cli import refused
from support.quick_cases import every

MESSAGES = """\
run train.epoch=1
    train.epoch=1: no such setting; did you mean train.epochs?
run method=pipedreem
    method=pipedreem: no such method; did you mean pipedream?
run loss=mse
    loss=mse: no such loss; choose from cross_entropy, custom, token_cross_entropy
run optimizer.lrr=1
    optimizer.lrr=1: no such setting; did you mean optimizer.lr?
run optimizer.lr=fast
    optimizer.lr=fast: must be a number above 0
run seed=-1
    seed=-1: must be in [0, 2**63)
run gpipe
    gpipe: must be NAME=VALUE; did you mean schedule=gpipe or method=gpipe?
run train.batch_size=10 train.microbatches=3
    train.batch_size=10: must be a multiple of train.microbatches=3
run eval.every_epochs=0 train.patience=2
    train.patience=2: needs evaluations, but eval.every_epochs=0; set it to 1 or more
run model=custom
    model._target_ is not set; name your function or class: model._target_=mylib.Thing
run train.precision=fp8
    train.precision=fp8: must be one of fp32, bf16, fp16
run executor=simulate
    executor=simulate: no such executor; did you mean simulated?
run method=gpipe schedule=interleaved_1f1b partition.stages=5
    partition.stages=5: schedule=interleaved_1f1b places 2 stages in each process; partition.stages=4 or 6 works
run model=lenet5 partition.stages=8
    partition.stages=8: the model has 7 layers; at most 7 stages
run model=lenet5 partition=explicit partition.boundaries=[3,3]
    partition.boundaries=[3, 3]: must increase, such as [3]
run model=lenet5 dataset.limit=32 train.batch_size=64
    train.batch_size=64: more than the 32 samples of an epoch, with dataset.limit=32
run model=lenet5 model.weights=absent.pt
    model.weights=absent.pt: No such file or directory
run dataset=text_file dataset.path=book.txt model=gpt
    dataset.path=book.txt: there is no file FOLDER/book.txt; name a text file, plain or .gz
run resume=outputs/mine
    resume=outputs/mine: no such folder; name a run directory or a checkpoint in one, or write auto
eval outputs/mine
    outputs/mine: not a run directory (it has no config.yaml)
export empty -o a.pt
    empty: no checkpoint here; a run directory has checkpoints/step-XXXXXXXX/
timeline partition.stages=two
    partition.stages=two: must be a whole number of at least 1
report runs empty
    empty: no runs here; name the folder of a sweep or run
plan profile=profile.json
    profile=profile.json: cannot be read: No such file or directory; `pipetrain profile` writes one
list modles
    pipetrain list modles: no such list; did you mean models?
"""
"""Command lines, each with its message in the line below; FOLDER is the working directory."""


@pytest.mark.parametrize(("line", "message"), every(4, zip(*[iter(MESSAGES.splitlines())] * 2, strict=True)))
def test_message_is_one_plain_line(line, message, tmp_path):
    (tmp_path / "empty").mkdir()
    message = message.strip().replace("FOLDER", str(tmp_path))
    refused(*shlex.split(line), cwd=tmp_path, message=f"pipetrain: error: {message}\n")
