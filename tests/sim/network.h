// The network between the coordinator and the workers, modelled. A stream is ordered, as gRPC's
// are: a message is lost only with its stream, and then with all that follow. Both ends learn of a
// broken stream at moments of their own, so a worker's new stream may be there before the
// coordinator has heard the last of the old one.
#ifndef MILEPOST_TESTS_SIM_NETWORK_H_
#define MILEPOST_TESTS_SIM_NETWORK_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "absl/time/time.h"
#include "milepost/v1/worker.pb.h"
#include "tests/sim/world.h"

namespace milepost::sim {

struct Stream {
  int worker = 0;
  int64_t incarnation = 0;
  int64_t epoch = 0;        // of the coordinator's process
  bool worker_open = true;  // as the worker sees it
  bool server_open = true;  // as the coordinator sees it
  bool welcomed = false;    // by the coordinator
  bool tail_lost = false;   // what is under way to the coordinator does not arrive
  absl::Time last_up;       // when what was sent last arrives
  absl::Time last_down;
  std::deque<v1::WorkerMessage> held_up;  // while the link is down
  std::deque<v1::CoordinatorMessage> held_down;
};
using StreamPtr = std::shared_ptr<Stream>;

class Network {
 public:
  explicit Network(World& world);

  // The worker can reach the coordinator's host.
  bool IsUp(int worker) const { return links_[worker].cuts == 0; }
  // For a call of its own, of a rank or the agent: there, and back.
  bool Reaches(int worker) const;
  absl::Duration Delay(int worker);
  bool IsSlow(int worker) const { return links_[worker].slow_until > world_.now(); }

  // nullptr when nobody is there.
  StreamPtr Open(int worker, int64_t incarnation);
  // Of a process with the worker's id that should not be there.
  StreamPtr OpenGhost(int worker, int64_t incarnation);
  void SendUp(const StreamPtr& stream, v1::WorkerMessage message);
  // The same for a heartbeat, without delay where nothing is before it.
  void Beat(const StreamPtr& stream, v1::WorkerMessage message);
  void SendDown(const StreamPtr& stream, v1::CoordinatorMessage message);
  // The connection breaks; both ends hear of it in time.
  void Break(const StreamPtr& stream);
  // The worker's process ends: its end closes now, in good order or not.
  void CloseByWorker(const StreamPtr& stream, bool host_died);
  // The coordinator hears of its end now.
  void EndNow(const StreamPtr& stream);
  // The coordinator ends it.
  void CloseByServer(const StreamPtr& stream);
  // All streams to a coordinator that died.
  void CoordinatorDied();

  void Partition(const std::vector<int>& workers, absl::Duration time);
  void SlowDown(int worker, absl::Duration time);

 private:
  struct Link {
    int cuts = 0;
    absl::Time slow_until = absl::InfinitePast();
    StreamPtr stream;  // the newest
  };
  void DeliverUp(const StreamPtr& stream, v1::WorkerMessage message);
  void DeliverDown(const StreamPtr& stream, v1::CoordinatorMessage message);
  void Heal(int worker);
  void TellServer(const StreamPtr& stream, absl::Duration delay);
  void TellWorker(const StreamPtr& stream, absl::Duration delay);

  World& world_;
  std::vector<Link> links_;
};

}  // namespace milepost::sim

#endif  // MILEPOST_TESTS_SIM_NETWORK_H_
