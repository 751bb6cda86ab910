"""One training step each time that a line comes in; its seconds go out. See compare_speed.py."""

from __future__ import annotations

import json
import sys
import time

import torch

import torchcaps as tc
from tree_probe import adapter

ROUTING_IMPLEMENTATIONS = tc.ops.implementations("dynamic_routing")


def main() -> None:
    """Build the model of the first argument and answer until the input ends."""
    name, options, batch_size, impl = json.loads(sys.argv[1])
    torch.set_num_threads(int(sys.argv[2]))
    model = adapter.build_model(name, **options).train()
    if impl != "auto":
        tc.set_impl(model, adapter.tree_spelling(impl, ROUTING_IMPLEMENTATIONS))
    height, width = model.img_size
    images = torch.rand(batch_size, model.in_chans, height, width)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    for _ in sys.stdin:
        start = time.perf_counter()
        optimizer.zero_grad()
        outputs = model(images)
        outputs.square().mean().backward()
        optimizer.step()
        print(time.perf_counter() - start, flush=True)


if __name__ == "__main__":
    main()
