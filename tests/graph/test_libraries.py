"""Models of torchvision, timm and transformers: cut along their graphs, as plain as ever, equal bits everywhere."""

from dataclasses import replace
from importlib.util import find_spec

import pytest
import torch
from support import library_models
from support.equal_bits import PARTS
from support.methods import DISTINCT
from support.worker_pool import distributed, job, plan_of, settings, simulated

from pipetrain.runner.partition.rules import Even
from pipetrain.runner.partition.run_plan import make_plan
from pipetrain.runner.tracking.run_directory import RunDirectory
from pipetrain.runner.training.components.data import build_data
from pipetrain.runner.training.components.model import build_model

NAMES = [name for name in library_models.MODELS if find_spec(name.split("/")[0])]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("rest", PARTS)
def test_library_models_have_equal_bits_on_two_stages(tmp_path, capsys, rest):
    """Methods take turns; no two models of the slow tests have the same one."""
    jobs, rows = [], []
    for k, name in enumerate(NAMES):
        turn, at = divmod(k, len(DISTINCT))
        if ((k + turn) % 3 != 0) != rest:
            continue
        method = DISTINCT[at]
        made, layers, difference = prepared(tmp_path / name, name, method)
        jobs.append(made)
        rows.append([name, method, layers - 1, difference])
    ran = distributed(jobs)
    for row, made, theirs in zip(rows, jobs, ran, strict=True):
        ours = simulated(replace(made, run=RunDirectory(made.run.path / "simulated")))
        row.append(all(ours[bits] == theirs[bits] for bits in ("weights_sha256", "loss_sha256")))
    with capsys.disabled():
        print(f"\n{'model':50} {'method':16} {'cuts':>4}  {'difference':>10}  equal bits")
        for name, method, cuts, difference, equal in rows:
            print(f"{name:50} {method:16} {cuts:4}  {difference:10.1e}  {'yes' if equal else 'NO'}")
    assert rest or len({method for _, method, *_ in rows}) == len(rows)
    assert len(NAMES) >= 20 or len(NAMES) < len(library_models.MODELS)
    assert all(equal and cuts >= 4 and difference == 0 for _, _, cuts, difference, equal in rows)


def prepared(run, name, method):
    """The job of three steps on two stages, the layers of the model, and how far it is from the plain one's outputs."""
    words = "LM" in name
    sections = {
        "model": {"_target_": "support.library_models.build", "name": name},
        "dataset": {"_target_": "support.library_models.data", "name": name},
        "loss": {"_target_": f"pipetrain.engine.losses.{'TokenCrossEntropy' if words else 'CrossEntropy'}"},
        "train": {"epochs": 1, "batch_size": 4, "microbatches": 2},
    }
    chosen = settings(method, **sections)
    data = build_data(chosen)
    chain = build_model(chosen, data.dataset)
    stages = make_plan(chain, Even(2), data.example).stages
    made = job(run, method, 2, **sections)
    bounds = [(stage.first, stage.last) for stage in stages]
    return replace(made, plan=plan_of(bounds)), len(chain), difference(name, chain, data)


@torch.no_grad()
def difference(name, chain, data):
    """The largest one between logits of the chain and of a plain model with its weights, in evaluation."""
    plain = library_models.build(name).eval()
    plain.load_state_dict(chain.module.state_dict())
    for layer in chain.layers:
        layer.eval()
    inputs = data.example
    names = ("input_ids", "attention_mask") if len(inputs) > 1 else None
    outputs = plain(**dict(zip(names, inputs, strict=True))) if names else plain(*inputs)
    logits = outputs if isinstance(outputs, torch.Tensor) else outputs.logits
    return (chain(*inputs) - logits).abs().max().item()
