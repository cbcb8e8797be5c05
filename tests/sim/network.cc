#include "tests/sim/network.h"

#include <algorithm>
#include <utility>

#include "tests/sim/agent.h"
#include "tests/sim/coordinator.h"

namespace milepost::sim {

Network::Network(World& world)
    : world_(world), links_(static_cast<size_t>(world.options.workers)) {}

bool Network::Reaches(int worker) const { return IsUp(worker) && world_.coordinator->up(); }

absl::Duration Network::Delay(int worker) {
  if (!world_.faults || !IsSlow(worker)) {
    return world_.random.Time(absl::Microseconds(100), absl::Milliseconds(3));
  }
  return world_.random.Time(absl::Milliseconds(10), absl::Seconds(4));
}

StreamPtr Network::Open(int worker, int64_t incarnation) {
  StreamPtr stream = OpenGhost(worker, incarnation);
  if (stream != nullptr) links_[worker].stream = stream;
  return stream;
}

StreamPtr Network::OpenGhost(int worker, int64_t incarnation) {
  if (!Reaches(worker)) return nullptr;
  auto stream = std::make_shared<Stream>();
  stream->worker = worker;
  stream->incarnation = incarnation;
  stream->epoch = world_.coordinator->epoch();
  return stream;
}

void Network::SendUp(const StreamPtr& stream, v1::WorkerMessage message) {
  if (!IsUp(stream->worker)) {
    stream->held_up.push_back(std::move(message));
    return;
  }
  stream->last_up = std::max(stream->last_up, world_.now() + Delay(stream->worker));
  world_.events.At(stream->last_up, [this, stream, message = std::move(message)]() mutable {
    DeliverUp(stream, std::move(message));
  });
}

void Network::Beat(const StreamPtr& stream, v1::WorkerMessage message) {
  const bool first = stream->last_up <= world_.now() && !IsSlow(stream->worker);
  if (!first || !IsUp(stream->worker)) return SendUp(stream, std::move(message));
  DeliverUp(stream, std::move(message));
}

void Network::DeliverUp(const StreamPtr& stream, v1::WorkerMessage message) {
  if (stream->tail_lost || !stream->server_open) return;
  if (stream->epoch != world_.coordinator->epoch() || !world_.coordinator->up()) return;
  world_.coordinator->Receive(stream, std::move(message));
}

void Network::SendDown(const StreamPtr& stream, v1::CoordinatorMessage message) {
  if (!IsUp(stream->worker)) {
    stream->held_down.push_back(std::move(message));
    return;
  }
  stream->last_down = std::max(stream->last_down, world_.now() + Delay(stream->worker));
  world_.events.At(stream->last_down, [this, stream, message = std::move(message)]() mutable {
    DeliverDown(stream, std::move(message));
  });
}

void Network::DeliverDown(const StreamPtr& stream, v1::CoordinatorMessage message) {
  Agent& agent = *world_.agents[stream->worker];
  if (!stream->worker_open || agent.stream() != stream) return;
  agent.Handle(message);
}

void Network::TellServer(const StreamPtr& stream, absl::Duration delay) {
  // What arrived before is dealt with before.
  const absl::Time arrived = stream->tail_lost ? world_.now() : stream->last_up;
  const absl::Time time = std::max(world_.now() + delay, arrived);
  world_.events.At(time, [this, stream] {
    if (!std::exchange(stream->server_open, false)) return;
    if (stream->epoch == world_.coordinator->epoch() && world_.coordinator->up())
      world_.coordinator->Detach(stream);
  });
}

void Network::EndNow(const StreamPtr& stream) {
  if (!std::exchange(stream->server_open, false)) return;
  world_.coordinator->Detach(stream);
}

void Network::TellWorker(const StreamPtr& stream, absl::Duration delay) {
  world_.events.After(delay, [this, stream] {
    if (!std::exchange(stream->worker_open, false)) return;
    world_.agents[stream->worker]->StreamEnded(stream);
  });
}

void Network::Break(const StreamPtr& stream) {
  Random& random = world_.random;
  stream->tail_lost = random.Chance(0.5);
  // What is not lost may come late.
  if (!stream->tail_lost) {
    const absl::Duration late = random.LogTime(absl::Milliseconds(10), absl::Seconds(15));
    stream->last_up = std::max(stream->last_up, world_.now() + late);
  }
  stream->held_up.clear();
  stream->held_down.clear();
  TellWorker(stream, random.LogTime(absl::Milliseconds(10), absl::Seconds(10)));
  TellServer(stream, random.LogTime(absl::Milliseconds(10), absl::Seconds(60)));
}

void Network::CloseByWorker(const StreamPtr& stream, bool host_died) {
  if (stream == nullptr) return;
  stream->worker_open = false;
  stream->tail_lost = host_died;
  // A host that is off does not say so: keepalives find it, or the lease.
  if (!host_died)
    return TellServer(stream, world_.random.Time(absl::Milliseconds(1), absl::Seconds(1)));
  if (world_.random.Chance(0.5))
    TellServer(stream, world_.random.Time(absl::Seconds(10), absl::Minutes(2)));
}

void Network::CloseByServer(const StreamPtr& stream) {
  // What has been read already is still dealt with.
  TellServer(stream, world_.random.Time(absl::ZeroDuration(), absl::Milliseconds(50)));
  const bool up = IsUp(stream->worker);
  TellWorker(stream,
             up ? Delay(stream->worker) : world_.random.Time(absl::Seconds(5), absl::Seconds(40)));
}

void Network::CoordinatorDied() {
  for (Link& link : links_) {
    if (link.stream == nullptr || !link.stream->worker_open) continue;
    TellWorker(link.stream, world_.random.LogTime(absl::Milliseconds(1), absl::Seconds(2)));
  }
}

void Network::Partition(const std::vector<int>& workers, absl::Duration time) {
  for (const int worker : workers) {
    Link& link = links_[worker];
    ++link.cuts;
    world_.Note("cut off", 0, worker, absl::ToInt64Seconds(time));
    if (link.stream != nullptr && link.stream->worker_open) {
      // Keepalives end it, at each end for itself, should it last.
      const StreamPtr stream = link.stream;
      world_.events.After(world_.random.Time(absl::Seconds(8), absl::Seconds(40)), [this, stream] {
        if (IsUp(stream->worker)) return;
        stream->held_up.clear();
        stream->held_down.clear();
        stream->tail_lost = true;
        TellWorker(stream, world_.random.Time(absl::ZeroDuration(), absl::Seconds(10)));
        TellServer(stream, world_.random.Time(absl::ZeroDuration(), absl::Seconds(90)));
      });
    }
    world_.events.After(time, [this, worker] { Heal(worker); });
  }
}

void Network::Heal(int worker) {
  Link& link = links_[worker];
  if (--link.cuts > 0) return;
  world_.Note("joined again", 0, worker);
  if (link.stream == nullptr) return;
  const StreamPtr stream = link.stream;
  auto up = std::exchange(stream->held_up, {});
  auto down = std::exchange(stream->held_down, {});
  for (v1::WorkerMessage& message : up) SendUp(stream, std::move(message));
  for (v1::CoordinatorMessage& message : down) SendDown(stream, std::move(message));
}

void Network::SlowDown(int worker, absl::Duration time) {
  links_[worker].slow_until = world_.now() + time;
}

}  // namespace milepost::sim
