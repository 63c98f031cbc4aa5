"""Everything that can be wrong with a run, found before a process is started or a file overwritten."""

from pipetrain.data.libraries import lazy_compiler
from pipetrain.engine import outer_launcher
from pipetrain.engine.errors import ConfigError
from pipetrain.engine.executors.messages.transport import set_environment
from pipetrain.engine.executors.pipeline_rules import common_placement
from pipetrain.engine.failure import described, in_own_words, place_of
from pipetrain.engine.processes import usable_cores
from pipetrain.runner.config.settings import Settings
from pipetrain.runner.tracking.run_directory import RunDirectory
from pipetrain.runner.training.checkpoint.contents import check_state, ends_of_links
from pipetrain.runner.training.components.arithmetic import arithmetic_of_checks, check_arithmetic
from pipetrain.runner.training.components.averaging import check_resumed_averaging
from pipetrain.runner.training.components.callbacks import check_callbacks
from pipetrain.runner.training.components.data import (
    check_data,
    check_labels,
    check_repeatable,
    check_vocabulary,
    label_range,
)
from pipetrain.runner.training.components.dry_run import evaluation_dry_run, training_dry_run
from pipetrain.runner.training.components.learning_rate import build_rate
from pipetrain.runner.training.components.loss import (
    build_loss,
    build_metrics,
    check_halves,
    check_loss,
    falling_metrics,
)
from pipetrain.runner.training.components.machine import (
    check_threads,
    device_of,
    give_back_free_memory,
    transport_notes,
)
from pipetrain.runner.training.components.messages import check_messages, gradients_across_cuts, links_without_state
from pipetrain.runner.training.components.model import check_model
from pipetrain.runner.training.components.optimizer_step import check_optimizer
from pipetrain.runner.training.components.pipeline import build_planned_phases
from pipetrain.runner.training.components.pipeline_checks import check_pipeline
from pipetrain.runner.training.components.replicas import check_replicas
from pipetrain.runner.training.components.stages import (
    StagedModel,
    changing_method,
    check_layers,
    check_rereads,
    check_shared_weights,
)
from pipetrain.runner.training.job import Job
from pipetrain.runner.training.planned_run import plan_run
from pipetrain.runner.training.provenance import provenance
from pipetrain.runner.training.resume import find_checkpoint, new_start, resumed
from pipetrain.runner.training.whole_model import decoded_metrics


def prepare(settings: Settings, run: RunDirectory) -> Job:
    """Builds everything once and checks that it works together.

    Raises:
        ConfigError: the first setting that cannot work, or an exception of the user's own code.
    """
    try:
        job = _prepared(settings, run)
    except Exception as error:
        if place_of(error) is None or in_own_words(error):
            raise
        raise ConfigError(described(error)) from error
    give_back_free_memory()  # of the models that were checked; the workers need it
    return job


def _prepared(settings: Settings, run: RunDirectory) -> Job:
    if outer_launcher.is_present() and settings.device != "cpu":  # this process trains, too, and now looks for devices
        set_environment("cuda")
    lazy_compiler.install()

    check_callbacks(settings.log.to, settings.callbacks)
    check_threads(settings.threads, settings.dataset.workers)
    device = device_of(settings.device)
    found, resume_notes = find_checkpoint(settings, run)
    resume = None if found is None else found.folder

    # what every process builds
    planned = plan_run(settings, resume)
    data, chain, timetable, plan = planned.data, planned.chain, planned.timetable, planned.plan
    phases = build_planned_phases(settings, timetable, plan, chain)
    staged = StagedModel(chain, plan, phases)
    placement = common_placement(staged.schedules, len(plan.bounds))
    loss, metrics = build_loss(settings.loss, data.dataset), build_metrics(settings.metrics)
    falling = falling_metrics(metrics, data.dataset)

    # what the first samples show
    arithmetic = arithmetic_of_checks(settings.train, device)
    trial = training_dry_run(data, chain, arithmetic)
    check_vocabulary(settings.model.target, trial.tokens)
    labels = label_range(settings.model.target, data.dataset, loss, trial.outputs, trial.targets)
    check_labels(settings.model.target, labels, trial.all_targets, trial.indices)
    data.expect(labels, trial.tokens)

    # what works together
    check_state(chain)
    changing = changing_method(settings.phases, phases)
    decoded, decoding_notes = decoded_metrics(settings.eval, data.dataset, chain)
    notes = [
        *check_optimizer(settings.optimizer, staged, device),
        *check_model(settings, chain, data),
        *check_layers(staged, trial.inputs, arithmetic),
        *check_shared_weights(staged, untie=settings.model.untie),
        *check_arithmetic(settings.train, device, staged, changing),
        *check_rereads(staged, data.example, arithmetic, changing),
        *check_loss(settings, trial, loss, metrics, decoded),
        *check_halves(settings, data, chain, loss, trial, arithmetic),
        *check_data(settings, data, device),
        *check_replicas(settings, staged, timetable.steps_per_epoch, timetable.total_steps),
        *check_pipeline(settings, staged, data.train, device),
        *check_messages(settings, plan, phases),
        *decoding_notes,
    ]
    build_rate(settings, timetable)(0)
    if settings.eval.every_epochs and (evaluated := evaluation_dry_run(data, chain, trial, arithmetic)) is not None:
        check_loss(settings, evaluated, loss, metrics, decoded)
    takes_gradient: dict[int, tuple[bool, ...]] = {}
    if settings.messages.targets:
        cuts = [first for first, _ in plan.bounds[1:]]
        takes_gradient = gradients_across_cuts(chain, trial.inputs, cuts, arithmetic)
    fingerprints = data.fingerprints()
    check_repeatable(fingerprints["train"], plan)

    # where it starts
    start = new_start(settings.model, run, chain) if found is None else resumed(found, run, settings, planned, device)
    if resume is not None:
        notes += links_without_state(settings, plan, placement, ends_of_links(resume))
    if found is not None:
        check_resumed_averaging(settings, staged.replicas, found.progress, found.config, found.changes)
    processes = 1 if plan.finegrained else placement.num_processes
    notes += [*transport_notes(settings.executor, device, processes), *resume_notes, *start.notes]
    return Job(
        settings=settings,
        run=run,
        plan=plan,
        timetable=timetable,
        placement=placement,
        threads=settings.threads or max(1, usable_cores() // processes),
        device=device,
        resume=resume,
        initial_weights=start.weights,
        finished=start.finished,
        labels=labels,
        tokens=trial.tokens,
        takes_gradient=takes_gradient,
        lower_is_better=falling,
        data=fingerprints,
        provenance=provenance(device) | ({"initial_weights": start.origin} if start.origin else {}),
        notes=list(dict.fromkeys(notes)),
    )
