"""Objects without labels: images are drawn by parts, and the parts explained by objects.

Adam Kosiorek, Sara Sabour, Yee Whye Teh, Geoffrey Hinton, "Stacked Capsule Autoencoders", NeurIPS 2019, sections 2.3
and 2.4. Labels have no part in a training, nor in the score by which the epoch is chosen; figures ask them whether
clusters of objects are classes.
"""

from collections.abc import Mapping
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
    first_batch,
    register_task,
)

KINDS = ("posterior", "presence")  # what is clustered
SEED = 99
LEAST = 1e-8  # of what a logarithm is taken of
SMALLEST = 1e-6  # of presences whose logits are taken
# By views: share of a training for parts, and scale of `agreement`.
PARTS_FIRST = 0.75
TEMPERATURE = 0.1
MOST_PRESENT = 5  # objects in a prediction
# In a report: images drawn, images whose objects are counted, objects, images of each, parts.
SHOWN = 14
LOOKED_AT = 1000
MOST_OBJECTS = 10
EXAMPLES = 6
MOST_PARTS = 40


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

    Where the model has a weight for `views`, which the paper has not, three quarters of a training are for parts
    alone. In the last quarter these stay as they are, and objects learn from two views of each image, changed at
    random: to explain both, and to be present alike in both, unlike in other images.
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
        first_view, labels = self._view(images, indices, generator)
        parts = self.model.num_parts
        objects = self.model.num_objects

        def noise(*shape: int) -> Tensor:
            uniform = torch.rand(len(indices), *shape, generator=generator)
            return NOISE * (uniform.to(first_view.device) - 0.5)

        return UnlabeledBatch(
            first_view,
            labels,
            noise(parts),
            noise(objects),
            noise(objects, parts),
            self._view(images, indices, generator)[0] if self.uses_views else None,
        )

    def _view(
        self, images: ImageSet, indices: Tensor, generator: Generator
    ) -> tuple[Tensor, Tensor]:
        """Images, changed at random, and their labels."""
        drawn = images.sample_batch(indices, generator=generator)
        return self.transforms(drawn.images, generator)[0], drawn.labels

    def training_step(self, batch: UnlabeledBatch, progress: float) -> Outputs:
        if batch.second_view is None:
            parts = self._all_losses(batch)
        elif progress < PARTS_FIRST:
            *_, likelihood = self.model.depict(batch.images, batch.part_noise)
            parts = {"pixels": -likelihood.mean()}
        else:
            parts = self._view_losses(torch.cat([batch.images, batch.second_view]))
        weighted = [self.model.weights[name] * value for name, value in parts.items()]
        return {"loss": sum(weighted), **parts}

    def _all_losses(self, batch: UnlabeledBatch) -> Outputs:
        noises: Any = (batch.part_noise, batch.object_noise, batch.vote_noise)
        noise = None if batch.part_noise is None else Noise(*noises)
        explained = self.model.explain(batch.images, noise)
        with without_autocast(batch.images):
            return losses(explained, self.model.num_clusters)

    def _view_losses(self, views: Tensor) -> Outputs:
        objects, likelihood = self.model.recognize(views)
        with without_autocast(views):
            return {
                "poses": -likelihood.mean(),
                "dynamic": dynamic_penalty(objects),
                "views": agreement(objects.presence),
            }

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
        """Likelihoods, and how well classes can be told; in training, clusters are found and named by these images."""
        labels = outputs["labels"]
        points = {
            "posterior": outputs["posterior"],
            "presence": self._points(outputs["presence"]),
        }
        if self.training:
            self._find_clusters(points, labels)
        pixels = float(outputs["pixels"].double().mean())
        poses = float(outputs["poses"].double().mean())
        loss = self.model.weights["pixels"] * pixels + self.model.weights["poses"] * poses
        metrics = {"loss": loss, "log_likelihood": -loss, "pixels": pixels, "poses": poses}
        for row, kind in enumerate(KINDS):
            clusters = nearest(points[kind], self.model.centers[row].cpu())
            is_right = self.model.names[row].cpu()[clusters] == labels
            metrics[f"accuracy_{kind}"] = float(is_right.double().mean())
            metrics[f"linear_{kind}"] = linear_accuracy(points[kind], labels)
        return metrics

    def _find_clusters(self, points: Mapping[str, Tensor], labels: Tensor) -> None:
        """Give the model centers of clusters, and the classes that they stand for."""
        generator = Generator().manual_seed(SEED)
        for row, kind in enumerate(KINDS):
            centers = kmeans(points[kind], self.model.num_clusters, generator=generator)
            clusters = nearest(points[kind], centers)
            self.model.centers[row] = centers
            self.model.names[row] = match_clusters(clusters, labels, len(centers))

    def _points(self, presence: Tensor) -> Tensor:
        """What is clustered of presences `[n, objects]`: what the loss compares, where it compares them."""
        return directions(presence) if self.uses_views else presence

    def evaluation(self, outputs: Outputs, images: ImageSet) -> EvaluationResult:
        metrics = self.eval().compute_metrics(outputs)
        return MetricResult(metrics, len(images), "accuracy_presence")

    def report_items(self, evaluation: EvaluationResult, images: ImageSet) -> list[ReportItem]:
        with evaluating(self):
            return [self._templates(), self._drawings(images), self._objects(images)]

    @torch.inference_mode()
    def predict(self, images: Tensor) -> list[dict[str, Any]]:
        presences = self.model(images).float().cpu()
        clusters = nearest(self._points(presences), self.model.centers[1].cpu())
        rows = []
        for presence, cluster in zip(presences, clusters.tolist(), strict=True):
            order = presence.argsort(descending=True, stable=True)[:MOST_PRESENT].tolist()
            objects = [{"object": k, "presence": float(presence[k])} for k in order]
            name = int(self.model.names[1, cluster])
            rows.append({"cluster": cluster, "class": name, "objects": objects})
        return rows

    def _templates(self) -> ReportItem:
        from torchcaps.viz.tiles import image_rows

        templates = self.model.templates()[:MOST_PARTS].cpu()
        return ReportItem(
            "templates",
            "The parts",
            "Above: the template of each part. Below: the same as it covers others, white where it covers them wholly. "
            "A part turns, sizes and places its template, and gives it a color.",
            image_rows({"template": templates, "covers": self.model.covers()[:MOST_PARTS].cpu()}),
            f"{len(templates)} learned templates.",
        )

    def _drawings(self, images: ImageSet) -> ReportItem:
        from torchcaps.viz.canvas import hues
        from torchcaps.viz.tiles import image_rows

        shown = first_batch(self, images, SHOWN).images
        explained = self.model.explain(shown)
        layers = layered(explained)
        palette = torch.from_numpy(hues(self.model.num_objects))
        palette = F.pad(palette, (0, 0, 0, 1), value=1.0)  # white for none
        colors = palette.to(layers)[explained.posterior.argmax(dim=-1)]  # [b, m, 3]
        ink = layers[:, :-1].mean(dim=2)  # [b, m, h, w]
        rows = {
            "image": shown,
            "drawn": layers.sum(dim=1),
            "by object": torch.einsum("bmhw,bmc->bchw", ink, colors),
        }
        return ReportItem(
            "parts",
            "Images by their parts",
            "Test images, what their parts draw together, and the same with a color for each object: that of the "
            "object which explains a part best. White parts are explained by none.",
            image_rows({name: row.cpu() for name, row in rows.items()}),
            f"{len(shown)} test images above what is drawn of them, and the same in colors of objects.",
        )

    def _objects(self, images: ImageSet) -> ReportItem:
        from torchcaps.viz.tiles import image_rows

        subset = images.subset(torch.arange(min(LOOKED_AT, len(images))))
        outputs = self.eval_outputs(subset, alone=True)  # one process draws
        presence = outputs["presence"]
        count = min(EXAMPLES, len(subset))
        pictures = {}
        table = []
        order = presence.mean(dim=0).argsort(descending=True, stable=True)[:MOST_OBJECTS]
        for k in order.tolist():
            examples = presence[:, k].argsort(descending=True, stable=True)[:count]
            shown = subset.float_images(examples).to(device_of(self.model))
            explained = self.model.explain(shown)
            belongs = explained.posterior[..., k, None, None, None]
            drawn = (layered(explained)[:, :-1] * belongs).sum(dim=1)
            pictures[str(k)] = torch.stack([shown, drawn], dim=1).flatten(0, 1).cpu()
            counts = outputs["labels"][presence[:, k] > 0.5].bincount(minlength=1)
            usual = [c for c in counts.argsort(descending=True)[:3].tolist() if counts.any()]
            means = [float(outputs[name][:, k].mean()) for name in ("presence", "posterior")]
            classes = ", ".join(images.classes[c] for c in usual)
            table.append((str(k), *(f"{mean:.3f}" for mean in means), classes))
        return ReportItem(
            "objects",
            "What each object explains",
            "A row for each of the objects most often present: the images in which it is most present, each beside "
            "those of its parts that this object explains.",
            image_rows(pictures),
            f"For {len(pictures)} objects, {count} images and what the object explains of them.",
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
    """The parts of the loss of a batch, before they are weighted, by the names of the model's weights.

    Minus the likelihoods; half the sum of the squares of dynamic relations, of an image; the entropy of each image's
    objects, and minus that of all together; squared differences of presences from what they should add up to, over
    objects and over images: of K objects each image should have K / classes, and of B images each object be in
    B / classes."""
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
    return F.normalize(presence.logit(eps=SMALLEST), dim=1)


def agreement(presence: Float[Tensor, "both objects"]) -> Float[Tensor, ""]:
    """Cross-entropy of telling, by presences, the second view of an image from those of all images of the batch, and
    the first one by the second (InfoNCE with cosines of logits; van den Oord, Li, Vinyals, arXiv 1807.03748, eq. 4).

    The first half of the rows are first views, the other half second views in the same order."""
    first, second = directions(presence).chunk(2)
    return 0.5 * (_contrast(first, second) + _contrast(second, first))


def _contrast(queries: Tensor, keys: Tensor) -> Tensor:
    """Cross-entropy of choosing for each row its own one of the keys of all processes."""
    all_keys, start = all_gather_rows(keys)
    own = start + torch.arange(len(queries), device=queries.device)
    return F.cross_entropy(queries @ all_keys.mT / TEMPERATURE, own)


def entropy(shares: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch"]:
    """The entropy, in nats, of shares that need not add up to one; zero for none."""
    p = shares / shares.sum(dim=-1, keepdim=True).clamp(min=LEAST)
    return -(p * p.clamp(min=LEAST).log()).sum(dim=-1)
