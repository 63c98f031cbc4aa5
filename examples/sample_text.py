"""Text from a trained language model: each token is drawn by the scores that the model gives for the ones before it.

    pipetrain run model=gpt hydra.run.dir=outputs/gpt
    python examples/sample_text.py outputs/gpt --prompt "It is a truth"

The same seed gives the same text.
"""

import argparse
from collections.abc import Sequence

import torch
from torch import Tensor, nn

import pipetrain
from pipetrain.data.interface import DataSet


def choose(scores: Tensor, temperature: float, top_k: int | None, generator: torch.Generator) -> int:
    """A token, by the scores (tokens,) of all; the likeliest one if the temperature is 0."""
    if not temperature:
        return int(scores.argmax())
    if top_k is not None:
        least = scores.topk(min(top_k, len(scores))).values[-1]
        scores = scores.masked_fill(scores < least, -torch.inf)
    return int(torch.multinomial((scores / temperature).softmax(0), 1, generator=generator))


@torch.no_grad()
def continued(
    model: nn.Module, begun: Sequence[int], positions: int, tokens: int, options: argparse.Namespace
) -> list[int]:
    """The prompt's tokens, then generated ones, each predicted from the last `positions` tokens.

    `tokens` is the size of the vocabulary: a model may have scores for more.
    """
    ids, generator = list(begun), torch.Generator().manual_seed(options.seed)
    for _ in range(options.length):
        scores = model(torch.tensor([ids[-positions:]]))[0, -1, :tokens]
        ids.append(choose(scores, options.temperature, options.top_k, generator))
    return ids


def main() -> None:
    """Prints a text that begins with the prompt."""
    parser = argparse.ArgumentParser(description="Prints a text that the language model of a run goes on with.")
    parser.add_argument("run", help="a run directory")
    parser.add_argument("--best", action="store_true", help="use the checkpoint with the best metric, not the newest")
    parser.add_argument("--prompt", default="", help="how the text begins; default a new line")
    parser.add_argument("--length", type=int, default=200, help="tokens to add; default 200")
    parser.add_argument("--temperature", type=float, default=0.8, help="0: always the likeliest token; default 0.8")
    parser.add_argument("--top-k", type=int, help="choose among the K likeliest tokens; default all")
    parser.add_argument("--seed", type=int, default=0, help="of the draws; default 0")
    options = parser.parse_args()
    run = pipetrain.load(options.run)
    data, model = run.dataset(), run.model(best=options.best).eval()
    if (vocabulary := DataSet(data).vocabulary) is None:
        parser.error(f"{options.run} was trained on data without a vocabulary to write text with")
    begun = vocabulary.encode(options.prompt) if options.prompt else vocabulary.start
    print(vocabulary.decode(continued(model, begun.tolist(), data.max_length, vocabulary.size, options)))


if __name__ == "__main__":
    main()
