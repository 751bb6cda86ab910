"""Golden files of VB routing: `python tools/golden/vb.py CLONE`, with torch.

The authors' whole networks, small: four layers of capsules, and "tiny", two. Their code calls
`.cuda()` on constants and the removed `torch.cholesky`; both are replaced from outside.
"""

import sys
from argparse import Namespace
from pathlib import Path

import torch
from common import Numbers, fill_torch_model, gradients_of, save

sys.path.insert(0, str(Path(sys.argv[1]) / "src"))
torch.cholesky = torch.linalg.cholesky
torch.Tensor.cuda = lambda tensor: tensor
torch.FloatTensor = torch.DoubleTensor
torch.float32 = torch.float64
torch.set_default_dtype(torch.float64)
from capsnet import CapsuleNet, tinyCapsuleNet

CONSTANTS = ["m0", "Psi0", "diga_arg", "Dlog", "filter"]
for name, build in (("vb_caps", CapsuleNet), ("vb_caps_tiny", tinyCapsuleNet)):
    numbers = Numbers()
    sizes = Namespace(pose_dim=4, arch=[8, 3, 4, 4, 5], n_channels=2, routing_iter=3)
    model = build(sizes).eval()
    weights = fill_torch_model(model, numbers, skip=CONSTANTS)
    for key in [key for key in weights if "ClassCaps.W" in key or "ConvCaps" in key]:
        weights[key] = numbers.weights(weights[key].shape, 0.1)
    model.load_state_dict({k: torch.from_numpy(v) for k, v in weights.items()}, strict=False)
    images = numbers.between((2, 2, 32, 32), 0, 1)
    activation = model(torch.from_numpy(images))
    gradients = gradients_of(model, activation[:, 0].sum(), ["Conv_1.weight"])
    outputs = {"activation": activation.detach().numpy()}
    save(name, {"images": images}, weights, outputs, gradients)
