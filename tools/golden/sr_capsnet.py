"""Golden file of SR-CapsNet: `python tools/golden/sr_capsnet.py CLONE`, with torch.

The authors' whole networks with 4 types of capsules: ResNet-20 of depth 2 with self-routing and
with dynamic routing, and the network of six convolutions of depth 1. The weights of dynamic routing
are as small as its authors initialize them.
"""

import sys

import torch
from common import Numbers, fill_torch_model, gradients_of, save

sys.path.insert(0, sys.argv[1])
from models.convnet import ConvNet
from models.resnet import resnet20

TYPES = 4
torch.set_default_dtype(torch.float64)

for name, build, depth, mode, channels, num_classes in (
    ("sr_capsnet_resnet", resnet20, 2, "SR", 3, 10),
    ("sr_capsnet_dynamic", resnet20, 2, "DR", 3, 10),
    ("sr_capsnet_convnet", ConvNet, 1, "SR", 1, 5),
):
    numbers = Numbers()
    data = {"channels": channels, "classes": num_classes}
    model = build(16, data, TYPES, 16, depth, mode).double()
    weights = fill_torch_model(model.eval(), numbers)
    images = numbers.between((2, channels, 32, 32), 0, 1)
    log_scores = model(torch.from_numpy(images))
    names = ["layers.0.weight"] if build is ConvNet else ["conv1.weight"]
    gradients = gradients_of(model, log_scores[:, 0].sum(), names)
    save(name, {"images": images}, weights, {"log_scores": log_scores.detach().numpy()}, gradients)
