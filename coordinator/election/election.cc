#include "coordinator/election/election.h"

#include <time.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/error_details.h"
#include "common/status_macros.h"

namespace milepost::coordinator {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(1);
constexpr absl::Duration kRetry = absl::Milliseconds(100);
constexpr int kRenewalsPerLease = 5;
// Of the lease, for clocks that go at different speeds, and for what is on its way already.
constexpr int kMarginShare = 5;

absl::Duration BootTime() {
  timespec now = {};
  clock_gettime(CLOCK_BOOTTIME, &now);
  return absl::DurationFromTimespec(now);
}

}  // namespace

Election::Election(EtcdClient* etcd, ElectionOptions options)
    : etcd_(etcd), options_([&] {
        if (!options.uptime) options.uptime = BootTime;
        return std::move(options);
      }()) {}

Election::~Election() { StopRenewing(); }

absl::Duration Election::Left() const {
  return absl::Nanoseconds(held_until_ns_.load()) - options_.uptime();
}

void Election::HoldFrom(absl::Duration asked, absl::Duration ttl) {
  held_until_ns_ = absl::ToInt64Nanoseconds(asked + ttl - ttl / kMarginShare);
}

void Election::Drop() {
  held_until_ns_ = 0;
  lease_ = 0;
}

absl::Status Election::MayAct() const {
  if (lease_ != 0 && Left() > absl::ZeroDuration()) return absl::OkStatus();
  return Refusal(v1::ERROR_REASON_NOT_ACTIVE_COORDINATOR, "",
                 "this coordinator is not the active one any more: ask the other one");
}

absl::Status Election::GrantLease() {
  const absl::Duration asked = options_.uptime();
  MP_ASSIGN_OR_RETURN(const EtcdLease lease, etcd_->Grant(options_.ttl, kPatience));
  HoldFrom(asked, std::min(lease.ttl, options_.ttl));
  lease_ = lease.id;
  return absl::OkStatus();
}

absl::StatusOr<Standing> Election::Try() {
  // An answer that came too late, or never: the key may be there, and goes with the lease.
  if (lease_ != 0 && !MayAct().ok()) Drop();
  MP_ASSIGN_OR_RETURN(const std::optional<EtcdKey> there, etcd_->Get(options_.key, kPatience));
  if (there.has_value() && there->lease != lease_) return Standing{0, there->value};
  if (lease_ == 0) MP_RETURN_IF_ERROR(GrantLease());
  const auto key = etcd_->Create(options_.key, options_.value, lease_, kPatience);
  if (absl::IsNotFound(key.status())) Drop();
  if (!key.ok()) return key.status();
  if (key->lease == lease_) {
    MP_RETURN_IF_ERROR(MayAct());
    return Standing{key->create_revision, key->value};
  }
  etcd_->Revoke(lease_, kPatience).IgnoreError();
  Drop();
  return Standing{0, key->value};
}

absl::Status Election::Renew() {
  const absl::Duration left = Left();
  if (lease_ == 0 || left <= absl::ZeroDuration()) return absl::NotFoundError("the lease is over");
  const absl::Duration asked = options_.uptime();
  const auto ttl = etcd_->KeepAlive(lease_, std::min(kPatience, left));
  if (absl::IsNotFound(ttl.status())) held_until_ns_ = 0;
  if (!ttl.ok()) return ttl.status();
  // What was lost while the answer was on its way stays lost.
  MP_RETURN_IF_ERROR(MayAct());
  HoldFrom(asked, std::min(*ttl, options_.ttl));
  return absl::OkStatus();
}

void Election::KeepRenewing(std::function<void(const absl::Status& why)> lost) {
  thread_ = std::thread([this, lost = std::move(lost)] { RunRenewals(lost); });
}

void Election::RunRenewals(const std::function<void(const absl::Status&)>& lost) {
  absl::Status last = absl::UnavailableError("the lease was not renewed in time");
  while (true) {
    const absl::Duration left = Left();
    if (left <= absl::ZeroDuration()) return lost(last);
    const absl::Status status = Renew();
    if (!status.ok()) last = status;
    const absl::Duration pause = status.ok()
                                     ? options_.ttl / kRenewalsPerLease
                                     : std::min(kRetry, std::max(Left(), absl::ZeroDuration()));
    absl::MutexLock lock(&mutex_);
    if (mutex_.AwaitWithTimeout(absl::Condition(&stopping_), pause)) return;
  }
}

void Election::StopRenewing() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  if (thread_.joinable()) thread_.join();
}

void Election::Resign() {
  StopRenewing();
  const int64_t lease = lease_;
  Drop();
  if (lease != 0) etcd_->Revoke(lease, kPatience).IgnoreError();
}

}  // namespace milepost::coordinator
