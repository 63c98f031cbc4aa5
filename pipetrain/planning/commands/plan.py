"""`pipetrain plan`: how fast given stages will be, or which stages are the fastest, before anything runs."""

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from pipetrain.engine.errors import ExitCode
from pipetrain.runner.terminal.arguments import Subparsers, add_settings_parser
from pipetrain.runner.terminal.output_folder import check_new_file, check_writable

if TYPE_CHECKING:
    from pipetrain.planning.profile.profile import Profile
    from pipetrain.planning.tables.prediction_tables import Case
    from pipetrain.runner.config.settings import Settings

_DESCRIPTION = """\
Takes settings of `pipetrain run`, and trains nothing.
With a setting of `partition`, such as partition.stages=4 or partition=auto, predicts the pipeline that such a run has:
time per minibatch, idle shares, traffic, memory and staleness.
Without one, finds the stages and the replicas of each that train the model fastest on the devices of topology.*, and
shows them beside data parallelism and a straight pipeline.
Several values of a setting, such as schedule=1f1b,1f1b_v, make a table: of the given stages, or of the best ones for
each value. What cannot run is left out, with the reason.
Measures the model, or reads profile=FILE. Writes plan.json, which partition=file trains, and plan.png."""
_EPILOG = """\
For example: pipetrain plan model=resnet56 method=gpipe,pipedream,pipeoptim partition.stages=2,4
             pipetrain plan model=resnet56 topology.devices=4 method=pipedream
             pipetrain plan model=resnet56 topology.devices=2 train.microbatches=4 method=gpipe,pipedream \\
                            schedule=1f1b,interleaved_1f1b,1f1b_v,zb_v
             pipetrain plan profile=resnet56.json topology.workers=[8,2] topology.gigabytes_per_s=[30,3.125]"""
_PLAN = "plan.json"
_OF_ANY_STAGES = ("partition.replicas", "partition.scale_lr")
"""Settings of `partition` that do not say which stages there are."""


def add_parser(subparsers: Subparsers) -> None:
    """Adds `plan`."""
    parser = add_settings_parser(
        subparsers, "plan", "method=pipedream partition.stages=4",
        help="predict pipelines, or find the fastest one", description=_DESCRIPTION, epilog=_EPILOG,
    )  # fmt: skip
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FOLDER", help="folder to write to; default plan, plan-2, ..."
    )
    parser.add_argument("--force", action="store_true", help=f"replace the {_PLAN} in FOLDER if it exists")
    parser.set_defaults(carry_out=carry_out)


def carry_out(options: argparse.Namespace) -> ExitCode:
    """Predicts or plans, prints the tables, and writes the plan and its picture.

    Raises:
        ConfigError: a setting cannot work, the folder holds a plan already, no plan fits into the devices' memory, or a
            pipeline cannot be predicted.
    """
    from pipetrain.planning.tables import prediction_figure
    from pipetrain.planning.tables.prediction_tables import comparison_table, fastest_of, stage_table, to_json
    from pipetrain.runner.config.composition import combinations, overrides_of, with_choices_of
    from pipetrain.runner.tracking.files import new_folder, write_whole

    output: Path | None = options.output
    check_writable(f"-o {output or 'plan'}", output or Path("plan"))
    if output is not None and output.exists():
        check_new_file(f"-o {output}: {output / _PLAN}", output / _PLAN, _PLAN, force=options.force)
    words = with_choices_of(options.config_dir, options.words)
    names = [str(each.key_or_group) for each in overrides_of(words)]
    given = any(name.split(".")[0] == "partition" and name not in _OF_ANY_STAGES for name in names)
    if given or len(list(islice(combinations(words), 2))) > 1:
        from pipetrain.planning.profiling.sweep import cases  # with torch, which takes seconds to import

        every, left_out = cases(words, searched=not given)
        best, drawn = fastest_of(every), every
    else:
        every, left_out = list(_found(words)), []
        best, drawn = every[-1], every[-1:]
    print(*comparison_table(every), *left_out, sep="\n")
    if len(drawn) == 1 and best.plan is not None:
        print("", *stage_table(best.prediction, best.plan), sep="\n")
    folder = output or new_folder(Path("plan"))
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / _PLAN, json.dumps(to_json(every, best.plan), indent=1) + "\n")
    not_drawn = prediction_figure.draw(folder / "plan.png", drawn)
    print(*filter(None, [f"written to {folder}: {_PLAN}, plan.png", not_drawn]), sep="\n")
    return ExitCode.COMPLETED


def _found(words: Sequence[str]) -> Iterator["Case"]:
    """The best plan, after those that it is compared with. Needs no torch if the profile is in a file."""
    from pipetrain.planning.costs.topology import core_notes
    from pipetrain.planning.planner import Planner
    from pipetrain.planning.profile.profile_file import check_model
    from pipetrain.planning.tables.prediction_tables import Case, milliseconds
    from pipetrain.runner.config.composition import composed

    settings = composed(words)
    profile = chosen_profile(settings)
    check_model(settings, profile, words)
    planner = Planner.of(replace(profile, batch_size=profile.batch_size or settings.train.batch_size), settings)
    devices = planner.topology.num_devices
    alone = f"one device takes {milliseconds(profile.single_device_s)} ms for a minibatch"
    notes = [alone, *profile.notes, *core_notes(settings, profile, planner.topology, devices)]
    plans = {"data parallel": planner.data_parallel(), "straight": planner.straight_pipeline(), "best": planner.best()}
    for name, plan in plans.items():
        if plan is not None:
            chosen = {"plan": name, "D": str(len(plan.stages)), "replicas": plan.replicas}
            ruled_out = name != "best" and planner.replicas not in (None, plan.cut[1])
            yield Case(chosen, planner.seen(plan), plan, notes, planner.fits(plan), ruled_out)


def chosen_profile(settings: "Settings") -> "Profile":
    """The profile in the file that `profile` names, else of the model that the settings choose.

    Raises:
        ConfigError: the file is no profile, or the model or its data cannot be built.
    """
    from pipetrain.planning.profile.profile_file import read_profile

    if settings.profile is not None:
        return read_profile(Path(settings.profile))
    # from here on torch is needed, which takes seconds to import
    from pipetrain.planning.profiling.profile import profile_of

    return profile_of(settings)
