"""Golden files of Heinsen's routings: `python tools/golden/heinsen.py CLONE_2022 CLONE_2019`.

The layer of 2022 for a fixed and for any number of vectors, and the whole network of 2019 for
smallNORB with 8 channels and 6 parts.
"""

import importlib.util
import sys
from pathlib import Path

import torch
from common import Numbers, fill_torch_model, gradients_of, save

torch.set_default_dtype(torch.float64)


def load(name, path):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


clone_2022, clone_2019 = (Path(argument) for argument in sys.argv[1:])

routing_2022 = load("routing_2022", clone_2022 / "heinsen_routing" / "heinsen_routing.py")
for name, length in (("fixed", 7), ("any", -1)):
    numbers = Numbers()
    layer = routing_2022.EfficientVectorRouting(length, 5, 6, 4, n_iters=3)
    weights = fill_torch_model(layer, numbers, skip=["CONST"])
    vectors = numbers.between((2, 7, 6), -1, 1)
    y = layer(torch.from_numpy(vectors))
    gradients = gradients_of(layer, y[:, 0, 0].sum(), ["W_A", "W_F2", "W_G1"])
    save(
        "heinsen_2022_" + name, {"vectors": vectors}, weights, {"y": y.detach().numpy()}, gradients
    )

load("heinsen_routing", clone_2019 / "heinsen_routing.py")
models = load("models_2019", clone_2019 / "models.py")
numbers = Numbers()
model = models.SmallNORBClassifier(n_objs=5, n_parts=6, d_chns=8).eval()
weights = fill_torch_model(model, numbers, gain=1.4, skip=["CONST"])
images = numbers.between((2, 2, 48, 48), 0, 1)
logits, pose, _ = model(torch.from_numpy(images))
gradients = gradients_of(model, logits[:, 0].sum(), ["convolve.1.weight", "routings.1.W"])
outputs = {"logits": logits.detach().numpy(), "pose": pose.detach().numpy()}
save("heinsen_2019", {"images": images}, weights, outputs, gradients)
