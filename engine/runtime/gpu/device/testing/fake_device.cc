#include "engine/runtime/gpu/device/testing/fake_device.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/status_macros.h"

namespace milepost::runtime {
namespace {

bool Conflict(const Work& a, const Work& b) {
  for (const MemoryAccess& x : a.accesses) {
    for (const MemoryAccess& y : b.accesses) {
      if ((x.write || y.write) && x.begin < y.end && y.begin < x.end) return true;
    }
  }
  return false;
}

}  // namespace

absl::StatusOr<char*> FakeDevice::Allocate(int64_t bytes) {
  char* data =
      static_cast<char*>(::operator new (static_cast<size_t>(bytes), std::align_val_t{256}));
  std::memset(data, 0, static_cast<size_t>(bytes));
  memory_.emplace_back(data);
  allocated_bytes_ += bytes;
  return data;
}

absl::StatusOr<StreamId> FakeDevice::AddStream() {
  streams_.emplace_back();
  return static_cast<StreamId>(streams_.size()) - 1;
}

absl::StatusOr<EventId> FakeDevice::AddEvent() {
  events_.emplace_back();
  return static_cast<EventId>(events_.size()) - 1;
}

int FakeDevice::Append(Nodes& nodes, Work work, std::vector<int> after) {
  std::erase(after, kNone);
  Node node{.work = std::move(work), .after = std::move(after)};
  node.ancestors.resize(nodes.size());
  for (const int before : node.after) {
    node.ancestors[before] = true;
    const std::vector<bool>& theirs = nodes[before].ancestors;
    for (size_t i = 0; i < theirs.size(); ++i) {
      if (theirs[i]) node.ancestors[i] = true;
    }
  }
  nodes.push_back(std::move(node));
  return static_cast<int>(nodes.size()) - 1;
}

// What the host has waited for is done before anything that it enqueues.
void FakeDevice::AddHostPast(Node& node) const {
  for (size_t i = 0; i < host_.size(); ++i) {
    if (host_[i]) node.ancestors[i] = true;
  }
}

// When the node is done, and the timer's time.
void FakeDevice::Clock(int index) {
  Node& node = nodes_[index];
  node.end = host_seconds_;
  for (const int before : node.after) node.end = std::max(node.end, nodes_[before].end);
  if (node.work.issue) node.end += cost_(node.work.name);
  if (node.timer != kNone) {
    timers_[node.timer] = {.node = index, .seconds = node.end, .noted = true};
  }
}

// The last node against all before it.
absl::Status FakeDevice::CheckOrder(const Nodes& nodes) {
  const Node& node = nodes.back();
  for (size_t i = 0; i + 1 < nodes.size(); ++i) {
    if (node.ancestors[i] || !Conflict(nodes[i].work, node.work)) continue;
    return absl::InternalError(absl::StrCat("nothing orders ", node.work.name, " after ",
                                            nodes[i].work.name, ", which touches the same bytes"));
  }
  return absl::OkStatus();
}

absl::Status FakeDevice::Fail(absl::Status status) {
  if (failure_.ok()) failure_ = std::move(status);
  return failure_;
}

// As the next work of the stream, also after `after`.
absl::Status FakeDevice::AppendTo(StreamId id, Work work, std::vector<int> after) {
  MP_RETURN_IF_ERROR(failure_);
  Stream& stream = streams_[id];
  Nodes& nodes = stream.captured ? capture_ : nodes_;
  int& last = stream.captured ? stream.last_captured : stream.last;
  after.push_back(last);
  last = Append(nodes, std::move(work), std::move(after));
  if (!stream.captured) {
    AddHostPast(nodes.back());
    Clock(last);
  }
  if (absl::Status status = CheckOrder(nodes); !status.ok()) return Fail(std::move(status));
  return RunSome();
}

absl::Status FakeDevice::Enqueue(StreamId stream, Work work) {
  return AppendTo(stream, std::move(work), {});
}

absl::Status FakeDevice::Copy(StreamId stream, void* to, const void* from, int64_t bytes) {
  char* out = static_cast<char*>(to);
  const char* in = static_cast<const char*>(from);
  const auto copy = [out, in, bytes] {
    std::memcpy(out, in, static_cast<size_t>(bytes));
    return absl::OkStatus();
  };
  return Enqueue(stream, {.issue = copy,
                          .name = "copy",
                          .accesses = {{in, in + bytes, false}, {out, out + bytes, true}}});
}

absl::Status FakeDevice::Zero(StreamId stream, void* data, int64_t bytes) {
  char* out = static_cast<char*>(data);
  const auto zero = [out, bytes] {
    std::memset(out, 0, static_cast<size_t>(bytes));
    return absl::OkStatus();
  };
  return Enqueue(stream, {.issue = zero, .name = "zero", .accesses = {{out, out + bytes, true}}});
}

absl::Status FakeDevice::Record(EventId event, StreamId id) {
  const Stream& stream = streams_[id];
  events_[event] = {.node = stream.captured ? stream.last_captured : stream.last,
                    .capture = stream.captured ? captures_ : kNone};
  return failure_;
}

absl::Status FakeDevice::Wait(StreamId id, EventId event) {
  const Mark& mark = events_[event];
  if (mark.node == kNone) return failure_;
  Stream& stream = streams_[id];
  const bool captured = mark.capture != kNone;
  if (captured && (capturing_ == kNone || mark.capture != captures_)) {
    return Fail(absl::FailedPreconditionError("a wait for an event of a capture that has ended"));
  }
  if (stream.captured && !captured) {
    return Fail(absl::FailedPreconditionError(
        "a stream that is captured cannot wait for work outside of the capture"));
  }
  if (captured && !stream.captured) stream = {.last = stream.last, .captured = true};
  return AppendTo(id, {.name = "wait"}, {mark.node});
}

absl::StatusOr<TimerId> FakeDevice::AddTimer() {
  timers_.emplace_back();
  return static_cast<TimerId>(timers_.size()) - 1;
}

absl::Status FakeDevice::Stamp(TimerId timer, StreamId id) {
  MP_RETURN_IF_ERROR(AppendTo(id, {.name = "stamp"}, {}));
  const Stream& stream = streams_[id];
  Nodes& nodes = stream.captured ? capture_ : nodes_;
  const int node = stream.captured ? stream.last_captured : stream.last;
  nodes[node].timer = timer;
  if (!stream.captured) Clock(node);
  return absl::OkStatus();
}

absl::StatusOr<double> FakeDevice::Elapsed(TimerId from, TimerId to) {
  MP_RETURN_IF_ERROR(failure_);
  for (const TimerId id : {from, to}) {
    const Time& time = timers_[id];
    if (time.noted && (time.node == kNone || (stuck_ && nodes_[time.node].done))) continue;
    const auto early = absl::FailedPreconditionError("nobody has waited for what a timer notes");
    return stuck_ ? early : Fail(early);
  }
  return timers_[to].seconds - timers_[from].seconds;
}

absl::Status FakeDevice::BeginCapture(StreamId stream) {
  MP_RETURN_IF_ERROR(failure_);
  if (capturing_ != kNone) return Fail(absl::FailedPreconditionError("a capture is under way"));
  capture_.clear();
  capturing_ = stream;
  ++captures_;
  streams_[stream].captured = true;
  streams_[stream].last_captured = Append(capture_, {.name = "begin"}, {});
  return absl::OkStatus();
}

absl::StatusOr<GraphId> FakeDevice::EndCapture(StreamId id) {
  MP_RETURN_IF_ERROR(failure_);
  if (capturing_ != id) return Fail(absl::FailedPreconditionError("this stream is not captured"));
  const int end = streams_[id].last_captured;
  for (Stream& stream : streams_) {
    if (!stream.captured) continue;
    const int last = std::exchange(stream.last_captured, kNone);
    stream.captured = false;
    if (last == end || (last < end && capture_[end].ancestors[last])) continue;
    return Fail(absl::FailedPreconditionError(
        absl::StrCat("a stream joined the capture, and nothing waits for its last work, ",
                     capture_[last].work.name)));
  }
  capturing_ = kNone;
  Append(capture_, {.name = "end"}, {end});
  graphs_.push_back(std::exchange(capture_, {}));
  return static_cast<GraphId>(graphs_.size()) - 1;
}

absl::Status FakeDevice::Launch(GraphId graph, StreamId id) {
  MP_RETURN_IF_ERROR(failure_);
  if (streams_[id].captured) return Fail(absl::UnimplementedError("graphs within graphs"));
  const int first = static_cast<int>(nodes_.size());
  for (const Node& node : graphs_[graph]) {
    std::vector<int> after;
    for (const int before : node.after) after.push_back(first + before);
    if (after.empty()) after.push_back(streams_[id].last);
    Append(nodes_, node.work, std::move(after));
    AddHostPast(nodes_.back());
    nodes_.back().timer = node.timer;
    Clock(static_cast<int>(nodes_.size()) - 1);
    if (absl::Status status = CheckOrder(nodes_); !status.ok()) return Fail(std::move(status));
  }
  streams_[id].last = static_cast<int>(nodes_.size()) - 1;  // behind all others of the graph
  return RunSome();
}

// Of `wanted` where given: with nothing left to wait for.
std::vector<int> FakeDevice::Ready(const std::vector<bool>* wanted) const {
  std::vector<int> ready;
  for (size_t i = 0; i < nodes_.size(); ++i) {
    const Node& node = nodes_[i];
    if (node.begun || (stuck_ && stuck_(node.work.name)) ||
        (wanted != nullptr && !(i < wanted->size() && (*wanted)[i])))
      continue;
    if (std::all_of(node.after.begin(), node.after.end(), [&](int n) { return nodes_[n].done; })) {
      ready.push_back(static_cast<int>(i));
    }
  }
  return ready;
}

void FakeDevice::RunBeside(int index) {
  const auto run = [this, index, issue = nodes_[index].work.issue] {
    absl::Status status = issue();
    const std::lock_guard lock(mutex_);
    done_beside_.emplace_back(index, std::move(status));
    changed_.notify_all();
  };
  running_.emplace(index, std::thread(run));
}

absl::Status FakeDevice::TakeDone(bool wait) {
  std::vector<std::pair<int, absl::Status>> done;
  {
    std::unique_lock lock(mutex_);
    if (wait) changed_.wait(lock, [&] { return !done_beside_.empty(); });
    done.swap(done_beside_);
  }
  for (auto& [index, status] : done) {
    running_.at(index).join();
    running_.erase(index);
    nodes_[index].done = true;
    trace_.push_back(nodes_[index].work.name);
    if (!status.ok()) Fail(std::move(status)).IgnoreError();
  }
  return failure_;
}

void FakeDevice::JoinAll() {
  for (auto& [index, thread] : running_) thread.join();
  running_.clear();
  done_beside_.clear();
}

// Any node that can run, of `wanted` where one of these can; where none can, until one is done that
// runs beside. There must be one.
absl::Status FakeDevice::RunOne(const std::vector<bool>* wanted) {
  const size_t running = running_.size();
  MP_RETURN_IF_ERROR(TakeDone(/*wait=*/false));
  std::vector<int> ready = Ready(wanted);
  if (ready.empty() && wanted != nullptr) ready = Ready(nullptr);
  if (ready.empty() && running_.size() < running) return absl::OkStatus();  // that was it
  if (ready.empty() && !running_.empty()) return TakeDone(/*wait=*/true);
  if (ready.empty() && stuck_) return absl::DeadlineExceededError("stuck");
  MP_CHECK(!ready.empty());
  const int index = ready[random_() % ready.size()];
  Node& node = nodes_[index];
  node.begun = true;
  if (node.work.issue && beside_ && beside_(node.work.name)) {
    RunBeside(index);
    return absl::OkStatus();
  }
  node.done = true;
  if (!node.work.issue) return absl::OkStatus();
  trace_.push_back(node.work.name);
  if (absl::Status status = node.work.issue(); !status.ok()) return Fail(std::move(status));
  return absl::OkStatus();
}

bool FakeDevice::Idle() const {
  return std::all_of(nodes_.begin(), nodes_.end(), [](const Node& n) { return n.done; });
}

// A device runs beside its host, a little or not at all.
absl::Status FakeDevice::RunSome() {
  for (uint64_t turns = random_() % 4; turns > 1 && !Idle(); --turns) {
    if (!running_.empty() && Ready(nullptr).empty()) break;  // nothing but what others must come to
    const absl::Status status = RunOne(nullptr);
    if (absl::IsDeadlineExceeded(status)) break;
    MP_RETURN_IF_ERROR(status);
  }
  return absl::OkStatus();
}

absl::Status FakeDevice::Synchronize(StreamId id, absl::Duration) {
  MP_RETURN_IF_ERROR(failure_);
  if (capturing_ != kNone) {
    return Fail(absl::FailedPreconditionError("nothing can be waited for during a capture"));
  }
  return RunUntil(streams_[id].last);
}

absl::Status FakeDevice::Await(EventId event, absl::Duration) {
  MP_RETURN_IF_ERROR(failure_);
  if (capturing_ != kNone || events_[event].capture != kNone) {
    return Fail(absl::FailedPreconditionError("events of a capture cannot be waited for"));
  }
  return RunUntil(events_[event].node);
}

absl::Status FakeDevice::RunUntil(int last) {
  if (last == kNone) return absl::OkStatus();
  std::vector<bool> wanted = nodes_[last].ancestors;
  wanted.push_back(true);
  const auto left = [&] {
    for (size_t i = 0; i < wanted.size(); ++i) {
      if (wanted[i] && !nodes_[i].done) return true;
    }
    return false;
  };
  while (left()) {
    MP_RETURN_IF_ERROR(RunOne(random_() % 2 == 0 ? &wanted : nullptr));
  }
  host_.resize(nodes_.size());
  for (size_t i = 0; i < wanted.size(); ++i) {
    if (wanted[i]) host_[i] = true;
  }
  host_seconds_ = std::max(host_seconds_, nodes_[last].end);
  for (Time& time : timers_) {
    if (time.node != kNone && host_[time.node]) time.node = kNone;
  }
  if (!std::all_of(host_.begin(), host_.end(), [](bool known) { return known; })) {
    return absl::OkStatus();
  }
  nodes_.clear();
  host_.clear();
  for (Stream& stream : streams_) stream.last = kNone;
  for (Mark& mark : events_) mark = {};
  return absl::OkStatus();
}

}  // namespace milepost::runtime
