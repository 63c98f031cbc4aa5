"""A model, a data set and a loss of your own: a recurrent network learns which letter comes next.

    export PYTHONPATH=examples
    pipetrain run model=custom model._target_=next_letter.build \
                  dataset=custom dataset._target_=next_letter.Letters \
                  loss=custom loss._target_=next_letter.NextLetter \
                  optimizer=adam optimizer.lr=0.01 train.batch_size=16 train.epochs=3
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from typing_extensions import override

from pipetrain import LayerChain

RHYME = """
this is the house that jack built. this is the malt that lay in the house that jack built.
this is the rat that ate the malt that lay in the house that jack built.
this is the cat that killed the rat that ate the malt that lay in the house that jack built.
this is the dog that worried the cat that killed the rat that ate the malt that lay in the house that jack built.
"""


class Windows:
    """A split: (letters, the letter after each), both int64 (length,)."""

    def __init__(self, text: Tensor, length: int) -> None:
        self.text = text
        self.length = length

    def __len__(self) -> int:
        return len(self.text) - self.length

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        window = self.text[index : index + self.length + 1]
        return window[:-1], window[1:]


class Letters:
    """The data object; its attribute `classes` is passed to `build`."""

    def __init__(self, length: int = 24) -> None:
        alphabet = sorted(set(RHYME))
        text = torch.tensor([alphabet.index(letter) for letter in RHYME])
        self.train = Windows(text[:320], length)
        self.eval = Windows(text[320:], length)
        self.classes = len(alphabet)


class Recurrent(nn.Module):
    """A layer with two inputs and two outputs, which passes the embedding on to the head."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(width, width, batch_first=True)

    @override
    def forward(self, hidden: Tensor, embedded: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """(n, length, width) each."""
        return self.lstm(hidden)[0], hidden if embedded is None else embedded


class Head(nn.Module):
    """Computes a score for each letter."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, classes)

    @override
    def forward(self, hidden: Tensor, embedded: Tensor) -> Tensor:
        """(n, classes, length), the order of torch's cross-entropy."""
        scores: Tensor = self.linear(hidden + embedded)
        return scores.transpose(1, 2)


class Model(nn.Module):
    """The whole model; checkpoints and exports use its parameter names."""

    def __init__(self, classes: int, width: int, depth: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(classes, width)
        self.blocks = nn.ModuleList(Recurrent(width) for _ in range(depth))
        self.head = Head(width, classes)


def build(classes: int, width: int = 48, depth: int = 2) -> LayerChain:
    """The model with its layers in order."""
    model = Model(classes, width, depth)
    return LayerChain(model, [model.embedding, *model.blocks, model.head])


class NextLetter(nn.Module):
    """Cross-entropy of the letters from position `first` on."""

    def __init__(self, first: int = 8) -> None:
        super().__init__()
        self.first = first

    @override
    def forward(self, scores: Tensor, target: Tensor) -> Tensor:
        """Mean loss of these letters."""
        return F.cross_entropy(scores[..., self.first :], target[:, self.first :])

    def count(self, target: Tensor) -> int:
        """Number of letters in the mean, by which microbatches are weighted."""
        return target[:, self.first :].numel()

    def metrics(self, scores: Tensor, target: Tensor) -> dict[str, Tensor]:
        """Numbers of hits by name; evaluations report percentages of the count."""
        return {"letters": (scores.argmax(1) == target)[:, self.first :].sum()}
