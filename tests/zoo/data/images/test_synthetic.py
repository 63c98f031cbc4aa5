import pytest
import torch

from pipetrain.data.loader import Loader
from pipetrain.data.ranges import known_labels
from pipetrain.zoo.data.images.synthetic import synthetic_images


def test_synthetic_images_have_the_shapes_and_counts_asked_for():
    made = synthetic_images(channels=2, size=[6, 9], classes=3, train=10, eval=4)
    assert (made.channels, made.classes, made.size) == (2, 3, (6, 9))
    assert (len(made.train), len(made.eval)) == (10, 4)
    image, target = made.train[5]
    assert (image.shape, image.dtype) == ((2, 6, 9), torch.float32)
    assert (target.shape, target.dtype, target.item()) == ((), torch.int64, 2)
    assert made.train.target(5).item() == 2


@pytest.mark.parametrize("size", [1, 3, [1, 40]])
def test_synthetic_images_may_have_small_and_odd_sizes(size):
    made = synthetic_images(size=size, classes=4, train=4, eval=1, augment=True)
    assert made.train[0][0].shape == (3, *made.size)


def test_synthetic_sample_does_not_depend_on_what_is_read_before():
    first, again = synthetic_images(train=50), synthetic_images(train=50)
    expected = first.train[7][0]
    torch.manual_seed(1)
    assert list(again.train)[7][0].equal(expected)
    assert not first.eval[7][0].equal(expected)
    assert not first.train[17][0].equal(expected)
    assert not synthetic_images(seed=1).train[7][0].equal(expected)


def test_synthetic_values_are_normalized():
    inputs = torch.stack([synthetic_images(size=16, train=200).train[i][0] for i in range(200)])
    assert inputs.mean().item() == pytest.approx(0, abs=0.2)
    assert inputs.std().item() == pytest.approx(1, abs=0.2)


def test_synthetic_classes_are_learnable_and_generalize():
    made = synthetic_images(channels=1, size=12, classes=5, train=200, eval=100)
    ((inputs,),) = Loader(made.train, batch_size=200, shuffle=False).inputs(0)
    means = torch.stack([inputs[label::5].mean(0) for label in range(5)]).flatten(1)
    ((images, targets),) = (
        (x, y) for (x,), (y,) in Loader(made.eval, batch_size=100, shuffle=False, drop_short=False).samples(0)
    )
    nearest = torch.cdist(images.flatten(1), means).argmin(1)
    assert (nearest == targets).float().mean() > 0.95


def test_augmentation_applies_to_training_alone():
    plain, augmented = synthetic_images(), synthetic_images(augment=True)
    assert torch.equal(plain.eval[3][0], augmented.eval[3][0])
    assert any(not torch.equal(plain.train[i][0], augmented.train[i][0]) for i in range(4))


def test_reading_past_the_end_is_an_index_error():
    with pytest.raises(IndexError):
        synthetic_images(train=3).train[3]


def test_labels_of_synthetic_images_are_those_of_its_samples():
    split = synthetic_images(classes=3, train=7).train
    assert known_labels(split).tolist() == [int(split.target(index)) for index in range(7)]
