#include "engine/measure/cpu_bench.h"

#include <omp.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <limits>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "common/status_macros.h"
#include "common/steady_time.h"
#include "engine/comm/key_value_store.h"
#include "engine/comm/tcp.h"
#include "engine/dtype/half.h"
#include "engine/kernels/cpu/matmul.h"
#include "engine/kernels/cpu/parallel.h"
#include "engine/ops/attention/attention_cpu_kernel.h"
#include "engine/runtime/executor/arena.h"

namespace milepost::runtime {
namespace {

// The least that a network between hosts is taken to carry; only `milepost plan` for more ranks
// than a host has uses it, and the file can be edited.
constexpr double kNetworkBytesPerSecond = 1e9;

// Seconds of a call: the fastest of a few, as whatever else runs here only slows it down.
template <typename Fn>
absl::StatusOr<double> LeastSeconds(int repeats, const Fn& fn) {
  MP_RETURN_IF_ERROR(fn());
  double least = std::numeric_limits<double>::infinity();
  for (int i = 0; i < std::max(1, repeats); ++i) {
    const double start = SteadySeconds();
    MP_RETURN_IF_ERROR(fn());
    least = std::min(least, SteadySeconds() - start);
  }
  return std::max(least, 1e-9);
}

// Three digits: the rest is noise.
double Rounded(double value) {
  double rounded = value;
  return absl::SimpleAtod(absl::StrFormat("%.3g", value), &rounded) ? rounded : value;
}

// Small numbers: zeros would flatter, NaNs slow down.
template <typename T>
void Fill(T* values, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    values[i] = FromFloat<T>(static_cast<float>(i * 7919 % 201 - 100) / 1024);
  }
}

// FLOP/s of C[m,n] = A[m,n] B[n,n].
template <typename T>
absl::StatusOr<double> ProductRate(int64_t m, int64_t n, const DeviceBenchOptions& options) {
  const DType type = kDTypeOf<T>;
  const kernels::MatmulSpec spec = {.m = m, .n = n, .k = n, .a = type, .b = type, .c = type};
  kernels::MatmulCache cache;
  MP_ASSIGN_OR_RETURN(const size_t scratch, cache.WorkspaceBytes(spec));
  const int64_t matrix = std::max(m, n) * n * static_cast<int64_t>(sizeof(T));
  MP_ASSIGN_OR_RETURN(Arena a, Arena::Allocate(matrix));
  MP_ASSIGN_OR_RETURN(Arena b, Arena::Allocate(matrix));
  MP_ASSIGN_OR_RETURN(Arena c, Arena::Allocate(matrix));
  MP_ASSIGN_OR_RETURN(Arena workspace, Arena::Allocate(static_cast<int64_t>(scratch)));
  Fill(reinterpret_cast<T*>(a.data()), n * n);
  Fill(reinterpret_cast<T*>(b.data()), n * n);
  MP_ASSIGN_OR_RETURN(const double seconds, LeastSeconds(options.repeats, [&] {
                        return cache.Execute(spec, a.data(), b.data(), nullptr, c.data(),
                                             workspace.data());
                      }));
  return 2 * static_cast<double>(m) * static_cast<double>(n * n) / seconds;
}

// See MatmulRate::accumulate_half. Each product adds to a gradient that no cache holds. What it
// takes beyond what a plan expects of its FLOPs and bytes is the wait.
template <typename T>
absl::StatusOr<double> AccumulateHalf(int64_t rows, int64_t side, const RateBySize& product,
                                      double memory_bandwidth, const DeviceBenchOptions& options) {
  const DType type = kDTypeOf<T>;
  kernels::MatmulSpec spec = {.m = side, .n = side, .k = rows, .transpose_a = true};
  spec.a = spec.b = type;
  spec.accumulate = true;
  kernels::MatmulCache cache;
  MP_ASSIGN_OR_RETURN(const size_t scratch, cache.WorkspaceBytes(spec));
  const int64_t factor = rows * side * static_cast<int64_t>(sizeof(T));
  const int64_t gradient = side * side * static_cast<int64_t>(sizeof(float));
  const int64_t gradients = std::max<int64_t>(1, options.copy_bytes / gradient);
  MP_ASSIGN_OR_RETURN(Arena a, Arena::Allocate(factor));
  MP_ASSIGN_OR_RETURN(Arena b, Arena::Allocate(factor));
  MP_ASSIGN_OR_RETURN(Arena c, Arena::Allocate(gradients * gradient));
  MP_ASSIGN_OR_RETURN(Arena workspace, Arena::Allocate(static_cast<int64_t>(scratch)));
  Fill(reinterpret_cast<T*>(a.data()), rows * side);
  Fill(reinterpret_cast<T*>(b.data()), rows * side);
  int64_t next = 0;
  MP_ASSIGN_OR_RETURN(const double seconds, LeastSeconds(options.repeats, [&] {
                        char* sums = c.data() + next++ % gradients * gradient;
                        return cache.Execute(spec, a.data(), b.data(), nullptr, sums,
                                             workspace.data());
                      }));
  const auto size = static_cast<double>(rows);
  const double flops = 2 * size * static_cast<double>(side * side);
  const double moved = static_cast<double>(2 * factor + 2 * gradient) / memory_bandwidth;
  const double computed = flops / (product.limit * size / (size + product.half));
  return std::clamp(size * ((seconds - moved) / computed - 1), 0.0, 1e6);
}

// FLOP/s of attention, forward and backward, the causal half counted.
template <typename T>
absl::StatusOr<double> AttentionRate(int64_t sequence, const DeviceBenchOptions& options) {
  const kernels::AttentionShape shape = {
      .batch = 1, .sequence = sequence, .heads = 12, .head_dim = 64};
  MP_RETURN_IF_ERROR(kernels::CheckAttentionShape(shape));
  const DType type = kDTypeOf<T>;
  const int threads = kernels::MaxThreads();
  const size_t scratch = std::max(kernels::AttentionForwardWorkspaceBytes(shape, type, threads),
                                  kernels::AttentionBackwardWorkspaceBytes(shape, type, threads));
  const int64_t width = shape.heads * shape.head_dim;
  const int64_t out = shape.sequence * width;
  const auto element = static_cast<int64_t>(sizeof(T));
  MP_ASSIGN_OR_RETURN(Arena qkv, Arena::Allocate(3 * out * element));
  MP_ASSIGN_OR_RETURN(Arena dqkv, Arena::Allocate(3 * out * element));
  MP_ASSIGN_OR_RETURN(Arena y, Arena::Allocate(out * element));
  MP_ASSIGN_OR_RETURN(Arena dy, Arena::Allocate(out * element));
  MP_ASSIGN_OR_RETURN(Arena lse, Arena::Allocate(shape.heads * shape.sequence * 4));
  MP_ASSIGN_OR_RETURN(Arena workspace, Arena::Allocate(static_cast<int64_t>(scratch)));
  const auto at = [](const Arena& arena) { return reinterpret_cast<T*>(arena.data()); };
  auto* sums = reinterpret_cast<float*>(lse.data());
  Fill(at(qkv), 3 * out);
  Fill(at(dy), out);
  MP_ASSIGN_OR_RETURN(const double seconds, LeastSeconds(options.repeats, [&] {
                        kernels::AttentionForward<T>(shape, at(qkv), nullptr, at(y), sums,
                                                     workspace.data());
                        kernels::AttentionBackward<T>(shape, at(qkv), nullptr, at(y), sums, at(dy),
                                                      at(dqkv), workspace.data());
                        return absl::OkStatus();
                      }));
  const auto product = static_cast<double>(shape.sequence * (shape.sequence + 1) * width);
  return 7 * product / seconds;
}

// UNIMPLEMENTED: this CPU has no products of the type.
template <typename T>
absl::StatusOr<plan::MatmulRate> RatesOf(double memory_bandwidth,
                                         const DeviceBenchOptions& options) {
  const auto size = [](int64_t n) { return static_cast<double>(n); };
  // One that the outer caches hold, one that they do not, and one of few rows.
  const int64_t side = options.product / 2, rows = std::min<int64_t>(16, side / 2);
  MP_ASSIGN_OR_RETURN(const double near, ProductRate<T>(side, side, options));
  MP_ASSIGN_OR_RETURN(const double far, ProductRate<T>(2 * side, 2 * side, options));
  MP_ASSIGN_OR_RETURN(const double few_rows, ProductRate<T>(rows, side / 2, options));
  const RateBySize product =
      FitRate({size(rows), few_rows}, {size(far > near ? 2 * side : side), std::max(near, far)});
  MP_ASSIGN_OR_RETURN(const double accumulate_half,
                      AccumulateHalf<T>(4 * rows, side, product, memory_bandwidth, options));
  const int64_t positions = options.sequence / 8;
  MP_ASSIGN_OR_RETURN(const double long_rate, AttentionRate<T>(options.sequence, options));
  MP_ASSIGN_OR_RETURN(const double short_rate, AttentionRate<T>(positions, options));
  const RateBySize attention =
      FitRate({size(positions), short_rate}, {size(options.sequence), long_rate});
  return plan::MatmulRate{
      .achieved = Rounded(product.limit),
      .peak = Rounded(product.limit),
      .attention = std::clamp(Rounded(attention.limit / product.limit), 1e-3, 1.0),
      .product_half = Rounded(product.half),
      .attention_half = Rounded(attention.half),
      .accumulate_half = Rounded(accumulate_half)};
}

absl::StatusOr<double> CopyBandwidth(const DeviceBenchOptions& options) {
  MP_ASSIGN_OR_RETURN(Arena from, Arena::Allocate(options.copy_bytes));
  MP_ASSIGN_OR_RETURN(Arena to, Arena::Allocate(options.copy_bytes));
  MP_ASSIGN_OR_RETURN(
      const double seconds, LeastSeconds(options.repeats, [&] {
        kernels::ParallelFor(0, options.copy_bytes, 4096, [&](int64_t begin, int64_t end) {
          std::memcpy(to.data() + begin, from.data() + begin, static_cast<size_t>(end - begin));
        });
        return absl::OkStatus();
      }));
  return 2 * static_cast<double>(options.copy_bytes) / seconds;
}

double ForkSeconds() {
  constexpr int kForks = 200;
  double least = 1;
  for (int i = 0; i < kForks; ++i) {
    const double start = SteadySeconds();
    kernels::ParallelFor(0, kernels::MaxThreads(), 1, [](int64_t, int64_t) {});
    least = std::min(least, SteadySeconds() - start);
  }
  return std::max(least, 1e-9);
}

struct LinkSpeed {
  double bandwidth = 0;  // bytes/s that a rank sends
  double latency = 0;
};

// One of two ranks that are threads of this process, connected through loopback.
absl::Status RunRank(int rank, comm::KeyValueStore* store, const DeviceBenchOptions& options,
                     LinkSpeed* speed) {
  MP_ASSIGN_OR_RETURN(auto ranks, comm::ConnectTcp(rank, 2, store));
  const auto seconds = [&](int64_t bytes) {
    std::vector<float> values(static_cast<size_t>(bytes / 4), 1.0f);
    return LeastSeconds(options.repeats, [&] {
      std::fill(values.begin(), values.end(), 1.0f);
      return ranks->AllReduce(absl::MakeSpan(values));
    });
  };
  MP_ASSIGN_OR_RETURN(speed->latency, seconds(64));
  MP_ASSIGN_OR_RETURN(const double whole, seconds(options.reduce_bytes));
  // Of two ranks each sends half of the values, then half of the sums.
  speed->bandwidth = static_cast<double>(options.reduce_bytes) / whole;
  return absl::OkStatus();
}

absl::StatusOr<LinkSpeed> LoopbackSpeed(const DeviceBenchOptions& options) {
  comm::InMemoryKeyValueStore store;
  LinkSpeed speed, other;
  absl::Status other_status;
  std::thread peer([&] { other_status = RunRank(1, &store, options, &other); });
  const absl::Status status = RunRank(0, &store, options, &speed);
  peer.join();
  MP_RETURN_IF_ERROR(status);
  MP_RETURN_IF_ERROR(other_status);
  return speed;
}

}  // namespace

RateBySize FitRate(const MeasuredRate& small, const MeasuredRate& large) {
  const double most = large.size / 2;
  if (small.rate >= large.rate) return {.limit = large.rate};
  // As much slower as a fixed time for either would make it, or more: no finite half gives that.
  const double slope = small.rate * large.size - large.rate * small.size;
  const double half =
      slope > 0 ? small.size * large.size * (large.rate - small.rate) / slope : most;
  const double bounded = std::min(half, most);
  return {.limit = large.rate * (large.size + bounded) / large.size, .half = bounded};
}

absl::StatusOr<plan::DeviceProfile> MeasureCpu(const DeviceBenchOptions& options) {
  omp_set_num_threads(options.threads);
  plan::DeviceProfile profile;
  profile.name = options.name;
  profile.threads = options.threads;
  profile.source = absl::StrFormat("milepost bench device, %d threads", options.threads);
  profile.overlap = 0;  // the cores that compute move the bytes
  profile.network_bandwidth = kNetworkBytesPerSecond;
  MP_ASSIGN_OR_RETURN(const double copy, CopyBandwidth(options));
  profile.memory_bandwidth = Rounded(copy);
  MP_ASSIGN_OR_RETURN(profile.matmul["F32"], RatesOf<float>(copy, options));
  profile.attention_fraction = profile.matmul["F32"].attention;  // also of types not measured
  const auto half = RatesOf<bf16>(copy, options);
  if (half.ok()) {
    profile.matmul["BF16"] = *half;
  } else if (!absl::IsUnimplemented(half.status())) {
    return half.status();
  }
  profile.op_seconds = Rounded(ForkSeconds());
  MP_ASSIGN_OR_RETURN(const LinkSpeed link, LoopbackSpeed(options));
  profile.host_bandwidth = Rounded(link.bandwidth);
  profile.collective_seconds = Rounded(link.latency);
  return profile;
}

}  // namespace milepost::runtime
