// A device that runs on the host, for tests: work runs in an order drawn at random from those that
// its streams, events and graphs allow, some of it as late as the caller's Synchronize. Two pieces
// of work that touch the same bytes, one of them to write, with nothing that orders them are an
// error as soon as the second is enqueued, in whatever order they would have run.
//
//   FakeDevice device(/*seed=*/7);
//
// Where the streams of one rank wait for those of another that wait for other streams of this one,
// what meets peers must not hold up the rest: SetBeside.
//
// Its clock is one of its own: every piece of work takes the time that SetCost says, beginning when
// all is done that it waits for, and what the host has waited for. So times do not depend on the
// order in which work happens to run.
#ifndef MILEPOST_ENGINE_RUNTIME_GPU_DEVICE_TESTING_FAKE_DEVICE_H_
#define MILEPOST_ENGINE_RUNTIME_GPU_DEVICE_TESTING_FAKE_DEVICE_H_

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/runtime/gpu/device/device.h"

namespace milepost::runtime {

class FakeDevice : public Device {
 public:
  explicit FakeDevice(uint64_t seed) : random_(seed) {}
  ~FakeDevice() override { JoinAll(); }

  absl::StatusOr<char*> Allocate(int64_t bytes) override;
  absl::Status Pin(char*, int64_t) override { return absl::OkStatus(); }
  absl::StatusOr<StreamId> AddStream() override;
  absl::StatusOr<EventId> AddEvent() override;
  absl::Status Enqueue(StreamId stream, Work work) override;
  absl::Status EnqueueHost(StreamId stream, const Work& work) override {
    return Enqueue(
        stream,
        {.issue = [&work] { return work.issue(); }, .name = work.name, .accesses = work.accesses});
  }
  // Also for what runs beside.
  void StopHostWork() override { JoinAll(); }
  absl::Status Copy(StreamId stream, void* to, const void* from, int64_t bytes) override;
  absl::Status Zero(StreamId stream, void* data, int64_t bytes) override;
  absl::Status Record(EventId event, StreamId stream) override;
  absl::Status Wait(StreamId stream, EventId event) override;
  absl::Status BeginCapture(StreamId stream) override;
  absl::StatusOr<GraphId> EndCapture(StreamId stream) override;
  absl::Status Launch(GraphId graph, StreamId stream) override;
  void DropGraphs() override { graphs_.clear(); }
  absl::Status Synchronize(StreamId stream, absl::Duration timeout) override;
  absl::Status Await(EventId event, absl::Duration timeout) override;

  absl::StatusOr<TimerId> AddTimer() override;
  absl::Status Stamp(TimerId timer, StreamId stream) override;
  absl::StatusOr<double> Elapsed(TimerId from, TimerId to) override;

  // Seconds that the work of this name takes; before it is enqueued. A microsecond if not called.
  void SetCost(std::function<double(const std::string& name)> cost) { cost_ = std::move(cost); }
  // Work whose name this holds of never runs, nor what waits for it: the host's waits for it end
  // with DEADLINE_EXCEEDED.
  void SetStuck(std::function<bool(const std::string& name)> stuck) { stuck_ = std::move(stuck); }
  // Work of which this holds runs on a thread of its own, and may take long; other streams go on.
  void SetBeside(std::function<bool(const std::string& name)> beside) {
    beside_ = std::move(beside);
  }
  int64_t allocated_bytes() const { return allocated_bytes_; }
  // Names of what has run, in order.
  const std::vector<std::string>& trace() const { return trace_; }

 private:
  static constexpr int kNone = -1;
  // What has to be done, and after what: indices of earlier nodes of the same list.
  struct Node {
    Work work;  // without `issue`: only orders others
    std::vector<int> after;
    std::vector<bool> ancestors;  // by node: done before it in any order
    bool begun = false;
    bool done = false;
    TimerId timer = kNone;  // that notes `end`
    double end = 0;         // by the device's clock
  };
  using Nodes = std::vector<Node>;
  struct Mark {
    int node = kNone;
    int capture = kNone;  // number of the capture that it was recorded in
  };
  struct Stream {
    int last = kNone;
    bool captured = false;
    int last_captured = kNone;
  };

  // What a timer has noted last.
  struct Time {
    int node = kNone;  // kNone: the host has waited for it
    double seconds = 0;
    bool noted = false;
  };

  static int Append(Nodes& nodes, Work work, std::vector<int> after);
  void Clock(int node);
  void AddHostPast(Node& node) const;
  absl::Status AppendTo(StreamId stream, Work work, std::vector<int> after);
  static absl::Status CheckOrder(const Nodes& nodes);
  bool Idle() const;
  absl::Status RunOne(const std::vector<bool>* wanted);
  std::vector<int> Ready(const std::vector<bool>* wanted) const;
  void RunBeside(int node);
  // Takes what has been done beside; `wait`: at least one piece.
  absl::Status TakeDone(bool wait);
  void JoinAll();
  absl::Status RunSome();
  absl::Status RunUntil(int node);
  absl::Status Fail(absl::Status status);

  struct Freed {
    void operator()(char* data) const { ::operator delete (data, std::align_val_t{256}); }
  };

  std::mt19937_64 random_;
  std::vector<std::unique_ptr<char, Freed>> memory_;
  int64_t allocated_bytes_ = 0;
  Nodes nodes_;             // since the host last knew that all was done
  std::vector<bool> host_;  // by node: the host has waited for it
  std::vector<Stream> streams_;
  std::vector<Mark> events_;
  std::vector<Nodes> graphs_;
  Nodes capture_;
  StreamId capturing_ = kNone;
  int captures_ = 0;  // so far
  std::vector<std::string> trace_;
  absl::Status failure_;
  std::function<double(const std::string&)> cost_ = [](const std::string&) { return 1e-6; };
  std::function<bool(const std::string&)> stuck_;
  std::function<bool(const std::string&)> beside_;
  std::map<int, std::thread> running_;  // by node: what runs beside
  std::mutex mutex_;                    // of what follows
  std::condition_variable changed_;
  std::vector<std::pair<int, absl::Status>> done_beside_;  // not taken yet
  double host_seconds_ = 0;  // when all was done that the host has waited for
  std::vector<Time> timers_;
};

}  // namespace milepost::runtime

#endif  // MILEPOST_ENGINE_RUNTIME_GPU_DEVICE_TESTING_FAKE_DEVICE_H_
