"""Classes and functions that have moved within pipetrain, so that stored runs and users' scripts still find them."""

from typing import Any

from pipetrain.config.schema import TARGET

MOVED: dict[str, str] = {
    "pipetrain.data.fashion.fashion_mnist_mini": "pipetrain.data.images.mnist_cifar.fashion_mnist_mini",
    "pipetrain.data.torchvision_datasets.mnist": "pipetrain.data.images.mnist_cifar.mnist",
    "pipetrain.data.torchvision_datasets.fashion_mnist": "pipetrain.data.images.mnist_cifar.fashion_mnist",
    "pipetrain.data.torchvision_datasets.cifar10": "pipetrain.data.images.mnist_cifar.cifar10",
    "pipetrain.data.torchvision_datasets.cifar100": "pipetrain.data.images.mnist_cifar.cifar100",
    "pipetrain.data.image_folder.image_folder": "pipetrain.data.images.folder.image_folder",
    "pipetrain.data.imagenet.imagenet": "pipetrain.data.images.imagenet.imagenet",
    "pipetrain.data.tiny_imagenet.tiny_imagenet": "pipetrain.data.images.imagenet.tiny_imagenet",
    "pipetrain.data.synthetic.synthetic_images": "pipetrain.data.images.synthetic.synthetic_images",
    "pipetrain.data.text.austen_novels.austen_novels": "pipetrain.data.text.classification.austen_novels",
    "pipetrain.data.text.imdb.imdb": "pipetrain.data.text.classification.imdb",
    "pipetrain.data.text.labelled_table.labelled_table": "pipetrain.data.text.table.labelled_table",
    "pipetrain.data.text.text_file.text_file": "pipetrain.data.text.text_files.text_file",
    "pipetrain.data.text.text_file.austen": "pipetrain.data.text.text_files.austen",
    "pipetrain.data.text.penn_treebank.penn_treebank": "pipetrain.data.text.text_files.penn_treebank",
    "pipetrain.data.parallel_text.parallel_text": "pipetrain.data.translation.parallel_text.parallel_text",
    "pipetrain.data.synthetic_translation.synthetic_en_de": "pipetrain.data.translation.synthetic.synthetic_en_de",
    "pipetrain.data.msvd.msvd": "pipetrain.data.video.msvd.msvd",
    "pipetrain.data.moving_shapes.synthetic_moving_shapes": "pipetrain.data.video.moving_shapes.synthetic_moving_shapes",  # noqa: E501
    "pipetrain.losses.token_cross_entropy.TokenCrossEntropy": "pipetrain.losses.TokenCrossEntropy",
    "pipetrain.models.alexnet_cifar.build": "pipetrain.models.small_images.alexnet_cifar",
    "pipetrain.models.lenet.build": "pipetrain.models.small_images.lenet5",
    "pipetrain.models.vgg_cifar.build": "pipetrain.models.small_images.vgg16_cifar",
    "pipetrain.planner.automatic.Automatic": "pipetrain.planner.partition.automatic.AutoPartition",
    "pipetrain.planner.finegrained.FineGrained": "pipetrain.planner.partition.finegrained.FineGrained",
    "pipetrain.planner.partition_rules.Even": "pipetrain.planner.partition.rules.Even",
    "pipetrain.planner.partition_rules.Explicit": "pipetrain.planner.partition.rules.Explicit",
    "pipetrain.planner.partition_rules.Ppv": "pipetrain.planner.partition.rules.Ppv",
    "pipetrain.planner.stored_plan.Stored": "pipetrain.planner.partition.from_file.PartitionFromPlan",
}
"""Former path -> present path. An entry stays for as long as runs that name the former path are to load."""


def with_present_paths(content: Any) -> Any:
    """A copy of a configuration, or of part of one, in which every moved target has its present path."""
    if isinstance(content, dict):
        return {
            key: MOVED.get(value, value) if key == TARGET and isinstance(value, str) else with_present_paths(value)
            for key, value in content.items()
        }
    return [with_present_paths(each) for each in content] if isinstance(content, list) else content
