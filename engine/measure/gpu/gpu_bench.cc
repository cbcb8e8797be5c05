#include "engine/measure/gpu/gpu_bench.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "engine/comm/in_process.h"
#include "engine/kernels/cuda/elementwise.h"
#include "engine/kernels/cuda/libraries/cublas_products.h"
#include "engine/kernels/cuda/libraries/noise.h"
#include "engine/measure/collective_bench.h"
#include "engine/runtime/gpu/communicators/nccl_communicator.h"
#include "engine/runtime/gpu/cuda/cuda_device.h"
#include "engine/runtime/gpu/cuda/cuda_status.h"
#include "engine/runtime/gpu/cuda/nccl.h"

namespace milepost::runtime {
namespace {

#define MP_CUDA(call) MP_RETURN_IF_ERROR(CudaStatus(call, #call))

constexpr absl::Duration kTimeout = absl::Seconds(30);

// A device with one stream, and two events to time it by.
class Bench {
 public:
  static absl::StatusOr<std::unique_ptr<Bench>> Open(int ordinal) {
    auto bench = std::unique_ptr<Bench>(new Bench);
    MP_ASSIGN_OR_RETURN(bench->device, CudaDevice::Open(ordinal));
    MP_ASSIGN_OR_RETURN(bench->stream, bench->device->AddStream());
    MP_CUDA(cudaEventCreate(&bench->begin_));
    MP_CUDA(cudaEventCreate(&bench->end_));
    return bench;
  }
  ~Bench() {
    if (begin_ != nullptr) cudaEventDestroy(begin_);
    if (end_ != nullptr) cudaEventDestroy(end_);
  }
  Bench(const Bench&) = delete;
  Bench& operator=(const Bench&) = delete;

  // Of the fastest of `repeats` runs, after one that is not counted.
  absl::StatusOr<double> Seconds(int repeats, const std::function<absl::Status()>& work) {
    double fastest = 1e30;
    for (int i = 0; i <= repeats; ++i) {
      MP_CUDA(cudaEventRecord(begin_, native()));
      MP_RETURN_IF_ERROR(work());
      MP_CUDA(cudaEventRecord(end_, native()));
      MP_RETURN_IF_ERROR(device->Synchronize(stream, kTimeout));
      float milliseconds = 0;
      MP_CUDA(cudaEventElapsedTime(&milliseconds, begin_, end_));
      if (i > 0) fastest = std::min(fastest, milliseconds * 1e-3);
    }
    return fastest;
  }
  cudaStream_t native() const { return device->native_stream(stream); }

  std::unique_ptr<CudaDevice> device;
  StreamId stream = 0;

 private:
  Bench() = default;
  cudaEvent_t begin_ = nullptr;
  cudaEvent_t end_ = nullptr;
};

absl::StatusOr<DType> TypeOf(const std::string& dtype) {
  if (dtype == "BF16") return DType::kBf16;
  if (dtype == "F16" || dtype == "FP16") return DType::kF16;
  if (dtype == "F32" || dtype == "FP32") return DType::kF32;
  if (dtype == "FP8") return DType::kE4M3;
  return absl::InvalidArgumentError(
      absl::StrCat("no rate of products in ", dtype, "; there are F32, BF16, F16 and FP8"));
}

absl::StatusOr<double> ProductRate(Bench& bench, const std::string& dtype,
                                   const GpuBenchOptions& options) {
  MP_ASSIGN_OR_RETURN(const DType type, TypeOf(dtype));
  const bool fp8 = IsFp8(type);
  // fp32 products are an order of magnitude slower.
  const int64_t n = type == DType::kF32 ? options.product / 2 : options.product;
  MP_ASSIGN_OR_RETURN(auto products, kernels::cuda::CublasProducts::Create({}));
  // Of 8 bits both operands must have the inner dimension innermost, and results have 16.
  const kernels::cuda::Product product{.spec = {.m = n,
                                                .n = n,
                                                .k = n,
                                                .transpose_b = fp8,
                                                .a = type,
                                                .b = type,
                                                .c = fp8 ? DType::kBf16 : type}};
  MP_RETURN_IF_ERROR(products->Prepare(product));
  char* matrices[3];
  for (char*& matrix : matrices) {
    MP_ASSIGN_OR_RETURN(matrix, bench.device->Allocate(n * n * ByteSize(type) * (fp8 ? 2 : 1)));
  }
  MP_ASSIGN_OR_RETURN(char* scale, bench.device->Allocate(sizeof(float)));
  MP_RETURN_IF_ERROR(kernels::cuda::Fill(reinterpret_cast<float*>(scale), 1, 1, bench.native()));
  const auto* one = reinterpret_cast<const float*>(scale);
  for (int i = 0; i < 2; ++i) {
    MP_RETURN_IF_ERROR(kernels::cuda::FillWithNoise(type, n * n * ByteSize(type), matrices[i]));
  }
  MP_ASSIGN_OR_RETURN(char* workspace, bench.device->Allocate(products->WorkspaceBytes()));
  MP_ASSIGN_OR_RETURN(const double seconds, bench.Seconds(options.repeats, [&] {
    return products->Execute(
        product,
        {.a = matrices[0], .b = matrices[1], .c = matrices[2], .a_scale = one, .b_scale = one},
        workspace, bench.native());
  }));
  return 2.0 * static_cast<double>(n) * static_cast<double>(n) * static_cast<double>(n) / seconds;
}

// Read and written together.
absl::StatusOr<double> MemoryRate(Bench& bench, const GpuBenchOptions& options) {
  MP_ASSIGN_OR_RETURN(char* from, bench.device->Allocate(options.copy_bytes));
  MP_ASSIGN_OR_RETURN(char* to, bench.device->Allocate(options.copy_bytes));
  MP_ASSIGN_OR_RETURN(const double seconds, bench.Seconds(options.repeats, [&] {
    return kernels::cuda::Cast(reinterpret_cast<const float*>(from), options.copy_bytes / 4,
                               reinterpret_cast<float*>(to), bench.native());
  }));
  return 2.0 * static_cast<double>(options.copy_bytes) / seconds;
}

// The slower of both ways.
absl::StatusOr<double> HostRate(Bench& bench, std::vector<char>& host,
                                const GpuBenchOptions& options) {
  MP_ASSIGN_OR_RETURN(char* data, bench.device->Allocate(options.host_bytes));
  MP_RETURN_IF_ERROR(bench.device->Pin(host.data(), options.host_bytes));
  MP_ASSIGN_OR_RETURN(const double there, bench.Seconds(options.repeats, [&] {
    return bench.device->Copy(bench.stream, data, host.data(), options.host_bytes);
  }));
  MP_ASSIGN_OR_RETURN(const double back, bench.Seconds(options.repeats, [&] {
    return bench.device->Copy(bench.stream, host.data(), data, options.host_bytes);
  }));
  return static_cast<double>(options.host_bytes) / std::max(there, back);
}

// From an empty kernel's launch to the next's.
absl::StatusOr<double> LaunchSeconds(Bench& bench, const GpuBenchOptions& options) {
  constexpr int kLaunches = 200;
  MP_ASSIGN_OR_RETURN(char* data, bench.device->Allocate(4));
  MP_ASSIGN_OR_RETURN(const double seconds, bench.Seconds(options.repeats, [&]() -> absl::Status {
    for (int i = 0; i < kLaunches; ++i) {
      MP_RETURN_IF_ERROR(kernels::cuda::Fill(reinterpret_cast<float*>(data), 1, 0, bench.native()));
    }
    return absl::OkStatus();
  }));
  return seconds / kLaunches;
}

// "NVIDIA H200" -> "h200".
plan::DeviceProfile Nearest(const std::string& model) {
  const std::string lower = absl::AsciiStrToLower(model);
  for (const std::string& name : plan::BuiltInProfileNames()) {
    std::string words = name;
    if (absl::StartsWith(name, "rtx")) words = absl::StrCat("rtx ", name.substr(3));
    if (name != "cpu" && absl::StrContains(lower, words)) return *plan::BuiltInProfile(name);
  }
  // What is not measured here is taken to be as on an H100.
  plan::DeviceProfile unknown = *plan::BuiltInProfile("h100");
  unknown.matmul.clear();
  unknown.host_bandwidth = 0;
  return unknown;
}

// Of one of the host's GPUs, each of which has a thread.
absl::StatusOr<CollectiveRates> RatesOfRank(comm::Communicator& ranks, int64_t bytes) {
  MP_ASSIGN_OR_RETURN(auto device, CudaDevice::Open(ranks.rank()));
  MP_ASSIGN_OR_RETURN(auto communicator, NcclCommunicator::Create({}, Nccl(), ranks));
  return MeasureCollectives(*device, *communicator, {.bytes = bytes});
}

// Between all GPUs that there are; the slowest rank's.
absl::StatusOr<CollectiveRates> RatesOfHost(int gpus, int64_t bytes) {
  const auto group = comm::MakeInProcessGroup(gpus);
  std::vector<absl::StatusOr<CollectiveRates>> found(static_cast<size_t>(gpus));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < gpus; ++rank) {
    threads.emplace_back([&, rank] {
      found[rank] = RatesOfRank(*group[rank], bytes);
      if (!found[rank].ok()) group[rank]->Abort(found[rank].status().message());
    });
  }
  for (std::thread& thread : threads) thread.join();
  CollectiveRates slowest;
  for (const auto& rates : found) {
    MP_RETURN_IF_ERROR(rates.status());
    const bool first = slowest.all_reduce == 0;
    slowest.small_seconds = std::max(slowest.small_seconds, rates->small_seconds);
    slowest.all_reduce =
        first ? rates->all_reduce : std::min(slowest.all_reduce, rates->all_reduce);
    slowest.reduce_scatter =
        first ? rates->reduce_scatter : std::min(slowest.reduce_scatter, rates->reduce_scatter);
    slowest.all_gather =
        first ? rates->all_gather : std::min(slowest.all_gather, rates->all_gather);
  }
  return slowest;
}

// What a plan expects of collectives, where there are several GPUs.
absl::Status MeasureLinks(const GpuBenchOptions& options, plan::DeviceProfile* profile) {
  int gpus = 0;
  MP_CUDA(cudaGetDeviceCount(&gpus));
  profile->ranks_per_host = gpus;
  if (gpus < 2) return absl::OkStatus();
  MP_ASSIGN_OR_RETURN(const CollectiveRates rates, RatesOfHost(gpus, options.collective_bytes));
  profile->host_bandwidth = std::min({rates.all_reduce, rates.reduce_scatter, rates.all_gather});
  profile->collective_seconds = rates.small_seconds / std::ceil(std::log2(gpus));
  profile->source += absl::StrCat(", collectives between ", gpus, " GPUs");
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<double> MeasureProductRate(const std::string& dtype,
                                          const GpuBenchOptions& options) {
  MP_ASSIGN_OR_RETURN(auto bench, Bench::Open(options.ordinal));
  return ProductRate(*bench, dtype, options);
}

absl::StatusOr<plan::DeviceProfile> MeasureGpu(const GpuBenchOptions& options) {
  std::vector<char> host(static_cast<size_t>(options.host_bytes));  // outlives what pins it
  MP_ASSIGN_OR_RETURN(auto bench, Bench::Open(options.ordinal));
  cudaDeviceProp properties;
  MP_CUDA(cudaGetDeviceProperties(&properties, options.ordinal));
  plan::DeviceProfile profile = Nearest(properties.name);
  profile.name = options.name;
  profile.source = absl::StrCat("milepost bench device, ", properties.name);
  profile.memory_bytes = static_cast<int64_t>(properties.totalGlobalMem);
  for (const char* dtype : {"F32", "BF16", "F16"}) {
    plan::MatmulRate& rate = profile.matmul[dtype];
    MP_ASSIGN_OR_RETURN(const double fastest, ProductRate(*bench, dtype, options));
    rate = {plan::kStepProductPart * fastest, std::max(rate.peak, fastest)};
  }
  MP_ASSIGN_OR_RETURN(profile.memory_bandwidth, MemoryRate(*bench, options));
  MP_ASSIGN_OR_RETURN(const double host_rate, HostRate(*bench, host, options));
  profile.host_device_bandwidth = host_rate;
  // NVLink's, where the model is known; else what goes through the host.
  if (profile.host_bandwidth == 0) profile.host_bandwidth = host_rate;
  MP_ASSIGN_OR_RETURN(profile.op_seconds, LaunchSeconds(*bench, options));
  bench.reset();  // its memory may be wanted
  MP_RETURN_IF_ERROR(MeasureLinks(options, &profile));
  return profile;
}

#undef MP_CUDA

}  // namespace milepost::runtime
