// Where chaos_test's cluster runs: with separate hosts, a disk that can be filled, and clocks that
// can be stepped, as far as this process may make them.
//
//   Place place(seed);                          // first: it enters namespaces
//   ClusterOptions options = place.Options(/*coordinators=*/1, folder);
//   if (place.network() != nullptr) place.network()->SetBothWays(...);
//
// Ends the process with a message when something that it has made stops working. Not thread-safe.
#ifndef MILEPOST_TESTS_E2E_CHAOS_PLACE_H_
#define MILEPOST_TESTS_E2E_CHAOS_PLACE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/e2e/cluster.h"
#include "tests/e2e/lossy_network.h"
#include "tests/e2e/stepped_clock.h"

namespace milepost::e2e {

class Place {
 public:
  explicit Place(uint64_t seed);

  // Why the place has no such thing. Empty: it has it.
  const std::string& no_network() const { return no_network_; }
  const std::string& no_disk() const { return no_disk_; }
  const std::string& no_clocks() const { return no_clocks_; }

  // Options for two workers with `slots` slots each, and for `coordinators` coordinators, which
  // keep their data in `folder`. Each process has a host of its own, with TLS between them. Without
  // a network all are on loopback.
  ClusterOptions Options(int coordinators, int slots, const std::string& folder);
  // The hosts of such a cluster's processes. The test's own host, which reaches all of them, is not
  // among them.
  std::vector<int> Hosts(int coordinators) const;
  // The pairs of hosts that communicate.
  std::vector<std::pair<int, int>> Links(int coordinators) const;

  LossyNetwork* network() const { return network_.get(); }
  const SteppedClocks& clocks() const { return *clocks_; }
  // Fills the coordinators' disk: what lies there is all that fits. False: the contents have grown
  // meanwhile.
  bool FillDisk();
  void EmptyDisk();
  // Unmounts the disk.
  void Leave();

 private:
  void MountDisk(const std::string& folder);

  std::string no_network_, no_disk_, no_clocks_;
  std::unique_ptr<LossyNetwork> network_;
  std::unique_ptr<SteppedClocks> clocks_;
  std::string disk_;
};

// "worker-1"
std::string HostName(int host);

}  // namespace milepost::e2e

#endif  // MILEPOST_TESTS_E2E_CHAOS_PLACE_H_
