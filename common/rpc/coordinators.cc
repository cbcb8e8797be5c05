#include "common/rpc/coordinators.h"

#include <algorithm>
#include <map>
#include <mutex>

#include "absl/time/clock.h"
#include "common/rpc/local_socket.h"
#include "common/rpc/status.h"

namespace milepost {
namespace {

// Where this process's calls go, by list.
class Serving {
 public:
  static Serving& Get() {
    static Serving* serving = new Serving;
    return *serving;
  }
  size_t Find(const std::string& all) {
    std::lock_guard lock(mutex_);
    const auto found = by_list_.find(all);
    return found == by_list_.end() ? 0 : found->second;
  }
  void Set(const std::string& all, size_t index) {
    std::lock_guard lock(mutex_);
    by_list_[all] = index;
  }

 private:
  std::mutex mutex_;
  std::map<std::string, size_t> by_list_;
};

}  // namespace

Coordinators::Coordinators(const Endpoint& all, Way way)
    : all_(all.address),
      addresses_(SplitAddresses(all.address)),
      credentials_(all.credentials),
      way_(way),
      current_(Serving::Get().Find(all_)) {}

Endpoint Coordinators::Current() const {
  absl::MutexLock lock(&mutex_);
  return Endpoint(addresses_[current_], credentials_);
}

void Coordinators::Failed(const std::string& address) {
  if (!several()) return;
  absl::MutexLock lock(&mutex_);
  if (addresses_[current_] != address) return;
  current_ = (current_ + 1) % addresses_.size();
  Serving::Get().Set(all_, current_);
}

Endpoint Coordinators::Target() const {
  return way_ == Way::kShortest ? ShortestWay(Current()) : Current();
}

std::shared_ptr<grpc::Channel> Coordinators::Connect(const Endpoint& target) const {
  return MakeChannel(target, several() ? Keepalive::kImpatient : Keepalive::kPatient);
}

CoordinatorChannel::CoordinatorChannel(const Endpoint& all, Way way) : coordinators_(all, way) {
  absl::MutexLock lock(&mutex_);
  Connect();
}

void CoordinatorChannel::Connect() {
  address_ = coordinators_.Current().address;
  const Endpoint target = coordinators_.Target();
  target_ = target.address;
  channel_ = coordinators_.Connect(target);
}

std::shared_ptr<grpc::Channel> CoordinatorChannel::Get() const {
  absl::MutexLock lock(&mutex_);
  return channel_;
}

void CoordinatorChannel::Failed(const std::shared_ptr<grpc::Channel>& channel) {
  absl::MutexLock lock(&mutex_);
  if (channel != channel_) return;
  coordinators_.Failed(address_);
  if (several() || coordinators_.Target().address != target_) Connect();
}

bool CoordinatorChannel::AwaitReady(grpc::Channel* channel, absl::Time deadline) const {
  if (!several()) return channel->WaitForConnected(absl::ToChronoTime(deadline));
  while (true) {
    const grpc_connectivity_state state = channel->GetState(/*try_to_connect=*/true);
    if (state == GRPC_CHANNEL_READY) return true;
    if (state == GRPC_CHANNEL_TRANSIENT_FAILURE) return false;
    if (!channel->WaitForStateChange(state, absl::ToChronoTime(deadline))) return false;
  }
}

void CoordinatorChannel::Pause(absl::Duration pause) const {
  // The others stand by: that one of them can be connected to says nothing.
  if (several()) return absl::SleepFor(pause);
  PauseForRetry(Get().get(), pause);
}

}  // namespace milepost
