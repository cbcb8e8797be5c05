// Where chaos_test's cluster runs: with hosts of its own, a disk that can be filled and clocks that
// can be stepped, as far as this process may.
//
//   Place place(seed);                          // first of all: it enters namespaces
//   ClusterOptions options = place.Options(/*coordinators=*/1, folder);
//   if (place.network() != nullptr) place.network()->SetBothWays(...);
//
// Ends the process with a message where what it has made does not do any more. Not thread-safe.
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

  // Why it has none; empty: it has.
  const std::string& no_network() const { return no_network_; }
  const std::string& no_disk() const { return no_disk_; }
  const std::string& no_clocks() const { return no_clocks_; }

  // Two workers with a slot each, and these coordinators, which keep their data in `folder`. Each
  // process has a host of its own, with TLS between them; without a network all are on loopback.
  ClusterOptions Options(int coordinators, const std::string& folder);
  // Those of such a cluster's processes; the test's own, which reaches all of them, is none.
  std::vector<int> Hosts(int coordinators) const;
  // The pairs of them that talk to each other.
  std::vector<std::pair<int, int>> Links(int coordinators) const;

  LossyNetwork* network() const { return network_.get(); }
  const SteppedClocks& clocks() const { return *clocks_; }
  // The coordinators': what lies there is all that fits. False: it has grown meanwhile.
  bool FillDisk();
  void EmptyDisk();
  // Takes the disk away again.
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
