"""Makes torch's device "cuda" out of host memory: import it before torch.

from fakecuda import gpu
import torch
with gpu.counted() as counts:
    torch.ones(3, device="cuda").sum().item()
counts.launches, counts.waits
"""

import ctypes
import importlib.util
import os
import sys
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from itertools import count
from types import SimpleNamespace

from fakecuda.build import NAME, library_path

PATH = library_path(version("torch"))


def _load():
    """Register the device before torch asks for it, and import its functions."""
    if "torch" in sys.modules:
        raise RuntimeError("import fakecuda.gpu before torch, which asks for its devices once")
    torch_folder = importlib.util.find_spec("torch").submodule_search_locations[0]
    ctypes.CDLL(os.path.join(torch_folder, "lib", "libtorch_python.so"), ctypes.RTLD_GLOBAL)
    ctypes.CDLL(str(PATH), ctypes.RTLD_GLOBAL)
    import torch

    if torch.version.cuda is not None or torch.version.hip is not None:
        raise RuntimeError("this torch has kernels of a GPU; the fake one needs a build without")
    spec = importlib.util.spec_from_file_location(NAME, PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if not module.has_hooks():
        raise RuntimeError("torch asked for its devices before the fake one was there")
    return module


device = _load()

import torch  # noqa: E402

PROPERTIES = SimpleNamespace(
    name="fake GPU of host memory",
    total_memory=8 << 30,
    major=9,
    minor=0,
    multi_processor_count=132,
    warp_size=32,
    gcnArchName="",
    is_integrated=False,
    L2_cache_size=50 << 20,
)


def _free_memory(_device=None):
    return PROPERTIES.total_memory - device.memory()[0], PROPERTIES.total_memory


class Stream(torch.Stream):
    """`torch.cuda.Stream`; its operations are done in the order of the host."""

    def __new__(cls, device=None, priority=0, **parts):
        if parts:
            return super().__new__(cls, **parts)
        return super().__new__(
            cls, torch.device("cuda" if device is None else device), priority=priority
        )

    @property
    def cuda_stream(self):
        return self.stream_id


class Event(torch.Event):
    """`torch.cuda.Event`."""

    def __new__(cls, enable_timing=False, blocking=False):
        return super().__new__(cls, "cuda", enable_timing=enable_timing, blocking=blocking)


class CUDAGraph:
    """`torch.cuda.CUDAGraph`; its operations lie in `operations`, by name."""

    def __init__(self, keep_graph=False):
        self._graph = device.Graph()
        self._pool = graph_pool_handle()

    @property
    def operations(self):
        return self._graph.operations()

    def register_generator_state(self, generator):
        self._graph.register(generator)

    def capture_begin(self, pool=None, capture_error_mode="global", check_input_liveness=False):
        self._pool = pool or self._pool
        self._graph.begin()

    def capture_end(self):
        self._graph.end()

    def replay(self):
        self._graph.replay()

    def reset(self):
        self._graph = device.Graph()

    def pool(self):
        return self._pool


def graph_pool_handle():
    """A new name for a pool; graphs that share one do not share memory here."""
    return (0, next(_pool_numbers))


_pool_numbers = count(1)


def current_stream(_device=None):
    """The stream of this thread."""
    return _stream(device.current_stream())


def _stream(number):
    kind = torch.Stream(device="cuda").device_type
    return Stream(stream_id=number, device_index=device.index(), device_type=kind)


# What torch.cuda asks the driver for.
ANSWERS = {
    "_lazy_init": lambda: None,
    "is_available": lambda: True,
    "is_initialized": lambda: True,
    "device_count": lambda: device.num_gpus(),
    "current_device": lambda: device.index(),
    "set_device": lambda index: _check_index(index),
    "_exchange_device": lambda _: device.index(),
    "_maybe_exchange_device": lambda _: device.index(),
    "synchronize": lambda device=None: _synchronize(),
    "Stream": Stream,
    "Event": Event,
    "current_stream": current_stream,
    "default_stream": lambda device=None: _stream(0),
    "_set_stream_by_id": lambda stream_id, device_index, device_type: device.set_stream(stream_id),
    "CUDAGraph": CUDAGraph,
    "graph_pool_handle": graph_pool_handle,
    "get_device_properties": lambda device=None: PROPERTIES,
    "get_device_capability": lambda device=None: (PROPERTIES.major, PROPERTIES.minor),
    "get_device_name": lambda device=None: PROPERTIES.name,
    "is_bf16_supported": lambda including_emulation=True: (
        including_emulation or PROPERTIES.major >= 8
    ),
    "memory_allocated": lambda device=None: _device_memory(0),
    "max_memory_allocated": lambda device=None: _device_memory(1),
    "reset_peak_memory_stats": lambda device=None: _reset_peak(),
    "mem_get_info": _free_memory,
    "empty_cache": lambda: None,
    "is_current_stream_capturing": lambda: device.is_capturing(),
    "set_sync_debug_mode": lambda mode: None,
    "set_per_process_memory_fraction": lambda fraction, device=None: _limit_memory(fraction),
}


def _synchronize():
    device.synchronize()


def _check_index(index):
    if torch.device("cuda", index).index != device.index():
        raise RuntimeError(f"cuda:{index} is the GPU of another process")


def _device_memory(index):
    return device.memory()[index]


def _limit_memory(fraction):
    device.set_limit(int(fraction * PROPERTIES.total_memory) if fraction < 1 else 0)


def _reset_peak():
    device.reset_peak()


def _answer():
    """Let `torch.cuda`, and modules that took its functions by name, ask the fake device."""
    torch.cuda.default_generators = (device.default_generator(),) * device.num_gpus()
    originals = {name: getattr(torch.cuda, name) for name in ANSWERS}
    for module_name, module in list(sys.modules.items()):
        if not module_name.startswith("torch."):
            continue
        for name, answer in ANSWERS.items():
            if vars(module).get(name) is originals[name]:
                setattr(module, name, answer)


_answer()
torch._C._host_emptyCache = lambda: None  # which a capture begins with


def _clone_storage(storage):
    """A copy, as `copy.deepcopy` of a tensor asks for; torch without CUDA makes none itself."""
    content = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
    return content.clone().untyped_storage()


_clone_host_storage = torch.UntypedStorage.clone
torch.UntypedStorage.clone = lambda storage: (
    _clone_storage(storage) if storage.is_cuda else _clone_host_storage(storage)
)


class Nccl(type):
    """The type of groups of processes that exchange tensors of GPUs."""

    def __instancecheck__(cls, group):
        return isinstance(group, torch._C._distributed_c10d.Backend) and group.name() == "nccl"


class ProcessGroupNCCL(metaclass=Nccl):
    """NCCL by gloo, in the memory of the host."""

    Options = SimpleNamespace

    def __new__(cls, store, rank, size, options):
        gloo = torch.distributed.ProcessGroupGloo(store, rank, size, timeout=options._timeout)
        return device.process_group(gloo)


torch.distributed.distributed_c10d.ProcessGroupNCCL = ProcessGroupNCCL
torch.distributed.distributed_c10d._NCCL_AVAILABLE = True


@dataclass
class Counts:
    """What happened in a block of `counted`.

    Attributes:
        launches: number of launches by operation.
        waits: number of host waits by operation.
        waiting_lines: the same by the line of the library that waited, "file:line operation".
    """

    launches: Counter = field(default_factory=Counter)
    waits: Counter = field(default_factory=Counter)
    waiting_lines: Counter = field(default_factory=Counter)


@contextmanager
def counted(package="torchcaps"):
    """Count the launches and host waits of a block; lines are those of a package."""
    counts = Counts()

    def note_line(operation):
        frame = sys._getframe(1)
        while frame is not None and f"/{package}/" not in frame.f_code.co_filename:
            frame = frame.f_back
        place = "?"
        if frame is not None:
            file = frame.f_code.co_filename.rpartition(f"/{package}/")[2]
            place = f"{file}:{frame.f_lineno}"
        counts.waiting_lines[f"{place} {operation}"] += 1

    device.on_wait(note_line)
    device.start()
    try:
        yield counts
    finally:
        launches, waits = device.stop()
        device.on_wait(None)
        counts.launches.update(launches)
        counts.waits.update(waits)


@contextmanager
def without_replays():
    """Replays of graphs do nothing, so that what the host does between them can be timed."""
    device.set_replays(False)
    try:
        yield
    finally:
        device.set_replays(True)


@contextmanager
def memory_limit(num_bytes):
    """The device has room for so many bytes beside those in use."""
    device.set_limit(device.memory()[0] + num_bytes)
    try:
        yield
    finally:
        device.set_limit(0)


@contextmanager
def without_float64():
    """The device has no float64, as those of Apple."""
    device.set_float64(False)
    try:
        yield
    finally:
        device.set_float64(True)


@contextmanager
def capability(major, minor):
    """The device has this compute capability; bf16 needs 8.0."""
    before = PROPERTIES.major, PROPERTIES.minor
    PROPERTIES.major, PROPERTIES.minor = major, minor
    try:
        yield
    finally:
        PROPERTIES.major, PROPERTIES.minor = before
