#include "worker/script/stop_agreement.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <string>
#include <utility>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/status_macros.h"

namespace milepost::worker {
namespace {

constexpr absl::Duration kLookAtPage = absl::Milliseconds(100);  // whether the script uses the page
constexpr absl::Duration kTimeToStop = absl::Seconds(10);        // for all ranks to be told to stop

}  // namespace

StopAgreement::StopAgreement(StopPage* page, int world, Connect connect)
    : page_(page), world_(world), connect_(std::move(connect)), thread_([this] { Run(); }) {}

StopAgreement::~StopAgreement() {
  {
    const absl::MutexLock lock(&mutex_);
    ending_ = true;
    if (communicator_ != nullptr) communicator_->Abort("this rank's script has ended");
  }
  thread_.join();
}

void StopAgreement::Stop() {
  const absl::MutexLock lock(&mutex_);
  stop_time_ = std::min(stop_time_, absl::Now());
}

bool StopAgreement::Ending() const {
  const absl::MutexLock lock(&mutex_);
  return ending_;
}

void StopAgreement::Run() {
  while (!page_->used()) {
    const absl::MutexLock lock(&mutex_);
    if (mutex_.AwaitWithTimeout(absl::Condition(&ending_), kLookAtPage)) return;
  }
  const absl::Status met = world_ == 1 ? absl::OkStatus() : Meet();
  {
    const absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(this, &StopAgreement::Wanted));
    if (ending_) return;
  }
  Agree(met);
}

absl::Status StopAgreement::Meet() {
  // Told to stop meanwhile, the others are on their way too.
  auto communicator = connect_([this] {
    const absl::MutexLock lock(&mutex_);
    return ending_ || absl::Now() > stop_time_ + kTimeToStop;
  });
  MP_RETURN_IF_ERROR(communicator.status());
  (*communicator)->SetTimeout(kTimeToStop);
  const absl::MutexLock lock(&mutex_);
  communicator_ = *std::move(communicator);
  if (ending_) communicator_->Abort("this rank's script has ended");
  return absl::OkStatus();
}

void StopAgreement::Agree(const absl::Status& met) {
  int64_t call = page_->Freeze();
  absl::Status agreed = met;
  if (met.ok() && world_ > 1) {
    agreed = communicator_->AllReduce(absl::MakeSpan(&call, 1), comm::ReduceOp::kMax);
  }
  if (!agreed.ok()) {
    if (Ending()) return;
    spdlog::warn("the ranks cannot agree on where to stop, so each stops at its next step: {}",
                 std::string(agreed.message()));
    call = page_->Freeze();
  }
  page_->Decide(call);
}

}  // namespace milepost::worker
