#include "tests/e2e/lossy_network.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "common/steady_time.h"

namespace milepost::e2e {
namespace {

constexpr char kDevice[] = "mile0";
constexpr uint32_t kNetwork = (10U << 24) | (77U << 16);  // 10.77.0.0/24
constexpr int kMostHosts = 200;
constexpr int kPacketBytes = 9000;    // fewer and larger ones cost this process less
constexpr size_t kMostHeld = 10'000;  // packets: 90 MB
constexpr int kReadsInARow = 64;      // then the other hosts have their turn
constexpr size_t kSourceAt = 12;      // of the addresses in an IPv4 header
constexpr size_t kTargetAt = 16;
constexpr size_t kHeaderBytes = 20;

absl::Status Error(const std::string& what) { return absl::ErrnoToStatus(errno, what); }

in_addr AddressOf(int host) { return {htonl(kNetwork | static_cast<uint32_t>(host + 1))}; }

// -1: of none of `hosts`.
int HostAt(const char* address, int hosts) {
  uint32_t value;
  std::memcpy(&value, address, sizeof value);
  const int64_t host = int64_t{ntohl(value)} - kNetwork - 1;
  return host >= 0 && host < hosts ? static_cast<int>(host) : -1;
}

absl::Status SetAddress(int fd, unsigned long request, in_addr address) {
  ifreq change = {};
  std::strcpy(change.ifr_name, kDevice);
  sockaddr_in name = {};
  name.sin_family = AF_INET;
  name.sin_addr = address;
  std::memcpy(&change.ifr_addr, &name, sizeof name);
  if (ioctl(fd, request, &change) != 0) return Error("cannot give a device an address");
  return absl::OkStatus();
}

absl::Status SetPacketBytes(int fd) {
  ifreq change = {};
  std::strcpy(change.ifr_name, kDevice);
  change.ifr_mtu = kPacketBytes;
  if (ioctl(fd, SIOCSIFMTU, &change) != 0) return Error("cannot set the size of packets");
  return absl::OkStatus();
}

absl::Status TakeUp(int fd, const char* device) {
  ifreq change = {};
  std::strcpy(change.ifr_name, device);
  if (ioctl(fd, SIOCGIFFLAGS, &change) != 0) return Error(absl::StrCat("there is no ", device));
  change.ifr_flags = static_cast<short>(change.ifr_flags | IFF_UP);  // NOLINT: ioctl's type
  if (ioctl(fd, SIOCSIFFLAGS, &change) != 0) return Error(absl::StrCat("cannot take up ", device));
  return absl::OkStatus();
}

// In the calling thread's namespace. Packets come out of it with whole checksums: the device offers
// the kernel no offload.
absl::StatusOr<UniqueFd> MakeDevice(int host) {
  UniqueFd device(open("/dev/net/tun", O_RDWR | O_CLOEXEC | O_NONBLOCK));
  if (!device.ok()) return Error("/dev/net/tun");
  ifreq change = {};
  change.ifr_flags = IFF_TUN | IFF_NO_PI;
  std::strcpy(change.ifr_name, kDevice);
  if (ioctl(device.get(), TUNSETIFF, &change) != 0) return Error("cannot make a TUN device");
  const UniqueFd any(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!any.ok()) return Error("cannot make a socket");
  MP_RETURN_IF_ERROR(SetAddress(any.get(), SIOCSIFADDR, AddressOf(host)));
  MP_RETURN_IF_ERROR(SetAddress(any.get(), SIOCSIFNETMASK, {htonl(0xffffff00U)}));
  MP_RETURN_IF_ERROR(SetPacketBytes(any.get()));
  MP_RETURN_IF_ERROR(TakeUp(any.get(), "lo"));
  MP_RETURN_IF_ERROR(TakeUp(any.get(), kDevice));
  return device;
}

}  // namespace

absl::Status LossyNetwork::MakeHost(int host, Host* made) {
  if (unshare(CLONE_NEWNET) != 0) return Error("cannot make a network namespace");
  made->space.Reset(open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC));
  if (!made->space.ok()) return Error("/proc/thread-self/ns/net");
  MP_ASSIGN_OR_RETURN(made->device, MakeDevice(host));
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<LossyNetwork>> LossyNetwork::Make(int hosts, uint64_t seed) {
  if (hosts < 1 || hosts > kMostHosts) {
    return absl::InvalidArgumentError(absl::StrCat("1 to ", kMostHosts, " hosts, not ", hosts));
  }
  std::unique_ptr<LossyNetwork> network(new LossyNetwork(seed));
  network->stop_.Reset(eventfd(0, EFD_CLOEXEC));
  if (!network->stop_.ok()) return Error("eventfd");
  for (int host = 0; host < hosts; ++host) {
    Host made;
    absl::Status status;
    std::thread([&] { status = MakeHost(host, &made); }).join();  // a thread has its own namespace
    MP_RETURN_IF_ERROR(status);
    network->hosts_.push_back(std::move(made));
  }
  MP_RETURN_IF_ERROR(network->Join(0));
  {
    absl::MutexLock lock(&network->mutex_);
    network->links_.resize(static_cast<size_t>(hosts * hosts));
  }
  network->forwarder_ = std::thread(&LossyNetwork::Forward, network.get());
  return network;
}

LossyNetwork::~LossyNetwork() {
  if (!forwarder_.joinable()) return;
  const uint64_t one = 1;
  (void)!write(stop_.get(), &one, sizeof one);
  forwarder_.join();
}

std::string LossyNetwork::Address(int host) const {
  char text[INET_ADDRSTRLEN] = "";
  const in_addr address = AddressOf(host);
  return inet_ntop(AF_INET, &address, text, sizeof text);
}

std::vector<std::string> LossyNetwork::Enter(int host) const {
  const int fd = hosts_[static_cast<size_t>(host)].space.get();
  return {"/usr/bin/nsenter", absl::StrCat("--net=/proc/", getpid(), "/fd/", fd), "--"};
}

absl::Status LossyNetwork::Join(int host) const {
  if (setns(hosts_[static_cast<size_t>(host)].space.get(), CLONE_NEWNET) != 0) {
    return Error("cannot enter a network namespace");
  }
  return absl::OkStatus();
}

void LossyNetwork::Set(int from, int to, const LinkPlan& plan) {
  absl::MutexLock lock(&mutex_);
  link(from, to) = {plan, SteadyNow()};
}

void LossyNetwork::SetBothWays(int a, int b, const LinkPlan& plan) {
  Set(a, b, plan);
  Set(b, a, plan);
}

PacketCounts LossyNetwork::counts() const {
  absl::MutexLock lock(&mutex_);
  return counts_;
}

void LossyNetwork::Forward() {
  std::vector<pollfd> fds;
  for (const Host& host : hosts_) fds.push_back({host.device.get(), POLLIN, 0});
  fds.push_back({stop_.get(), POLLIN, 0});
  while (fds.back().revents == 0) {
    const timespec wait = absl::ToTimespec(std::min(SendDue(), absl::Seconds(1)));
    if (ppoll(fds.data(), fds.size(), &wait, nullptr) < 0) continue;  // a signal
    for (int host = 0; host < hosts(); ++host) {
      if ((fds[static_cast<size_t>(host)].revents & POLLIN) != 0) ReadFrom(host);
    }
  }
}

void LossyNetwork::ReadFrom(int host) {
  char bytes[kPacketBytes];
  for (int i = 0; i < kReadsInARow; ++i) {
    const ssize_t size = read(hosts_[static_cast<size_t>(host)].device.get(), bytes, sizeof bytes);
    if (size < 0) return;
    Take(host, bytes, static_cast<size_t>(size), SteadyNow());
  }
}

void LossyNetwork::Take(int from, const char* bytes, size_t size, absl::Time now) {
  // What the kernel sends by itself over IPv6 is for nobody.
  if (size < kHeaderBytes || (bytes[0] >> 4) != 4 || HostAt(bytes + kSourceAt, hosts()) != from) {
    return;
  }
  const int to = HostAt(bytes + kTargetAt, hosts());
  if (to < 0) return;
  PacketFate fate;
  {
    absl::MutexLock lock(&mutex_);
    const Link& its = link(from, to);
    fate = Decide(its.plan, now - its.since, random_());
    if (!fate.dropped && fate.delay > absl::ZeroDuration() && held_.size() >= kMostHeld) {
      ++counts_.overrun;
      return;
    }
    if (fate.dropped) ++counts_.dropped;
    if (!fate.dropped && fate.delay > absl::ZeroDuration()) ++counts_.delayed;
  }
  if (fate.dropped) return;
  if (fate.delay <= absl::ZeroDuration()) return Send(to, bytes, size);
  held_.push({now + fate.delay, order_++, to, std::string(bytes, size)});
}

absl::Duration LossyNetwork::SendDue() {
  const absl::Time now = SteadyNow();
  while (!held_.empty() && held_.top().due <= now) {
    Send(held_.top().to, held_.top().bytes.data(), held_.top().bytes.size());
    held_.pop();
  }
  return held_.empty() ? absl::InfiniteDuration() : held_.top().due - now;
}

void LossyNetwork::Send(int to, const char* bytes, size_t size) {
  const ssize_t sent = write(hosts_[static_cast<size_t>(to)].device.get(), bytes, size);
  absl::MutexLock lock(&mutex_);
  ++(sent == static_cast<ssize_t>(size) ? counts_.passed : counts_.overrun);
}

}  // namespace milepost::e2e
