"""Graphs of the fake GPU: what a capture refuses, and what a replay gets wrong as a GPU does."""

import pytest
import torch

from fakecuda import gpu

pytestmark = pytest.mark.filterwarnings("default")


@pytest.fixture
def stream():
    return torch.cuda.Stream()


@pytest.fixture
def capture(stream):
    """A function that captures another one on the stream, and returns the graph."""

    def capture_function(function, warm=True, generators=()):
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            if warm:
                function()
            graph = torch.cuda.CUDAGraph()
            for generator in generators:
                graph.register_generator_state(generator)
            with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                function()
        return graph

    return capture_function


@pytest.fixture
def refusal(stream):
    """A function that says why another one cannot be captured."""

    def capture_function(function):
        with torch.cuda.stream(stream):  # which a capture that failed does not leave
            graph = torch.cuda.CUDAGraph()
            with pytest.raises(RuntimeError) as error, torch.cuda.graph(graph, stream=stream):
                function()
        reason = error.value
        while reason.__context__ is not None:  # the first one
            reason = reason.__context__
        return str(reason)

    return capture_function


def test_a_replay_repeats_the_operations(x, capture):
    total = torch.zeros((), device="cuda")
    graph = capture(lambda: total.add_((x * x).sum()), warm=False)
    assert graph.operations == ["aten::mul", "aten::sum", "aten::add"]
    assert total == 0  # a capture computes nothing
    graph.replay()
    x += 1
    graph.replay()
    assert total == 14 + 30


def test_a_replay_is_one_launch(x, capture):
    graph = capture(lambda: (x * x).sum())
    with gpu.counted() as counts:
        graph.replay()
    assert counts.launches == {"graph": 1}
    assert not counts.waits


def test_outputs_are_garbage_before_the_first_replay(x, capture):
    outputs = []
    graph = capture(lambda: outputs.append(x + 1))
    assert outputs[-1].isnan().all()
    graph.replay()
    assert outputs[-1].tolist() == [1, 2, 3, 4]


def test_outputs_that_nobody_holds_are_overwritten(x, capture):
    addresses = []

    def add():
        total = x + 1
        addresses.append(total.data_ptr())
        return total.sum()

    graph = capture(add)
    graph.replay()
    memory = (torch.float32.itemsize * 4, addresses[-1])
    torch.cuda.synchronize()
    assert torch.frombuffer(_bytes(*memory), dtype=torch.float32).isnan().all()


def _bytes(count, address):
    import ctypes

    return bytearray(ctypes.string_at(address, count))


HOST_READS = {
    "item": lambda x: x.sum().item(),
    "bool": lambda x: bool(x.sum() > 0),
    "float": lambda x: float(x[0]),
    "cpu": lambda x: x.cpu(),
    "tolist": lambda x: x.tolist(),
    "nonzero": lambda x: x.nonzero(),
    "a mask as an index": lambda x: x[x > 1],
    "a mask filled with a number of the device": lambda x: x.masked_fill(x > 1, x[0]),
    "unique": lambda x: x.unique(),
    "equal": lambda x: torch.equal(x, x),
    "synchronize": lambda x: torch.cuda.synchronize(),
    "an event": lambda x: torch.cuda.current_stream().record_event().synchronize(),
}


@pytest.mark.parametrize("name", HOST_READS)
def test_the_host_reads_in_a_capture(name, x, refusal):
    reason = refusal(lambda: HOST_READS[name](x))
    assert (
        "not permitted when stream is capturing" in reason or "during CUDA graph capture" in reason
    )


def test_one_number_of_the_host_where_a_mask_is(x, capture):
    graph = capture(lambda: x.index_put_((x > 1,), torch.tensor(7.0)))
    graph.replay()
    assert x.tolist() == [0, 1, 7, 7]


def test_tensors_of_the_host_in_a_capture(x, refusal):
    unpinned = torch.ones(4)
    pinned = unpinned.pin_memory()
    copies = "Cannot copy between CPU and CUDA tensors during CUDA graph capture unless"
    assert copies in refusal(lambda: x.copy_(unpinned))
    assert copies in refusal(lambda: x.copy_(unpinned, non_blocking=True))
    assert copies in refusal(lambda: torch.tensor([1.0, 2.0], device="cuda"))
    assert "the host waits" in refusal(lambda: x.copy_(pinned))
    assert copies in refusal(lambda: x[torch.tensor([2])])
    assert "same device" in refusal(lambda: x + unpinned)


def test_a_copy_reads_the_same_pinned_memory_again(x, capture):
    sources = [torch.ones(4).pin_memory()]
    graph = capture(lambda: x.copy_(sources[0], non_blocking=True))
    sources[0] += 1
    graph.replay()
    assert x.tolist() == [2] * 4
    sources.clear()
    with pytest.raises(RuntimeError, match="pinned memory that was freed"):
        graph.replay()


def test_what_is_pinned_in_a_capture_keeps_its_numbers(x, capture):
    """Every replay then has the numbers of the captured step: torch says nothing."""
    numbers = torch.ones(4)
    graph = capture(lambda: x.copy_(numbers.pin_memory(), non_blocking=True))
    numbers += 1
    graph.replay()
    assert x.tolist() == [1] * 4


def test_numbers_of_the_host_are_frozen(x, capture):
    rate = [2.0]
    factor = torch.tensor(2.0)
    graph = capture(lambda: x.copy_(rate[0] * factor * torch.ones_like(x)))
    rate[0] = 3.0
    factor.fill_(5)
    graph.replay()
    assert x.tolist() == [4] * 4


def test_memory_that_was_freed(x, capture):
    others = [torch.ones(4, device="cuda")]
    graph = capture(lambda: x.add_(others[0]))
    graph.replay()
    torch.cuda.synchronize()
    others.clear()
    with pytest.raises(RuntimeError, match="add uses memory outside of it that was freed"):
        graph.replay()


def test_memory_of_a_graph_stays_reserved(x, capture):
    before = torch.cuda.memory_allocated()
    graph = capture(lambda: (x + 1).sum(), warm=False)
    assert torch.cuda.memory_allocated() == before + 20
    del graph
    assert torch.cuda.memory_allocated() == before


def test_streams(x, refusal, stream):
    def add_elsewhere():
        with torch.cuda.stream(torch.cuda.Stream()):
            x.add_(1)

    def wait_for_others():
        torch.cuda.current_stream().wait_stream(torch.cuda.default_stream())

    def let_others_wait():
        torch.cuda.default_stream().wait_stream(torch.cuda.current_stream())

    assert "another stream than the captured one" in refusal(add_elsewhere)
    assert "waits for work that is not captured" in refusal(wait_for_others)
    assert "another stream waits for captured work" in refusal(let_others_wait)
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
    with pytest.raises(RuntimeError, match="non-default stream"):
        torch.cuda.CUDAGraph().capture_begin()


def test_whether_a_stream_is_captured(capture):
    answers = []
    capture(lambda: answers.append(torch.cuda.is_current_stream_capturing()))
    assert answers == [False, True]
    assert not torch.cuda.is_current_stream_capturing()


@pytest.mark.parametrize("is_kept", [False, True])
def test_a_gradient_of_another_stream(is_kept, x, stream, refusal):
    """A loss that lives keeps the stream on which its gradient was added up."""
    weight = torch.ones(4, device="cuda", requires_grad=True)

    def step():
        loss = (weight * x).sum()
        loss.backward()
        return loss

    kept = step()
    if is_kept:
        reason = refusal(step)
        # torch says the first by itself, from 2.13 on.
        assert "stale reference" in reason or "waits for" in reason
        return
    del kept
    weight.grad = None
    with torch.cuda.graph(torch.cuda.CUDAGraph(), stream=stream):
        step()


def test_products_are_prepared_before(capture, stream):
    matrix = torch.eye(3, device="cuda")
    with pytest.raises(RuntimeError, match="no warm-up iterations occurred"):
        capture(lambda: matrix @ matrix, warm=False)
    capture(lambda: matrix @ matrix)


def test_a_failed_capture_changes_nothing(x, stream, refusal):
    refusal(lambda: x.add_(1).sum().item())
    assert x.tolist() == [0, 1, 2, 3]


def test_a_capture_that_failed_does_not_leave_its_stream(x, stream):
    before = torch.cuda.current_stream()
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(RuntimeError), torch.cuda.graph(graph, stream=stream):
        x.sum().item()
    assert torch.cuda.current_stream() == stream
    torch.cuda.set_stream(before)
    with pytest.raises(RuntimeError, match="without a preceding successful capture"):
        graph.replay()


def test_generators(x, capture, refusal):
    generator = torch.Generator("cuda")
    numbers = torch.zeros(4, device="cuda")

    def draw():
        numbers.copy_(torch.rand(4, device="cuda", generator=generator))

    assert "generator not in capture mode" in refusal(draw)
    assert "seed of a generator" in refusal(lambda: generator.manual_seed(1))
    assert "a new generator" in refusal(lambda: torch.Generator("cuda"))
    state = generator.get_state()
    graph = capture(draw, warm=False, generators=[generator])
    assert torch.equal(generator.get_state(), state)
    for seed in (3, 5):
        generator.manual_seed(seed)
        graph.replay()
        expected = torch.rand(4, generator=torch.Generator().manual_seed(seed))
        assert torch.equal(numbers.cpu(), expected)


def test_the_default_generator_goes_on(x, capture):
    numbers = torch.zeros(4, device="cuda")
    graph = capture(lambda: numbers.uniform_())
    graph.replay()
    first = numbers.clone()
    graph.replay()
    assert not torch.equal(numbers, first)


def test_the_device_is_late(x):
    """A host that changes pinned memory before it was copied sees the change there."""
    pinned = torch.ones(4).pin_memory()
    copied = torch.cuda.Event()
    x.copy_(pinned, non_blocking=True)
    pinned += 1
    assert x.tolist() == [2] * 4
    x.copy_(pinned, non_blocking=True)
    copied.record()
    copied.synchronize()
    pinned += 1
    assert x.tolist() == [2] * 4


def test_a_size_that_depends_on_numbers(x, capture):
    """Replays give outputs of the captured size."""
    index = torch.tensor([0, 1], device="cuda")
    outputs = []
    graph = capture(lambda: outputs.append(x[index]))
    index.copy_(torch.tensor([2, 3]))
    graph.replay()
    assert outputs[-1].tolist() == [2, 3]


def test_replays_can_be_left_out(x, capture):
    graph = capture(lambda: x.add_(1))
    with gpu.without_replays():
        graph.replay()
    assert x.tolist() == [1, 2, 3, 4]
    graph.replay()
    assert x.tolist() == [2, 3, 4, 5]
