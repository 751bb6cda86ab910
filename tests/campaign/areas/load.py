"""Model files that were damaged, or edited: one sentence, or a model that works."""

import json
import tempfile
from functools import cache
from pathlib import Path

import torch

from campaign import mutate
from campaign.areas.readers import one_sentence
from campaign.core import dice
from campaign.watch import no_side_effects
from torchcaps import create_model, load
from torchcaps.data import Preprocess
from torchcaps.training.checkpoint import describe_model
from torchcaps.training.files import load_tensors, save_tensors

TESTS = {
    "one bit": 700,
    "bit flips": 100,
    "truncation": 100,
    "lengths": 150,
    "splices": 100,
    "header": 250,
    "description": 900,
}
RAW = ("one bit", "bit flips", "truncation", "lengths", "splices")
CLASSES = ("cat", "dog", "owl")
SIZE = (20, 18)
MODELS = {
    "capsnet": {"channels": 2, "primary_types": 1, "decoder": False},
    "matrix_caps": {"channels": 2, "primary_types": 2, "types": [2, 2]},
    "cnn_baseline": {"channels": [2, 2, 2], "hidden": [4]},
}


@cache
def stock(name):
    """A model file as `train` writes it."""
    torch.manual_seed(0)
    model = create_model(name, num_classes=len(CLASSES), in_chans=1, img_size=SIZE, **MODELS[name])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.safetensors")
        save_tensors(
            path,
            model.state_dict(),
            describe_model(name, MODELS[name], CLASSES, Preprocess(SIZE, 1)),
        )
        return path.read_bytes()


def prepare():
    """Make the model files, and load each once: torch makes folders of its own then."""
    if not stock.cache_info().currsize:
        for name in MODELS:
            Path("model.safetensors").write_bytes(stock(name))
            load("model.safetensors")


def draw(test, random):
    """Which model."""
    return {"model": random.choice(list(MODELS))}


def check(case, folder):
    """Write the file, load it, and judge what comes."""
    random = dice(case)
    path = folder / "model.safetensors"
    intact = stock(case["model"])
    path.write_bytes(intact)
    if case["test"] in RAW:
        path.write_bytes(mutate.BYTES[case["test"]](intact, random))
    elif case["test"] == "header":
        header, payload = mutate.unpacked(intact)
        path.write_bytes(mutate.packed(change_header(case, header, random), payload))
    else:
        tensors, description = load_tensors(path)
        # Signed, as by somebody who has this library.
        save_tensors(path, tensors, edited(case, description, random))
    judge(case, path, intact, folder)


def judge(case, path, intact, folder):
    """A refusal in one sentence; or a model, if the file is unchanged, or signed once more."""
    with no_side_effects(folder):
        try:
            model = load(path)
        except Exception as error:
            one_sentence(error)
            return
        outputs = model(torch.zeros(1, model.preprocess.in_chans, *model.preprocess.model_size))
    assert outputs.shape == (1, len(model.classes)), (
        f"{list(outputs.shape)} for {len(model.classes)} classes"
    )
    if case["test"] in RAW or case["test"] == "header":
        path.write_bytes(intact)
        right = load(path)
        tensors = zip(model.state_dict().values(), right.state_dict().values(), strict=True)
        has_weights = all(torch.equal(tensor, expected) for tensor, expected in tensors)
        has_metadata = (model.classes, model.preprocess) == (right.classes, right.preprocess)
        assert has_weights and has_metadata, "a changed file was taken, and gives another model"
        assert case["test"] != "one bit", "a flipped bit was not noticed"


def change_header(case, header, random):
    """Another header, which no checksum covers: nested too deep, or with a part edited."""
    if "depth" in case:
        deep = mutate.nested(case["depth"])
        return (
            deep if case["where"] == "header" else json.dumps({"__metadata__": {"torchcaps": deep}})
        )
    if random.random() < 0.3:
        return mutate.renumber(header.encode(), random).decode()
    return json.dumps(mutate.edit(json.loads(header), random))


def edited(case, description, random):
    """Another description: parts set by the case, or edited at random."""
    if "set" in case:
        return mutate.changed(description, case["set"])
    for _ in range(random.randint(1, 2)):
        description = mutate.edit(description, random)
    return description
