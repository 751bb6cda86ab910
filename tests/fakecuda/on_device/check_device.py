"""The fake GPU itself: it fails where a GPU fails, and counts what costs time there."""

import copy

import pytest
import torch

from fakecuda import gpu


def test_tensors_are_on_a_gpu(x):
    assert x.device == torch.device("cuda", 0)
    assert (x @ x).item() == 14
    assert torch.equal((x + 1).cpu(), torch.arange(4.0) + 1)
    assert x[1:].view(3, 1).storage_offset() == 1


def test_copies_are_on_the_gpu_too(x):
    twin = copy.deepcopy(x)
    x += 1
    assert twin.device == x.device
    assert twin.tolist() == [0, 1, 2, 3]


def test_devices_do_not_mix(x):
    with pytest.raises(RuntimeError, match="same device"):
        x + torch.ones(4)
    assert (x + torch.tensor(1.0))[0] == 1  # numbers may be on the CPU
    assert x[torch.tensor([2])] == 2  # and indices
    with pytest.raises(RuntimeError, match="same device"):
        torch.ones(4)[torch.tensor([2], device="cuda")]


def test_a_generator_of_the_cpu_is_refused():
    with pytest.raises(RuntimeError, match="generator"):
        torch.rand(2, device="cuda", generator=torch.Generator())
    generator = torch.Generator("cuda").manual_seed(3)
    numbers = torch.rand(2, device="cuda", generator=generator)
    assert torch.equal(numbers.cpu(), torch.rand(2, generator=torch.Generator().manual_seed(3)))


def test_memory_is_poisoned_counted_and_limited():
    before, _ = gpu.device.memory()
    numbers = torch.empty(1000, device="cuda")
    assert numbers.isnan().all()
    assert gpu.device.memory()[0] == before + 4000
    with gpu.memory_limit(1000), pytest.raises(torch.OutOfMemoryError):
        torch.empty(1000, device="cuda")
    del numbers
    assert gpu.device.memory()[0] == before


def test_memory_of_outputs_is_counted(x):
    before, _ = gpu.device.memory()
    total = x + 1
    assert gpu.device.memory()[0] == before + 16
    del total
    assert gpu.device.memory()[0] == before


def test_launches_and_waits_are_counted(x):
    with gpu.counted("on_device") as counts:
        total = (x * 2).sum()
        x.view(2, 2)
    assert counts.launches == {"aten::mul": 1, "aten::sum": 1}
    assert not counts.waits
    with gpu.counted("on_device") as counts:
        total.item()
        x.nonzero()
        x.cpu()
    assert counts.waits.total() == 3
    assert all(line.startswith("check_device.py:") for line in counts.waiting_lines)


def test_copies_from_pinned_memory_do_not_wait():
    numbers = torch.ones(4)
    with gpu.counted() as counts:
        numbers.to("cuda", non_blocking=True)  # through a buffer, for which the host waits
    assert counts.waits.total() == 1
    pinned = numbers.pin_memory()
    assert pinned.is_pinned()
    with gpu.counted() as counts:
        pinned.to("cuda", non_blocking=True)
    assert not counts.waits


def test_float64_can_be_refused(x):
    with gpu.without_float64():
        assert (x + 1).dtype == torch.float32
        for make in (x.double, lambda: torch.ones(2, device="cuda", dtype=torch.float64)):
            with pytest.raises(TypeError, match="float64"):
                make()


def test_autocast_has_the_lists_of_cuda(x):
    matrix = torch.eye(4, device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        assert (matrix @ matrix).dtype == torch.bfloat16
        assert x.exp().dtype == torch.float32


def test_one_launch_for_an_operation_on_many_tensors():
    weights = [torch.ones(3, device="cuda", requires_grad=True) for _ in range(5)]
    optimizer = torch.optim.Adam(weights, fused=True)
    sum(weight.sum() for weight in weights).backward()
    with gpu.counted() as counts:
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
    assert counts.launches["aten::_foreach_norm"] == 1
    assert counts.launches["aten::_fused_adam_"] == 1
    assert not counts.waits
