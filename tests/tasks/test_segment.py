"""Masks as data, as losses, as figures and as predictions."""

import base64
import json
from itertools import product

import numpy as np
import pytest
import torch
from PIL import Image
from torch.testing import assert_close

import torchcaps as tc
from checks import column
from data.makers import write_masks
from tasks.makers import batch_of
from torchcaps.cli.main import main
from torchcaps.data import Dataset, Preprocess, load_dataset, masked_set, render_shapes
from torchcaps.errors import ArgumentError
from torchcaps.evaluation.accuracy.pixels import mask_figures, pixel_counts
from torchcaps.explorer.answers import ANSWERS
from torchcaps.explorer.page import describe_run
from torchcaps.reporting import predict
from torchcaps.tasks import create_task
from torchcaps.tasks.masks import predict_masks, predict_tiles
from torchcaps.tasks.segment import LOSSES, PixelPrediction
from torchcaps.testing import seeded
from torchcaps.training import TrainConfig, train
from torchcaps.types import ModelMetadata, set_model_metadata
from training.makers import assert_resumes

TINY = {"segcaps": {"dim": 2}, "unet": {"channels": 2, "levels": 2}}


def model_of(name="unet", size=16, classes=4, **options):
    return tc.create_model(
        name, num_classes=classes, in_chans=1, img_size=size, **TINY[name] | options
    )


def shapes(count=12, size=16):
    return render_shapes(count, size, seed=1)


def config_of(folder, name):
    """A run of 4 steps."""
    return TrainConfig.of(
        model=name,
        model_options=TINY[name],
        data=str(folder),
        holdout=0.25,
        epochs=2,
        batch_size=3,
        device="cpu",
        precision="fp32",
        checkpoint_every=1,
    )


def test_the_margin_of_the_sheet_and_the_cross_entropies_agree():
    random = np.random.default_rng(0)
    logits = random.normal(size=(2, 3, 4, 5))
    mask = random.integers(0, 4, (2, 4, 5))
    p = 1 / (1 + np.exp(-logits))
    weight = np.array([2.0, 0.5, 3.0])
    expected = dict.fromkeys(product(("cross_entropy", "margin"), ("auto", "none")), 0.0)
    for b, k, y, x in np.ndindex(*logits.shape):
        t = float(mask[b, y, x] == k + 1)
        q = p[b, k, y, x] - 0.5
        w = weight[k]
        odds = p[b, :, y, x] / (1 - p[b, :, y, x])
        for weights, rare in (("auto", w), ("none", 1.0)):
            expected["cross_entropy", weights] -= rare * t * np.log(odds[k] / (1 + odds.sum()))
            expected["cross_entropy", weights] -= (
                (mask[b, y, x] == 0) * np.log(1 / (1 + odds.sum())) / 3
            )
            expected["margin", weights] += (
                0.5 * rare * t * max(0, 0.4 - q) ** 2 + 0.25 * (1 - t) * max(0, q + 0.4) ** 2
            )
    task = create_task(model_of(), TrainConfig())
    class_weights = torch.from_numpy(weight).view(-1, 1, 1)
    masks = torch.from_numpy(mask)
    for (name, weights), total in expected.items():
        task.loss = name
        task.class_weights = class_weights if weights == "auto" else torch.ones(3, 1, 1)
        for prediction in (
            PixelPrediction(torch.from_numpy(p), None),
            PixelPrediction(torch.from_numpy(p), torch.from_numpy(logits)),
        ):
            loss = task.compute_loss(prediction, masks).item()
            assert loss == pytest.approx(total / 40, rel=1e-5), name


def test_the_weighted_cross_entropy_of_one_class_is_that_of_the_paper():
    p = torch.tensor([[[[0.9, 0.2], [0.6, 1.0]]]])
    mask = torch.tensor([[[1, 1], [0, 0]]])
    expected = -(3 * np.log(0.9) + 3 * np.log(0.2) + np.log(0.4) + np.log(1e-7)) / 4
    loss = LOSSES["cross_entropy"](
        PixelPrediction(p, None), mask.unsqueeze(1).float(), torch.tensor(3.0)
    )
    assert loss.item() == pytest.approx(expected, rel=0.01)  # 1 - 1e-7 has few bits in float32


def test_soft_dice_takes_probabilities():
    target = torch.zeros(1, 2, 2, 2)
    target[0, 0, 0] = 1.0
    share = torch.full((1, 2, 2, 2), 0.5)
    loss = LOSSES["dice"](PixelPrediction(share, None), target, torch.ones(1))
    # The absent class has no part in it.
    assert loss.item() == pytest.approx(1 - 2 * 1 / (2 + 2), abs=1e-4)
    perfect = LOSSES["dice"](PixelPrediction(target, None), target, torch.ones(1))
    assert perfect.item() == pytest.approx(0, abs=1e-6)


def neighborhood(masks, n, y, x, reach=1):
    """The pixels of a mask around one, of which there are fewer at its border."""
    return masks[n, max(0, y - reach) : y + reach + 1, max(0, x - reach) : x + reach + 1]


def edges(masks):
    """Pixels of the masks beside one that is outside."""
    is_edge = masks.copy()
    for place in np.argwhere(masks):
        is_edge[tuple(place)] = not neighborhood(masks, *place).all()
    return is_edge


def share_near(masks, targets):
    """Share of the pixels of the masks with a pixel of the targets in their neighborhood."""
    return np.mean([neighborhood(targets, *place, reach=2).any() for place in np.argwhere(masks)])


def test_figures_by_loops():
    random = np.random.default_rng(2)
    true = random.integers(0, 3, (3, 7, 8))
    predicted = random.integers(0, 3, (3, 7, 8))
    counts = pixel_counts(torch.from_numpy(predicted), torch.from_numpy(true), 4)
    figures = mask_figures(counts, torch.ones(3), ("ground", "a", "b", "absent"))
    for k, name in ((1, "a"), (2, "b")):
        p = predicted == k
        t = true == k
        precision = share_near(edges(p), edges(t))
        recall = share_near(edges(t), edges(p))
        row = figures.per_class[name]
        assert row["dice"] == pytest.approx(2 * (p & t).sum() / (p.sum() + t.sum()))
        assert row["iou"] == pytest.approx((p & t).sum() / (p | t).sum())
        assert row["boundary"] == pytest.approx(2 * precision * recall / (precision + recall))
    assert figures.per_class["absent"] == {"dice": None, "iou": None, "boundary": None}
    dice_of_classes = [figures.per_class["a"]["dice"], figures.per_class["b"]["dice"]]
    assert figures.dice == pytest.approx(np.mean(dice_of_classes))
    assert figures.table().rows[-1] == ("absent", "-", "-", "-")
    json.dumps(figures.to_dict(), allow_nan=False)


def test_masks_move_with_their_images():
    """Images that are their own masks stay so, whatever is done to both."""
    images = shapes(6)
    masks = (images.targets["mask"] > 0).to(torch.uint8)
    mask_images = masked_set(255 * masks.unsqueeze(1), masks, ("a", "b"), "same")
    config = TrainConfig.of(shift=3, flip=True, degrees=30.0, zoom=0.2, shear=0.2, crop=12)
    model = model_of(size=12, classes=2)
    task = create_task(model, config, mask_images).train()
    batch = batch_of(task, mask_images, torch.arange(6), seeded(0))
    assert batch.inputs.shape[2:] == batch.targets["mask"].shape[1:] == (12, 12)
    assert torch.equal(batch.targets["mask"], (batch.inputs[:, 0] > 0.5).long())
    assert not torch.equal(batch.targets["mask"], mask_images.targets["mask"][:, 2:14, 2:14].long())


def test_class_weights_are_those_of_the_training_images():
    images = shapes()
    task = create_task(model_of(), TrainConfig(), images)
    for k, weight in enumerate(task.class_weights.flatten().tolist(), 1):
        count = (images.targets["mask"] == k).sum().item()
        assert weight == pytest.approx((images.targets["mask"].numel() - count) / count)


def test_a_plain_module_learns_masks():
    images = shapes(8)
    plain = torch.nn.Conv2d(1, 3, 3, padding=1)
    _, history = tc.fit(
        plain,
        images,
        validation=images,
        task="segment",
        loss="cross_entropy",
        epochs=12,
        lr=0.05,
    )
    assert history[-1]["val_loss"] < history[0]["val_loss"]
    with pytest.raises(
        ArgumentError,
        match="expected .batch, foreground_classes=3, height=16, width=16., got",
    ):
        tc.fit(torch.nn.Conv2d(1, 4, 3, padding=1), images, task="segment", epochs=1)


def test_images_settings_and_models_that_do_not_suit_are_refused():
    plain = Dataset(torch.zeros(2, 1, 16, 16), {"label": torch.tensor([0, 1])}, ("a", "b"), "plain")
    with pytest.raises(
        ArgumentError, match="got .*'plain'.* with the targets label; give 'mask' by name"
    ):
        create_task(model_of(), TrainConfig(), plain)
    with pytest.raises(
        ArgumentError,
        match="morphology: expected 0 for images with masks, which would not fit, got 0.5",
    ):
        create_task(model_of(), TrainConfig.of(morphology=0.5))
    with pytest.raises(
        ArgumentError, match="takes a model whose outputs are of pixels, got CapsNet"
    ):
        create_task(
            tc.create_model("capsnet", channels=8, primary_types=2), TrainConfig.of(task="segment")
        )
    with pytest.raises(ArgumentError, match="takes a model whose outputs are of images, got UNet"):
        create_task(model_of(), TrainConfig.of(task="classify"))


def test_a_class_that_no_mask_shows_has_a_warning():
    images = shapes()
    images = masked_set(
        images.images, images.targets["mask"].clamp(max=2), images.classes, "shapes"
    )
    history = tc.fit(model_of(), images, epochs=1, holdout=0.2).history
    assert "no mask to train with shows the class 'triangle'" in history[0]["warnings"]


def test_a_stopped_run_ends_in_the_same_bytes(tmp_path):
    assert_resumes(config_of(write_masks(tmp_path / "own"), "segcaps"), tmp_path, step=2)


def test_every_command_takes_a_run_of_segmentation(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    train(config_of(write_masks(tmp_path / "own"), "unet"), "run")
    assert main(["evaluate", "run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["per_class"].keys() == {"class 1", "class 2"}
    assert (tmp_path / "run" / "plots" / "masks.png").is_file()
    Image.fromarray(np.zeros((40, 24, 3), dtype=np.uint8)).save("case 0.png")
    words = ["predict", "run", "case 0.png", "own/images", "--output", "out", "--json"]
    assert main(words) == 0
    rows = json.loads(capsys.readouterr().out)
    assert column(rows[:2], "mask") == ["out/case 0_mask.png", "out/case 0-2_mask.png"]
    with Image.open(rows[0]["mask"]) as mask, Image.open(rows[0]["overlay"]) as overlay:
        assert (mask.mode, mask.size, overlay.size) == ("P", (24, 40), (24, 40))
    assert sum(rows[0]["shares"].values()) == pytest.approx(1)
    assert main(["report", "run", "--output", "report.html"]) == 0
    assert "with the masks that the model finds" in (tmp_path / "report.html").read_text()
    assert main(["reconstruct", "run"]) == 1
    assert "no decoder of class capsules" in capsys.readouterr().err


def test_a_task_that_draws_nothing_says_so(tmp_path):
    model = tc.create_model("capsnet", channels=8, primary_types=2)
    model.classes = tuple("0123456789")
    model.preprocess = tc.data.Preprocess((28, 28), 1)
    Image.new("L", (28, 28)).save(tmp_path / "one.png")
    with pytest.raises(
        ArgumentError, match="output: the task classify draws nothing of single pictures"
    ):
        predict(model, [tmp_path / "one.png"], output=tmp_path / "out")


def test_options_of_classes_are_refused_for_masks():
    model = model_of(size=16, levels=1)
    model.classes = ("background", "a", "b", "c")
    model.preprocess = tc.data.Preprocess((16, 16), 1)
    image = torch.zeros(1, 16, 16)
    for option in ({"top_k": 2}, {"unknown_below": 0.5}):
        [name] = option
        with pytest.raises(ArgumentError, match=f"{name}: this task gives no activations"):
            predict(model, image, **option)


def test_a_large_image_is_predicted_in_tiles():
    """With a network that sees single pixels, tiles give the outputs of the complete image.

    An image may be smaller than a tile.
    """
    model = model_of(size=16, levels=1)
    for name, layer in model.named_modules():
        if isinstance(layer, torch.nn.Conv2d) and "down" in name:
            with torch.no_grad():
                layer.weight[:, :, [0, 0, 0, 1, 1, 2, 2, 2], [0, 1, 2, 0, 2, 0, 1, 2]] = 0
    task = create_task(model, TrainConfig())
    input_shapes = []
    model.down[0].register_forward_hook(
        lambda _, inputs, __: input_shapes.append(tuple(inputs[0].shape))
    )
    for size in ((70, 45), (9, 30)):
        image = torch.rand(1, *size, generator=seeded(0))
        full_model = model_of(size=size, levels=1)
        full_model.load_state_dict(model.state_dict())
        probabilities = predict_tiles(task.predict_pixels, image, 16)
        assert_close(probabilities, full_model(image.unsqueeze(0))[0], atol=1e-5, rtol=1e-4)
    assert set(input_shapes) == {(1, 1, 16, 16)}


def test_a_tile_weighs_more_near_its_center():
    """Two tiles of 8, of which one says 0 and one says 1, meet in columns 6 and 7 of 14."""
    answers = iter([0.0, 1.0])
    probabilities = predict_tiles(
        lambda tile: tile.new_full((1, 1, 8, 8), next(answers)), torch.zeros(1, 8, 14), 8
    )
    ramp = 1 + 1 / 8 - torch.linspace(-1, 1, 8).abs()
    expected = ramp[:2] / (ramp[:2] + ramp[6:])
    assert probabilities[0, :, :6].max() == 0 and probabilities[0, :, 8:].min() == 1
    assert_close(probabilities[0, :, 6:8], expected.expand(8, 2))
    assert expected[0] < 0.5 < expected[1]


def test_only_the_foreground_is_drawn():
    images = shapes(4)
    bright = torch.maximum(images.images, torch.tensor(90, dtype=torch.uint8))
    images = masked_set(bright, images.targets["mask"], images.classes, "shapes")
    torch.manual_seed(0)
    task = create_task(model_of("segcaps"), TrainConfig(), images).eval()
    batch = batch_of(task, images, torch.arange(4), torch.Generator())
    losses = task.training_step(batch, 0.0)
    capsules = task.model.capsules(batch.inputs)
    drawings = task.model.reconstruct(capsules, batch.targets["mask"].long())
    foreground = torch.where(batch.targets["mask"].unsqueeze(1) > 0, batch.inputs, 0.0)
    error = (drawings - foreground).square().mean()
    assert_close(losses["reconstruction"], error)
    assert_close(losses["loss"], losses[task.loss] + 0.1 * error)
    assert not torch.isclose(error, (drawings - batch.inputs).square().mean())


def test_a_model_of_windows_predicts_images_of_any_size(tmp_path):
    model = model_of(size=16)
    classes = ("ground", "a", "b", "c")
    set_model_metadata(
        model, ModelMetadata(classes, tc.data.Preprocess((64, 64), 1, 16), "segment")
    )
    Image.fromarray(np.zeros((100, 33), dtype=np.uint8)).save(tmp_path / "one.png")
    [row] = predict(model, [tmp_path / "one.png"], output=tmp_path / "out")
    with Image.open(row["mask"]) as mask:
        assert mask.size == (33, 100)


def test_masks_of_overlapping_digits():
    pairs = load_dataset("multi-digits", "test")
    masked = load_dataset("multi-digits-masks", "test")
    assert torch.equal(pairs.images, masked.images)
    indices = torch.arange(20)
    first, second = pairs.maker.singles(pairs, indices)[:, :, 0].unbind(dim=1)
    labels = pairs.targets["single_label"][:20, :, None, None].unbind(dim=1)
    brighter = torch.where(first >= second, labels[0] + 1, labels[1] + 1)
    is_ink = torch.maximum(first, second) >= 128
    assert torch.equal(masked.targets["mask"][:20].long(), brighter * is_ink)


def test_the_explorer_shows_the_picture_under_its_mask():
    images = shapes(6)
    model = model_of("segcaps")
    model.classes = images.classes
    model.preprocess = tc.data.Preprocess((16, 16), 1)
    served, content = describe_run(model, "masks")
    picture = base64.b64encode(images.float_images([2]).numpy().tobytes()).decode()
    answer = ANSWERS["look"](served, picture)
    shares = np.frombuffer(base64.b64decode(answer["lengths"]), "<f4")
    assert shares.sum() == pytest.approx(1)
    assert len(base64.b64decode(answer["seen"])) == 4 * 3 * 16 * 16
    assert content.head["classes"] == list(images.classes)
    assert not content.head["poses"]


@pytest.mark.parametrize(("bias", "label"), [(-9.0, "background"), (9.0, "a")])
def test_the_label_of_an_image_is_its_largest_class_or_the_background(bias, label):
    plain = torch.nn.Conv2d(1, 1, 1)
    torch.nn.init.constant_(plain.bias, bias)
    torch.nn.init.zeros_(plain.weight)
    plain.classes = ("background", "a")
    image = torch.zeros(1, 8, 8, dtype=torch.uint8)
    task = create_task(plain, TrainConfig.of(task="segment"))
    preprocess = Preprocess((8, 8), 1)
    [row] = predict_masks(task.eval(), [image], ["one"], preprocess, None)
    assert (row["label"], row["share"]) == (label, 1.0)


def test_masks_of_arrays_are_those_of_their_files(tmp_path):
    """A pixel is of the class where it is bright, whatever the size of the image."""
    plain = torch.nn.Conv2d(1, 1, 1)
    torch.nn.init.constant_(plain.bias, -9.0)
    torch.nn.init.constant_(plain.weight, 18.0)
    plain.classes = ("background", "a")
    plain.preprocess = Preprocess((8, 8), 1)
    plain.spec = tc.ModelSpec(is_dense=True, task="segment")
    pixels = torch.zeros(1, 16, 24, dtype=torch.uint8)
    pixels[:, :, :12] = 255
    path = tmp_path / "half.png"
    Image.fromarray(pixels[0].numpy()).save(path)
    for inputs in ([path], [pixels.numpy()], pixels[None] / 255, [Image.open(path)]):
        output = tmp_path / type(inputs[0]).__name__
        [row] = tc.Predictor(plain, output=output)(inputs)
        assert row["shares"] == {"background": 0.5, "a": 0.5}
        mask = np.asarray(Image.open(row["mask"]))
        assert np.array_equal(mask > 0, pixels[0].numpy() > 0)
