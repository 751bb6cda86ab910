"""Objects without labels: images are drawn by parts, and the parts explained by objects.

Adam Kosiorek, Sara Sabour, Yee Whye Teh, Geoffrey Hinton, "Stacked Capsule Autoencoders", NeurIPS
2019, sections 2.3 and 2.4. Labels have no part in a training, nor in the score by which the epoch
is chosen; figures ask them whether clusters of objects are classes.
"""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Generator, Tensor

from torchcaps.data import ImageSet
from torchcaps.distributed import all_gather_rows, all_reduce_sum
from torchcaps.evaluation.accuracy.clusters import kmeans, linear_accuracy, match_clusters, nearest
from torchcaps.evaluation.forward import device_of, evaluating
from torchcaps.functional.bounds import without_autocast
from torchcaps.models.scae import NOISE, Explained, Noise, Objects
from torchcaps.settings import TrainConfig
from torchcaps.tasks._base import (
    EvaluationResult,
    MetricResult,
    Outputs,
    ReportItem,
    Task,
    eval_outputs,
    first_batch,
    register_task,
)

KINDS = ("posterior", "presence")  # what is clustered
SEED = 99
LOG_EPS = 1e-8  # smallest number whose logarithm is taken
LOGIT_EPS = 1e-6  # of presences whose logits are taken
# By views: share of a training for parts, and scale of `agreement`.
PARTS_FIRST = 0.75
TEMPERATURE = 0.1
MAX_OBJECTS = 5  # in a prediction
# In a report: images drawn, images whose objects are counted, objects, images of each, parts.
MAX_DRAWN_IMAGES = 14
MAX_IMAGES = 1000
MAX_DRAWN_OBJECTS = 10
MAX_EXAMPLES = 6
MAX_PARTS = 40
MAX_CLASSES = 3  # of an object


class UnlabeledBatch(NamedTuple):
    """Images, with what there is in training alone.

    Attributes:
        labels: the classes that metrics are told of.
        part_noise, object_noise, vote_noise: of the model's logits.
        second_view: of each image, where the loss asks for it.
    """

    images: Float[Tensor, "batch channels height width"]
    labels: Int64[Tensor, " batch"]
    part_noise: Float[Tensor, "batch parts"] | None = None
    object_noise: Float[Tensor, "batch objects"] | None = None
    vote_noise: Float[Tensor, "batch objects parts"] | None = None
    second_view: Float[Tensor, "batch channels height width"] | None = None


@register_task("unsupervised")
class Unsupervised(Task):
    """Parts that draw an image, and objects that explain where the parts are; no labels.

    Where the model has a weight for `views`, which the paper has not, three quarters of a training
    are for parts alone. In the last quarter these stay as they are, and objects learn from two
    views of each image, changed at random: to explain both, and to be present alike in both, unlike
    in other images.
    """

    score = "log_likelihood"
    losses = ("likelihood",)
    labeled = False
    clip = 0.0  # the loss is a sum over pixels, and so are its gradients
    requires = "a model of parts and objects"

    def __init__(self, model: Any, config: TrainConfig, images: ImageSet | None = None) -> None:
        super().__init__(model, config, images)
        if self.uses_views:
            self.lr_restarts = (0.0, PARTS_FIRST)

    @property
    def uses_views(self) -> bool:
        """Whether objects learn from two views of each image."""
        return self.model.weights["views"] > 0

    def sample_batch(
        self, images: ImageSet, indices: Tensor, generator: Generator
    ) -> UnlabeledBatch:
        if not self.training:
            return UnlabeledBatch(images.float_images(indices), images.labels[indices])
        batch = images.sample_batch(indices, generator=generator)
        first_view = self.transforms(batch.images, generator)[0]
        num_parts = self.model.num_parts
        num_objects = self.model.num_objects

        def noise(*shape: int) -> Tensor:
            uniform = torch.rand(len(indices), *shape, generator=generator)
            return NOISE * (uniform.to(first_view.device) - 0.5)

        noises = (noise(num_parts), noise(num_objects), noise(num_objects, num_parts))
        second_view = None
        if self.uses_views:
            second_batch = images.sample_batch(indices, generator=generator)
            second_view = self.transforms(second_batch.images, generator)[0]
        return UnlabeledBatch(first_view, batch.labels, *noises, second_view)

    def training_step(self, batch: UnlabeledBatch, fraction_trained: float) -> Outputs:
        if batch.second_view is None:
            noises: Any = batch[2:5]
            noise = None if batch.part_noise is None else Noise(*noises)
            explained = self.model.explain(batch.images, noise)
            with without_autocast(batch.images):
                parts = losses(explained, self.model.num_clusters)
        elif fraction_trained < PARTS_FIRST:
            *_, likelihood = self.model.depict(batch.images, batch.part_noise)
            parts = {"pixels": -likelihood.mean()}
        else:
            views = torch.cat([batch.images, batch.second_view])
            objects, likelihood = self.model.recognize(views)
            with without_autocast(views):
                parts = {
                    "poses": -likelihood.mean(),
                    "dynamic": dynamic_penalty(objects),
                    "views": agreement(objects.presence),
                }
        weighted = [self.model.weights[name] * loss for name, loss in parts.items()]
        return {"loss": sum(weighted), **parts}

    def eval_step(self, batch: UnlabeledBatch) -> Outputs:
        explained: Explained = self.model.explain(batch.images)
        return {
            "pixels": -explained.log_likelihood,
            "poses": -explained.part_log_likelihood,
            "labels": batch.labels,
            "presence": explained.objects.presence,
            "posterior": explained_parts(explained),
        }

    def compute_metrics(self, outputs: Outputs) -> dict[str, float]:
        """Likelihoods, and how well classes can be told.

        In training, clusters are found and named by these images.
        """
        labels = outputs["labels"]
        pixels = float(outputs["pixels"].double().mean())
        poses = float(outputs["poses"].double().mean())
        loss = self.model.weights["pixels"] * pixels + self.model.weights["poses"] * poses
        metrics = {"loss": loss, "log_likelihood": -loss, "pixels": pixels, "poses": poses}
        generator = Generator().manual_seed(SEED)
        for row, kind in enumerate(KINDS):
            points = self._points(outputs[kind]) if kind == "presence" else outputs[kind]
            if self.training:
                centers = kmeans(points, self.model.num_clusters, generator=generator)
                names = match_clusters(nearest(points, centers), labels, len(centers))
                self.model.centers[row] = centers
                self.model.names[row] = names
            clusters = nearest(points, self.model.centers[row].cpu())
            is_right = self.model.names[row].cpu()[clusters] == labels
            metrics[f"accuracy_{kind}"] = float(is_right.double().mean())
            metrics[f"linear_{kind}"] = linear_accuracy(points, labels)
        return metrics

    def _points(self, presence: Tensor) -> Tensor:
        """What is clustered of presences `[n, objects]`: what the loss compares, if it does."""
        return directions(presence) if self.uses_views else presence

    def evaluation(self, outputs: Outputs, images: ImageSet) -> EvaluationResult:
        metrics = self.eval().compute_metrics(outputs)
        return MetricResult(metrics, len(images), "accuracy_presence")

    def report_items(self, evaluation: EvaluationResult, images: ImageSet) -> list[ReportItem]:
        with evaluating(self):
            return [
                _templates_item(self.model),
                _drawings_item(self.model, first_batch(self, images, MAX_DRAWN_IMAGES).images),
                _objects_item(self, images.subset(range(min(MAX_IMAGES, len(images))))),
            ]

    @torch.inference_mode()
    def predict(self, images: Tensor) -> list[dict[str, Any]]:
        presences = self.model(images).float().cpu()
        clusters = nearest(self._points(presences), self.model.centers[1].cpu())
        rows = []
        for presence, cluster in zip(presences, clusters.tolist(), strict=True):
            order = presence.argsort(descending=True, stable=True)[:MAX_OBJECTS].tolist()
            objects = [{"object": k, "presence": float(presence[k])} for k in order]
            name = int(self.model.names[1, cluster])
            rows.append({"cluster": cluster, "class": name, "objects": objects})
        return rows


def _templates_item(model: Any) -> ReportItem:
    from torchcaps.viz.tiles import image_rows

    templates = model.templates()[:MAX_PARTS].cpu()
    return ReportItem(
        "templates",
        "The parts",
        "Above: the template of each part. Below: the same as it covers others, white where it "
        "covers them wholly. A part turns, sizes and places its template, and gives it a color.",
        image_rows({"template": templates, "covers": model.covers()[:MAX_PARTS].cpu()}),
        f"{len(templates)} learned templates.",
    )


def _drawings_item(model: Any, images: Tensor) -> ReportItem:
    from torchcaps.viz.canvas import hues
    from torchcaps.viz.tiles import image_rows

    explained = model.explain(images)
    layers = layered(explained)
    palette = torch.from_numpy(hues(model.num_objects))
    palette = F.pad(palette, (0, 0, 0, 1), value=1.0)  # white for none
    colors = palette.to(layers)[explained.posterior.argmax(dim=-1)]  # [b, m, 3]
    ink = layers[:, :-1].mean(dim=2)  # [b, m, h, w]
    rows = {
        "image": images.cpu(),
        "drawn": layers.sum(dim=1).cpu(),
        "by object": torch.einsum("bmhw,bmc->bchw", ink, colors).cpu(),
    }
    return ReportItem(
        "parts",
        "Images by their parts",
        "Test images, what their parts draw together, and the same with a color for each object: "
        "that of the object which explains a part best. White parts are explained by none.",
        image_rows(rows),
        f"{len(images)} test images above what is drawn of them, and the same in colors of "
        "objects.",
    )


def _objects_item(task: Unsupervised, images: ImageSet) -> ReportItem:
    from torchcaps.viz.tiles import image_rows

    outputs = eval_outputs(task, images, alone=True)  # one process draws
    presence = outputs["presence"]
    num_examples = min(MAX_EXAMPLES, len(images))
    order = presence.mean(dim=0).argsort(descending=True, stable=True)
    pictures = {}
    table = []
    for k in order[:MAX_DRAWN_OBJECTS].tolist():
        ranking = presence[:, k].argsort(descending=True, stable=True)
        examples = images.float_images(ranking[:num_examples]).to(device_of(task.model))
        explained = task.model.explain(examples)
        belongs = explained.posterior[..., k, None, None, None]
        drawings = (layered(explained)[:, :-1] * belongs).sum(dim=1)
        pictures[str(k)] = torch.stack([examples, drawings], dim=1).flatten(0, 1).cpu()

        counts = outputs["labels"][presence[:, k] > 0.5].bincount()
        classes = counts.argsort(descending=True)[:MAX_CLASSES].tolist()
        row = (
            str(k),
            f"{float(presence[:, k].mean()):.3f}",
            f"{float(outputs['posterior'][:, k].mean()):.3f}",
            ", ".join(images.classes[label] for label in classes),
        )
        table.append(row)
    return ReportItem(
        "objects",
        "What each object explains",
        "A row for each of the objects most often present: the images in which it is most present, "
        "each beside those of its parts that this object explains.",
        image_rows(pictures),
        f"For {len(pictures)} objects, {num_examples} images and what the object explains of them.",
        ("Object", "Mean presence", "Share of the parts", "Classes in which it is most often"),
        tuple(table),
    )


def layered(explained: Explained) -> Float[Tensor, "batch layers channels height width"]:
    """What each part, and last the background, adds to the image that all draw together."""
    return explained.drawn * explained.share.softmax(dim=1)


def explained_parts(explained: Explained) -> Float[Tensor, "batch objects"]:
    """q_k: the share of all parts that each object explains; they add up to one at most."""
    return explained.posterior[..., :-1].mean(dim=1)


def losses(explained: Explained, num_classes: int) -> Outputs:
    """The parts of the loss of a batch, unweighted, by the names of the model's weights.

    "pixels", "poses": minus the likelihoods. "dynamic": half the sum of the squares of dynamic
    relations, of an image. "within", "between": the entropy of each image's objects, and minus that
    of all together. "objects", "examples": squared differences of presences from what they should
    add up to, over objects and over images: of K objects each image should have K / classes, and of
    B images each object be in B / classes.
    """
    q = explained_parts(explained)
    a = explained.objects.presence
    batch, objects = a.shape
    # Sums over the batch of all processes: of q, of a, and the number of images.
    sums = torch.cat([q.sum(dim=0), a.sum(dim=0), q.new_tensor([batch])])
    total_q, total_a, count = all_reduce_sum(sums).split([objects, objects, 1])
    return {
        "pixels": -explained.log_likelihood.mean(),
        "poses": -explained.part_log_likelihood.mean(),
        "dynamic": dynamic_penalty(explained.objects),
        "within": entropy(q).mean(),
        "between": -entropy(total_q),
        "objects": (a.sum(dim=1) - objects / num_classes).square().mean(),
        "examples": (total_a - count / num_classes).square().mean(),
    }


def dynamic_penalty(objects: Objects) -> Float[Tensor, ""]:
    """Half the sum of the squares of the dynamic relations of an image, a mean over images."""
    return 0.5 * objects.dynamic.square().sum() / len(objects.dynamic)


def directions(presence: Float[Tensor, "n objects"]) -> Float[Tensor, "n objects"]:
    """Logits of presences, scaled to length 1."""
    return F.normalize(presence.logit(eps=LOGIT_EPS), dim=1)


def agreement(presence: Float[Tensor, "both objects"]) -> Float[Tensor, ""]:
    """Cross-entropy of telling, by presences, two views of an image from those of other images.

    InfoNCE with cosines of logits (van den Oord, Li, Vinyals, arXiv 1807.03748, eq. 4): the second
    view of an image is told by the first from those of all images of the batch, and the reverse.

    Args:
        presence: first views, then second views in the same order.
    """
    first, second = directions(presence).chunk(2)
    return 0.5 * (_contrast(first, second) + _contrast(second, first))


def _contrast(queries: Tensor, keys: Tensor) -> Tensor:
    """Cross-entropy of choosing for each row its own one of the keys of all processes."""
    all_keys, start = all_gather_rows(keys)
    targets = start + torch.arange(len(queries), device=queries.device)
    return F.cross_entropy(queries @ all_keys.mT / TEMPERATURE, targets)


def entropy(shares: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch"]:
    """The entropy, in nats, of shares that need not add up to one; zero for none."""
    p = shares / shares.sum(dim=-1, keepdim=True).clamp(min=LOG_EPS)
    return -(p * p.clamp(min=LOG_EPS).log()).sum(dim=-1)
