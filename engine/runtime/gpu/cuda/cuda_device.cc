#include "engine/runtime/gpu/cuda/cuda_device.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/check.h"
#include "common/status_macros.h"
#include "engine/runtime/gpu/cuda/cuda_status.h"

namespace milepost::runtime {
namespace {

// A step is done some time within a look, and the next is not begun before that is seen: looks are
// short for as long as most steps take.
constexpr absl::Duration kLook = absl::Microseconds(20);
constexpr absl::Duration kLongLook = absl::Milliseconds(1);
constexpr absl::Duration kLongStep = absl::Seconds(2);
// A disk that is silent is waited for a minute.
constexpr absl::Duration kLongestHostWork = absl::Minutes(3);

// The second stream is the communication's.
int PriorityOf(size_t stream, int least, int greatest) { return stream == 1 ? greatest : least; }

// CUDA's own waits have no time-out, and a collective whose peer is gone never ends.
template <typename Query>
absl::Status Poll(const Query& query, absl::Duration timeout) {
  const absl::Time begin = absl::Now();
  while (true) {
    const cudaError_t error = query();
    if (error != cudaErrorNotReady) return CudaStatus(error, "work on the GPU");
    const absl::Duration waited = absl::Now() - begin;
    if (waited > timeout) {
      return absl::DeadlineExceededError(
          absl::StrCat("work on the GPU is not done after ", absl::FormatDuration(timeout)));
    }
    absl::SleepFor(waited < kLongStep ? kLook : kLongLook);
  }
}

}  // namespace

#define MP_CUDA(call) MP_RETURN_IF_ERROR(CudaStatus(call, #call))

absl::StatusOr<std::unique_ptr<CudaDevice>> CudaDevice::Open(int ordinal) {
  int devices = 0;
  MP_RETURN_IF_ERROR(CudaStatus(cudaGetDeviceCount(&devices), "looking for GPUs"));
  if (ordinal < 0 || ordinal >= devices) {
    return absl::FailedPreconditionError(
        absl::StrCat("there is no GPU ", ordinal, ": the driver has ", devices));
  }
  MP_RETURN_IF_ERROR(CudaStatus(cudaSetDevice(ordinal), absl::StrCat("opening GPU ", ordinal)));
  return std::unique_ptr<CudaDevice>(new CudaDevice(ordinal));
}

// Errors have been reported where they arose; a device that is lost reports them again here.
CudaDevice::~CudaDevice() {
  StopHostWork();
  DropGraphs();
  for (CUevent_st* event : events_) cudaEventDestroy(event);
  for (CUevent_st* timer : timers_) cudaEventDestroy(timer);
  for (cudaStream_t stream : streams_) cudaStreamDestroy(stream);
  for (char* data : pinned_) cudaHostUnregister(data);
  for (void* data : memory_) cudaFree(data);
}

void CudaDevice::DropGraphs() {
  for (CUgraphExec_st* graph : graphs_) cudaGraphExecDestroy(graph);
  graphs_.clear();
}

void CudaDevice::UseThread() { cudaSetDevice(ordinal_); }

absl::StatusOr<char*> CudaDevice::Allocate(int64_t bytes) {
  void* data = nullptr;
  const auto size = static_cast<size_t>(std::max<int64_t>(bytes, 1));
  const cudaError_t error = cudaMalloc(&data, size);
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // it has been seen: later calls need not report it
    size_t free = 0;
    size_t total = 0;
    MP_CUDA(cudaMemGetInfo(&free, &total));
    return absl::ResourceExhaustedError(
        absl::StrCat(bytes, " bytes of GPU memory: ", free, " of ", total, " are free"));
  }
  MP_RETURN_IF_ERROR(CudaStatus(error, "cudaMalloc"));
  memory_.push_back(data);
  // Not the whole device: another rank of this process may have work on it that waits for this one.
  MP_CUDA(cudaMemsetAsync(data, 0, size, cudaStreamLegacy));
  MP_CUDA(cudaStreamSynchronize(cudaStreamLegacy));
  return static_cast<char*>(data);
}

absl::Status CudaDevice::Pin(char* data, int64_t bytes) {
  if (bytes == 0) return absl::OkStatus();
  const cudaError_t error =
      cudaHostRegister(data, static_cast<size_t>(bytes), cudaHostRegisterDefault);
  if (error != cudaSuccess) cudaGetLastError();  // as above
  MP_RETURN_IF_ERROR(CudaStatus(error, "cudaHostRegister"));
  pinned_.push_back(data);
  return absl::OkStatus();
}

absl::StatusOr<StreamId> CudaDevice::AddStream() {
  int least = 0;
  int greatest = 0;
  MP_CUDA(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  cudaStream_t stream = nullptr;
  MP_CUDA(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking,
                                       PriorityOf(streams_.size(), least, greatest)));
  streams_.push_back(stream);
  return static_cast<StreamId>(streams_.size()) - 1;
}

absl::StatusOr<EventId> CudaDevice::AddEvent() {
  cudaEvent_t event = nullptr;
  MP_CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  events_.push_back(event);
  return static_cast<EventId>(events_.size()) - 1;
}

absl::Status CudaDevice::Enqueue(StreamId, Work work) { return work.issue(); }

void CudaDevice::RunHostWork(void* host_call) {
  const auto* const called = static_cast<HostCall*>(host_call);
  called->device->host_work_.Run(called->work->issue);
}

void CudaDevice::StopHostWork() {
  const absl::Status stopped = host_work_.Stop(kLongestHostWork);
  MP_CHECK(stopped.ok()) << stopped;
}

absl::Status CudaDevice::EnqueueHost(StreamId stream, const Work& work) {
  HostCall& call = host_calls_.try_emplace(&work, HostCall{this, &work}).first->second;
  return CudaStatus(cudaLaunchHostFunc(streams_[stream], &RunHostWork, &call),
                    "cudaLaunchHostFunc");
}

absl::Status CudaDevice::Record(EventId event, StreamId stream) {
  return CudaStatus(cudaEventRecord(events_[event], streams_[stream]), "cudaEventRecord");
}

absl::Status CudaDevice::Wait(StreamId stream, EventId event) {
  return CudaStatus(cudaStreamWaitEvent(streams_[stream], events_[event], 0),
                    "cudaStreamWaitEvent");
}

absl::StatusOr<TimerId> CudaDevice::AddTimer() {
  cudaEvent_t timer = nullptr;
  MP_CUDA(cudaEventCreateWithFlags(&timer, cudaEventDefault));
  timers_.push_back(timer);
  return static_cast<TimerId>(timers_.size()) - 1;
}

// Within a capture an event's record only orders, unless it is external; outside of one it must not
// be.
absl::Status CudaDevice::Stamp(TimerId timer, StreamId stream) {
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  MP_CUDA(cudaStreamIsCapturing(streams_[stream], &capture));
  const unsigned int flags =
      capture == cudaStreamCaptureStatusNone ? cudaEventRecordDefault : cudaEventRecordExternal;
  return CudaStatus(cudaEventRecordWithFlags(timers_[timer], streams_[stream], flags),
                    "cudaEventRecordWithFlags");
}

absl::StatusOr<double> CudaDevice::Elapsed(TimerId from, TimerId to) {
  float milliseconds = 0;
  const cudaError_t error = cudaEventElapsedTime(&milliseconds, timers_[from], timers_[to]);
  if (error == cudaErrorNotReady || error == cudaErrorInvalidResourceHandle) {
    cudaGetLastError();  // it has been seen: later calls need not report it
    return absl::FailedPreconditionError("nobody has waited for what a timer notes");
  }
  MP_RETURN_IF_ERROR(CudaStatus(error, "cudaEventElapsedTime"));
  return static_cast<double>(milliseconds) / 1e3;
}

absl::Status CudaDevice::BeginCapture(StreamId stream) {
  return CudaStatus(cudaStreamBeginCapture(streams_[stream], cudaStreamCaptureModeThreadLocal),
                    "cudaStreamBeginCapture");
}

absl::StatusOr<GraphId> CudaDevice::EndCapture(StreamId stream) {
  cudaGraph_t graph = nullptr;
  MP_CUDA(cudaStreamEndCapture(streams_[stream], &graph));
  cudaGraphExec_t executable = nullptr;
  const cudaError_t error = cudaGraphInstantiate(&executable, graph, 0);
  cudaGraphDestroy(graph);
  MP_RETURN_IF_ERROR(CudaStatus(error, "cudaGraphInstantiate"));
  graphs_.push_back(executable);
  return static_cast<GraphId>(graphs_.size()) - 1;
}

absl::Status CudaDevice::Launch(GraphId graph, StreamId stream) {
  return CudaStatus(cudaGraphLaunch(graphs_[graph], streams_[stream]), "cudaGraphLaunch");
}

absl::Status CudaDevice::Synchronize(StreamId stream, absl::Duration timeout) {
  MP_RETURN_IF_ERROR(Poll([&] { return cudaStreamQuery(streams_[stream]); }, timeout));
  return host_work_.status();
}

absl::Status CudaDevice::Await(EventId event, absl::Duration timeout) {
  MP_RETURN_IF_ERROR(Poll([&] { return cudaEventQuery(events_[event]); }, timeout));
  return host_work_.status();
}

absl::Status CudaDevice::Copy(StreamId stream, void* to, const void* from, int64_t bytes) {
  return CudaStatus(
      cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDefault, streams_[stream]),
      "cudaMemcpyAsync");
}

absl::Status CudaDevice::Zero(StreamId stream, void* data, int64_t bytes) {
  return CudaStatus(cudaMemsetAsync(data, 0, static_cast<size_t>(bytes), streams_[stream]),
                    "cudaMemsetAsync");
}

#undef MP_CUDA

}  // namespace milepost::runtime
