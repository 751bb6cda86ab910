"""Claim: capsule networks reject images of unknown classes by the lengths of their capsules."""

import torch

from claims.measures.scores import class_scores, image_logits
from torchcaps.data import Dataset, dataset_info, load_dataset
from torchcaps.evaluation import auroc, reconstruction_distances
from torchcaps.reporting import EvaluatedRun
from torchcaps.reproduction.measures import UNKNOWN_SETS, Figures, register_measure
from torchcaps.types import spec_of

NUM_IMAGES = 2000  # of each side, at most


@register_measure()
def unknown_classes(run: EvaluatedRun) -> Figures:
    """Area under the ROC curve, images of known classes against images of unknown ones.

    Unknown are the classes that the set of the run leaves out of the one that it is made of; of a
    whole set, all of another one.

    Returns:
        "auroc_largest": of the largest length, or probability of the softmax; "auroc_energy": of
        the logarithm of the sum of exponentials of logits, where there are any; "auroc_best": the
        larger of both;
        "auroc_reconstruction": of the negative distance to the reconstruction, with a decoder.
    """
    model = run.model
    known = run.subset(NUM_IMAGES).float_images()
    others = _unknown_images(run)
    order = torch.randperm(len(others), generator=torch.Generator().manual_seed(0))
    unknown = others.subset(order[:NUM_IMAGES]).float_images()
    largest = class_scores(model, known).amax(dim=1)
    figures: Figures = {
        "auroc_largest": auroc(largest, class_scores(model, unknown).amax(dim=1)),
    }
    if spec_of(model).logits:
        energies = [image_logits(model, images).logsumexp(dim=1) for images in (known, unknown)]
        figures["auroc_energy"] = auroc(*energies)
    figures["auroc_best"] = max(figures.values())
    if spec_of(model).decoder:
        known_distances = reconstruction_distances(model, known)
        unknown_distances = reconstruction_distances(model, unknown)
        figures["auroc_reconstruction"] = auroc(-known_distances, -unknown_distances)
    return figures


def _unknown_images(run: EvaluatedRun) -> Dataset:
    """Test images of no class of the run."""
    name = run.config.data.name
    if name in UNKNOWN_SETS:
        return run.load_images(UNKNOWN_SETS[name])
    base = load_dataset(dataset_info(name).made_from or name, "test", run.config.data.root)
    is_known = [base.classes.index(label) for label in run.images.classes]
    is_unknown = ~torch.isin(base.labels, torch.tensor(is_known))
    return base.subset(torch.nonzero(is_unknown).flatten())
