"""PipeMare's delay τ of a stage, and the length of T1, the learning-rate rescheduling by it."""

from pipetrain.engine.errors import check_whole
from pipetrain.engine.program.weight_reads import StageContext


def forward_delay(context: StageContext) -> int:
    """τ of a stage: ceil((2(P - i) + 1) / N) with P = D and i = r + 1 (PipeMare, table 1).

    With unlike numbers of replicas floor((2(W - 1) + 1) / R), W the workers from this stage to the last.
    """
    workers = context.workers
    if workers is not None and not workers.even:
        return max(1, (2 * workers.behind(context.stage) + 1) // context.replicas)
    return -(-(2 * (context.num_stages - 1 - context.stage) + 1) // context.num_microbatches)


def check_anneal_steps(value: object) -> None:
    """Checks K of T1.

    Raises:
        ConfigError: it is no number of updates.
    """
    check_whole("method.anneal_steps", value, least=1, otherwise="the updates over which T1 fades out")
