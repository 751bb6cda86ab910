"""Training of stacked capsule auto-encoders: parts draw an image, objects explain the parts.

Adam Kosiorek, Sara Sabour, Yee Whye Teh, Geoffrey Hinton, "Stacked Capsule Autoencoders", NeurIPS
2019, arXiv 1906.06818, sections 2.2 to 2.4.

In: an `SCAE` model and images without labels. For each image the model gives an `Explanation`,
which has M part capsules, what each part draws, K object capsules, and two likelihoods. In this
file:

    a_k   `objects.presence`: how surely object k is in the image, in [0, 1]
    r_km  `posterior`, `[batch, parts, objects + 1]`: the probability that object k explains part m;
          a last column is "no object". The tensor has the axis of m before that of k.
    q_k   `explained_share`, mean over m of r_km: the share of the parts that object k explains

Out: a loss in training, a weighted sum of terms (`loss_terms`); and metrics of held-out images: the
weighted sum of their two log likelihoods, which chooses the epoch, and the accuracy of clusters.
Labels have no part in the loss, nor in that choice. Images are clustered by their objects, and the
metrics ask whether these clusters are classes. Steps return `Outputs`, tensors by name.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Generator, Tensor

from torchcaps.data import Batch, Dataset
from torchcaps.distributed import all_gather_rows, all_reduce_sum
from torchcaps.evaluation.accuracy.clusters import kmeans, linear_accuracy, match_clusters, nearest
from torchcaps.evaluation.base import EvaluationResult, MetricResult
from torchcaps.functional.bounds import without_autocast
from torchcaps.models.scae import NOISE_RANGE, Explanation, Noise, Objects
from torchcaps.tasks._base import (
    Outputs,
    Predictions,
    ReportItem,
    Task,
    eval_outputs,
    first_batch,
    register_task,
)
from torchcaps.transfer import device_of, evaluating, to_device

# Images are clustered twice: by q_k and by a_k. These clusters are rows 0 and 1 of the model's
# `centers`, and of its `names`, the class of each cluster.
PRESENCE_ROW = 1
SEED = 99  # of k-means
MIN_SHARE = 1e-8  # smallest number whose logarithm is taken
LOGIT_EPS = 1e-6  # presences are clamped to [1e-6, 1 - 1e-6] before their logit
# With two views of each image:
PARTS_FRACTION = 0.75  # share of a training that is for parts alone; the rest is for objects
TEMPERATURE = 0.1  # divisor of the cosines in the term `views`
MAX_OBJECTS = 5  # in a prediction
# In a report:
MAX_PARTS = 40  # templates
MAX_DRAWN_IMAGES = 14  # beside the drawings of their parts
MAX_IMAGES = 1000  # whose objects are counted
MAX_DRAWN_OBJECTS = 10
MAX_OBJECT_IMAGES = 6  # for each of these objects
MAX_CLASSES = 3  # for each of these objects
PRESENT = 0.5  # an object counts as present in an image if a_k is above this


@register_task("unsupervised")
class Unsupervised(Task):
    """Parts that draw an image, and objects that explain where the parts are; no labels.

    By default parts and objects learn together. Where the model has a weight for the term `views`,
    which the paper has not, three quarters of a training are for parts alone. In the last quarter
    parts stay as they are, and objects learn from two views of each image, changed at random: to
    explain both, and to be present alike in both, unlike in other images. Logits of presence have
    noise in training, but not in this last quarter.
    """

    # Answers to the questions of the base class `Task`:
    targets = ("label",)  # which the accuracy of clusters alone reads
    score = "log_likelihood"  # the metric by which the epoch is chosen
    losses = ("likelihood",)  # names of its losses
    labeled = False
    # Gradients are not clipped: the loss is a sum over pixels, so they grow with an image's size.
    clip = 0.0
    requires = "a model of parts and objects"  # words of the error for other models

    def _setup(self, images: Dataset | None) -> None:
        if self.uses_views:
            # Shares of the training at which the learning rate starts anew.
            self.lr_restarts = (0.0, PARTS_FRACTION)

    @property
    def uses_views(self) -> bool:
        """Whether objects learn from two views of each image."""
        return self.model.weights["views"] > 0

    def augment(self, batch: Batch, generator: Generator) -> Batch:
        """In training, images changed at random, noise on the model's logits of presence, and views.

        The targets "noise.parts", "noise.objects" and "noise.votes" are for the inputs, never for
        "second_view": each image again, changed in another way, where the loss has the term
        `views`.
        """
        if not self.training:
            return batch
        first_view = self.transforms(batch, generator)
        parts = self.model.num_parts
        objects = self.model.num_objects
        sizes = {"parts": [parts], "objects": [objects], "votes": [objects, parts]}
        for name, size in sizes.items():
            # The generator is on the CPU, so that every device gets the same numbers.
            uniform = torch.rand(len(batch.inputs), *size, generator=generator)
            # Uniform in [-2, 2]: `NOISE_RANGE` is the width.
            uniform = to_device(uniform, batch.inputs.device)
            first_view.targets[f"noise.{name}"] = NOISE_RANGE * (uniform - 0.5)
        if self.uses_views:
            first_view.targets["second_view"] = self.transforms(batch, generator).inputs
        return first_view

    def training_step(self, batch: Batch, fraction_trained: float) -> Outputs:
        """The loss of a batch, and its terms without their weights.

        Returns:
            "loss": weighted sum of the terms. Terms by the names of the model's `weights`: those of
            `loss_terms`, or those of the phase of the training.
        """
        images = batch.inputs
        noise = {
            name.removeprefix("noise."): target
            for name, target in batch.targets.items()
            if name.startswith("noise.")
        }
        if "second_view" not in batch.targets:  # parts and objects together
            explanation = self.model.explain(images, Noise(**noise) if noise else None)
            with without_autocast(images):
                terms = loss_terms(explanation, self.model.num_clusters)
        elif fraction_trained < PARTS_FRACTION:  # parts alone
            *_, pixel_log_likelihood = self.model.explain_pixels(images, noise.get("parts"))
            terms = {"pixels": -pixel_log_likelihood.mean()}
        else:  # objects alone
            views = torch.cat([images, batch.targets["second_view"]])
            objects, pose_log_likelihood = self.model.explain_poses(views)
            with without_autocast(views):
                terms = {
                    "poses": -pose_log_likelihood.mean(),
                    "dynamic": dynamic_penalty(objects),
                    "views": contrastive_loss(objects.presence),
                }
        weighted = [self.model.weights[name] * term for name, term in terms.items()]
        return {"loss": sum(weighted), **terms}

    def eval_step(self, batch: Batch) -> Outputs:
        """What the metrics are made from, for each image of a batch.

        Returns:
            "pixels", "poses": minus the log likelihoods of the image and of its parts' poses,
            `[batch]`. "labels": `[batch]`. "presence", "explained_share": a_k and q_k,
            `[batch, objects]`.
        """
        explanation: Explanation = self.model.explain(batch.inputs)
        return {
            "pixels": -explanation.pixel_log_likelihood,
            "poses": -explanation.pose_log_likelihood,
            "labels": batch.targets["label"],
            "presence": explanation.objects.presence,
            "explained_share": explained_share(explanation),
        }

    def compute_metrics(self, outputs: Outputs) -> dict[str, float]:
        """Minus log likelihoods, and the accuracy of clusters.

        The training loop calls this in training mode after each epoch, for the validation images.
        Their clusters are then written to the model, so that each epoch's checkpoint has clusters
        that suit its weights. Each gets one class, so that as many images as possible are right.
        In evaluation mode, as for test images, the clusters of the model are applied.

        Args:
            outputs: of `eval_step` for all images.

        Returns:
            "pixels", "poses": minus the log likelihoods, means over images.
            "loss": weighted sum of these two terms alone, with the weights of the training.
            "log_likelihood": minus this loss.
            "accuracy_...": share of images in a cluster of their class. "linear_...": accuracy of a
            linear classifier, which is fitted on every second of these images and measured on the
            others, both ways. The names end in "posterior" for q_k, in "presence" for a_k.
        """
        labels = outputs["labels"]
        weights = self.model.weights
        metrics = {name: outputs[name].double().mean().item() for name in ("pixels", "poses")}
        loss = sum(weights[name] * metric for name, metric in metrics.items())
        metrics = {"loss": loss, "log_likelihood": -loss, **metrics}
        generator = Generator().manual_seed(SEED)
        clustered = {
            "posterior": outputs["explained_share"],
            "presence": self._presence_points(outputs["presence"]),
        }
        for row, (name, points) in enumerate(clustered.items()):
            if self.training:
                centers = kmeans(points, self.model.num_clusters, generator=generator)
                clusters = nearest(points, centers)
                self.model.centers[row] = centers
                self.model.cluster_classes[row] = match_clusters(clusters, labels, len(centers))
            clusters = nearest(points, self.model.centers[row].cpu())
            is_right = self.model.cluster_classes[row].cpu()[clusters] == labels
            metrics[f"accuracy_{name}"] = float(is_right.double().mean())
            metrics[f"linear_{name}"] = linear_accuracy(points, labels)
        return metrics

    def _presence_points(self, presence: Tensor) -> Tensor:
        """Presences `[n, objects]` as the points to cluster: as the term `views` compares them."""
        return logit_directions(presence) if self.uses_views else presence

    def evaluation(self, outputs: Outputs, images: Dataset) -> EvaluationResult:
        """Metrics of test images, by the clusters that the training found."""
        return MetricResult(self.eval().compute_metrics(outputs), len(images), "accuracy_presence")

    def report_items(self, evaluation: EvaluationResult, images: Dataset) -> list[ReportItem]:
        """Figures for a report: templates, test images drawn by their parts, and objects."""
        return [*_part_items(self, images), _objects_item(self, images)]

    @torch.inference_mode()
    def predict(self, images: Tensor) -> Predictions:
        """Of each image its cluster, the class of this cluster, and its most present objects."""
        presences = self.model(images).float().cpu()
        centers = self.model.centers[PRESENCE_ROW].cpu()
        clusters = nearest(self._presence_points(presences), centers)
        classes = self.model.cluster_classes[PRESENCE_ROW].tolist()
        rows = []
        for presence, cluster in zip(presences, clusters.tolist(), strict=True):
            order = presence.argsort(descending=True, stable=True)[:MAX_OBJECTS].tolist()
            objects = [{"object": k, "presence": float(presence[k])} for k in order]
            rows.append({"cluster": cluster, "class": classes[cluster], "objects": objects})
        return rows


def _part_items(task: Unsupervised, images: Dataset) -> list[ReportItem]:
    """Templates of the parts, and test images drawn by their parts."""
    from torchcaps import viz
    from torchcaps.viz.canvas import hues

    model = task.model
    templates = model.templates()[:MAX_PARTS].cpu()
    with evaluating(task):  # evaluation mode, no gradients
        pixels = first_batch(task, images, MAX_DRAWN_IMAGES).inputs
        explanation = model.explain(pixels)
        layers = image_layers(explanation)
    # A color for each object, and white for "no object".
    palette = F.pad(torch.from_numpy(hues(model.num_objects)), (0, 0, 0, 1), value=1.0)
    colors = palette.to(layers)[explanation.posterior.argmax(dim=-1)]  # [b, m, 3]
    brightness = layers[:, :-1].mean(dim=2)  # [b, m, h, w], without the background
    pictures = {
        "image": pixels.cpu(),
        "drawn": layers.sum(dim=1).cpu(),
        "by object": torch.einsum("bmhw,bmc->bchw", brightness, colors).cpu(),
    }
    return [
        ReportItem(
            "templates",
            "The parts",
            "Above: the template of each part. Below: the same as it covers others, white "
            "where it covers them wholly. A part turns, sizes and places its template, and "
            "gives it a color.",
            viz.image_rows({"template": templates, "covers": model.opacities()[:MAX_PARTS].cpu()}),
            f"{len(templates)} learned templates.",
        ),
        ReportItem(
            "parts",
            "Images by their parts",
            "Test images, what their parts draw together, and the same with a color for each "
            "object: that of the object which explains a part best. White parts are explained "
            "by none.",
            viz.image_rows(pictures),
            f"{len(pixels)} test images above what is drawn of them, and the same in colors of "
            "objects.",
        ),
    ]


def _objects_item(task: Unsupervised, images: Dataset) -> ReportItem:
    from torchcaps import viz

    images = images.subset(range(min(MAX_IMAGES, len(images))))
    outputs = eval_outputs(task, images, alone=True)  # one process draws
    presence = outputs["presence"]  # [n, objects]
    order = presence.mean(dim=0).argsort(descending=True, stable=True)
    pictures = {}
    table = []
    for k in order[:MAX_DRAWN_OBJECTS].tolist():
        # Images in which object k is most present, each beside the parts that it explains.
        ranking = presence[:, k].argsort(descending=True, stable=True)[:MAX_OBJECT_IMAGES]
        top_images = images.float_images(ranking).to(device_of(task.model))
        with evaluating(task):
            explanation = task.model.explain(top_images)
        posterior = explanation.posterior[..., k, None, None, None]  # r_km, [n, m, 1, 1, 1]
        drawings = (image_layers(explanation)[:, :-1] * posterior).sum(dim=1)
        pictures[str(k)] = torch.stack([top_images, drawings], dim=1).flatten(0, 1).cpu()

        counts = outputs["labels"][presence[:, k] > PRESENT].bincount()
        top_labels = counts.argsort(descending=True)[:MAX_CLASSES].tolist()
        means = (column[:, k].mean() for column in (presence, outputs["explained_share"]))
        classes = ", ".join(images.classes[label] for label in top_labels)
        table.append((str(k), *(f"{mean:.3f}" for mean in means), classes))
    return ReportItem(
        "objects",
        "What each object explains",
        "A row for each of the objects most often present: the images in which it is most present, "
        "each beside those of its parts that this object explains.",
        viz.image_rows(pictures),
        f"For {len(pictures)} objects, {len(ranking)} images and what the object explains of them.",
        ("Object", "Mean presence", "Share of the parts", "Classes in which it is most often"),
        table,
    )


def image_layers(explanation: Explanation) -> Float[Tensor, "batch layers channels height width"]:
    """What each part, and as the last layer the background, adds to the image.

    The sum of the layers is the image that all of them draw together.
    """
    return explanation.drawings * explanation.mixing_logits.softmax(dim=1)


def explained_share(explanation: Explanation) -> Float[Tensor, "batch objects"]:
    """q_k: the share of all parts that each object explains; they add up to one at most."""
    return explanation.posterior[..., :-1].mean(dim=1)


def loss_terms(explanation: Explanation, num_clusters: int) -> Outputs:
    """The terms of the loss of a batch without their weights, scalars (sections 2.2 to 2.4).

    With the symbols of the top of this file, B images, K objects, C clusters, and H the entropy of
    shares that are first divided by their sum:

        pixels    = -mean over images of log p(image)
        poses     = -mean over images of log p(poses of the parts)
        dynamic   = mean over images of |deformations|^2 / 2, see `dynamic_penalty`
        within    = mean over images of H(q)             small: few objects explain an image
        between   = -H(sum over images of q)             small: all objects are used
        objects   = mean over images of (sum_k a_k - K / C)^2
        examples  = mean over objects of (sum over images of a_k - B / C)^2

    Args:
        explanation: of this process's images; sums over images are over those of all processes.
        num_clusters: C, number of clusters to look for; in the paper the number of classes.

    Returns:
        Terms by the names of the model's `weights`.
    """
    q = explained_share(explanation)
    a = explanation.objects.presence
    num_images, num_objects = a.shape
    # Sums over the batch of all processes: of q, of a, and the number of images.
    sums = torch.cat([q.sum(dim=0), a.sum(dim=0), q.new_full((1,), num_images)])
    total_q, total_a, total_images = all_reduce_sum(sums).split([num_objects, num_objects, 1])
    return {
        "pixels": -explanation.pixel_log_likelihood.mean(),
        "poses": -explanation.pose_log_likelihood.mean(),
        "dynamic": dynamic_penalty(explanation.objects),
        "within": entropy(q).mean(),
        "between": -entropy(total_q),
        "objects": (a.sum(dim=1) - num_objects / num_clusters).square().mean(),
        "examples": (total_a - total_images / num_clusters).square().mean(),
    }


def dynamic_penalty(objects: Objects) -> Float[Tensor, ""]:
    """Half the sum of squares of the deformations of an image's objects, a mean over images.

    A deformation (`Objects.dynamic`) is what an image adds to the learned numbers that say where a
    part is within an object.
    """
    return 0.5 * objects.dynamic.square().sum() / len(objects.dynamic)


def logit_directions(presence: Float[Tensor, "n objects"]) -> Float[Tensor, "n objects"]:
    """z = logit(a) / |logit(a)|: logits of presences, scaled to length 1."""
    return F.normalize(presence.logit(LOGIT_EPS))


def contrastive_loss(presence: Float[Tensor, "two_batches objects"]) -> Float[Tensor, ""]:
    """The term `views`: tells two views of an image from those of other images by presences.

    InfoNCE (van den Oord, Li, Vinyals, arXiv 1807.03748, eq. 4) with the cosines of
    `logit_directions`: the cross-entropy of choosing, for the first view of an image, its second
    view among those of all images of the batch; and the reverse. A mean of both.

    Args:
        presence: a_k of the first views, then of the second views in the same order.
    """
    first, second = logit_directions(presence).chunk(2)
    return 0.5 * (_info_nce(first, second) + _info_nce(second, first))


def _info_nce(queries: Tensor, keys: Tensor) -> Tensor:
    """Cross-entropy of choosing for each query the key of its row, among keys of all processes.

    Args:
        queries: `[batch, objects]`, of length 1.
        keys: `[batch, objects]`, of length 1.
    """
    all_keys, start = all_gather_rows(keys)  # `start`: row of this process's first key
    targets = start + torch.arange(len(queries), device=queries.device)
    return F.cross_entropy(queries @ all_keys.mT / TEMPERATURE, targets)


def entropy(shares: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch"]:
    """The entropy, in nats, of shares, which are first divided by their sum; 0 if all are 0."""
    p = shares / shares.sum(dim=-1, keepdim=True).clamp(min=MIN_SHARE)
    return -(p * p.clamp(min=MIN_SHARE).log()).sum(dim=-1)
