// One GPU: streams, events and graphs of the CUDA runtime (device.h), and memory.
//
//   MP_ASSIGN_OR_RETURN(auto device, CudaDevice::Open(/*ordinal=*/0));
//   MP_ASSIGN_OR_RETURN(char* arena, device->Allocate(plan.arena_bytes));
//   MP_ASSIGN_OR_RETURN(StreamId compute, device->AddStream());
//   Launch(..., device->native_stream(compute));
//
// One thread at a time, which must be the one that opened
// it, or have called UseThread: CUDA's current device is the thread's.
#ifndef MILEPOST_ENGINE_RUNTIME_GPU_CUDA_CUDA_DEVICE_H_
#define MILEPOST_ENGINE_RUNTIME_GPU_CUDA_CUDA_DEVICE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/kernels/cuda/stream.h"
#include "engine/runtime/gpu/device/device.h"
#include "engine/runtime/gpu/device/host_work.h"

struct CUevent_st;
struct CUgraphExec_st;

namespace milepost::runtime {

class CudaDevice : public Device {
 public:
  // Makes the device the thread's. FAILED_PRECONDITION without a driver or a GPU of this number,
  // with what there is.
  static absl::StatusOr<std::unique_ptr<CudaDevice>> Open(int ordinal);
  ~CudaDevice() override;
  CudaDevice(const CudaDevice&) = delete;
  CudaDevice& operator=(const CudaDevice&) = delete;

  void UseThread() override;
  absl::StatusOr<char*> Allocate(int64_t bytes) override;
  absl::Status Pin(char* data, int64_t bytes) override;

  // The second stream has the highest priority, the others the least: what communicates is short,
  // and its results are waited for.
  absl::StatusOr<StreamId> AddStream() override;
  absl::StatusOr<EventId> AddEvent() override;
  // Calls work.issue at once: it puts what it has to do on the stream that it knows.
  absl::Status Enqueue(StreamId stream, Work work) override;
  absl::Status EnqueueHost(StreamId stream, const Work& work) override;
  // The work is this process's own arithmetic: that it ends within a minute is CHECKed, since what
  // it uses is about to be freed.
  void StopHostWork() override;
  absl::Status Record(EventId event, StreamId stream) override;
  absl::Status Wait(StreamId stream, EventId event) override;
  absl::StatusOr<TimerId> AddTimer() override;
  absl::Status Stamp(TimerId timer, StreamId stream) override;
  // To about half a microsecond.
  absl::StatusOr<double> Elapsed(TimerId from, TimerId to) override;
  absl::Status BeginCapture(StreamId stream) override;
  absl::StatusOr<GraphId> EndCapture(StreamId stream) override;
  absl::Status Launch(GraphId graph, StreamId stream) override;
  void DropGraphs() override;
  // Looks every 20 microseconds, and less often the longer it takes.
  absl::Status Synchronize(StreamId stream, absl::Duration timeout) override;
  absl::Status Await(EventId event, absl::Duration timeout) override;

  absl::Status Copy(StreamId stream, void* to, const void* from, int64_t bytes) override;
  absl::Status Zero(StreamId stream, void* data, int64_t bytes) override;

  cudaStream_t native_stream(StreamId id) const override { return streams_[id]; }
  int ordinal() const { return ordinal_; }

 private:
  // What the host's work is called with; its first error is kept for the waits to return.
  struct HostCall {
    CudaDevice* device;
    const Work* work;
  };
  static void RunHostWork(void* host_call);

  explicit CudaDevice(int ordinal) : ordinal_(ordinal) {}

  const int ordinal_;
  std::vector<void*> memory_;
  std::vector<char*> pinned_;
  std::vector<cudaStream_t> streams_;
  std::vector<CUevent_st*> events_;
  std::vector<CUevent_st*> timers_;  // events that note the time
  std::vector<CUgraphExec_st*> graphs_;
  std::map<const Work*, HostCall> host_calls_;  // nodes that stay where they are
  HostWork host_work_;
};

}  // namespace milepost::runtime

#endif  // MILEPOST_ENGINE_RUNTIME_GPU_CUDA_CUDA_DEVICE_H_
