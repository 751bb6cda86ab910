// A CUDA device made of host memory, for a build of PyTorch without CUDA.
//
// Such a build has no kernels under DispatchKey::CUDA. This file registers one kernel for all of
// them, which runs the CPU's kernel on the same memory. Tensors have device.type == "cuda", and an
// operation that mixes devices raises as on a GPU. Launches and host waits are counted.
// It has no streams, no graphs, and not the rounding of a GPU's kernels.
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

int64_t environment(const char* name, int64_t otherwise) {
  const char* text = std::getenv(name);
  return text && *text ? std::atoll(text) : otherwise;
}

// Each process of torchrun has one of the GPUs of its machine, and cannot use the others.
const auto NUM_GPUS = static_cast<DeviceIndex>(environment("LOCAL_WORLD_SIZE", 1));
const Device GPU(kCUDA, static_cast<DeviceIndex>(environment("LOCAL_RANK", 0)));
const DispatchKeySet KEYS(DispatchKey::CUDA);

// Memory: poisoned, counted and limited -----------------------------------------------------------

std::atomic<int64_t> allocated{0}, peak{0}, limit{0};

void account(int64_t bytes) {
  TORCH_CHECK_WITH(OutOfMemoryError, limit == 0 || bytes <= 0 || allocated + bytes <= limit,
                   "CUDA out of memory. Tried to allocate ", bytes, " bytes");
  const int64_t now = allocated += bytes;
  int64_t before = peak;
  while (now > before && !peak.compare_exchange_weak(before, now)) {}
}

// The memory of a storage: its own, or that of an output of a CPU kernel.
struct Block {
  int64_t bytes;
  void* memory;
  c10::Storage output;
};

void release(void* context) {
  auto* block = static_cast<Block*>(context);
  allocated -= block->bytes;
  free(block->memory);
  delete block;
}

struct DeviceAllocator final : c10::Allocator {
  DataPtr allocate(size_t bytes) override {
    account(static_cast<int64_t>(bytes));
    void* memory = nullptr;
    if (bytes > 0) {
      TORCH_CHECK(posix_memalign(&memory, 64, bytes) == 0, "the host is out of memory");
      memset(memory, 0xFF, bytes);  // NaN in every floating type
    }
    return {memory, new Block{static_cast<int64_t>(bytes), memory, {}}, &release, GPU};
  }
  DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, size_t bytes) const override { memcpy(to, from, bytes); }
};
DeviceAllocator device_allocator;

// Pinned memory, from which copies need not wait.
std::mutex mutex;
std::map<const char*, size_t> pinned;

void unpin(void* memory) {
  const std::lock_guard<std::mutex> lock(mutex);
  pinned.erase(static_cast<char*>(memory));
  free(memory);
}

bool is_pinned(const void* address) {
  const std::lock_guard<std::mutex> lock(mutex);
  auto next = pinned.upper_bound(static_cast<const char*>(address));
  if (next == pinned.begin()) return false;
  --next;
  return static_cast<const char*>(address) < next->first + next->second;
}

struct PinnedAllocator final : c10::Allocator {
  DataPtr allocate(size_t bytes) override {
    void* memory = malloc(bytes > 0 ? bytes : 1);
    const std::lock_guard<std::mutex> lock(mutex);
    pinned[static_cast<char*>(memory)] = bytes;
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
  Stream getStream(Device) const noexcept override { return Stream(Stream::DEFAULT, GPU); }
  Stream getDefaultStream(Device) const override { return Stream(Stream::DEFAULT, GPU); }
  Stream exchangeStream(Stream) const noexcept override { return Stream(Stream::DEFAULT, GPU); }
  DeviceIndex deviceCount() const noexcept override { return NUM_GPUS; }
  void record(void**, const Stream&, DeviceIndex, c10::EventFlag) const override {}
  void block(void*, const Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  bool queryStream(const Stream&) const override { return true; }
  void synchronizeStream(const Stream&) const override {}
};
C10_REGISTER_GUARD_IMPL(CUDA, Guard);

// The CPU's generator, which says that it is the device's, except while a CPU kernel draws from it.
struct DeviceGenerator final : CPUGeneratorImpl {
  explicit DeviceGenerator(uint64_t seed) : CPUGeneratorImpl(seed) { pose_as(GPU); }
  void pose_as(Device device) {
    device_ = device;
    key_set_ = device.is_cpu() ? DispatchKeySet(DispatchKey::CPU) : KEYS;
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
    return make_generator<DeviceGenerator>(default_rng_seed_val);
  }
  bool isPinnedPtr(const void* address) const override { return is_pinned(address); }
  Allocator* getPinnedMemoryAllocator() const override { return &pinned_allocator; }
  Allocator* getCUDADeviceAllocator() const override { return &device_allocator; }
  void deviceSynchronize(DeviceIndex) const override {}
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
  auto* block = new Block{bytes, nullptr, output.storage()};
  DataPtr data(output.storage().mutable_data(), block, &release, GPU);
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

  explicit Call(const c10::OperatorHandle& op) : operation(op), name(op.schema().name()) {}

  void look_at(const Tensor& tensor, const std::string& argument) {
    if (!tensor.defined()) return;
    if (tensor.is_cuda()) {
      on_device = true;
      check_dtype(tensor.scalar_type());
    } else if (tensor.is_cpu() && tensor.dim() > 0) {
      on_host += " " + argument + " " + c10::str(tensor.sizes());
      indexes_host |= argument == "self";
    }
  }

  void look_at(const IValue& value, const std::string& argument) {
    if (value.isTensor()) {
      look_at(value.toTensor(), argument);
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
    if (WAITING.count(name) || !on_host.empty()) waited(name);
  }

  Tensor down(const Tensor& tensor) {
    if (!tensor.defined() || !tensor.is_cuda()) return tensor;
    pairs.emplace_back(tensor, host_view(tensor));
    return pairs.back().second;
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
      generator = static_cast<DeviceGenerator*>(given.unsafeGetGeneratorImpl());
      generator->pose_as(Device(kCPU));
      return given;
    }
    return value;
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

void run_on_host(const c10::OperatorHandle& op, DispatchKeySet, torch::jit::Stack* stack) {
  const auto& parameters = op.schema().arguments();
  const auto arguments = torch::jit::last(*stack, parameters.size()).vec();
  Call call(op);
  for (size_t n = 0; n < arguments.size(); n++) call.look_at(arguments[n], parameters[n].name());
  call.check();

  torch::jit::Stack inner;
  for (size_t n = 0; n < arguments.size(); n++)
    inner.push_back(call.down(arguments[n], parameters[n].name()));
  try {
    op.callBoxed(inner);
  } catch (...) {
    if (call.generator) call.generator->pose_as(GPU);
    throw;
  }
  if (call.generator) call.generator->pose_as(GPU);

  call.resize_outputs();
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

Tensor& device_copy(Tensor& self, const Tensor& source, bool non_blocking) {
  if (self.is_cuda() != source.is_cuda()) {
    const Tensor& other = self.is_cuda() ? source : self;
    // Memory that is not pinned is copied through a buffer, for which the host waits.
    const bool is_free = non_blocking && is_pinned(other.storage().data());
    if (!is_free) waited(self.is_cuda() ? "copy host to device" : "copy device to host");
  }
  launched("aten::copy_");
  Tensor target = self.is_cuda() ? host_view(self) : self;
  if (self.numel() > 0) target.copy_(source.is_cuda() ? host_view(source) : source);
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
