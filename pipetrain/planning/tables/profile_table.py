"""A profile on the terminal: a line for each layer, and the whole."""

from collections.abc import Iterator

from pipetrain.planning.profile.profile import NO_MESSAGE_WORK, NO_READING, Profile, ProfiledLayer
from pipetrain.runner.terminal.text_table import Row, both_ends, counted, rate_of, shortened, size_of, text_table

_LABEL = 40


def profile_table(profile: Profile, rest: str) -> list[str]:
    """Lines with the costs of each layer per minibatch, their sum, and the other measurements.

    `rest` names the layers that a long table leaves out, such as `layers, in profile.json`.
    """
    rows: list[Row] = [_row(str(i), layer.label, layer) for i, layer in enumerate(profile.layers)]
    whole = ProfiledLayer(
        "",
        sum(layer.forward_s for layer in profile.layers),
        sum(layer.backward_s for layer in profile.layers),
        0,
        profile.weight_bytes,
        sum(layer.activation_bytes for layer in profile.layers),
    )
    heads = ("layer", "", "forward ms", "backward ms", "output", "weights", "activations")
    table = text_table(heads, [*both_ends(rows, rest), _row("all", "", whole)], "><>>>>>")
    return [_origin(profile), *profile.notes, *table, *_measurements(profile)]


def _row(number: str, label: str, layer: ProfiledLayer) -> tuple[str, ...]:
    times = (f"{1000 * seconds:.2f}" for seconds in (layer.forward_s, layer.backward_s))
    sizes = (layer.output_bytes, layer.weight_bytes, layer.activation_bytes)
    return number, shortened(label, _LABEL), *times, *(size_of(size) if size else "-" for size in sizes)


def _origin(profile: Profile) -> str:
    """The subject of the measurement, as far as the profile names it."""
    known = profile.provenance
    parts = [str(known[name]) for name in ("model", "dataset") if known.get(name)]
    if profile.batch_size is not None:
        parts.append(f"minibatches of {profile.batch_size}")
    if (microbatches := known.get("microbatches", 1)) != 1:
        parts.append(f"in {microbatches} microbatches")
    if known.get("device"):
        parts.append(f"{known['device']}, {counted(known.get('threads', 1), 'thread', 'threads')}")
    if known.get("precision"):
        parts.append(known["precision"])
    return ", ".join([*parts, counted(len(profile.layers), "layer", "layers")])


def _measurements(profile: Profile) -> Iterator[str]:
    if profile.reading != NO_READING:
        inputs, targets = 1000 * profile.reading.inputs_s, 1000 * profile.reading.targets_s
        yield f"the first stage reads inputs for {inputs:.2f} ms, the last one targets for {targets:.2f} ms"
    seconds, rate = profile.single_device_s, ""
    if profile.batch_size is not None and seconds:
        rate = f", {rate_of(profile.batch_size / seconds)} samples/s"
    yield f"one device takes {1000 * seconds:.2f} ms for a minibatch{rate}"
    if profile.update_bytes_per_s is not None:
        yield f"updates read and write weights at {size_of(profile.update_bytes_per_s)}/s"
    if profile.bytes_per_s is not None:
        text, work = f"two workers send each other {size_of(profile.bytes_per_s)}/s", profile.message_work
        if work != NO_MESSAGE_WORK:
            once, per_megabyte = 1000 * work.seconds, 1e9 * work.seconds_per_byte
            text += f"; each end of a message takes {once:.2f} ms of a core, and {per_megabyte:.2f} ms for each MB"
        yield text
