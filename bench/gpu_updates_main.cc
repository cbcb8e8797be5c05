// AdamW's update kernel alone on a GPU, with each way of keeping states, masters and gradients, by
// the bytes that it has to move, beside a copy on the device. Prints a line of JSON for each.
//
//   build/release/bench/gpu_updates --elements 536870912
#include <cuda_runtime_api.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <type_traits>
#include <vector>

#include "common/philox.h"
#include "common/status_macros.h"
#include "engine/optim/adamw/adamw_cuda_kernel.h"
#include "engine/runtime/gpu/cuda/cuda_status.h"

namespace milepost::bench {
namespace {

using kernels::cuda::FlatChunk;
using kernels::cuda::FlatUpdate;
using kernels::cuda::SegmentFactors;
using kernels::cuda::StepFactors;
using kernels::cuda::UpdateControl;

struct Options {
  int64_t elements = int64_t{1} << 29;
  int repeats = 9;
};

// Device memory that is freed with the object.
template <typename T>
class DeviceMemory {
 public:
  static absl::StatusOr<DeviceMemory> Of(int64_t count) {
    void* memory = nullptr;
    MP_RETURN_IF_ERROR(runtime::CudaStatus(
        cudaMalloc(&memory, static_cast<size_t>(count) * sizeof(T)), "cudaMalloc"));
    return DeviceMemory(static_cast<T*>(memory), count);
  }
  static absl::StatusOr<DeviceMemory> From(const std::vector<T>& values) {
    MP_ASSIGN_OR_RETURN(DeviceMemory memory, Of(static_cast<int64_t>(values.size())));
    MP_RETURN_IF_ERROR(memory.Fill(values));
    return memory;
  }
  // The values over and over.
  absl::Status Fill(const std::vector<T>& values) {
    const auto each = static_cast<int64_t>(values.size());
    for (int64_t at = 0; at < count_; at += each) {
      const auto bytes = static_cast<size_t>(std::min(each, count_ - at)) * sizeof(T);
      MP_RETURN_IF_ERROR(runtime::CudaStatus(
          cudaMemcpy(get() + at, values.data(), bytes, cudaMemcpyHostToDevice), "cudaMemcpy"));
    }
    return absl::OkStatus();
  }
  T* get() const { return memory_.get(); }

 private:
  struct Free {
    void operator()(T* memory) const { cudaFree(memory); }
  };
  DeviceMemory(T* memory, int64_t count) : memory_(memory), count_(count) {}
  std::unique_ptr<T, Free> memory_;
  int64_t count_ = 0;
};

// Uniform between 0 (`positive`) or -scale and scale.
template <typename T>
std::vector<T> Noise(uint32_t seed, float scale, bool positive) {
  std::vector<T> values(1 << 22);
  for (size_t i = 0; i < values.size(); ++i) {
    const uint32_t word = Philox4x32({static_cast<uint32_t>(i), 0, 0, 0}, {seed, 1})[0];
    const float unit = static_cast<float>(word >> 8) / 16777216.0F;
    values[i] = FromFloat<T>(scale * (positive ? unit : 2 * unit - 1));
  }
  return values;
}

struct FreeEvent {
  void operator()(cudaEvent_t event) const { cudaEventDestroy(event); }
};
using Event = std::unique_ptr<std::remove_pointer_t<cudaEvent_t>, FreeEvent>;

absl::StatusOr<Event> NewEvent() {
  cudaEvent_t event = nullptr;
  MP_RETURN_IF_ERROR(runtime::CudaStatus(cudaEventCreate(&event), "cudaEventCreate"));
  return Event(event);
}

// Seconds of `work`, enqueued on the default stream: the median.
template <typename Work>
absl::StatusOr<double> SecondsOf(int repeats, const Work& work) {
  MP_ASSIGN_OR_RETURN(const Event begin, NewEvent());
  MP_ASSIGN_OR_RETURN(const Event end, NewEvent());
  MP_RETURN_IF_ERROR(work());  // the first one loads the kernel
  std::vector<float> milliseconds(static_cast<size_t>(repeats));
  for (float& each : milliseconds) {
    MP_RETURN_IF_ERROR(runtime::CudaStatus(cudaEventRecord(begin.get()), "cudaEventRecord"));
    MP_RETURN_IF_ERROR(work());
    MP_RETURN_IF_ERROR(runtime::CudaStatus(cudaEventRecord(end.get()), "cudaEventRecord"));
    MP_RETURN_IF_ERROR(runtime::CudaStatus(cudaEventSynchronize(end.get()), "an event"));
    MP_RETURN_IF_ERROR(runtime::CudaStatus(cudaEventElapsedTime(&each, begin.get(), end.get()),
                                           "cudaEventElapsedTime"));
  }
  std::nth_element(milliseconds.begin(), milliseconds.begin() + repeats / 2, milliseconds.end());
  return milliseconds[static_cast<size_t>(repeats / 2)] / 1e3;
}

absl::StatusOr<double> CopyRate(const Options& options) {
  const int64_t bytes = options.elements * int64_t{sizeof(float)};
  MP_ASSIGN_OR_RETURN(const auto from, DeviceMemory<char>::Of(bytes));
  MP_ASSIGN_OR_RETURN(const auto to, DeviceMemory<char>::Of(bytes));
  MP_ASSIGN_OR_RETURN(const double seconds, SecondsOf(options.repeats, [&] {
                        return runtime::CudaStatus(
                            cudaMemcpyAsync(to.get(), from.get(), static_cast<size_t>(bytes),
                                            cudaMemcpyDeviceToDevice, nullptr),
                            "cudaMemcpyAsync");
                      }));
  return 2 * static_cast<double>(bytes) / seconds;
}

// Parameters of T, states of S, a master of P (bf16: the parameter is it) and gradients of G.
template <typename T, typename S, typename P, typename G>
absl::Status Measure(const Options& options, const char* name, double copy_rate) {
  constexpr bool kCopies = sizeof(P) > sizeof(T);
  MP_ASSIGN_OR_RETURN(auto p, DeviceMemory<P>::Of(options.elements));
  MP_ASSIGN_OR_RETURN(auto m, DeviceMemory<S>::Of(options.elements));
  MP_ASSIGN_OR_RETURN(auto v, DeviceMemory<S>::Of(options.elements));
  MP_ASSIGN_OR_RETURN(auto g, DeviceMemory<G>::Of(options.elements));
  MP_ASSIGN_OR_RETURN(auto copy, DeviceMemory<T>::Of(kCopies ? options.elements : 1));
  MP_RETURN_IF_ERROR(p.Fill(Noise<P>(1, 1, false)));
  MP_RETURN_IF_ERROR(m.Fill(Noise<S>(2, 1e-2F, false)));
  MP_RETURN_IF_ERROR(v.Fill(Noise<S>(3, 1e-4F, true)));
  MP_RETURN_IF_ERROR(g.Fill(Noise<G>(4, 1e-2F, false)));
  const std::vector<FlatChunk> chunks = kernels::cuda::MakeChunks({{0, options.elements}});
  SegmentFactors segment = {.rate = 1e-4F, .shrink = 0.9999F, .round_master = {1, 2}};
  segment.round_states[0] = {3, 4};
  segment.round_states[1] = {5, 6};
  const StepFactors step = {.beta1 = 0.9F, .beta2 = 0.95F, .epsilon = 1e-8F, .step = 7};
  MP_ASSIGN_OR_RETURN(const auto chunks_there, DeviceMemory<FlatChunk>::From(chunks));
  MP_ASSIGN_OR_RETURN(const auto segment_there, DeviceMemory<SegmentFactors>::From({segment}));
  MP_ASSIGN_OR_RETURN(const auto step_there, DeviceMemory<StepFactors>::From({step}));
  MP_ASSIGN_OR_RETURN(const auto control, DeviceMemory<UpdateControl>::From({UpdateControl()}));
  const FlatUpdate<T, S, P, G> update = {.chunks = chunks_there.get(),
                                         .chunk_count = static_cast<int64_t>(chunks.size()),
                                         .factors = segment_there.get(),
                                         .step = step_there.get(),
                                         .control = control.get(),
                                         .p = p.get(),
                                         .states = {m.get(), v.get()},
                                         .g = g.get(),
                                         .copy = kCopies ? copy.get() : nullptr};
  MP_ASSIGN_OR_RETURN(const double seconds, SecondsOf(options.repeats, [&] {
                        return kernels::cuda::AdamW(update, nullptr);
                      }));
  constexpr size_t kEach = sizeof(G) + 2 * sizeof(P) + 4 * sizeof(S) + (kCopies ? sizeof(T) : 0);
  const double rate = static_cast<double>(options.elements) * kEach / seconds;
  const nlohmann::ordered_json line = {{"what", name},
                                       {"elements", options.elements},
                                       {"milliseconds", seconds * 1e3},
                                       {"gigabytes_per_second", rate / 1e9},
                                       {"ratio_to_copy", rate / copy_rate}};
  std::printf("%s\n", line.dump().c_str());
  std::fflush(stdout);
  return absl::OkStatus();
}

absl::Status Run(const Options& options) {
  MP_ASSIGN_OR_RETURN(const double copy, CopyRate(options));
  MP_RETURN_IF_ERROR((Measure<bf16, float, float, float>(options, "fp32", copy)));
  MP_RETURN_IF_ERROR((Measure<bf16, bf16, float, float>(options, "bf16 states", copy)));
  MP_RETURN_IF_ERROR((Measure<bf16, float, bf16, float>(options, "bf16 master", copy)));
  return Measure<bf16, bf16, bf16, bf16>(options, "bf16 master, states and gradient", copy);
}

}  // namespace
}  // namespace milepost::bench

int main(int argc, char** argv) {
  milepost::bench::Options options;
  CLI::App app{"AdamW's update kernel on a GPU"};
  app.add_option("--elements", options.elements)
      ->check(CLI::Range(int64_t{1} << 12, int64_t{1} << 33));
  app.add_option("--repeats", options.repeats)->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);
  if (const absl::Status status = milepost::bench::Run(options); !status.ok()) {
    std::fprintf(stderr, "gpu_updates: %s\n", std::string(status.message()).c_str());
    return 1;
  }
  return 0;
}
