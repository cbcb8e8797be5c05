// A network of hosts on this machine. Each host is a network namespace with a TUN device. Their
// packets go through this process, which drops, delays, reorders or cuts them off (link_plan.h).
//
//   MP_ASSIGN_OR_RETURN(std::unique_ptr<LossyNetwork> network, LossyNetwork::Make(3, seed));
//   std::vector<std::string> argv = network->Enter(1);   // then the command, which runs in host 1
//   network->SetBothWays(1, 2, CutLink());               // hosts 1 and 2 do not reach each other
//
// A host reaches itself by loopback and the others at Address(), and nothing outside. Needs root
// and /dev/net/tun, but not the kernel's netem. Thread-safe except for Make and Join.
#ifndef MILEPOST_TESTS_E2E_LOSSY_NETWORK_H_
#define MILEPOST_TESTS_E2E_LOSSY_NETWORK_H_

#include <cstdint>
#include <memory>
#include <queue>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/unique_fd.h"
#include "tests/e2e/link_plan.h"

namespace milepost::e2e {

// Counts since the network was made.
struct PacketCounts {
  int64_t passed = 0;  // including delayed ones
  int64_t delayed = 0;
  int64_t dropped = 0;  // by a plan
  int64_t overrun = 0;  // dropped for lack of room: too many held back, or a full device
};

class LossyNetwork {
 public:
  // Makes at most 200 hosts, with clean links. Afterwards the calling thread is in host 0, and so
  // are threads and processes that it starts. So call it before others exist. Errors such as
  // PERMISSION_DENIED say what this process may not do here.
  static absl::StatusOr<std::unique_ptr<LossyNetwork>> Make(int hosts, uint64_t seed);
  // Processes in a host lose their network.
  ~LossyNetwork();

  int hosts() const { return static_cast<int>(hosts_.size()); }
  std::string Address(int host) const;  // "10.77.0.3"
  // What to put before a command line to run it in that host. Valid as long as this object lives.
  std::vector<std::string> Enter(int host) const;
  // Moves the calling thread to that host.
  absl::Status Join(int host) const;

  // Applies to packets that are sent from now on.
  void Set(int from, int to, const LinkPlan& plan);
  void SetBothWays(int a, int b, const LinkPlan& plan);
  PacketCounts counts() const;

 private:
  struct Host {
    UniqueFd space;  // the network namespace
    UniqueFd device;
  };
  struct Link {
    LinkPlan plan;
    absl::Time since;
  };
  struct Packet {
    absl::Time due;
    uint64_t order;  // among packets that are due at the same time
    int to;
    std::string bytes;
    bool operator<(const Packet& other) const {  // the first due is on top
      return due != other.due ? due > other.due : order > other.order;
    }
  };

  explicit LossyNetwork(uint64_t seed) : random_(seed) {}
  static absl::Status MakeHost(int host, Host* made);
  void Forward();
  void ReadFrom(int host);
  void Take(int from, const char* bytes, size_t size, absl::Time now);
  absl::Duration SendDue();  // returns the time until the next packet is due
  void Send(int to, const char* bytes, size_t size);
  Link& link(int from, int to) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return links_[static_cast<size_t>(from * hosts() + to)];
  }

  std::vector<Host> hosts_;
  UniqueFd stop_;
  // Only the forwarder uses these.
  std::mt19937_64 random_;
  uint64_t order_ = 0;
  std::priority_queue<Packet> held_;

  mutable absl::Mutex mutex_;
  std::vector<Link> links_ ABSL_GUARDED_BY(mutex_);
  PacketCounts counts_ ABSL_GUARDED_BY(mutex_);
  std::thread forwarder_;
};

}  // namespace milepost::e2e

#endif  // MILEPOST_TESTS_E2E_LOSSY_NETWORK_H_
