"""Everything that can be wrong with a run, found before a process is started or a file overwritten."""

from pipetrain.engine import outer_launcher
from pipetrain.engine.errors import ConfigError
from pipetrain.engine.executors.messages.transport import DeviceIdentity, set_environment, transport_between
from pipetrain.engine.failure import described, in_own_words, place_of
from pipetrain.engine.libraries import lazy_compiler
from pipetrain.engine.libraries.processes import usable_cores
from pipetrain.runner.config.settings import Settings
from pipetrain.runner.tracking.run_directory import RunDirectory
from pipetrain.runner.training.builders.callbacks import check_callbacks
from pipetrain.runner.training.builders.machine import device_at
from pipetrain.runner.training.checkpoint import store
from pipetrain.runner.training.checkpoint.initial_weights import initial_weights
from pipetrain.runner.training.checks.data import check_data
from pipetrain.runner.training.checks.model import check_model
from pipetrain.runner.training.checks.optimizer import check_options_of_stages, check_parameter_groups, check_step
from pipetrain.runner.training.checks.pipeline import check_pipeline
from pipetrain.runner.training.components import Components, build
from pipetrain.runner.training.job import Job
from pipetrain.runner.training.provenance import provenance
from pipetrain.runner.training.resume import check_start, find_checkpoint


def prepare(settings: Settings, run: RunDirectory) -> Job:
    """Builds everything once and checks that it goes together.

    Raises:
        ConfigError: the first setting that cannot work, or an exception of the user's own code.
    """
    try:
        return _prepared(settings, run)
    except Exception as error:
        if place_of(error) is None or in_own_words(error):
            raise
        raise ConfigError(described(error)) from error


def _prepared(settings: Settings, run: RunDirectory) -> Job:
    if outer_launcher.is_present() and settings.device != "cpu":  # this process trains, too, and now looks for devices
        set_environment("cuda")
    lazy_compiler.install()
    check_callbacks(settings)
    resume, resume_notes = find_checkpoint(settings, run)
    components = build(settings, resume)
    placement, labels, tokens = components.placement, components.labels, components.trial.tokens
    checks = (check_parameter_groups, check_options_of_stages, check_step, check_model, check_data, check_pipeline)
    notes = [note for check in checks for note in check(settings, components)]
    finished, initial, origin = False, None, None
    if resume is not None:
        finished, missing = check_start(resume, run, components)
        resume_notes += missing
        origin = store.load_progress(resume).get("initial_weights")
    elif outer_launcher.leads():  # other processes of an outer launcher learn from this one what is loaded
        initial = initial_weights(settings.model, components.chain)
        if initial is not None and initial.path.is_relative_to(run.checkpoints.resolve()):
            raise ConfigError(
                f"model.weights={settings.model.weights}: these weights are in hydra.run.dir={run}, whose files a "
                "new run would move to another folder; take another hydra.run.dir, or continue that run with resume"
            )
        origin = initial and {"path": str(initial.path), "sha256": initial.sha256}
        notes += initial.notes if initial else []
    processes = 1 if components.plan.finegrained else placement.num_processes
    return Job(
        settings=settings,
        run=run,
        plan=components.plan,
        timetable=components.timetable,
        placement=placement,
        threads=settings.threads or max(1, usable_cores() // processes),
        device=components.device,
        resume=resume,
        initial_weights=initial,
        finished=finished,
        labels=labels,
        tokens=tokens,
        lower_is_better=components.lower_is_better,
        data=components.data_read,
        provenance=provenance(components.device) | ({"initial_weights": origin} if origin else {}),
        notes=list(dict.fromkeys([*notes, *_transport_notes(components), *resume_notes])),
    )


def _transport_notes(components: Components) -> list[str]:
    """A line on how stages on GPUs exchange messages, as far as that is known before their processes meet."""
    processes = components.placement.num_processes
    if components.device == "cpu" or components.settings.executor.simulated or processes == 1:
        return []
    if outer_launcher.is_present():
        return ["messages: over NCCL if each process has its own GPU, else over Gloo; summary.json has the transport"]
    devices = [device_at(components.device, process) for process in range(processes)]
    transport = transport_between(devices[0], [DeviceIdentity.of(device) for device in devices])
    way = "from GPU to GPU over NCCL" if transport.direct else "through host memory over Gloo"
    return [f"messages: {way}, as {transport.reason}"]


def stage_devices(job: Job) -> list[str]:
    """The device of each stage."""
    if job.device == "cpu":
        return ["cpu"] * job.num_stages
    simulated = job.settings.executor.simulated
    return [str(device_at(job.device, 0 if simulated else job.placement.process_of(r))) for r in range(job.num_stages)]
