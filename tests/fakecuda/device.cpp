// A CUDA device made of host memory, for a build of PyTorch without CUDA.
//
// Such a build has no kernels under DispatchKey::CUDA. This file registers one kernel for all of
// them, which runs the CPU's kernel on the same memory. Tensors have device.type == "cuda", and an
// operation that mixes devices raises as on a GPU. Launches and host waits are counted.
// It has graphs (graph.hpp), and not the rounding of a GPU's kernels.
#include "graph.hpp"

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/reducer_timer.hpp>
#include <torch/csrc/utils/pybind.h>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <set>

namespace {
using namespace at;
using namespace fakecuda;

int64_t environment(const char* name, int64_t otherwise) {
  const char* text = std::getenv(name);
  return text && *text ? std::atoll(text) : otherwise;
}

// Each process of torchrun has one of the GPUs of its machine, and cannot use the others.
const auto NUM_GPUS = static_cast<DeviceIndex>(environment("LOCAL_WORLD_SIZE", 1));
const Device GPU(kCUDA, static_cast<DeviceIndex>(environment("LOCAL_RANK", 0)));
const DispatchKeySet KEYS(DispatchKey::CUDA);

// Memory ------------------------------------------------------------------------------------------

struct DeviceAllocator final : c10::Allocator {
  DataPtr allocate(size_t bytes) override {
    account(static_cast<int64_t>(bytes));
    void* memory = nullptr;
    if (bytes > 0)
      TORCH_CHECK(posix_memalign(&memory, 64, bytes) == 0, "the host is out of memory");
    Block block(new Memory{static_cast<int64_t>(bytes), memory, {}});
    block->poison();
    if (is_capturing()) capturing->allocate(block);
    return {memory, new Block(std::move(block)), &release, GPU};
  }
  DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, size_t bytes) const override { memcpy(to, from, bytes); }
};
DeviceAllocator device_allocator;

void unpin(void* memory) {
  const std::lock_guard<std::mutex> lock(mutex);
  pinned.erase(static_cast<char*>(memory));
  free(memory);
}

bool is_pinned(const void* address) { return pinned_block(address) != nullptr; }

struct PinnedAllocator final : c10::Allocator {
  DataPtr allocate(size_t bytes) override {
    void* memory = malloc(bytes > 0 ? bytes : 1);
    auto block = std::make_shared<size_t>(bytes);
    // What is pinned in a capture is never given to anyone else.
    if (is_capturing()) capturing->own_pinned.insert(block.get());
    const std::lock_guard<std::mutex> lock(mutex);
    pinned[static_cast<char*>(memory)] = std::move(block);
    return {memory, memory, &unpin, Device(kCPU)};
  }
  DeleterFnPtr raw_deleter() const override { return &unpin; }
  void copy_data(void* to, const void* from, size_t bytes) const override { memcpy(to, from, bytes); }
};
PinnedAllocator pinned_allocator;

// What torch asks a device for --------------------------------------------------------------------

struct Guard final : c10::impl::DeviceGuardImplInterface {
  using Stream = c10::Stream;
  DeviceType type() const override { return kCUDA; }
  Device exchangeDevice(Device) const override { return GPU; }
  Device getDevice() const override { return GPU; }
  void setDevice(Device) const override {}
  void uncheckedSetDevice(Device) const noexcept override {}
  static Stream stream(c10::StreamId id) { return Stream(Stream::UNSAFE, GPU, id); }
  Stream getStream(Device) const noexcept override { return stream(current_stream); }
  Stream getDefaultStream(Device) const override { return stream(0); }
  Stream getNewStream(Device, int) const override {
    static std::atomic<c10::StreamId> newest{0};
    return stream(++newest);
  }
  Stream getStreamFromGlobalPool(Device device, bool) const override {
    return getNewStream(device, 0);
  }
  Stream exchangeStream(Stream next) const noexcept override {
    const auto before = current_stream;
    current_stream = next.id();
    return stream(before);
  }
  bool isStreamCapturing(const Stream& stream) const {
    return capturing && stream.id() == capturing->stream;
  }
  DeviceIndex deviceCount() const noexcept override { return NUM_GPUS; }
  void record(void** event, const Stream& stream, DeviceIndex, c10::EventFlag) const override {
    record_event(event, stream.id());
  }
  void block(void* event, const Stream& stream) const override { wait_event(event, stream.id()); }
  void destroyEvent(void* event, DeviceIndex) const noexcept override {
    delete static_cast<RecordedEvent*>(event);
  }
  bool queryEvent(void*) const override { return wait_for("an event"), true; }
  void synchronizeEvent(void*) const override { wait_for("an event"); }
  double elapsedTime(void*, void*, DeviceIndex) const override { return 0; }
  bool queryStream(const Stream&) const override { return wait_for("a stream"), true; }
  void synchronizeStream(const Stream&) const override { wait_for("a stream"); }
  void synchronizeDevice(DeviceIndex) const override { wait_for("all streams"); }
};
C10_REGISTER_GUARD_IMPL(CUDA, Guard);

// The CPU's generator, which says that it is the device's, except while a CPU kernel draws from it.
struct DeviceGenerator final : CPUGeneratorImpl {
  explicit DeviceGenerator(uint64_t seed) : CPUGeneratorImpl(seed) { pose_as(GPU); }
  void pose_as(Device device) {
    device_ = device;
    key_set_ = device.is_cpu() ? DispatchKeySet(DispatchKey::CPU) : KEYS;
  }
  // Nobody may look at its state in a capture.
  void set_current_seed(uint64_t seed) override {
    check_not_captured("the seed of a generator");
    CPUGeneratorImpl::set_current_seed(seed);
  }
  void set_state(const c10::TensorImpl& state) override {
    check_not_captured("the state of a generator");
    CPUGeneratorImpl::set_state(state);
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    check_not_captured("the state of a generator");
    return CPUGeneratorImpl::get_state();
  }
  DeviceGenerator* clone_impl() const override {
    auto* copy = new DeviceGenerator(0);
    copy->set_engine(const_cast<DeviceGenerator*>(this)->engine());
    return copy;
  }
};

const Generator& default_generator() {
  static const Generator generator = make_generator<DeviceGenerator>(default_rng_seed_val);
  return generator;
}

struct Hooks final : CUDAHooksInterface {
  explicit Hooks(CUDAHooksArgs) {}
  void init() const override {}
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasCUDA() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  DeviceIndex deviceCount() const override { return NUM_GPUS; }
  int getNumGPUs() const override { return NUM_GPUS; }
  DeviceIndex current_device() const override { return GPU.index(); }
  DeviceIndex getCurrentDevice() const override { return GPU.index(); }
  void setCurrentDevice(DeviceIndex) const override {}
  DeviceIndex exchangeDevice(DeviceIndex) const override { return GPU.index(); }
  DeviceIndex maybeExchangeDevice(DeviceIndex) const override { return GPU.index(); }
  Device getDeviceFromPtr(void*) const override { return GPU; }
  const Generator& getDefaultGenerator(DeviceIndex) const override { return default_generator(); }
  Generator getNewGenerator(DeviceIndex) const override {
    check_not_captured("a new generator");
    return make_generator<DeviceGenerator>(default_rng_seed_val);
  }
  bool isPinnedPtr(const void* address) const override { return is_pinned(address); }
  Allocator* getPinnedMemoryAllocator() const override { return &pinned_allocator; }
  Allocator* getCUDADeviceAllocator() const override { return &device_allocator; }
  void deviceSynchronize(DeviceIndex) const override { wait_for("all streams"); }
};
}  // namespace
namespace at {
C10_REGISTER_TYPED_CLASS(CUDAHooksRegistry, "CUDAHooks", Hooks);
}
namespace {

// What costs time on a GPU ------------------------------------------------------------------------

std::map<std::string, int64_t> launches, waits;
std::function<void(const std::string&)> on_wait;
std::atomic<bool> is_counting{false};
std::atomic<bool> has_float64{true};

void launched(const std::string& operation) {
  if (!is_counting) return;
  const std::lock_guard<std::mutex> lock(mutex);
  launches[operation]++;
}

void waited(const std::string& operation) {
  wait_for(operation);
  if (!is_counting) return;
  {
    const std::lock_guard<std::mutex> lock(mutex);
    waits[operation]++;
  }
  if (on_wait) on_wait(operation);
}

// Operations that return to the host only when the device has done them.
const std::set<std::string> WAITING{
    "aten::nonzero",        "aten::masked_select", "aten::_unique2",
    "aten::unique_dim",     "aten::unique_consecutive", "aten::equal",
    "aten::repeat_interleave", "aten::bincount",   "aten::_linalg_svd",
    "aten::_linalg_eigh",   "aten::_linalg_check_errors", "aten::_linalg_det",
    "aten::linalg_lstsq"};
// Operations that take indices on the CPU beside tensors on the device, and copy them.
const std::set<std::string> INDEXING{
    "aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_"};

// One kernel for all operations -------------------------------------------------------------------

void check_device(std::optional<Device> device) {
  TORCH_CHECK(!device || !device->has_index() || *device == GPU, *device,
              " is the GPU of another process, and this one has ", GPU);
}

void check_dtype(ScalarType dtype) {
  TORCH_CHECK_TYPE(has_float64 || (dtype != kDouble && dtype != kComplexDouble),
                   "Cannot convert a tensor to float64: the device does not support float64");
}

// A tensor of the CPU in the memory of a tensor of the device.
Tensor host_view(const Tensor& tensor) {
  if (tensor.numel() == 0) {  // a kernel may resize it
    return at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(kCPU));
  }
  c10::Storage storage(c10::Storage::use_byte_size_t(), tensor.storage().nbytes(),
                       DataPtr(tensor.storage().mutable_data(), Device(kCPU)), nullptr, false);
  auto view = at::detail::make_tensor<TensorImpl>(
      std::move(storage), DispatchKeySet(DispatchKey::CPU), tensor.dtype());
  auto* impl = view.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
  view._set_conj(tensor.is_conj());
  view._set_neg(tensor.is_neg());
  return view;
}

// A tensor of the device in this storage, as a tensor of the CPU lies in its own.
Tensor device_view(const Tensor& like, c10::Storage storage) {
  check_dtype(like.scalar_type());
  auto tensor = at::detail::make_tensor<TensorImpl>(std::move(storage), KEYS, like.dtype());
  auto* impl = tensor.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
  tensor._set_conj(like.is_conj());
  tensor._set_neg(like.is_neg());
  return tensor;
}

// The device takes over an output of a CPU kernel.
Tensor adopt(const Tensor& output) {
  const auto bytes = static_cast<int64_t>(output.storage().nbytes());
  account(bytes);
  Block block(new Memory{bytes, nullptr, output.storage()});
  if (is_capturing()) capturing->allocate(block);
  DataPtr data(output.storage().mutable_data(), new Block(std::move(block)), &release, GPU);
  c10::Storage storage(c10::Storage::use_byte_size_t(), bytes, std::move(data), &device_allocator,
                       true);
  return device_view(output, std::move(storage));
}

// The arguments of a call: their check, their way to the CPU's kernel, and the way back.
struct Call {
  const c10::OperatorHandle& operation;
  std::string name;
  bool on_device = false;
  std::string on_host;  // arguments with axes that are on the CPU
  bool indexes_host = false;  // whether the tensor that is indexed is one of them
  std::vector<std::pair<Tensor, Tensor>> pairs;  // (of the device, of the CPU)
  DeviceGenerator* generator = nullptr;
  Graph* graph = nullptr;  // that it is recorded for
  bool reads_mask = false;  // whether the host reads how many entries a mask has, or a number

  explicit Call(const c10::OperatorHandle& op) : operation(op), name(op.schema().name()) {}

  void look_at(const Tensor& tensor, const std::string& argument) {
    if (!tensor.defined()) return;
    if (tensor.is_cuda()) {
      on_device = true;
      check_dtype(tensor.scalar_type());
      const bool is_mask = tensor.scalar_type() == kBool || tensor.scalar_type() == kByte;
      reads_mask |= argument == "indices" && is_mask;
      reads_mask |= argument == "value" && name.rfind("aten::masked_fill", 0) == 0;
    } else if (tensor.is_cpu() && tensor.dim() > 0) {
      on_host += " " + argument + " " + c10::str(tensor.sizes());
      indexes_host |= argument == "self";
    }
  }

  void look_at(const IValue& value, const std::string& argument) {
    if (value.isTensor()) {
      look_at(value.toTensor(), argument);
      // One number of the host is put where a mask is, and nothing is counted.
      const bool is_host_number = argument == "values" && value.toTensor().is_cpu();
      reads_mask &= !is_host_number || value.toTensor().numel() != 1;
    } else if (value.isTensorList()) {
      for (const Tensor& tensor : value.toTensorVector()) look_at(tensor, argument);
    } else if (value.isOptionalTensorList()) {
      for (const auto& tensor : value.toOptionalTensorVector())
        if (tensor) look_at(*tensor, argument);
    } else if (value.isDevice() && value.toDevice().is_cuda()) {
      on_device = true;
    }
  }

  void check() {
    TORCH_CHECK(!on_device || on_host.empty() || (INDEXING.count(name) && !indexes_host),
                "Expected all tensors to be on the same device, but found at least two devices, "
                "cuda:0 and cpu! (", name, ", on the CPU:", on_host, ")");
    launched(name);
    if (!on_device) return;
    if (WAITING.count(name) || !on_host.empty() || reads_mask) waited(name);
    graph = recorder(name);
    prepare(name);
  }

  Tensor down(const Tensor& tensor) {
    if (!tensor.defined()) return tensor;
    if (!tensor.is_cuda()) return graph && tensor.dim() == 0 ? frozen(tensor) : tensor;
    pairs.emplace_back(tensor, host_view(tensor));
    return pairs.back().second;
  }

  // A number on the host is a part of the graph, as it is now.
  static Tensor frozen(const Tensor& number) {
    Tensor copy = number.clone();
    copy.unsafeGetTensorImpl()->set_wrapped_number(number.unsafeGetTensorImpl()->is_wrapped_number());
    return copy;
  }

  IValue down(const IValue& value, const std::string& argument) {
    if (value.isTensor()) return down(value.toTensor());
    if (value.isTensorList()) {
      std::vector<Tensor> tensors;
      for (const Tensor& tensor : value.toTensorVector()) tensors.push_back(down(tensor));
      return tensors;
    }
    if (value.isOptionalTensorList()) {
      c10::List<std::optional<Tensor>> tensors;
      for (const auto& tensor : value.toOptionalTensorVector()) {
        if (tensor) tensors.push_back(down(*tensor));
        else tensors.push_back(std::nullopt);
      }
      return tensors;
    }
    if (value.isDevice()) return Device(kCPU);
    const bool draws = value.isGenerator() || (value.isNone() && argument == "generator");
    if (draws && on_device) {
      Generator given = value.isGenerator() ? value.toGenerator() : default_generator();
      TORCH_CHECK(given.device().is_cuda(),
                  "Expected a 'cuda' device type for generator but found 'cpu' (", name, ")");
      auto* impl = static_cast<DeviceGenerator*>(given.unsafeGetGeneratorImpl());
      if (graph) note_draw(given, *impl);
      generator = impl;
      generator->pose_as(Device(kCPU));
      return given;
    }
    return value;
  }

  void note_draw(const Generator& given, DeviceGenerator& impl) {
    bool is_registered = given == default_generator();
    for (const Generator& other : graph->registered) is_registered |= given == other;
    TORCH_CHECK(is_registered, "Attempt to increase offset for a CUDA generator not in capture mode.");
    graph->drawn.try_emplace(&impl, std::pair(given, impl.engine()));
  }

  // Let the graph know what is read and written, and put back what is written when it ends.
  void note(const torch::jit::Stack& arguments) {
    const auto& parameters = operation.schema().arguments();
    for (size_t n = 0; n < arguments.size(); n++) {
      const auto* alias = parameters[n].alias_info();
      // Schemas of batch norms do not say that they write their statistics.
      const bool is_statistic = parameters[n].name().rfind("running_", 0) == 0;
      const bool writes = (alias && alias->isWrite()) || is_statistic;
      if (arguments[n].isTensor()) {
        graph->use(arguments[n].toTensor(), name, writes);
      } else if (arguments[n].isTensorList()) {
        for (const Tensor& tensor : arguments[n].toTensorVector()) graph->use(tensor, name, writes);
      } else if (arguments[n].isOptionalTensorList()) {
        for (const auto& tensor : arguments[n].toOptionalTensorVector())
          if (tensor) graph->use(*tensor, name, false);
      }
    }
  }

  Tensor up(const Tensor& tensor) {
    if (!tensor.defined() || !on_device) return tensor;
    for (auto& [device, host] : pairs)
      if (host.is_same(tensor)) return device;
    for (auto& [device, host] : pairs)  // a view that the CPU's kernel made
      if (tensor.numel() > 0 && host.has_storage() &&
          tensor.storage().data() == host.storage().data())
        return device_view(tensor, device.storage());
    return adopt(tensor);
  }

  // Outputs (`out=`) that were empty, and that the kernel gave a size.
  void resize_outputs() {
    for (auto& [device, host] : pairs) {
      if (device.numel() > 0 || host.numel() == 0) continue;
      const Tensor sized = adopt(host);
      auto* impl = device.unsafeGetTensorImpl();
      impl->set_storage_keep_dtype(sized.storage());
      impl->set_sizes_and_strides(sized.sizes(), sized.strides(), sized.storage_offset());
    }
  }
};

std::vector<Tensor> tensors_of(const torch::jit::Stack& outputs) {
  std::vector<Tensor> tensors;
  for (const IValue& output : outputs) {
    if (output.isTensor()) tensors.push_back(output.toTensor());
    else if (output.isTensorList())
      for (const Tensor& tensor : output.toTensorVector()) tensors.push_back(tensor);
  }
  return tensors;
}

// A node runs the CPU's kernel on the same memory, and puts its outputs where they were before.
void record(Call& call, torch::jit::Stack arguments, const torch::jit::Stack& outputs) {
  auto run = [op = call.operation, name = call.name, generator = call.generator,
              arguments = std::move(arguments), before = tensors_of(outputs)] {
    torch::jit::Stack stack = arguments;
    if (generator) generator->pose_as(Device(kCPU));
    const c10::impl::ExcludeDispatchKeyGuard no_autograd(c10::autograd_dispatch_keyset);
    op.callBoxed(stack);
    if (generator) generator->pose_as(GPU);
    const auto after = tensors_of(stack);
    for (size_t n = 0; n < after.size(); n++) {
      const Tensor &from = after[n], &to = before[n];
      if (!from.defined() || from.numel() == 0 || from.storage().data() == to.storage().data())
        continue;
      TORCH_CHECK(from.sizes() == to.sizes(), "the graph's ", name, " gives ", from.sizes(),
                  " and gave ", to.sizes(), " when it was captured");
      const_cast<Tensor&>(to).copy_(from);
    }
  };
  call.graph->nodes.push_back({call.name, std::move(run)});
}

void run_on_host(const c10::OperatorHandle& op, DispatchKeySet, torch::jit::Stack* stack) {
  const auto& parameters = op.schema().arguments();
  const auto arguments = torch::jit::last(*stack, parameters.size()).vec();
  Call call(op);
  for (size_t n = 0; n < arguments.size(); n++) call.look_at(arguments[n], parameters[n].name());
  call.check();

  torch::jit::Stack inner;
  for (size_t n = 0; n < arguments.size(); n++)
    inner.push_back(call.down(arguments[n], parameters[n].name()));
  torch::jit::Stack recorded;
  if (call.graph) {
    call.note(arguments);
    recorded = inner;
  }
  try {
    op.callBoxed(inner);
  } catch (...) {
    if (call.generator) call.generator->pose_as(GPU);
    throw;
  }
  if (call.generator) call.generator->pose_as(GPU);

  call.resize_outputs();
  if (call.graph) record(call, std::move(recorded), inner);
  torch::jit::drop(*stack, arguments.size());
  for (IValue& output : inner) {
    if (output.isTensor()) {
      stack->emplace_back(call.up(output.toTensor()));
    } else if (output.isTensorList()) {
      std::vector<Tensor> tensors;
      for (const Tensor& tensor : output.toTensorVector()) tensors.push_back(call.up(tensor));
      stack->emplace_back(std::move(tensors));
    } else {
      stack->push_back(output);
    }
  }
}

// Operations on memory itself ---------------------------------------------------------------------

Tensor device_empty(IntArrayRef size, std::optional<ScalarType> dtype, std::optional<Layout>,
             std::optional<Device> device, std::optional<bool>,
             std::optional<MemoryFormat> format) {
  check_device(device);
  check_dtype(dtype_or_default(dtype));
  return Tensor(at::detail::empty_generic(size, &device_allocator, KEYS, dtype_or_default(dtype),
                                          format));
}

Tensor device_empty_strided(IntArrayRef size, IntArrayRef strides, std::optional<ScalarType> dtype,
                     std::optional<Layout>, std::optional<Device> device, std::optional<bool>) {
  check_device(device);
  check_dtype(dtype_or_default(dtype));
  return Tensor(at::detail::empty_strided_generic(size, strides, &device_allocator, KEYS,
                                                  dtype_or_default(dtype)));
}

// A copy in the memory that two tensors have now, which is not kept.
std::function<void()> copying(const Tensor& target, const Tensor& source) {
  return [to = host_view(target), from = host_view(source)]() mutable {
    if (to.numel() > 0) to.copy_(from);
  };
}

void record_copy(Graph& graph, const Tensor& target, const Tensor& source) {
  graph.use(target, "aten::copy_", true);
  graph.use(source, "aten::copy_", false);
  for (const Tensor* tensor : {&target, &source}) {
    if (tensor->is_cuda()) continue;
    const PinnedBlock block = pinned_block(tensor->storage().data());
    if (graph.own_pinned.count(block.get())) graph.kept.push_back(*tensor);
    else graph.outside_pinned[block.get()] = block;
  }
  auto run = copying(target, source);
  if (target.is_cuda()) run();
  graph.nodes.push_back({"aten::copy_", std::move(run)});
}

Tensor& device_copy(Tensor& self, const Tensor& source, bool non_blocking) {
  const bool crosses = self.is_cuda() != source.is_cuda();
  const Tensor& other = self.is_cuda() ? source : self;
  // Memory that is not pinned is copied through a buffer, for which the host waits.
  const bool is_free = non_blocking && crosses && is_pinned(other.storage().data());
  if (is_capturing() && crosses && !is_pinned(other.storage().data()))
    TORCH_CHECK(false, "Cannot copy between CPU and CUDA tensors during CUDA graph capture unless the "
                "CPU tensor is pinned. Please use tensor.pin_memory() or allocate the tensor with "
                "pin_memory=True.");
  if (crosses && !is_free) waited(self.is_cuda() ? "copy host to device" : "copy device to host");
  launched("aten::copy_");
  if (capturing) {
    record_copy(*recorder("aten::copy_"), self, source);
  } else if (is_free || (!crosses && !queue.empty())) {  // the memory stays until it is done
    queue.push_back([run = copying(self, source), self, source]() mutable { run(); });
  } else {
    flush();
    copying(self, source)();
  }
  return self;
}

Tensor copy_from(const Tensor& self, const Tensor& target, bool non_blocking) {
  Tensor to = target;
  return device_copy(to, self, non_blocking);
}

Tensor copy_from_and_resize(const Tensor& self, const Tensor& target) {
  target.resize_(self.sizes());
  return copy_from(self, target, false);
}

Scalar device_item(const Tensor& self) {
  waited("item");
  return host_view(self).item();
}

const Tensor& device_resize(const Tensor& self, IntArrayRef size, std::optional<MemoryFormat> format) {
  if (self.sizes() == size) return self;
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_sizes_contiguous(size);
  const size_t bytes = at::detail::computeStorageNbytesContiguous(size, self.element_size(),
                                                                  self.storage_offset());
  auto* storage = self.storage().unsafeGetStorageImpl();
  if (bytes > storage->nbytes()) {
    recorder("aten::resize_");
    auto memory = device_allocator.allocate(bytes);
    if (storage->nbytes() > 0) memcpy(memory.get(), storage->data(), storage->nbytes());
    storage->set_data_ptr_noswap(std::move(memory));
    storage->set_nbytes(bytes);
  }
  if (format && *format != MemoryFormat::Contiguous) impl->empty_tensor_restride(*format);
  return self;
}

Tensor& set_storage(Tensor& self, Storage source, int64_t offset, IntArrayRef size,
                    IntArrayRef strides) {
  TORCH_CHECK(source.device() == self.device(), "set_: the storage is on ", source.device(),
              ", the tensor on ", self.device());
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(source));
  if (strides.size() == size.size()) {
    impl->set_sizes_and_strides(size, strides, offset);
  } else {
    impl->set_sizes_contiguous(size);
    impl->set_storage_offset(offset);
  }
  return self;
}

Tensor& set_whole_storage(Tensor& self, Storage source) {
  const auto count = static_cast<int64_t>(source.nbytes() / self.element_size());
  return set_storage(self, std::move(source), 0, {count}, {1});
}

Tensor& set_tensor(Tensor& self, const Tensor& source) {
  return set_storage(self, source.storage(), source.storage_offset(), source.sizes(),
                     source.strides());
}

// Several processes: what NCCL does for GPUs, by gloo in the memory of the host -------------------

struct Done final : c10d::Work {
  c10::intrusive_ptr<c10::ivalue::Future> future;
  explicit Done(const std::vector<Tensor>& outputs)
      : future(c10::make_intrusive<c10::ivalue::Future>(c10::ListType::ofTensors(),
                                                         std::vector<Device>{GPU})) {
    future->markCompleted(outputs);
  }
  bool isCompleted() override { return true; }
  bool isSuccess() const override { return true; }
  bool wait(std::chrono::milliseconds) override { return true; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future; }
};

struct DeviceGroup final : c10d::Backend {
  c10::intrusive_ptr<c10d::Backend> gloo;
  explicit DeviceGroup(c10::intrusive_ptr<c10d::Backend> group)
      : Backend(group->getRank(), group->getSize()), gloo(std::move(group)) {}
  const std::string getBackendName() const override { return "nccl"; }
  void setSequenceNumberForGroup() override { gloo->setSequenceNumberForGroup(); }
  uint64_t getSequenceNumberForGroup() override { return gloo->getSequenceNumberForGroup(); }

  using Tensors = std::vector<Tensor>;
  using Result = c10::intrusive_ptr<c10d::Work>;
  static Tensors host_views(const Tensors& tensors) {
    Tensors views;
    for (const Tensor& tensor : tensors) {
      TORCH_CHECK(tensor.is_cuda(), "NCCL takes tensors of GPUs, got one on ", tensor.device());
      views.push_back(host_view(tensor));
    }
    return views;
  }
  Result broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
    Tensors views = host_views(tensors);
    gloo->broadcast(views, options)->wait();
    return c10::make_intrusive<Done>(tensors);
  }
  Result allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    Tensors views = host_views(tensors);
    gloo->allreduce(views, options)->wait();
    return c10::make_intrusive<Done>(tensors);
  }
  Result allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                   const c10d::AllgatherOptions& options) override {
    std::vector<Tensors> output_views;
    for (const Tensors& tensors : outputs) output_views.push_back(host_views(tensors));
    Tensors views = host_views(inputs);
    gloo->allgather(output_views, views, options)->wait();
    return c10::make_intrusive<Done>(outputs.front());
  }
  Result barrier(const c10d::BarrierOptions& options) override { return gloo->barrier(options); }
};

// DistributedDataParallel asks for one on each kind of device; nothing is timed here.
struct DeviceTimer final : c10d::Timer {
  explicit DeviceTimer(Device) {}
  std::optional<int64_t> measureDifference(Event, Event) override { return std::nullopt; }
};
}  // namespace
namespace c10d {
C10_REGISTER_TYPED_CLASS(TimerRegistry, kCUDA, DeviceTimer);
}

// A stand-in for a kernel of Triton: a function of Python that changes tensors.
void run_kernel(const std::string& kernel, const std::vector<Tensor>& tensors,
                const py::function& function) {
  const std::string name = "triton::" + kernel;
  launched(name);
  Graph* graph = recorder(name);
  prepare(name);
  std::vector<Tensor> views;
  for (const Tensor& tensor : tensors) {
    if (graph) graph->use(tensor, name, true);
    views.push_back(host_view(tensor));
  }
  function(views);
  if (!graph) return;
  auto shared = std::shared_ptr<py::function>(new py::function(function), [](py::function* pointer) {
    const py::gil_scoped_acquire lock;
    delete pointer;
  });
  graph->nodes.push_back({name, [shared, views] {
    const py::gil_scoped_acquire lock;
    (*shared)(views);
  }});
}

TORCH_LIBRARY_IMPL(_, CUDA, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_host>());
}

TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  m.impl("empty.memory_format", &device_empty);
  m.impl("empty_strided", &device_empty_strided);
  m.impl("copy_", &device_copy);
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
  m.impl("_local_scalar_dense", &device_item);
  m.impl("resize_", &device_resize);
  m.impl("as_strided", &at::native::as_strided_tensorimpl);
  m.impl("view", static_cast<Tensor (*)(const Tensor&, IntArrayRef)>(&at::native::view));
  m.impl("view.dtype", &at::native::view_dtype);
  m.impl("_reshape_alias", &at::native::_reshape_alias);
  m.impl("unfold", &at::native::unfold);
  m.impl("set_.source_Storage", &set_whole_storage);
  m.impl("set_.source_Storage_storage_offset", &set_storage);
  m.impl("set_.source_Tensor", &set_tensor);
  // Operations that are one launch on a GPU, and would fall into parts here.
  for (const auto& operation : c10::Dispatcher::singleton().getAllOpNames()) {
    const bool is_foreach = operation.name.rfind("aten::_foreach_", 0) == 0;
    const bool is_convolution =
        operation.name == "aten::convolution" || operation.name == "aten::convolution_backward";
    if (!is_foreach && !(is_convolution && operation.overload_name.empty())) continue;
    const auto name = toString(operation).substr(strlen("aten::"));
    m.impl(name.c_str(), torch::CppFunction::makeFromBoxedFunction<&run_on_host>());
  }
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  c10::SetAllocator(kCUDA, &device_allocator, 100);
  m.def("index", [] { return GPU.index(); });
  m.def("num_gpus", [] { return NUM_GPUS; });
  m.def("process_group", [](const c10::intrusive_ptr<c10d::Backend>& gloo) {
    return c10::intrusive_ptr<c10d::Backend>(c10::make_intrusive<DeviceGroup>(gloo));
  });
  m.def("has_hooks", [] { return at::detail::getCUDAHooks().hasCUDA(); });
  m.def("default_generator", [] { return default_generator(); });
  m.def("memory", [] { return std::pair<int64_t, int64_t>(allocated, peak); });
  m.def("host_view", &host_view);
  m.def("launched", &launched);
  py::class_<Graph, GraphPointer>(m, "Graph")
      .def(py::init())
      .def("begin", [](const GraphPointer& graph) { begin_capture(graph); })
      .def("end", [](const GraphPointer& graph) { end_capture(graph); })
      .def("register", [](Graph& graph, const Generator& generator) {
        graph.registered.push_back(generator);
      })
      .def("operations", [](const Graph& graph) {
        std::vector<std::string> names;
        for (const Node& node : graph.nodes) names.push_back(node.name);
        return names;
      })
      .def("replay", [](const GraphPointer& graph) {
        launched("graph");
        replay(graph);
      });
  m.def("run_kernel", &run_kernel);
  m.def("is_capturing", &is_capturing);
  m.def("synchronize", [] { wait_for("all streams"); });
  m.def("set_replays", [](bool are_done) { replays = are_done; });
  m.def("current_stream", [] { return current_stream; });
  m.def("set_stream", [](c10::StreamId id) { current_stream = id; });
  m.def("reset_peak", [] { peak = allocated.load(); });
  m.def("set_limit", [](int64_t bytes) { limit = bytes; });
  m.def("set_float64", [](bool is_supported) { has_float64 = is_supported; });
  m.def("start", [] {
    launches.clear();
    waits.clear();
    is_counting = true;
  });
  m.def("stop", [] {
    is_counting = false;
    return std::pair(launches, waits);
  });
  m.def("on_wait", [](py::object function) {
    on_wait = nullptr;
    if (function.is_none()) return;
    auto shared = std::make_shared<py::object>(std::move(function));
    on_wait = [shared](const std::string& operation) {
      const py::gil_scoped_acquire lock;
      (*shared)(operation);
    };
  });
}
