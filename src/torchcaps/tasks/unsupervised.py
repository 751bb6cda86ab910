"""Objects without labels: images are drawn by parts, and the parts explained by objects.

Adam Kosiorek, Sara Sabour, Yee Whye Teh, Geoffrey Hinton, "Stacked Capsule Autoencoders", NeurIPS 2019, sections 2.3
and 2.4. Labels have no part in a training, nor in the score by which the epoch is chosen; figures ask them whether
clusters of objects are classes.
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
    first_batch,
    register_task,
)

KINDS = ("posterior", "presence")  # what is clustered
SEED, LEAST, SMALLEST = 99, 1e-8, 1e-6
PARTS_FIRST, TEMPERATURE = (
    0.75,
    0.1,
)  # by views: share of a training for parts, scale of `agreement`
MOST_PRESENT, SHOWN, LOOKED_AT, MOST_OBJECTS, EXAMPLES, MOST_PARTS = 5, 14, 1000, 10, 6, 40


class Seen(NamedTuple):
    """A batch: images, the classes that figures are told of, and what there is in training alone: noise, and a second
    view of each image where the loss asks for it."""

    images: Float[Tensor, "batch channels height width"]
    labels: Int64[Tensor, " batch"]
    parts: Float[Tensor, "batch parts"] | None = None
    objects: Float[Tensor, "batch objects"] | None = None
    votes: Float[Tensor, "batch objects parts"] | None = None
    again: Float[Tensor, "batch channels height width"] | None = None


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
        if self.by_views:
            self.lr_restarts = (0.0, PARTS_FIRST)

    def sample_batch(self, images: ImageSet, indices: Tensor, generator: Generator) -> Seen:
        if not self.training:
            return Seen(images.float_images(indices), images.labels[indices])
        pictures, labels = self._view(images, indices, generator)
        b, m, k = len(indices), self.model.num_parts, self.model.num_objects
        parts, objects, votes = (
            NOISE * (torch.rand(b, *n, generator=generator).to(pictures.device) - 0.5)
            for n in ((m,), (k,), (k, m))
        )
        again = self._view(images, indices, generator)[0] if self.by_views else None
        return Seen(pictures, labels, parts, objects, votes, again)

    def _view(
        self, images: ImageSet, indices: Tensor, generator: Generator
    ) -> tuple[Tensor, Tensor]:
        """Images, changed at random, and their labels."""
        drawn = images.draw(indices, generator=generator)
        return self.transforms(drawn.images, generator)[0], drawn.labels

    @property
    def by_views(self) -> bool:
        """Whether objects learn from two views of each image."""
        return self.model.weights["views"] > 0

    def training_step(self, batch: Seen, progress: float) -> Outputs:
        if batch.again is None:
            noise: Any = batch[2:5]
            found = self.model.explain(batch.images, None if batch.parts is None else Noise(*noise))
            with without_autocast(batch.images):
                parts = losses(found, self.model.num_clusters)
        elif progress < PARTS_FIRST:
            *_, seen = self.model.depict(batch.images, batch.parts)
            parts = {"pixels": -seen.mean()}
        else:
            objects, told = self.model.recognize(torch.cat([batch.images, batch.again]))
            with without_autocast(batch.images):
                parts = {
                    "poses": -told.mean(),
                    "dynamic": bending(objects),
                    "views": agreement(objects.presence),
                }
        return {
            "loss": sum(self.model.weights[name] * value for name, value in parts.items()),
            **parts,
        }

    def eval_step(self, batch: Seen) -> Outputs:
        found: Explained = self.model.explain(batch.images)
        return {
            "pixels": -found.log_likelihood,
            "poses": -found.part_log_likelihood,
            "labels": batch.labels,
            "presence": found.objects.presence,
            "posterior": explained(found),
        }

    def compute_metrics(self, outputs: Outputs) -> dict[str, float]:
        """Likelihoods, and how well classes can be told; in training, clusters are found and named by these images."""
        points = {
            "posterior": outputs["posterior"],
            "presence": self._points(outputs["presence"]),
        }
        if self.training:
            generator = Generator().manual_seed(SEED)
            for row, kind in enumerate(KINDS):
                centers = kmeans(points[kind], self.model.num_clusters, generator=generator)
                taken = nearest(points[kind], centers)
                self.model.centers[row] = centers
                self.model.names[row] = match_clusters(taken, outputs["labels"], len(centers))
        pixels, poses = (float(outputs[name].double().mean()) for name in ("pixels", "poses"))
        weighted = self.model.weights["pixels"] * pixels + self.model.weights["poses"] * poses
        found = {"loss": weighted, "log_likelihood": -weighted, "pixels": pixels, "poses": poses}
        for row, kind in enumerate(KINDS):
            taken = nearest(points[kind], self.model.centers[row].cpu())
            right = self.model.names[row].cpu()[taken] == outputs["labels"]
            found[f"accuracy_{kind}"] = float(right.double().mean())
            found[f"linear_{kind}"] = linear_accuracy(points[kind], outputs["labels"])
        return found

    def _points(self, presence: Tensor) -> Tensor:
        """What is clustered of presences `[n, objects]`: what the loss compares, where it compares them."""
        return directions(presence) if self.by_views else presence

    def evaluation(self, outputs: Outputs, images: ImageSet) -> EvaluationResult:
        metrics = self.eval().compute_metrics(outputs)
        return MetricResult(metrics, len(images), "accuracy_presence")

    def report_items(self, found: EvaluationResult, images: ImageSet) -> list[ReportItem]:
        with evaluating(self):
            return [self._templates(), self._drawings(images), self._objects(images)]

    @torch.inference_mode()
    def predict(self, images: Tensor) -> list[dict[str, Any]]:
        presences = self.model(images).float().cpu()
        clusters = nearest(self._points(presences), self.model.centers[1].cpu())
        found = []
        for presence, cluster in zip(presences, clusters.tolist(), strict=True):
            order = presence.argsort(descending=True, stable=True)[:MOST_PRESENT].tolist()
            objects = [{"object": k, "presence": float(presence[k])} for k in order]
            found.append(
                {"cluster": cluster, "class": int(self.model.names[1, cluster]), "objects": objects}
            )
        return found

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
        found = self.model.explain(shown)
        layers, taken = layered(found), found.posterior.argmax(dim=-1)
        colors = F.pad(
            torch.from_numpy(hues(self.model.num_objects)), (0, 0, 0, 1), value=1.0
        )  # white for none
        colors = colors.to(layers)[taken]  # [b, m, 3]
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

        looked, place = (
            images.subset(torch.arange(min(LOOKED_AT, len(images)))),
            device_of(self.model),
        )
        outputs = self.eval_outputs(looked, alone=True)  # one process draws
        presence, posterior, labels = (
            outputs[name] for name in ("presence", "posterior", "labels")
        )
        count = min(EXAMPLES, len(looked))
        rows, table = {}, []
        for k in presence.mean(dim=0).argsort(descending=True, stable=True)[:MOST_OBJECTS].tolist():
            most = presence[:, k].argsort(descending=True, stable=True)[:count]
            shown = looked.float_images(most).to(place)
            found = self.model.explain(shown)
            alone = (layered(found)[:, :-1] * found.posterior[..., k, None, None, None]).sum(dim=1)
            rows[str(k)] = torch.stack([shown, alone], dim=1).flatten(0, 1).cpu()
            present = presence[:, k] > 0.5
            usual = (
                labels[present].bincount(minlength=1).argsort(descending=True)[:3].tolist()
                if present.any()
                else []
            )
            means = (float(values[:, k].mean()) for values in (presence, posterior))
            table.append(
                (
                    str(k),
                    *(f"{mean:.3f}" for mean in means),
                    ", ".join(images.classes[c] for c in usual),
                )
            )
        return ReportItem(
            "objects",
            "What each object explains",
            "A row for each of the objects most often present: the images in which it is most present, each beside "
            "those of its parts that this object explains.",
            image_rows(rows),
            f"For {len(rows)} objects, {count} images and what the object explains of them.",
            ("Object", "Mean presence", "Share of the parts", "Classes in which it is most often"),
            tuple(table),
        )


def layered(found: Explained) -> Float[Tensor, "batch layers channels height width"]:
    """What each part, and last the background, adds to the image that all draw together."""
    return found.drawn * found.share.softmax(dim=1)


def explained(found: Explained) -> Float[Tensor, "batch objects"]:
    """q_k: the share of all parts that each object explains; they add up to one at most."""
    return found.posterior[..., :-1].mean(dim=1)


def losses(found: Explained, classes: int) -> dict[str, Tensor]:
    """The parts of the loss of a batch, before they are weighted, by the names of the model's weights.

    Minus the likelihoods; half the sum of the squares of dynamic relations, of an image; the entropy of each image's
    objects, and minus that of all together; squared differences of presences from what they should add up to, over
    objects and over images: of K objects each image should have K / classes, and of B images each object be in
    B / classes."""
    q, a = explained(found), found.objects.presence
    (b, k) = a.shape
    whole = all_reduce_sum(
        torch.cat([q.sum(dim=0), a.sum(dim=0), q.new_tensor([b])])
    )  # of the batch, in all processes
    together, present, count = whole.split([k, k, 1])
    return {
        "pixels": -found.log_likelihood.mean(),
        "poses": -found.part_log_likelihood.mean(),
        "dynamic": bending(found.objects),
        "within": entropy(q).mean(),
        "between": -entropy(together),
        "objects": (a.sum(dim=1) - k / classes).square().mean(),
        "examples": (present - count / classes).square().mean(),
    }


def bending(objects: Objects) -> Float[Tensor, ""]:
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
    return 0.5 * (_told_apart(first, second) + _told_apart(second, first))


def _told_apart(these: Tensor, others: Tensor) -> Tensor:
    """Cross-entropy of choosing for each row its own one of the others, of all processes."""
    everyone, start = all_gather_rows(others)
    return F.cross_entropy(
        these @ everyone.mT / TEMPERATURE, start + torch.arange(len(these), device=these.device)
    )


def entropy(shares: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch"]:
    """The entropy, in nats, of shares that need not add up to one; zero for none."""
    p = shares / shares.sum(dim=-1, keepdim=True).clamp(min=LEAST)
    return -(p * p.clamp(min=LEAST).log()).sum(dim=-1)
