"""The data set: what the model and the loss can make of its samples."""

from pipetrain.config.settings import Settings
from pipetrain.run.builders.model import build_arithmetic, derived_from_data
from pipetrain.run.builders.optimizer import build_rate
from pipetrain.run.checks.dry_run import evaluation_dry_run
from pipetrain.run.checks.loss import check_loss
from pipetrain.run.checks.ranges import check_labels, check_samples, check_vocabulary
from pipetrain.run.components import Components
from pipetrain.run.whole_model import decoded_metrics, problem_of


def _check_derived(settings: Settings, components: Components) -> list[str]:
    derived = derived_from_data(settings.model.target, components.data.dataset)
    told = ", ".join(f"model.{name}={value}" for name, value in derived.items())
    return [f"{told}: as the data show, which have no such attributes"] if derived else []


def _check_notes(_settings: Settings, components: Components) -> list[str]:
    """Notes of the data set, such as samples that it leaves out."""
    return [*getattr(components.data.dataset, "notes", ())]


def _check_dropped(settings: Settings, components: Components) -> list[str]:
    dropped, limit = components.data.train.dropped, settings.train.microbatches
    if not dropped:
        return []
    if hasattr(components.data.dataset.train, "batches"):
        return [f"{dropped} samples are in no minibatch, as the data set makes them"]
    return [f"the last {dropped} samples of each epoch are dropped: fewer than train.microbatches={limit}"]


def _check_pinned(settings: Settings, components: Components) -> list[str]:
    useless = settings.dataset.pin_memory and components.device == "cpu"
    return ["dataset.pin_memory=true changes nothing: device=cpu copies no minibatch"] if useless else []


def _check_targets(settings: Settings, components: Components) -> list[str]:
    """Labels, tokens and loss; and the learning rate, which only workers use, can be built."""
    if components.labels is not None:
        check_labels(settings, components.data, components.trial, components.labels)
    if components.trial.tokens is not None:
        check_vocabulary(settings, components.trial.tokens)
    dataset, chain = components.data.dataset, components.chain
    decoded = decoded_metrics(settings, dataset, chain)
    notes = check_loss(settings, components.trial, components.loss, components.metrics, decoded)
    build_rate(settings, components.timetable)(0)
    return notes


def _check_evaluation(settings: Settings, components: Components) -> list[str]:
    """An evaluation set of samples of another form than the training set's, which the model may not take."""
    if not settings.eval.every_epochs:
        return []
    data, arithmetic = components.data, build_arithmetic(settings.train)
    trial = evaluation_dry_run(data, components.chain, components.trial, arithmetic)
    if trial is not None:
        check_loss(
            settings,
            trial,
            components.loss,
            components.metrics,
            decoded_metrics(settings, data.dataset, components.chain),
        )
    return []


def _check_samples(settings: Settings, components: Components) -> list[str]:
    check_samples(settings, components.data, components.labels, components.trial.tokens)
    return []


def _check_decoding(settings: Settings, components: Components) -> list[str]:
    """A data set whose texts this model cannot generate trains all the same."""
    decoding = getattr(components.data.dataset, "decoding", None)
    if decoding is None or not settings.eval.decode or not settings.eval.every_epochs:
        return []
    problem = problem_of(decoding, components.chain)
    return [] if problem is None else [f"warning: evaluations generate no texts: {problem}"]


CHECKS = (
    _check_derived,
    _check_notes,
    _check_dropped,
    _check_pinned,
    _check_targets,
    _check_samples,
    _check_evaluation,
    _check_decoding,
)
