"""A system in one file outside the library: a model, its task, and more that can be registered.

Capsules that take the noise from pictures; nothing in the library knows of it. Beside them stand
things that a classifier can be given; docs/plugins.md has one of each further kind.
"""

from __future__ import annotations

from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import nn

from torchcaps import data, models, reporting, tasks, training
from torchcaps.exporting import register_export_format
from torchcaps.reproduction import register_measure
from torchcaps.settings import TrainConfig
from torchcaps.types import Capsules, ModelSpec


class Denoiser(nn.Module):
    """Each capsule has a pose and a presence, and draws a part of the picture."""

    spec = ModelSpec(
        pose=True, activation="probability", decoder=True, task="denoise", loss="absolute"
    )

    def __init__(self, in_chans=1, img_size=(18, 20), *, capsules=4, dim=3):
        super().__init__()
        self.in_chans = in_chans
        self.img_size = tuple(img_size)
        self.num_capsules = capsules
        pixels = in_chans * img_size[0] * img_size[1]
        self.see = nn.Sequential(
            nn.Flatten(),
            nn.Linear(pixels, 32),
            nn.BatchNorm1d(32),
            nn.ReLU(),
        )
        self.tell = nn.Linear(32, capsules * (dim + 1))
        self.draw = nn.Parameter(0.1 * torch.randn(capsules, dim, pixels))

    def capsules(self, images):
        """`[batch, capsules, dim]` and `[batch, capsules]`."""
        outputs = self.tell(self.see(images)).unflatten(1, (self.num_capsules, -1))
        return Capsules(outputs[..., 1:], outputs[..., 0].sigmoid())

    def reconstruct(self, capsules, labels=None):
        """What all capsules draw, or those of `labels`."""
        presence = capsules.activation
        if labels is not None:
            presence = presence * nn.functional.one_hot(labels, self.num_capsules)
        pixels = torch.einsum("bk,bkd,kdp->bp", presence, capsules.pose, self.draw).sigmoid()
        return pixels.unflatten(1, (self.in_chans, *self.img_size))

    def forward(self, images):
        """The pictures without their noise."""
        return self.reconstruct(self.capsules(images))


@models.register_model(
    models.ModelInfo(
        title="Noise goes",
        year=2026,
        arxiv="",
        img_size=(18, 20),
        in_chans=1,
        num_classes=0,
        parameters=0,
        published="nothing",
    )
)
def denoiser(*, num_classes=0, **options):
    """Labels have no part in it."""
    del num_classes
    return Denoiser(**options)


@tasks.register_task("denoise")
class Denoise(tasks.Task):
    """Pictures from noisy ones."""

    score = "likeness"
    losses = ("absolute",)
    labeled = False
    capabilities = frozenset({"decode"})

    @classmethod
    def default_settings(cls, model, spec, loss):
        """A faster learning rate than the library's."""
        del model, spec, loss
        return {"lr": 0.01}

    def augment(self, batch, generator):
        """Noisy pictures; the clean ones are a target."""
        noise = torch.randn(batch.inputs.shape, generator=generator).to(batch.inputs)
        noisy = (batch.inputs + 0.1 * noise).clamp(0, 1)
        return batch._replace(inputs=noisy, targets={"clean": batch.inputs})

    def training_step(self, batch, fraction_trained):
        """The mean absolute difference, and how much is drawn."""
        del fraction_trained
        reconstructed = self.model(batch.inputs)
        absolute = (reconstructed - batch.targets["clean"]).abs().mean()
        ink = reconstructed.mean()
        return {"loss": absolute + 0.001 * ink, "absolute": absolute, "ink": ink}

    def eval_step(self, batch):
        """For each picture."""
        error = (self.model(batch.inputs) - batch.targets["clean"]).abs().flatten(1).mean(dim=1)
        return {"loss": error, "likeness": 1 - error}

    def report_items(self, evaluation, images):
        """Noisy pictures above clean ones."""
        [batch] = images.batches([torch.arange(6)], {})
        noisy = self.augment(batch, torch.Generator().manual_seed(0)).inputs
        with torch.inference_mode():
            rows = torch.cat(
                [noisy, self.model(noisy.to(next(self.model.parameters()).device)).cpu()]
            )
        figure = Figure()
        figure.subplots().imshow(rows.flatten(0, 2), cmap="gray")
        text = f"Likeness {evaluation.to_dict()['likeness']:.3f}."
        alt = "Noisy pictures above what is drawn of them."
        return [tasks.ReportItem("noise", "Noise goes", text, figure, alt)]

    @torch.inference_mode()
    def predict(self, images):
        """How much of each picture is ink."""
        return [{"ink": float(picture.mean())} for picture in self.model(images)]


@tasks.register_loss()
def squared(scores, labels, progress, settings):
    """The squared difference of activations and classes; for any classifier."""
    del progress, settings
    target = nn.functional.one_hot(labels, scores.activation.shape[1])
    return (scores.activation - target).square().sum(dim=1).mean()


@tasks.register_metric(needs=("likeness",))
def minimum_likeness(likeness):
    """That of the picture which comes out worst."""
    return likeness.min()


@training.register_optimizer("signs")
def signs(parameters, lr, settings):
    """Momentum whose steps have one size."""
    del settings
    return torch.optim.Rprop(parameters, lr)


@training.register_schedule("falling")
def falling(step, total_steps, config):
    """A straight line to zero."""
    del config
    return 1 - step / total_steps


@training.register_callback("tally")
class Tally(training.Callback):
    """Writes the number of steps and the learning rate into a file."""

    steps = 0

    def on_step(self, trainer, losses):
        """One more."""
        del trainer
        self.steps += 1
        Path("tally.txt").write_text(f"{self.steps} {losses['lr']}")


def read_saved(path):
    """The function that a .saved file answers with."""
    program = torch.export.load(path).module()
    return lambda images: program(torch.from_numpy(images)).detach().numpy()


@register_export_format("saved", ".saved", read_saved)
def write_saved(subject, path):
    """A program, and where it came from."""
    with path.open("wb") as file:
        torch.export.save(subject.program, file)
    Path("exported.txt").write_text(f"{subject.origin} {subject.metadata['classes']}")


@register_measure()
def steadiness(trained):
    """How little presences change when the light does."""
    pictures = trained.images.float_images(torch.arange(20))
    with torch.inference_mode():
        presence = trained.model.capsules(pictures).activation
        darker = trained.model.capsules(0.9 * pictures).activation
    return {"steadiness": 1 - float((presence - darker).abs().mean())}


@reporting.register_section("denoise")
def closing_words(run):
    """A section of the report of its own."""
    return tasks.ReportItem("words", "Closing words", f"{run.task.name} is done.")


def stripes(count):
    """So many pictures of stripes."""
    labels = torch.arange(count) % 3
    generator = torch.Generator().manual_seed(count)
    images = torch.randint(0, 40, (count, 1, 18, 20), generator=generator).byte()
    for image, label in zip(images, labels.tolist(), strict=True):
        image[..., 6 * label : 6 * label + 6] += 180
    return data.Dataset(images, {"label": labels}, ("left", "middle", "right"), "stripes")


data.register_format(
    "a .stripes file",
    lambda path: path.suffix == ".stripes",
    lambda path, request: stripes(int(path.read_text())),
)


@data.register_dataset(
    data.DatasetInfo(
        name="stripes",
        title="a bright stripe in one of three places",
        classes=("left", "middle", "right"),
        image_shape=(1, 18, 20),
        train=60,
        test=30,
        license="none",
        source="computed",
        sha256={},
        embedded=Path.cwd(),
    )
)
def read_stripes(folder, request):
    """Computed here."""
    del folder
    return stripes(60 if request.split == "train" else 30)


training.register_recipe(
    "noise-goes",
    {
        "title": "Noise from stripes",
        "published": "nothing",
        "measures": ["steadiness"],
        "figures": ["likeness", "minimum_likeness", "steadiness"],
        "run": TrainConfig.of(
            model="denoiser", data="stripes", epochs=2, metrics=["minimum_likeness"]
        ).flat(),
        "budgets": {"small": {"cost": "seconds"}},
    },
)
