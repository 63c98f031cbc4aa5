"""What each method declares, which optimizers it refuses, and how its configuration is found."""

import math
from dataclasses import replace

import pytest
import torch
from support.methods import ASYNCHRONOUS, METHODS, SYNCHRONOUS
from torch import nn

from pipetrain.errors import ConfigError
from pipetrain.executors.phase import PipelineRules
from pipetrain.methods import Method
from pipetrain.methods.i_timeprest import ITiMePReSt
from pipetrain.methods.pipedream import PipeDream
from pipetrain.methods.pipemare import PipeMare
from pipetrain.methods.pipeoptim import PipeOptim
from pipetrain.methods.spectrain import SpecTrain
from pipetrain.methods.stale import Stale
from pipetrain.program.recomputation import RecomputeSegments
from pipetrain.program.weight_reads import Moment, StageContext, WeightRead
from pipetrain.schedules.base import Family
from pipetrain.schedules.operation import Kind, backward, forward
from pipetrain.schedules.pipelined_backprop import PipelinedBackprop
from pipetrain.weights.transforms import Corrected, Predicted, Scaled

FAMILIES = {
    Family.SYNCHRONOUS: SYNCHRONOUS,
    Family.DOUBLE_BUFFERED: ("pipedream_2bw",),
    Family.WHOLE_BACKWARD: ("timeprest", "v_timeprest", "i_timeprest"),
}
PLACE = StageContext(stage=1, num_stages=4, num_microbatches=1, delay=2, entry_delay=3)
MOMENT = Moment(PLACE, forward(4), newest=2, entry=1, updates_until_backward=2, minibatch_of_run=4)
LATER = Moment(PLACE, backward(4), newest=4, entry=1, updates_until_backward=2, minibatch_of_run=4)


@pytest.mark.parametrize(
    ("rule", "in_forward", "in_backward"),
    [
        ("naive_async", WeightRead(2), WeightRead(4)),
        ("pipedream", WeightRead(2), WeightRead(2)),
        ("vertical_sync", WeightRead(1), WeightRead(1)),
        ("pipeoptim", WeightRead(2, Predicted(2)), WeightRead(4)),
        ("pipedream_2bw", WeightRead(3), WeightRead(3)),
        ("spectrain", WeightRead(2, Predicted(2)), WeightRead(4)),
        ("stale", WeightRead(2), WeightRead(4)),
        ("pipemare_plain", WeightRead(2), WeightRead(4)),
        ("pipemare_t1", WeightRead(2), WeightRead(4)),
        ("pipemare_t2", WeightRead(2), WeightRead(4, Corrected(5))),
        ("pipemare", WeightRead(2), WeightRead(4, Corrected(5))),
        ("timeprest", WeightRead(1), WeightRead(4)),
        ("v_timeprest", WeightRead(2), WeightRead(4)),
        ("i_timeprest", WeightRead(2), WeightRead(2, Scaled(2 - math.exp(0.05 * 2)))),
    ],
)
def test_method_reads_the_versions_of_its_formula_at_one_moment(rule, in_forward, in_backward):
    method = METHODS[rule][0]
    read = method.forward(MOMENT)
    assert read == in_forward
    assert method.backward(LATER, read) == in_backward


@pytest.mark.parametrize(
    ("rule", "in_recomputation"),
    [
        *((rule, WeightRead(4)) for rule in ("gpipe", "naive_async", "pipeoptim", "stale", "timeprest", "v_timeprest")),
        ("pipedream", WeightRead(2)),
        ("vertical_sync", WeightRead(1)),
        ("pipedream_2bw", WeightRead(3)),
        ("spectrain", WeightRead(4)),
        ("pipemare_plain", WeightRead(4)),
        ("pipemare", WeightRead(4, Corrected(5))),
        ("i_timeprest", WeightRead(2)),
    ],
)
def test_recomputation_just_before_the_backward_reads_what_the_backward_does(rule, in_recomputation):
    method = METHODS[rule][0]
    again = replace(LATER, operation=LATER.operation.like(Kind.RECOMPUTATION))
    assert method.recomputation(again, method.forward(MOMENT)) == in_recomputation


@pytest.mark.parametrize(
    ("lead", "N", "corrected"), [(0, 1, 5), (2, 1, 3), (4, 1, 1), (0, 2, 3), (2, 2, 2), (4, 2, 1), (4, 5, None)]
)
def test_recomputation_ahead_of_its_backward_is_corrected_by_fewer_steps(lead, N, corrected):
    context = replace(PLACE, num_microbatches=N)
    moment = Moment(
        context, forward(4).like(Kind.RECOMPUTATION), 3, 1, updates_until_backward=2, minibatch_of_run=4, lead=lead
    )
    assert PipeMare().recomputation(moment, WeightRead(2)) == WeightRead(3, Corrected(corrected) if corrected else None)


@pytest.mark.parametrize(("stage", "ahead"), [(0, 0), (1, 0), (2, 1), (3, 1), (4, 2), (7, 3)])
def test_spectrain_predicts_half_the_stage_further_than_pipeoptim(stage, ahead):
    context = replace(PLACE, stage=stage, num_stages=8)
    there, back = replace(MOMENT, context=context), replace(LATER, context=context)
    assert SpecTrain().forward(there) == WeightRead(2, Predicted(ahead + 2))
    assert SpecTrain().backward(back, WeightRead(2)) == WeightRead(4, Predicted(ahead) if ahead else None)
    assert SpecTrain().recomputation(back, WeightRead(2)) == SpecTrain().backward(back, WeightRead(2))


@pytest.mark.parametrize(
    ("update", "scale"), [(0, 1 / 5), (1, 5 ** -(6 / 7)), (3, 5 ** -(4 / 7)), (6, 5 ** -(1 / 7)), (7, 1.0), (99, 1.0)]
)
def test_t1_divides_the_learning_rate_by_a_power_of_the_delay_that_fades(update, scale):
    assert PipeMare(anneal_steps=7).learning_rate_scale(PLACE, update) == pytest.approx(scale)
    assert PipeMare(t1=False, anneal_steps=7).learning_rate_scale(PLACE, update) == 1.0


@pytest.mark.parametrize("N", [1, 2, 4])
def test_average_of_t2_decays_by_its_setting_over_one_delay(N):
    context = replace(PLACE, num_microbatches=N)
    tau = math.ceil(5 / N)
    assert PipeMare(decay=0.1).statistic(context, {}).decay ** tau == pytest.approx(0.1)
    assert PipeMare(t2=False).statistic(context, {}) is None


def test_stale_has_a_learning_rate_for_each_stage():
    places = [replace(PLACE, stage=r) for r in range(4)]
    assert [Stale([0.5, 1, 2, 0.1]).learning_rate_scale(context, 3) for context in places] == [0.5, 1.0, 2.0, 0.1]
    assert [Stale().learning_rate_scale(context, 3) for context in places] == [1.0] * 4


def test_i_timeprest_says_how_much_it_changes_and_warns_where_that_is_much():
    contexts = [StageContext(r, 4, 1, 3 - r, 3) for r in range(4)]
    (line,) = ITiMePReSt(0.1).notes(contexts)
    assert "method.staleness_decay=0.1" in line
    assert "0.6501" in line
    assert "warning" not in line
    (_, warning) = ITiMePReSt(0.2).notes(contexts)
    assert warning.startswith("warning")
    assert "0.1779" in warning


def test_readings_print_the_version_and_what_is_made_of_it():
    made = [None, Predicted(3), Corrected(2), Scaled(0.75)]
    assert [str(WeightRead(1, transform)) for transform in made] == ["v1", "v1+3", "v1-2δ", "v1*0.75"]


@pytest.mark.parametrize("rule", METHODS)
def test_method_and_its_default_schedule_are_of_one_family(rule):
    method, schedule = METHODS[rule]
    assert isinstance(method, Method)
    assert method.family is schedule.family
    assert method.family is next((each for each, rules in FAMILIES.items() if rule in rules), Family.CONTINUOUS)


def test_method_and_schedule_names_are_those_of_the_configuration():
    own = {"naive_async", "pipedream", "pipeoptim", "pipedream_2bw", "spectrain", "stale", "pipemare"}
    own |= {"timeprest", "v_timeprest", "i_timeprest"}
    assert {method.name for method, _ in METHODS.values()} == {*own, "synchronous"}
    schedules = {"sequential", "gpipe", "1f1b_flush", "1f1b", "1f1b_2bw", "pipelined_backprop", "pipemare", "nf1b"}
    assert {schedule.name for _, schedule in METHODS.values()} == schedules


def test_vertical_sync_is_off_by_default():
    assert not PipeDream().vertical_sync


def parameters():
    return [nn.Parameter(torch.ones(2))]


@pytest.mark.parametrize(
    "optimizer",
    [
        torch.optim.SGD(parameters(), lr=0.1),
        torch.optim.SGD(parameters(), lr=0.1, momentum=0.9),
        torch.optim.Adam(parameters()),
        torch.optim.AdamW(parameters()),
        torch.optim.SGD(parameters(), lr=0.1, momentum=0.9, nesterov=True),
        torch.optim.NAdam(parameters()),
        torch.optim.RMSprop(parameters(), momentum=0.9, centered=True),
        torch.optim.Adagrad(parameters()),
    ],
)
def test_pipeoptim_takes_optimizers_that_have_a_prediction_rule(optimizer):
    PipeOptim().check_optimizer(optimizer)


@pytest.mark.parametrize(
    ("optimizer", "named"),
    [
        (torch.optim.Rprop(parameters()), "Rprop"),
        (torch.optim.Adamax(parameters()), "Adamax"),
        (torch.optim.Adadelta(parameters()), "Adadelta"),
        (torch.optim.Adam(parameters(), amsgrad=True), "amsgrad"),
        (torch.optim.AdamW(parameters(), amsgrad=True), "amsgrad"),
        (torch.optim.SGD(parameters(), lr=0.1, maximize=True), "maximize"),
    ],
)
def test_pipeoptim_refuses_others_naming_those_that_have_a_rule(optimizer, named):
    with pytest.raises(ConfigError) as caught:
        PipeOptim().check_optimizer(optimizer)
    message = str(caught.value)
    assert all(word in message for word in (named, "SGD", "Adam", "AdamW", "NAdam", "RMSprop", "Adagrad"))
    assert "\n" not in message


PREDICTING = {"pipeoptim", "pipeoptim_backprop", "spectrain", "spectrain_depth"}


@pytest.mark.parametrize("rule", sorted({*SYNCHRONOUS, *ASYNCHRONOUS} - PREDICTING))
def test_methods_that_predict_nothing_take_any_optimizer(rule):
    METHODS[rule][0].check_optimizer(torch.optim.Rprop(parameters()))


def test_spectrain_takes_momentum_whatever_its_size():
    SpecTrain().check_optimizer(torch.optim.SGD(parameters(), lr=0.1, momentum=0.5, weight_decay=0.1))


@pytest.mark.parametrize(
    ("optimizer", "named"),
    [
        (torch.optim.Adam(parameters()), "Adam"),
        (torch.optim.RMSprop(parameters(), momentum=0.9), "RMSprop"),
        (torch.optim.SGD(parameters(), lr=0.1), "momentum=0"),
        (torch.optim.SGD(parameters(), lr=0.1, momentum=0.9, nesterov=True), "nesterov"),
        (torch.optim.SGD(parameters(), lr=0.1, momentum=0.9, maximize=True), "SGD"),
    ],
)
def test_spectrain_refuses_other_optimizers_naming_what_works(optimizer, named):
    with pytest.raises(ConfigError) as caught:
        SpecTrain().check_optimizer(optimizer)
    message = str(caught.value)
    assert all(word in message for word in ("method=spectrain", named, "optimizer=sgdm", "method=pipeoptim"))
    assert "\n" not in message


# -- settings that cannot be -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "named"),
    [
        *((lambda value=value: PipeMare(decay=value), "method.decay") for value in (0, 1, -0.5, 1.5, "half", None)),
        *(
            (lambda value=value: PipeMare(anneal_steps=value), "method.anneal_steps")
            for value in (0, -3, 2.5, "7", True)
        ),
        *((lambda value=value: ITiMePReSt(value), "method.staleness_decay") for value in (0, -0.1, "0.1", math.nan)),
        *((lambda value=value: Stale(value), "method.stage_lr_scale") for value in ([1.0, 0.0], [-1], ["1"], [None])),
    ],
)
def test_setting_out_of_its_range_is_refused_by_name(make, named):
    with pytest.raises(ConfigError, match=named.replace(".", r"\.")) as caught:
        make()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("scales", [[], [1.0], [1.0, 1.0, 1.0]])
def test_stale_with_another_number_of_scales_than_stages_is_refused(scales):
    with pytest.raises(ConfigError, match=rf"stage_lr_scale.*has {len(scales)} scales for 2 stages"):
        PipelineRules(PipelinedBackprop(), Stale(scales), 2, 1)
    PipelineRules(PipelinedBackprop(), Stale([1.0, 0.5]), 2, 1)


def test_1f1b_2bw_with_fewer_microbatches_than_stages_is_refused_by_the_rules():
    method, schedule = METHODS["pipedream_2bw"]
    with pytest.raises(ConfigError, match=r"train\.microbatches=2 .*partition\.stages=3"):
        PipelineRules(schedule, method, 3, 2)
    PipelineRules(schedule, method, 3, 3)


@pytest.mark.parametrize("rule", ["pipedream", "v_timeprest", "pipedream_2bw"])
def test_segments_that_do_not_fit_a_schedule_are_refused_with_others_that_work(rule):
    method, schedule = METHODS[rule]
    with pytest.raises(ConfigError, match=r"train\.recompute_boundaries: stage . .* leaves \d .*pipelined_backprop"):
        PipelineRules(schedule, method, 4, 4, RecomputeSegments((0,), 4))
    PipelineRules(schedule, method, 4, 4, RecomputeSegments.of_single_stages(4))


@pytest.mark.parametrize("rule", ["pipemare", "stale", "gpipe", "pipedream_flush", "sequential"])
def test_segments_fit_schedules_with_enough_in_flight_or_one_version(rule):
    method, schedule = METHODS[rule]
    for firsts in ((0,), (0, 2), (0, 1)):
        PipelineRules(schedule, method, 4, 4, RecomputeSegments(firsts, 4)).lists(3)
