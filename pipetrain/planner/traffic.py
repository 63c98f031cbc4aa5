"""What the devices of a pipeline send each other."""

from pipetrain.planner.pipeline_plan import PipelinePlan
from pipetrain.planner.profile import Profile


def sent_bytes(profile: Profile, plan: PipelinePlan) -> float:
    """Bytes that all devices together send for each minibatch.

    Over a cut go activations and their gradients; m replicas exchange 2(m - 1)/m of their weights for each minibatch,
    each of them once for m.
    """
    total, front = 0.0, set[int]()
    for stage in plan.stages:
        total += 2 * (stage.replicas - 1) / stage.replicas * profile.weight_bytes_of(stage.layers)
        front |= set(stage.layers)
        leaving = {source for source, target in profile.edges if source in front and target not in front}
        total += 2 * sum(profile.layers[layer].output_bytes for layer in leaving)
    return total
