// CUDA graphs, streams and events of the fake device.
//
// A capture runs each operation once, so that its outputs have sizes, and keeps it as a node: the
// CPU's kernel with tensors at the addresses of now. When it ends, what it wrote is put back, and
// what it allocated is filled with NaN: on a GPU nothing ran. A replay runs the nodes again.
//
// Replays, and copies that do not wait, are done as late as a GPU may do them: when the host asks for
// a result, or another operation needs one.
#pragma once
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/utils/pybind.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>

namespace fakecuda {
using namespace at;

// Memory: counted and limited ---------------------------------------------------------------------

inline std::atomic<int64_t> allocated{0}, peak{0}, limit{0};

inline void account(int64_t bytes) {
  TORCH_CHECK_WITH(OutOfMemoryError, limit == 0 || bytes <= 0 || allocated + bytes <= limit,
                   "CUDA out of memory. Tried to allocate ", bytes, " bytes");
  const int64_t now = allocated += bytes;
  int64_t before = peak;
  while (now > before && !peak.compare_exchange_weak(before, now)) {}
}

// The memory of a storage: its own, or that of an output of a CPU kernel.
struct Memory {
  int64_t bytes;
  void* own;
  c10::Storage output;
  ~Memory() {
    allocated -= bytes;
    free(own);
  }
  void* start() const { return own ? own : output ? output.mutable_data() : nullptr; }
  void poison() const {
    if (start() && bytes > 0) memset(start(), 0xFF, bytes);  // NaN in every floating type
  }
};
using Block = std::shared_ptr<Memory>;

inline void release(void* context) { delete static_cast<Block*>(context); }

inline Block block_of(const Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage()) return nullptr;
  const auto& data = tensor.storage().data_ptr();
  return data.get_deleter() == &release ? *static_cast<Block*>(data.get_context()) : nullptr;
}

// Pinned memory, from which copies need not wait.
using PinnedBlock = std::shared_ptr<size_t>;  // its size
inline std::mutex mutex;
inline std::map<const char*, PinnedBlock> pinned;

inline PinnedBlock pinned_block(const void* address) {
  const std::lock_guard<std::mutex> lock(mutex);
  auto next = pinned.upper_bound(static_cast<const char*>(address));
  if (next == pinned.begin()) return nullptr;
  --next;
  return static_cast<const char*>(address) < next->first + *next->second ? next->second : nullptr;
}

// Work that the host has left to the device -------------------------------------------------------

inline thread_local c10::StreamId current_stream = 0;
inline std::vector<std::function<void()>> queue;
inline bool replays = true;  // whether a replay does anything

inline void flush() {
  if (queue.empty()) return;
  std::vector<std::function<void()>> work;
  work.swap(queue);
  for (auto& task : work) task();
}

// Graphs ------------------------------------------------------------------------------------------

struct Node {
  std::string name;
  std::function<void()> run;
};

struct Graph {
  c10::StreamId stream = 0;
  bool is_captured = false, is_invalid = false;
  std::vector<Node> nodes;
  std::vector<Block> pool;  // what it allocated
  std::set<Memory*> own;    // the same
  std::map<Memory*, std::pair<std::weak_ptr<Memory>, std::string>> outside;  // whose first user is named
  std::map<const size_t*, std::weak_ptr<size_t>> outside_pinned;
  std::set<const size_t*> own_pinned;  // that it allocated
  std::vector<Tensor> kept;            // in such memory
  std::vector<std::pair<Block, std::vector<char>>> saved;  // what it writes outside, as it was
  std::set<Memory*> is_saved;
  std::vector<Generator> registered;
  std::map<c10::GeneratorImpl*, std::pair<Generator, at::mt19937>> drawn;

  void allocate(const Block& block) {
    pool.push_back(block);
    own.insert(block.get());
  }

  // Look at a tensor that a node reads or writes.
  void use(const Tensor& tensor, const std::string& name, bool writes) {
    const Block block = block_of(tensor);
    if (!block || own.count(block.get())) return;
    outside.try_emplace(block.get(), std::pair(std::weak_ptr<Memory>(block), name));
    if (!writes || !block->start() || !is_saved.insert(block.get()).second) return;
    const auto* bytes = static_cast<const char*>(block->start());
    saved.emplace_back(block, std::vector<char>(bytes, bytes + block->bytes));
  }

  // Undo what the operations did when they were recorded.
  void undo() {
    for (const auto& [block, bytes] : saved) memcpy(block->start(), bytes.data(), bytes.size());
    for (const auto& [impl, state] : drawn)
      static_cast<CPUGeneratorImpl*>(impl)->set_engine(state.second);
    for (const Block& block : pool) block->poison();
    saved.clear();
  }

  void run() const {
    for (const Node& node : nodes) node.run();
    // Memory that no tensor has any more is that of whatever comes next.
    for (const Block& block : pool)
      if (block.use_count() == 1) block->poison();
  }
};
using GraphPointer = std::shared_ptr<Graph>;
inline GraphPointer capturing;  // the graph that is recorded

[[noreturn]] inline void refuse(const std::string& what) {
  TORCH_CHECK(false, "CUDA error: operation not permitted when stream is capturing (", what, ")");
}

// The graph that the operation of this name belongs to; work that was left is done before one that
// belongs to none.
inline Graph* recorder(const std::string& name) {
  if (!capturing) {
    flush();
    return nullptr;
  }
  if (current_stream != capturing->stream) refuse(name + " on another stream than the captured one");
  return capturing.get();
}

inline bool is_capturing() { return capturing && current_stream == capturing->stream; }

inline void check_not_captured(const std::string& what) {
  if (!is_capturing()) return;
  capturing->is_invalid = true;
  refuse(what);
}

// The host asks for a result.
inline void wait_for(const std::string& what) {
  check_not_captured("the host waits: " + what);
  if (!capturing) flush();
}

// cuBLAS, cuDNN and Triton make workspaces and load kernels in their first call on a stream.
inline const std::set<std::string> PREPARED{
    "aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::convolution",
    "aten::convolution_backward"};
inline std::set<std::pair<std::string, c10::StreamId>> prepared;

inline void prepare(const std::string& name) {
  if (!PREPARED.count(name) && name.rfind("triton::", 0) != 0) return;
  const std::pair key(name, current_stream);
  if (is_capturing()) {
    TORCH_CHECK(prepared.count(key), "Capturing ", name, " is prohibited before it ran on the stream: "
                "no warm-up iterations occurred");
  } else {
    prepared.insert(key);
  }
}

inline void begin_capture(const GraphPointer& graph) {
  TORCH_CHECK(current_stream != 0, "CUDA graphs must be captured on a non-default stream.");
  TORCH_CHECK(!capturing, "another graph is being captured");
  TORCH_CHECK(!graph->is_captured, "This CUDAGraph instance already owns a captured graph.");
  flush();
  graph->stream = current_stream;
  capturing = graph;
}

inline void end_capture(const GraphPointer& graph) {
  TORCH_CHECK(capturing == graph, "capture_end() called before capture_begin()");
  capturing = nullptr;
  graph->undo();
  TORCH_CHECK(!graph->is_invalid,
              "CUDA error: operation failed due to a previous error during capture");
  graph->is_captured = true;
}

inline void replay(const GraphPointer& graph) {
  TORCH_CHECK(graph->is_captured, "Called CUDAGraph::replay without a preceding successful capture.");
  if (capturing) refuse("a replay");
  if (!replays) return;
  std::vector<Block> held;  // on one stream, memory that is freed from now on is still there
  for (const auto& [memory, use] : graph->outside) {
    held.push_back(use.first.lock());
    TORCH_CHECK(held.back(), "the graph's ", use.second, " uses memory outside of it that was freed: a "
                "GPU would read or write what lies there now");
  }
  std::vector<PinnedBlock> held_pinned;
  for (const auto& [address, use] : graph->outside_pinned) {
    held_pinned.push_back(use.lock());
    TORCH_CHECK(held_pinned.back(), "the graph copies from pinned memory that was freed");
  }
  queue.push_back([graph, held = std::move(held), held_pinned = std::move(held_pinned)] {
    graph->run();
  });
  if (!graph->drawn.empty()) flush();  // it draws by the generators as they are now
}

// Streams and events ------------------------------------------------------------------------------

struct RecordedEvent {
  c10::StreamId stream;
  const Graph* graph;  // that was captured when it was recorded
};

inline void record_event(void** event, c10::StreamId stream) {
  delete static_cast<RecordedEvent*>(*event);
  const bool is_captured = capturing && stream == capturing->stream;
  *event = new RecordedEvent{stream, is_captured ? capturing.get() : nullptr};
}

inline void wait_event(const void* event, c10::StreamId stream) {
  const auto* recorded = static_cast<const RecordedEvent*>(event);
  if (!capturing || !recorded) return;
  const bool is_inside = stream == capturing->stream;
  if (is_inside == (recorded->graph == capturing.get())) return;
  capturing->is_invalid = true;
  refuse(is_inside ? "the captured stream waits for work that is not captured"
                   : "another stream waits for captured work");
}
}  // namespace fakecuda
