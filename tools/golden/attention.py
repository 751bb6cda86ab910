"""Golden file of inverted attention: `python tools/golden/attention.py CLONE`, with torch.

The whole network of the authors' corrected fork, with the simple backbone, 4 types of 4x4 poses and
a hidden layer of 6 capsules, routed concurrently and sequentially.
"""

import sys

import torch
from common import Numbers, fill_torch_model, gradients_of, save

sys.path.insert(0, sys.argv[1])
from src.capsule_model import CapsModel

TYPES = 4
SIZES = {
    "backbone": {
        "input_dim": 3,
        "output_dim": 128,
        "kernel_size": 3,
        "stride": 2,
        "padding": 1,
    },
    "primary_capsules": {
        "kernel_size": 1,
        "stride": 1,
        "input_dim": 128,
        "caps_dim": 16,
        "num_caps": TYPES,
        "padding": 0,
        "out_img_size": 8,
    },
    "capsules": [
        {
            "type": "CONV",
            "num_caps": TYPES,
            "caps_dim": 16,
            "kernel_size": 3,
            "stride": stride,
            "matrix_pose": True,
            "out_img_size": side,
        }
        for stride, side in ((2, 3), (1, 1))
    ]
    + [{"type": "FC", "num_caps": 6, "caps_dim": 16, "matrix_pose": True}],
    "class_capsules": {"num_caps": 5, "caps_dim": 16, "matrix_pose": True},
}
torch.set_default_dtype(torch.float64)
outputs = {}
for name, is_sequential in (("concurrent", False), ("sequential", True)):
    numbers = Numbers()
    model = CapsModel(16, SIZES, "simple", 0.0, 3, is_sequential)
    weights = fill_torch_model(model.eval(), numbers, gain=1.4)
    images = numbers.between((2, 3, 16, 16), 0, 1)
    logits = model(torch.from_numpy(images))
    outputs[name] = logits.detach().numpy()
    if not is_sequential:
        names = ["capsule_layers.2.w", "capsule_layers.3.w"]
        gradients = gradients_of(model, logits[:, 0].sum(), names)
save("inverted_attention", {"images": images}, weights, outputs, gradients)
