"""Golden files of CapsNet in PyTorch: `python tools/golden/capsnet_torch.py XIFENG_GUO GRAM_AI`.

Two sources' layers of primary and class capsules, small, below a convolution of 8 channels. Both
call `.cuda()` on constants, which is replaced from outside.
"""

import importlib.util
import sys
from pathlib import Path

import torch
from common import Numbers, fill_torch_model, gradients_of, save
from torch import nn
from torch.autograd import Variable

torch.set_default_dtype(torch.float64)
torch.Tensor.cuda = lambda tensor: tensor
xifeng_guo, gram_ai = (Path(argument) for argument in sys.argv[1:])


def load(path):
    spec = importlib.util.spec_from_file_location(path.parent.name.replace("+", "_"), path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Network(nn.Module):
    def __init__(self, primary, classes):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 9)
        self.primary = primary
        self.classes = classes

    def forward(self, x):
        return self.classes(self.primary(torch.relu(self.conv1(x))))


layers = load(xifeng_guo / "capsulelayers.py")
primary = layers.PrimaryCapsule(8, 16, 8, kernel_size=9, stride=2)
classes = layers.DenseCapsule(3 * 3 * 2, 8, 4, 16)
networks = {"capsnet_xifeng_guo": Network(primary, classes)}

layers = load(gram_ai / "capsule_network.py")
layers.Variable = Variable
primary = layers.CapsuleLayer(8, -1, 8, 2, kernel_size=9, stride=2)
classes = layers.CapsuleLayer(4, 3 * 3 * 2, 8, 16)
networks["capsnet_gram_ai"] = Network(primary, classes)

for name, model in networks.items():
    numbers = Numbers()
    weights = fill_torch_model(model, numbers, gain=1.4)
    key = next(key for key in weights if key.startswith("classes"))
    weights[key] = numbers.weights(weights[key].shape, 0.5)
    model.load_state_dict({k: torch.from_numpy(v) for k, v in weights.items()})
    images = numbers.between((2, 1, 21, 21), 0, 1)
    pose = model(torch.from_numpy(images))
    if name == "capsnet_gram_ai":
        pose = pose.squeeze(2).squeeze(2).transpose(0, 1)  # from [classes, batch, 1, 1, dim]
    lengths = pose.norm(dim=-1)
    gradients = gradients_of(model, lengths[:, 0].sum(), ["conv1.weight"])
    save(name, {"images": images}, weights, {"lengths": lengths.detach().numpy()}, gradients)
