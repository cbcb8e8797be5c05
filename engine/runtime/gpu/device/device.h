// A device with streams of its own, as the executor of a step sees it: the subset of the CUDA
// runtime that a step needs, so that the same executor drives a GPU and, in tests, a device that
// runs on the host in any order that streams and events allow (testing/fake_device.h).
//
//   MP_RETURN_IF_ERROR(device.Enqueue(kCompute, launch));      // returns before it has run
//   MP_RETURN_IF_ERROR(device.Record(event, kCompute));
//   MP_RETURN_IF_ERROR(device.Wait(kCommunication, event));    // the stream waits, not the caller
//   MP_RETURN_IF_ERROR(device.Synchronize(kCommunication, absl::Seconds(60)));
//
// Semantics are CUDA's: work of one stream runs in order; Record marks the work enqueued on the
// stream so far; Wait makes a stream's later work wait for the event's latest Record, and does
// nothing where there was none. Errors of work that has been enqueued come back from any later
// call; after the first one every call returns it.
//
// One thread at a time calls a device; before another one does, it calls UseThread.
#ifndef MILEPOST_ENGINE_RUNTIME_GPU_DEVICE_DEVICE_H_
#define MILEPOST_ENGINE_RUNTIME_GPU_DEVICE_DEVICE_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

struct CUstream_st;

namespace milepost::runtime {

using StreamId = int;
using EventId = int;
using GraphId = int;
using TimerId = int;

// Bytes of the device's memory that work reads or writes.
struct MemoryAccess {
  const char* begin = nullptr;
  const char* end = nullptr;
  bool write = false;
};

struct Work {
  // Issues the work to the stream it was bound to, and must not wait for it. Within a capture it is
  // called at least once; what it put on the stream then is what a launch runs again, so all that
  // changes from one launch to the next has to be read on the device.
  std::function<absl::Status()> issue;
  std::string name;  // for messages
  // What it touches. Devices that check orders need it; others ignore it.
  std::vector<MemoryAccess> accesses;
};

class Device {
 public:
  virtual ~Device() = default;

  // Makes the device the calling thread's.
  virtual void UseThread() {}

  // Memory of the device: zeroed, 256-byte aligned, there as long as the device. Blocks.
  // RESOURCE_EXHAUSTED, with what is free.
  virtual absl::StatusOr<char*> Allocate(int64_t bytes) = 0;
  // Host memory that copies are then made from and to without a detour; lasts until the device
  // goes. An error says that there is none of it: copies work without.
  virtual absl::Status Pin(char* data, int64_t bytes) = 0;

  // Ids from 0 on. RESOURCE_EXHAUSTED when the device has no more.
  virtual absl::StatusOr<StreamId> AddStream() = 0;
  virtual absl::StatusOr<EventId> AddEvent() = 0;

  virtual absl::Status Enqueue(StreamId stream, Work work) = 0;
  // Work that the host does, in the stream's order, on a thread of the device's: `work.issue` is
  // called then, and by every launch of a graph that holds it. It may not call the device. `work`
  // must live until it is done and no graph holds it.
  virtual absl::Status EnqueueHost(StreamId stream, const Work& work) = 0;
  // Waits for the host's work that has begun; none begins any more. Before what it uses is freed: a
  // device that has failed waits for nothing by itself.
  virtual void StopHostWork() {}
  // Work of the stream: between memories of the device and of the host, either way.
  virtual absl::Status Copy(StreamId stream, void* to, const void* from, int64_t bytes) = 0;
  virtual absl::Status Zero(StreamId stream, void* data, int64_t bytes) = 0;
  virtual absl::Status Record(EventId event, StreamId stream) = 0;
  virtual absl::Status Wait(StreamId stream, EventId event) = 0;

  // From BeginCapture to EndCapture what is enqueued on `stream`, and on streams that have waited
  // for an event recorded within the capture, does not run but becomes a graph; Launch runs it as
  // often as it is called, after the work of `stream` so far and before what follows on it.
  // FAILED_PRECONDITION where a stream has joined the capture and `stream` has not waited for all
  // of its work, or where calls do not match.
  virtual absl::Status BeginCapture(StreamId stream) = 0;
  virtual absl::StatusOr<GraphId> EndCapture(StreamId stream) = 0;
  virtual absl::Status Launch(GraphId graph, StreamId stream) = 0;
  // All graphs are gone; none may be launched any more.
  virtual void DropGraphs() = 0;

  // Blocks until all work of the stream is done. DEADLINE_EXCEEDED when that takes longer; it may
  // be waited for again.
  virtual absl::Status Synchronize(StreamId stream, absl::Duration timeout) = 0;
  // The same until the work is done that the event's latest Record marks.
  virtual absl::Status Await(EventId event, absl::Duration timeout) = 0;

  // What notes the device's time. Ids from 0 on, apart from the events'.
  virtual absl::StatusOr<TimerId> AddTimer() = 0;
  // Notes the time at which the stream's work so far is done; part of a capture: of every launch.
  virtual absl::Status Stamp(TimerId timer, StreamId stream) = 0;
  // Seconds between the latest times of both; less than 0 where `to` is the earlier one.
  // FAILED_PRECONDITION where the work is not known to be done: of a stamp that is not reached yet
  // it may also be the time of the launch before.
  virtual absl::StatusOr<double> Elapsed(TimerId from, TimerId to) = 0;

  // What kernels are launched on: the CUDA stream; null where there is none.
  virtual CUstream_st* native_stream(StreamId) const { return nullptr; }
};

}  // namespace milepost::runtime

#endif  // MILEPOST_ENGINE_RUNTIME_GPU_DEVICE_DEVICE_H_
