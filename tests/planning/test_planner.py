"""The plans that settings ask for, and what is wrong with settings that no plan fits."""

import re
from contextlib import suppress
from dataclasses import replace
from itertools import combinations
from math import prod

import pytest
from support.plans import cells, chain, layer
from support.worker_pool import settings

from pipetrain.engine.errors import ConfigError
from pipetrain.engine.schedules.placement import Placement
from pipetrain.planning.costs.cut_profile import CutProfile
from pipetrain.planning.pipeline_plan import PipelinePlan
from pipetrain.planning.planner import Planner
from pipetrain.planning.profile.profile import LoaderTime
from pipetrain.planning.profiling.auto_partition import with_updates
from pipetrain.planning.profiling.predict import ProfiledRun
from pipetrain.planning.search.placed import PlacedSearch
from pipetrain.runner.partition.shared_weight import SharedWeight

SGD = {"_target_": "torch.optim.SGD", "lr": 0.1}
HEAVY_END = chain(
    *(layer(1.0, output_bytes=1_000_000, activation_bytes=10_000_000) for _ in range(5)),
    layer(1.0, weight_bytes=4_000_000_000),
)
TIED = replace(chain(*[layer(1.0, weight_bytes=8)] * 6), shared_weights=(SharedWeight((0, 2), 8),))
SMALL_END = chain(layer(1.0, activation_bytes=500_000), *[layer(1.0, activation_bytes=10)] * 5)
AUTO = "pipetrain.planning.profiling.auto_partition.AutoPartition"
STRAIGHT = {"straight": True}


def planner(profile, devices, *, planner=(), train=(), **topology):
    chosen = {"devices": devices, "gigabytes_per_s": [1.0], **topology}
    asked = settings("pipedream", optimizer=SGD, topology=chosen, planner=dict(planner), train=dict(train))
    return Planner.of(profile, asked)


def sent_bytes(planner, plan):
    return planner.seen(plan).sent_bytes


def layers(plan):
    return [len(stage.layers) for stage in plan.stages]


def test_plan_has_times_traffic_and_memory_of_its_stages():
    of_six = planner(HEAVY_END, 6)
    plan = of_six.best()
    assert (plan.replicas, layers(plan), plan.in_flight) == ("5-1", [5, 1], 2)
    assert (plan.time_per_minibatch_s, plan.single_device_time_s) == (1.0, 6.0)
    assert plan.data_parallel_time_s == pytest.approx(2 * 5 / 6 * 4 / 6)  # the ring is slower than the layers
    assert [stage.time_s for stage in plan.stages] == [1.0, 1.0]
    assert sent_bytes(of_six, plan) == 2 * 1_000_000
    assert sent_bytes(of_six, of_six.data_parallel()) == pytest.approx(2 * 5 / 6 * 4e9)
    # with the gradients of its input that the last stage may have under way to five workers
    assert [stage.memory_bytes for stage in plan.stages] == [2 * 5 * 10_000_000, 2 * 4_000_000_000 + 5 * 3 * 1_000_000]


def test_planned_stage_keeps_input_if_first_layer_needs_it():
    kept = replace(layer(1.0, activation_bytes=1000), shared_bytes=50)
    plan = planner(chain(*[kept] * 4), 2, planner=STRAIGHT).best()
    assert [stage.memory_bytes for stage in plan.stages] == [2 * 2000, 2050]
    limited = planner(chain(*[kept] * 4), 2, planner=STRAIGHT, memory_gigabytes=[1e-5, 2.049e-6])
    assert layers(limited.best()) == [3, 1]


def test_stages_that_read_data_get_fewer_layers():
    profile = replace(chain(*[layer(1.0)] * 6), reading=LoaderTime(inputs_s=2.0, targets_s=1.0))
    plan = planner(profile, 3, planner=STRAIGHT).best()
    assert (layers(plan), [stage.time_s for stage in plan.stages]) == ([1, 3, 2], [3.0, 3.0, 3.0])
    assert (plan.single_device_time_s, plan.data_parallel_time_s) == (8.0, pytest.approx(8 / 3))


def test_workers_sharing_cores_take_the_total_compute_time():
    profile = replace(chain(*[layer(1.0)] * 6), reading=LoaderTime(inputs_s=2.0, targets_s=0.0))
    of_three = planner(profile, 3, cores=2)
    plans = of_three.straight_pipeline(), of_three.data_parallel()
    assert [plan.time_per_minibatch_s for plan in plans] == pytest.approx([8.0 / 2] * 2)
    machines = planner(profile, 4, workers=[2, 2], gigabytes_per_s=[1.0, 1.0], cores=1, planner=STRAIGHT)
    assert machines.best().time_per_minibatch_s == pytest.approx(4.0)  # two machines of one core each
    assert planner(profile, 3, cores=3).best().time_per_minibatch_s == planner(profile, 3).best().time_per_minibatch_s


def test_weight_shared_in_one_stage_counts_once():
    layer_of = layer(1.0, weight_bytes=1000)
    profile = replace(chain(*[layer_of] * 3), shared_weights=(SharedWeight((0, 2), 900),))
    of_two = planner(profile, 2)
    whole = of_two.data_parallel()
    assert whole.stages[0].memory_bytes == 2 * 2100
    assert sent_bytes(of_two, whole) == 2100
    two = {"devices": 2, "gigabytes_per_s": [1.0], "memory_gigabytes": [2.0e-6, 1]}
    apart = settings("gpipe", optimizer=SGD, topology=two, planner=STRAIGHT)
    assert [stage.memory_bytes for stage in Planner.of(profile, apart).best().stages] == [2 * 1000, 2 * 2000]
    alone = planner(profile, 1, memory_gigabytes=4.2e-6).best()
    assert [stage.memory_bytes for stage in alone.stages] == [4200]


@pytest.mark.parametrize("case", ["gpipe", "pipedream_flush", "pipedream", "pipedream_2bw"])
@pytest.mark.parametrize("replicas", [(2, 1, 1, 1), (2, 2), (1, 1, 1)])
def test_plan_s_memory_is_that_of_the_prediction(case, replicas):
    profile = replace(chain(*(layer(1.0, 64, 100 * i, 1000) for i in range(1, 6))), batch_size=8)
    asked = settings(
        case,
        optimizer=SGD,
        topology={"gigabytes_per_s": [1.0]},
        train={"batch_size": 8, "microbatches": 4},
        partition={"_target_": AUTO, "replicas": list(replicas)},
    )
    plan = Planner.of(profile, asked).best()
    assert tuple(stage.replicas for stage in plan.stages) == replicas
    run = ProfiledRun.of(asked, profile=profile)
    assert run.cut.stages == tuple(stage.layers for stage in plan.stages)
    assert run.memory(0) == [stage.memory_bytes for stage in plan.stages]


def test_limited_memory_makes_another_plan_best():
    free, limited = (planner(HEAVY_END, 2, memory_gigabytes=each) for each in (100, 8.03))
    assert (layers(free.best()), layers(limited.best())) == ([6], [3, 3])
    assert limited.fits(limited.best())
    assert not limited.fits(free.best())


def test_each_device_may_have_memory_of_its_own():
    assert layers(planner(HEAVY_END, 6, memory_gigabytes=[1, 1, 1, 1, 1, 8.1]).best()) == [5, 1]


def test_memory_objective_levels_memory_before_time():
    profile = chain(*(layer(1.0, weight_bytes=each) for each in (60, 20, 20, 10, 10, 10)))
    fastest = planner(profile, 2, planner=STRAIGHT).best()
    balanced = planner(profile, 2, planner={"objective": "memory"}).best()
    assert (layers(fastest), layers(balanced)) == ([3, 3], [1, 5])
    assert max(stage.memory_bytes for stage in balanced.stages) == 3 * 60
    assert balanced.time_per_minibatch_s == 5.0


def test_devices_unlike_on_several_levels_need_straight_plan():
    differ = {"workers": [3, 2], "gigabytes_per_s": [1.0, 1.0], "speeds": [1.0, 1.0, 1.0, 1.0, 1.0, 2.0]}
    with pytest.raises(ConfigError, match=r"^topology\.workers=\[3, 2\]: .*planner\.straight=true"):
        planner(HEAVY_END, 6, **differ)
    assert planner(HEAVY_END, 6, planner=STRAIGHT, **differ).best().time_per_minibatch_s == 1.0


def on_levels(profile, workers, kilobytes, method, microbatches=1):
    topology = {"workers": workers, "gigabytes_per_s": [10, 1][: len(workers)], "memory_gigabytes": kilobytes * 1e-6}
    asked = settings(method, optimizer=SGD, topology=topology, train={"microbatches": microbatches})
    return Planner.of(profile, asked)


@pytest.mark.parametrize("method", ["timeprest", "spectrain", "vertical_sync", "pipedream"])
def test_plans_on_several_levels_fit(method):
    profile = chain(*[layer(1.0, output_bytes=1000, activation_bytes=1000, weight_bytes=10_000)] * 8)
    found = []
    for kilobytes in range(60, 200, 20):
        planner = on_levels(profile, [2, 2], kilobytes, method, microbatches=4)
        with suppress(ConfigError):
            found.append((planner, planner.best()))
    assert found
    assert all(planner.fits(plan) for planner, plan in found)


def test_even_plan_on_several_levels_is_found_where_it_alone_fits():
    """With equal numbers of replicas four microbatches of a stage are in flight at most, with others more."""
    profile = chain(*[layer(1.0, output_bytes=1000, activation_bytes=1000, weight_bytes=10_000)] * 8)
    assert on_levels(profile, [2, 2], 64, "pipedream", microbatches=4).best().replicas == "1-1-1-1"


@pytest.mark.parametrize("method", ["pipedream", "gpipe", "spectrain"])
@pytest.mark.parametrize("workers", [[2, 2], [4, 2], [2, 3]], ids=str)
def test_memory_that_is_ample_changes_no_plan(method, workers):
    heavy = [layer(1.0, output_bytes=10**9, weight_bytes=2 * 10**9) for _ in range(4)]
    for profile in (chain(*heavy), chain(*heavy, *[layer(0.3, output_bytes=10**7, weight_bytes=10**6)] * 4)):
        free = settings(method, optimizer=SGD, topology={"workers": workers, "gigabytes_per_s": [10, 1]})
        expected, found = Planner.of(profile, free).best(), on_levels(profile, workers, 1e12, method).best()
        assert found.time_per_minibatch_s == pytest.approx(expected.time_per_minibatch_s)
        assert found.replicas == expected.replicas


def test_search_on_several_levels_that_finds_none_names_one_level_where_a_plan_fits():
    profile = chain(
        layer(1.0, output_bytes=10, activation_bytes=10_000, weight_bytes=50_000),
        layer(1.0, output_bytes=10, activation_bytes=50_000, weight_bytes=50_000),
        layer(1.0, output_bytes=1000, activation_bytes=50_000),
        layer(1.0, output_bytes=10, weight_bytes=50_000),
        layer(1.0, output_bytes=1000, activation_bytes=50_000, weight_bytes=10_000),
        layer(1.0, output_bytes=10, activation_bytes=10_000),
    )
    with pytest.raises(ConfigError, match=r"devices=6 without topology\.workers finds one that takes 0\.00025 GB"):
        on_levels(profile, [3, 2], 260, "spectrain").best()
    assert on_levels(profile, [6], 260, "spectrain").best()


def test_plan_counts_the_forward_that_is_recomputed():
    forwards, backwards = (0.003,) * 6 + (0.001,) * 6, (0.001,) * 6 + (0.003,) * 6
    pairs = zip(forwards, backwards, strict=True)
    profile = chain(*(replace(layer(), forward_s=forward, backward_s=backward) for forward, backward in pairs))
    plain, again = (planner(profile, 2, planner=STRAIGHT, train={"recompute": each}).best() for each in (False, True))
    assert (layers(plain), plain.time_per_minibatch_s) == ([6, 6], pytest.approx(0.024))
    assert (layers(again), again.time_per_minibatch_s) == ([5, 7], pytest.approx(0.037))
    assert again.single_device_time_s == pytest.approx(0.072)


def test_frozen_weights_are_neither_averaged_nor_updated():
    frozen = replace(layer(1.0, weight_bytes=4_000_000_000), weights=())
    profile = replace(chain(*[frozen] * 3), shared_weights=(SharedWeight((0, 2), 1_000_000_000),))
    of_three = planner(profile, 3)
    assert of_three.data_parallel().time_per_minibatch_s == pytest.approx(1.0)
    assert of_three.best().replicas == "3"
    apart = planner(profile, 3, planner=STRAIGHT).best()  # copies of a frozen weight never part
    assert [stage.memory_bytes for stage in apart.stages] == [4_000_000_000] * 3
    asked = settings("pipedream", optimizer=SGD, topology={"update_gigabytes_per_s": 1.0})
    assert with_updates(profile, asked, 3) == profile
    (update_s,) = {layer.backward_s for layer in with_updates(chain(layer(0.0, 1, 4_000_000_000)), asked, 3).layers}
    assert update_s > 0


@pytest.mark.parametrize(("method", "cuts"), [("pipedream", [3, 4]), ("gpipe", [2, 4])])
def test_tied_layers_are_planned_in_one_stage_where_copies_would_part(method, cuts):
    three = {"topology": {"devices": 3, "gigabytes_per_s": [1.0]}, "planner": STRAIGHT}
    plan = Planner.of(TIED, settings(method, optimizer=SGD, **three)).best()
    assert [stage.layers[0] for stage in plan.stages[1:]] == cuts


def replicated(profile, replicas, **changes):
    """The planner of a pipeline with these replicas."""
    partition = {"_target_": AUTO, "replicas": replicas}
    return Planner.of(replace(profile, bytes_per_s=1e9), settings("pipedream", partition=partition, **changes))


def test_replicas_that_are_given_are_planned_for():
    plan = replicated(chain(*[layer(1.0)] * 8), [1, 3]).best()
    assert (plan.replicas, layers(plan), plan.time_per_minibatch_s) == ("1-3", [2, 6], 2.0)
    with pytest.raises(ConfigError, match=r"topology\.memory_gigabytes=1e-06: no plan fits"):
        replicated(chain(*[layer(1.0, weight_bytes=1000)] * 8), [1, 3], topology={"memory_gigabytes": 1e-6}).best()


@pytest.mark.parametrize(
    ("replicas", "changes", "message"),
    [
        ([2, 1], {"topology": {"devices": 4}}, "3 devices, and `topology` has 4"),
        ([2, 1], {"planner": STRAIGHT}, "planner.straight=true with partition.replicas=[2, 1]: "),
        ([1] * 7, {}, "partition.replicas=[1, 1, 1, 1, 1, 1, 1]: 7 stages, and the model has 6 parts"),
    ],
)
def test_replicas_that_contradict_other_settings_are_refused(replicas, changes, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        replicated(HEAVY_END, replicas, **changes)


@pytest.mark.parametrize(
    ("profile", "devices", "asked", "topology", "message"),
    [
        (HEAVY_END, 3, {"cost_model": "pipedream_paper"}, {"cores": 2}, r"topology.cores=2: .*=pipedream_paper"),
        (HEAVY_END, 7, STRAIGHT, {}, "planner.straight=true with 7 devices: .* the model has 6"),
        (HEAVY_END, 7, {"objective": "memory"}, {}, "planner.objective=memory with 7 devices: .* the model has 6"),
        (TIED, 5, STRAIGHT, {}, "planner.straight=true with 5 devices: .* the model has 4"),
        (HEAVY_END, 2, {}, {"memory_gigabytes": [8.1, 1]}, "no plan fits; .* 8 times"),
        (SMALL_END, 4, STRAIGHT, {"memory_gigabytes": 0.0015}, r"no plan fits; .* 0\.002 GB .*train\.recompute=true"),
        (HEAVY_END, 6, {}, {"memory_gigabytes": 7}, r"^topology\.memory_gigabytes=7: .* 8\.003 GB .*train\.batch_size"),
    ],
)
def test_what_no_plan_fits_is_refused(profile, devices, asked, topology, message):
    with pytest.raises(ConfigError, match=message):
        planner(profile, devices, planner=asked, **topology).best()


def placed(profile, devices, microbatches=2, *, schedule="interleaved.Interleaved1F1B", **changes):
    target = {"_target_": f"pipetrain.engine.schedules.{schedule}"}
    topology = {"devices": devices, "gigabytes_per_s": [1.0], **changes.pop("topology", {})}
    chosen = {"optimizer": SGD, "topology": topology, "train": {"microbatches": microbatches}, **changes}
    return Planner.of(profile, settings("gpipe", schedule=target, **chosen))


def test_devices_with_several_stages_are_planned_by_their_sums():
    uneven = chain(*(layer(each, activation_bytes=100) for each in (4.0, 1.0, 1.0, 1.0, 2.0, 1.0, 1.0, 1.0)))
    of_two = placed(uneven, 2)
    plan = of_two.best()
    assert [stage.process for stage in plan.stages] == [0, 1, 0, 1]
    assert (plan.num_devices, plan.placement, of_two.straight_pipeline()) == (2, Placement.looped(4, 2), None)
    search = PlacedSearch(of_two.profile, range(8), plan.placement, of_two.topology, of_two.memory)
    every = ([*map(tuple, map(range, (0, *cuts), (*cuts, 8)))] for cuts in combinations(range(1, 8), 3))
    cuts = [CutProfile(of_two.profile, tuple(each), (1,) * 4, of_two.topology, plan.placement) for each in every]
    assert plan.time_per_minibatch_s == pytest.approx(min(map(search.period, cuts)), rel=0.02)
    memory = [stage.memory_bytes for stage in plan.stages]
    assert memory[:2] == memory[2:]
    assert PipelinePlan.from_json(plan.to_json()) == plan
    assert of_two.fits(plan)


def test_several_stages_on_a_device_are_planned_for_torchs_schedules_too():
    target = {"_target_": "pipetrain.plugins.torch_schedules.schedules.Interleaved1F1B", "chunks": 2}
    topology = {"devices": 2, "gigabytes_per_s": [1.0]}
    asked = settings("gpipe", schedule=target, topology=topology, train={"microbatches": 2})
    plan = Planner.of(chain(*(layer(each) for each in (4.0, 1.0, 1.0, 1.0, 2.0, 1.0, 1.0, 1.0))), asked).best()
    assert (plan.num_devices, plan.time_per_minibatch_s) == (2, 6.0)


def test_plan_of_several_stages_on_a_device_fits_or_is_refused():
    heavy = chain(*(layer(1.0, weight_bytes=each) for each in (40_000, 1, 1, 1, 1, 40_000)))
    limited = {"memory_gigabytes": 1e-4}
    plan = placed(heavy, 2, topology=limited).best()
    assert max(stage.memory_bytes for stage in plan.stages) <= 100_000
    assert plan.stages[0].process != plan.stages[-1].process
    with pytest.raises(ConfigError, match=r"topology.memory_gigabytes=0.0001: .* takes 1.6 times the memory"):
        placed(heavy, 2, schedule="zero_bubble.ZBV", topology=limited).best()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"planner": {"objective": "memory"}}, "planner.objective=memory: schedule=interleaved_1f1b places several"),
        ({"partition": {"replicas": [1, 1]}}, "partition.replicas=[1, 1]: schedule=interleaved_1f1b places several"),
        ({"microbatches": 3}, "train.microbatches=3: schedule=interleaved_1f1b on 2 processes takes a multiple of 2"),
        ({"devices": 4, "microbatches": 4}, "8 in all, and the model has 6 parts"),
    ],
)
def test_what_several_stages_on_a_device_cannot_be_planned_for_is_refused(changes, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        placed(SMALL_END, **{"devices": 2, **changes})


def test_too_many_devices_have_no_straight_pipeline():
    assert planner(HEAVY_END, 7).straight_pipeline() is None


def test_300_layers_on_16_devices_are_planned():
    assert planner(chain(*[layer(1.0, 1, 1)] * 300), 16).best().time_per_minibatch_s == pytest.approx(300 / 16)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("profile", "workers"), [(cells(31), (8, 2)), (chain(*[layer(1.0, 1, 1)] * 300), (8, 128))], ids=["graph", "chain"]
)
def test_thousand_layers_or_devices_need_bounded_work(profile, workers):
    """Tables of an inner level take a comparison for each three states and each two numbers of devices."""
    assert len(profile.layers) > 1200 or workers[1] == 128
    asked = planner(profile, None, workers=list(workers), gigabytes_per_s=[30.0, 3.0])
    states = len(asked._states)
    assert min(len(profile.layers), 700) < states < 1500
    assert workers[0] * (workers[0] - 1) / 2 * states**3 / 6 < 2.5e9
    assert asked.best().time_per_minibatch_s == pytest.approx(len(profile.layers) / prod(workers))
