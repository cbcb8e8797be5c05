#include "tests/e2e/chaos_place.h"

#include <sched.h>
#include <sys/mount.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "absl/strings/str_cat.h"

namespace milepost::e2e {
namespace {

constexpr double kLease = 2;
constexpr int64_t kDiskBytes = int64_t{16} << 30;  // of which only what is used takes memory
// Certificates hold from so long ago on, and for longer than any step into the future.
constexpr absl::Duration kCertificatesSince = -absl::Hours(24 * 7);

// By host; the test is in the first.
const char* const kHosts[] = {"client",   "coordinator-0", "worker-0",
                              "worker-1", "coordinator-1", "etcd"};
constexpr int kHostsOfOne = 4;  // with one coordinator, and thus without etcd

int HostOf(const std::string& process) {
  for (int host = 0; host < static_cast<int>(std::size(kHosts)); ++host) {
    if (kHosts[host] == process) return host;
  }
  std::abort();
}

bool Mount(const std::string& folder, int64_t bytes, unsigned long flags) {
  const std::string options = absl::StrCat("size=", bytes);
  return mount("tmpfs", folder.c_str(), "tmpfs", flags, options.c_str()) == 0;
}

}  // namespace

std::string HostName(int host) { return kHosts[host]; }

Place::Place(uint64_t seed) : no_clocks_(SteppedClocks::Unavailable()) {
  if (unshare(CLONE_NEWNS) != 0 ||
      mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) {
    no_disk_ = absl::StrCat("this process may not mount: ", std::strerror(errno));
  }
  auto network = LossyNetwork::Make(static_cast<int>(std::size(kHosts)), seed);
  if (network.ok()) {
    network_ = *std::move(network);
  } else {
    no_network_ = std::string(network.status().message());
  }
}

ClusterOptions Place::Options(int coordinators, int slots, const std::string& folder) {
  ClusterOptions options = {
      .workers = 2, .slots = slots, .lease_seconds = kLease, .coordinators = coordinators};
  options.start_again = coordinators > 1;
  if (no_clocks_.empty()) {
    clocks_ = std::make_unique<SteppedClocks>(folder + "/clocks");
    options.env = clocks_->Env();
    options.pki_env = clocks_->Env(kCertificatesSince);
  }
  if (no_disk_.empty()) MountDisk(folder + "/coordinator");
  if (network_ == nullptr) return options;
  options.tls = true;
  options.place = [this](const std::string& process) -> Placement {
    const int host = HostOf(process);
    return {network_->Enter(host), network_->Address(host)};
  };
  return options;
}

std::vector<int> Place::Hosts(int coordinators) const {
  const int end = coordinators > 1 ? static_cast<int>(std::size(kHosts)) : kHostsOfOne;
  std::vector<int> hosts;
  for (int host = 1; host < end; ++host) hosts.push_back(host);
  return hosts;
}

std::vector<std::pair<int, int>> Place::Links(int coordinators) const {
  std::vector<std::pair<int, int>> links = {{1, 2}, {1, 3}, {2, 3}};
  if (coordinators > 1) links.insert(links.end(), {{4, 2}, {4, 3}, {1, 5}, {4, 5}});
  return links;
}

void Place::MountDisk(const std::string& folder) {
  std::filesystem::create_directories(folder);
  disk_ = folder;
  if (!Mount(disk_, kDiskBytes, 0)) {
    no_disk_ = absl::StrCat("this process may not mount: ", std::strerror(errno));
  }
}

bool Place::FillDisk() {
  const std::filesystem::space_info space = std::filesystem::space(disk_);
  return Mount(disk_, static_cast<int64_t>(space.capacity - space.free), MS_REMOUNT);
}

void Place::EmptyDisk() {
  if (Mount(disk_, kDiskBytes, MS_REMOUNT)) return;
  std::fprintf(stderr, "FAILED: %s cannot be made larger again\n", disk_.c_str());
  std::exit(1);
}

void Place::Leave() {
  if (no_disk_.empty()) umount2(disk_.c_str(), MNT_DETACH);
}

}  // namespace milepost::e2e
