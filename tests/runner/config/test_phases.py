"""Phases of a run: how the configuration names them, when they end, and what begins anew with each."""

import pytest
from support import reference
from support.against_reference import BATCH, CUTS, assert_close, data, minibatches, model, outcome, parts
from support.equal_bits import assert_same, both_ways
from support.pipelines import batches, half_decay, pipeline
from support.quick_cases import every
from support.worker_pool import distributed, job, phase, simulated

from pipetrain.engine.errors import ConfigError
from pipetrain.runner.config.composition import composed
from pipetrain.runner.config.instantiate import Target
from pipetrain.runner.config.phases import expand_phases, phases_of
from pipetrain.runner.training.checkpoint import contents, store
from pipetrain.runner.training.checkpoint.contents import Kind

NAMES = {"schedule": "1f1b", "method": "pipeoptim", "model": "lenet5"}
CONFIG = {
    "schedule": {"_target_": "pipetrain.engine.schedules.one_f_one_b.OneFOneB", "depth": 3},
    "method": {"_target_": "pipetrain.engine.methods.pipeoptim.PipeOptim"},
    "seed": 5,
}


def entries_of(*entries):
    return expand_phases({**CONFIG, "phases": list(entries)}, NAMES)


# -- names and sections ------------------------------------------------------------------------------------------------


def test_run_without_phases_is_one_phase():
    assert expand_phases({**CONFIG, "phases": None}, NAMES) is None
    (only,) = phases_of({**CONFIG, "phases": None}, NAMES)
    assert only.schedule == Target.of("schedule", CONFIG["schedule"])
    assert only.method == Target.of("method", CONFIG["method"])
    assert only.choices == {"schedule": "1f1b", "method": "pipeoptim"}
    assert (only.length(10), only.number) == (None, None)


def test_phase_section_named_by_a_choice_is_that_of_its_file():
    (found, last) = entries_of({"schedule": "gpipe", "method": "gpipe", "epochs": 2}, {"schedule": "pipemare"})
    assert found["schedule"] == {"_target_": "pipetrain.engine.schedules.gpipe.GPipe"}
    assert found["method"] == {"_target_": "pipetrain.engine.methods.synchronous.Synchronous"}
    assert found["names"] == {"schedule": "gpipe", "method": "gpipe"}
    assert (found["steps"], found["epochs"]) == (None, 2)
    assert last["names"]["schedule"] == "pipemare"


def test_phase_takes_from_the_run_what_it_leaves_out():
    (found,) = entries_of({})
    assert found["schedule"] == CONFIG["schedule"]
    assert found["method"] == CONFIG["method"]
    assert found["names"] == {"schedule": "1f1b", "method": "pipeoptim"}


def test_phase_mapping_changes_settings_of_the_section_it_names():
    (found,) = entries_of({"method": {"name": "pipemare", "t1": False, "decay": 0.1}})
    assert found["method"] == {
        "_target_": "pipetrain.engine.methods.pipemare.PipeMare", "t1": False, "t2": True, "anneal_steps": 1000,
        "decay": 0.1,
    }  # fmt: skip
    assert found["names"]["method"] == "pipemare"


def test_setting_of_the_run_reaches_phases_that_refer_to_it():
    words, first = ["method=pipemare", "method.decay=0.1"], "{schedule: gpipe, method: gpipe, epochs: 1}"
    assert composed([*words, f"phases=[{first},{{}}]"]).phases[1].method.options["decay"] == 0.1
    referring = "{schedule: pipemare, method: {name: pipemare, decay: '${method.decay}'}}"
    assert composed([*words, f"phases=[{first},{referring}]"]).phases[1].method.options["decay"] == 0.1


def test_phase_section_with_a_users_own_target_is_taken_as_it_is():
    own = {"_target_": "mylib.Method", "gain": 2}
    (found,) = entries_of({"method": own})
    assert found["method"] == own
    assert found["names"]["method"] == "Method"


def test_phase_section_may_refer_to_settings_of_the_run():
    (found,) = entries_of({"method": "hogwild"})
    assert found["method"]["seed"] == 5


# -- endings -----------------------------------------------------------------------------------------------------------


def test_method_and_a_schedule_of_a_phase_must_go_together(tmp_path):
    wrong = {**phase("gpipe"), "schedule": phase("pipemare")["schedule"]}
    with pytest.raises(ConfigError, match=r"phases\[1\]: method=gpipe does not work with schedule"):
        simulated(job(tmp_path / "run", "gpipe", 2, phases=[phase("gpipe", steps=3), wrong]))


# -- what begins anew --------------------------------------------------------------------------------------------------

PHASES = {
    "pipemare after gpipe": [("gpipe", 4), ("pipemare", None)],
    "plain training after stale": [("stale", 8), ("sequential", None)],
    "the counters of pipemare begin anew": [("pipemare", 5), ("pipemare", None)],
    "no average survives another method": [("pipemare", 4), ("pipeoptim", 6), ("pipemare", None)],
    "from one backward for n forwards": [("i_timeprest", 9), ("pipedream", None)],
}


def run_by_hand(phases, N, epochs):
    run, epoch = reference.Run.of(parts(4), reference.Optimizer("momentum", decay=0.01), half_decay, N), minibatches()
    steps = epochs * len(epoch)
    for rule, count in phases:
        end = steps if count is None else run.updates + count
        segments = []
        for step in range(run.updates, end):
            if not segments or step % len(epoch) == 0:
                segments.append([])
            segments[-1].append(epoch[step % len(epoch)])
        run.phase(rule, segments)
    return outcome(run)


@pytest.mark.parametrize("N", [1, 2])
@pytest.mark.parametrize("name", every(2, PHASES))
def test_phases_equal_the_reference(name, N):
    (x, y), epochs = data(), 3
    build = reference.Optimizer("momentum", decay=0.01).torch_optimizer
    rules = [(rule, steps or 100) for rule, steps in PHASES[name]]
    pipe = pipeline(model(), CUTS[4], rules, N, build).train(batches(x, y, BATCH, N), epochs)
    assert_close((pipe.losses, pipe.state()), run_by_hand(PHASES[name], N, epochs))


# -- both executors, and resumption ------------------------------------------------------------------------------------

SWITCHING = {"phases": [phase("gpipe", steps=4), phase("pipemare")], "checkpoint": {"every_steps": 2}}


def resumed(folder, source, **changes):
    return job(folder, "pipemare", 2, resume=source, **SWITCHING, **changes)


@pytest.mark.slow
def test_phases_are_bitwise_equal_in_executors_and_on_resume(tmp_path):
    cases = {
        "gpipe, pipemare": SWITCHING,
        "stale, sequential": {"phases": [phase("stale", epochs=1), phase("sequential")]},
        "nf1b, 1f1b": {
            "phases": [phase("i_timeprest", steps=5), phase("pipeoptim", steps=4)], "train": {"microbatches": 2},
        },
    }  # fmt: skip
    pairs = both_ways([job(tmp_path / name, "gpipe", 2, **changes) for name, changes in cases.items()])
    again = resumed(tmp_path / "again", store.at_step(tmp_path / "gpipe, pipemare" / "simulated", 6))
    assert_same(*distributed([again]), pairs[0][1])
    assert len({result["weights_sha256"] for result, _ in pairs}) == 3


@pytest.mark.slow
@pytest.mark.parametrize("step", [2, 4, 6, 10])
def test_resume_around_phase_change_keeps_bits(tmp_path, step):
    whole = simulated(job(tmp_path / "whole", "pipemare", 2, **SWITCHING))
    again = simulated(resumed(tmp_path / "again", store.at_step(tmp_path / "whole", step)))
    assert_same(again, whole)


def test_weight_change_average_is_saved_in_its_phase_only(tmp_path):
    simulated(job(tmp_path / "run", "pipemare", 2, **SWITCHING))
    found = {
        step: contents.load_tensors(store.at_step(tmp_path / "run", step), Kind.STATISTIC) for step in (2, 4, 6, 12)
    }
    assert found[2] == found[4] == {}
    weights = contents.model_state(store.at_step(tmp_path / "run", 6))
    for step in (6, 12):
        named = {name: value for name, values in found[step].items() for value in values.values()}
        assert named.keys() == {name for name in weights if "running" not in name and "tracked" not in name}
        assert all(value.shape == weights[name].shape for name, value in named.items())
        assert all(value.abs().sum() > 0 for value in named.values())
