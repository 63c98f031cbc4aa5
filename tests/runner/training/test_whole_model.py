"""The metrics that a data set takes of the whole model."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from support import small_model, tied_model
from support.refusals import assert_refused
from support.worker_pool import distributed, job, plan_of, settings, simulated
from torch import nn

from pipetrain.data.decoding import DecodingOptions, MetricValue
from pipetrain.engine.errors import ConfigError
from pipetrain.engine.executors.admission_gate import BrokenOffError
from pipetrain.engine.executors.hooks import RunHooks
from pipetrain.engine.models.chain import LayerChain
from pipetrain.runner.tracking.stored_settings import parse_overrides
from pipetrain.runner.training.checkpoint import store
from pipetrain.runner.training.checkpoint.store import Selection
from pipetrain.runner.training.finished.evaluate import evaluate
from pipetrain.runner.training.whole_model import WholeModelMetrics, assemble, whole_model_metrics
from pipetrain.zoo.data.images.common import ImageDataset


class Decoding:
    """Measures with a function of the model and the options."""

    def __init__(self, measure, problem=None, metrics=("bleu",)):
        self.measure = measure
        self.metrics = metrics
        self._problem = problem

    def problem(self, _model):
        return self._problem


def whole_metrics(measure, hooks=None, metrics=("bleu",)):
    made = WholeModelMetrics(small_model.build(1, 4), Decoding(measure, metrics=metrics), DecodingOptions())
    return made if hooks is None else replace(made, hooks=hooks)


def test_metrics_are_of_the_state_and_signatures_are_kept():
    def measure(model, _options):
        return {"bias": MetricValue(model.module.state_dict()["6.bias"].sum().item(), "summed"), "plain": 1}

    made = whole_metrics(measure, metrics=("bias", "plain"))
    state = {**small_model.build(1, 4).module.state_dict(), "6.bias": torch.full((4,), 2.0)}
    assert made.metrics_with(state) == {"bias": 8.0, "plain": 1.0}
    assert made.signatures == {"bias": "summed"}


def test_tied_weights_are_known_by_all_their_names():
    chain = tied_model.build(1, 4)
    dataset = SimpleNamespace(decoding=Decoding(lambda model, _: {"bleu": model.module.decoder.weight.sum().item()}))
    made = whole_model_metrics(settings("gpipe"), dataset, chain)
    state = {name: tensor for name, tensor in chain.module.state_dict().items() if name != "decoder.weight"}
    chain.module.encoder.linear._parameters["weight"] = torch.zeros(12, 64)
    assert made.metrics_with({**state, "encoder.linear.weight": torch.ones(12, 64)}) == {"bleu": 12 * 64}


def test_random_draws_of_a_data_set_repeat_and_disturb_nobody():
    made = whole_metrics(lambda _model, _options: {"bleu": torch.rand(()).item()})
    torch.manual_seed(1)
    expected = torch.rand(())
    torch.manual_seed(1)
    first = made.metrics(made.chain)
    assert torch.equal(torch.rand(()), expected)
    assert made.metrics(made.chain) == first


def test_torchmetrics_of_a_data_set_do_not_communicate_between_stages(monkeypatch):
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    made = whole_metrics(lambda *_: {"wer": torch.distributed.is_initialized()}, metrics=("wer",))
    assert made.metrics(made.chain) == {"wer": 0.0}


def test_decoding_shows_progress_and_stops_with_the_run():
    told, hooks = [], RunHooks(on_progress=lambda words: told.append(words))

    def measure(_model, options):
        for part in range(3):
            options.on_progress(f"part {part}")
            if part == 1:
                hooks.gate.end()
        return {"bleu": 1.0}

    with pytest.raises(BrokenOffError):
        whole_metrics(measure, hooks).metrics_with(small_model.build(1, 4).module.state_dict())
    assert told == ["assembling the model", "part 0", "part 1"]


def test_what_is_no_metrics_is_refused():
    with pytest.raises(ConfigError, match=r"decoding.measure` must return bleu by name, not a float"):
        whole_metrics(lambda _model, _options: 0.5).metrics(small_model.build(1, 4))
    with pytest.raises(ConfigError, match=r"decoding.measure` must return bleu by name, not meteor"):
        whole_metrics(lambda _model, _options: {"meteor": 0.5}).metrics(small_model.build(1, 4))
    assert_refused(r"its `decoding` is a SimpleNamespace without `measure`", made_for, SimpleNamespace())


def made_for(decoding, **changes):
    """The decoder of a tiny run whose data set has this decoding."""
    made = settings("gpipe", **changes)
    dataset = SimpleNamespace(decoding=decoding)
    return whole_model_metrics(made, dataset, small_model.build(1, 4))


def test_settings_of_a_run_become_options():
    made = made_for(
        Decoding(lambda *_: {}),
        eval={"beam_width": 3, "length_penalty": 0.6, "length_penalty_form": "gnmt", "batch_size": 7},
        dataset={"limit": 20},
    )
    assert made.options == DecodingOptions(3, 0.6, "gnmt", batch_size=7, limit=20)
    assert made.seed == 3


def test_nothing_decodes_where_it_is_switched_off_or_impossible():
    works = Decoding(lambda *_: {})
    assert made_for(works) is not None
    assert made_for(works, eval={"decode": False}) is None
    assert made_for(Decoding(lambda *_: {}, problem="no generator")) is None
    assert made_for(None) is None


def test_texts_are_kept_with_their_references():
    def measure(_model, options):
        options.on_texts(["a b", "c"], [["a b"], ["d", "e"]])
        return {"bleu": 1.0}

    texts, chain = [], small_model.build(1, 4)
    dataset = SimpleNamespace(decoding=Decoding(measure))
    whole_model_metrics(settings("gpipe"), dataset, chain, texts=texts).metrics(chain)
    assert texts == [("a b", ["a b"]), ("c", ["d", "e"])]


S2VT = {
    "model": {"_target_": "pipetrain.zoo.models.s2vt.build", "hidden": 24, "embedding": 12},
    "dataset": {
        "_target_": "pipetrain.zoo.data.video.moving_shapes.synthetic_moving_shapes",
        "train": 16,
        "eval": 6,
        "frames": 3,
        "size": 8,
    },
    "loss": {"_target_": "pipetrain.engine.losses.TokenCrossEntropy"},
    "optimizer": {"_target_": "torch.optim.Adam", "lr": 0.02},
    "train": {"epochs": 2, "batch_size": 6, "microbatches": 2},
    "eval": {"beam_width": 2},
}
BOUNDS = {2: [(0, 2), (2, 5)], 4: [(0, 1), (1, 2), (2, 4), (4, 5)]}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stages", "method", "ema"), [(2, "pipedream", None), (4, "pipeoptim", None), (2, "pipeoptim", 0.5)]
)
def test_s2vt_has_equal_bits_and_captions_in_runs_and_eval(tmp_path, stages, method, ema):
    def jobs(executor):
        made = [job(tmp_path / executor, method, stages, **{**S2VT, "train": {**S2VT["train"], "ema": ema}})]
        return [replace(each, plan=plan_of(BOUNDS[stages])) for each in made]

    alone = [simulated(each) for each in jobs("simulated")]
    together = distributed(made := jobs("distributed"))
    for one, other in zip(alone, together, strict=True):
        same = ("weights_sha256", "loss_sha256", "final", "best", "metric_signatures", "steps")
        assert {name: one[name] for name in same} == {name: other[name] for name in same}
        assert one["final"]["meteor"] > 0
        assert "beam:2|length_penalty:1|form:fairseq" in one["metric_signatures"]["meteor"]
    made[0].run.config.write_text(json.dumps(made[0].settings.stored))
    found = evaluate(Selection(made[0].run.path), parse_overrides(["device=cpu"]), trust=True)
    assert found.others == {"meteor": together[0]["final"]["meteor"]}
    assert found.signatures == together[0]["metric_signatures"]
    assert [len(references) for _, references in found.texts] == [3] * 6


def test_run_that_a_metric_ends_has_the_texts_of_its_last_evaluation(tmp_path):
    train = {**S2VT["train"], "epochs": 5, "patience": 1, "min_improvement": 1e6}
    changes = {**S2VT, "train": train, "eval": {**S2VT["eval"], "decode_every_epochs": 4}}
    found = simulated(run := replace(job(tmp_path, "gpipe", 2, **changes), plan=plan_of(BOUNDS[2])))
    assert found["epochs"] == 2
    assert "meteor" in found["final"]
    run.run.summary.unlink()
    again = simulated(replace(run, resume=store.newest_undamaged(str(tmp_path))))
    assert again["metric_signatures"] == found["metric_signatures"] != {}


def test_metric_of_which_less_is_better_keeps_and_continues_what_improves(tmp_path, monkeypatch):
    measured = iter([0.9, 0.5, 0.7, 0.8])
    errors = Decoding(lambda *_: {"wer": next(measured)}, metrics=("wer",))
    errors.lower_is_better = ("wer",)
    monkeypatch.setattr(ImageDataset, "decoding", errors, raising=False)
    train = {"epochs": 4, "patience": 2}
    keep = {"every_epochs": 1, "metric": "wer", "keep_best": 1}
    found = simulated(job(tmp_path, "gpipe", 2, train=train, checkpoint=keep))
    assert (found["epochs"], found["best"]["wer"], found["best_epoch"]["wer"]) == (4, 0.5, 2)
    assert found["lower_is_better"] == ["loss", "wer"]
    assert [store.step_of(kept) for kept in store.checkpoints(tmp_path)] == [found["best_step"]["wer"], found["steps"]]


@pytest.mark.parametrize("lower", ["bleu", ("cer",)])
def test_lower_is_better_of_unknown_metrics_is_refused(lower):
    decoding = Decoding(lambda *_: {})
    decoding.lower_is_better = lower
    assert_refused(r"`decoding.lower_is_better` is .* bleu", made_for, decoding)


CPU = torch.device("cpu")


def test_assembled_model_uses_state_and_leaves_chain_alone():
    torch.manual_seed(0)
    chain, other = small_model.build(1, 4), small_model.build(1, 4)
    before = {name: tensor.clone() for name, tensor in chain.module.state_dict().items()}
    whole = assemble(chain, other.module.state_dict(), CPU)
    for layer in other.layers:
        layer.eval()
    images = torch.randn(3, 1, 8, 8)
    with torch.no_grad():
        assert torch.equal(whole(images), other(images))
        assert not torch.equal(whole(images), chain(images))
    assert chain.module.training
    assert all(layer.training for layer in chain.layers)
    assert all(torch.equal(before[name], tensor) for name, tensor in chain.module.named_parameters())


def test_assembled_model_shares_tensors_of_the_state():
    chain = small_model.build(1, 4)
    state = small_model.build(1, 4).module.state_dict()
    held = assemble(chain, state, CPU).module.state_dict()
    assert {name: tensor.data_ptr() for name, tensor in held.items()} == {
        name: tensor.data_ptr() for name, tensor in state.items()
    }


def test_tied_weights_stay_tied_and_unsaved_buffers_are_kept():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = model[0].weight
    model[0].register_buffer("positions", torch.arange(3.0), persistent=False)
    state = {name: torch.ones_like(value) for name, value in model.state_dict().items()}
    state["1.weight"] = state["0.weight"]
    model[1]._parameters["weight"] = torch.zeros(3, 3)  # as a stage lends it
    whole = assemble(LayerChain(model, list(model)), state, CPU)
    assert whole.module[0].weight is whole.module[1].weight
    assert whole.module[1].weight.sum() == 9
    assert whole.layers[1] is whole.module[1]
    assert torch.equal(whole.module[0].positions, torch.arange(3.0))
