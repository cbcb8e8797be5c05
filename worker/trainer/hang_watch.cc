#include "worker/trainer/hang_watch.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/steady_time.h"

namespace milepost::worker {
namespace {

using runtime::Activity;

constexpr absl::Duration kLook = absl::Seconds(1);
constexpr int kLongestTimes = 20;
// Before an abort and after it: ranks that wait for others come back at once.
constexpr absl::Duration kLongBefore = absl::Seconds(30);
constexpr absl::Duration kLongAfter = absl::Seconds(5);
constexpr int kUnusualTimes = 3;  // of the longest ever
constexpr int kFirstTimes = 6;    // of the patience

}  // namespace

std::optional<Hang> HangJudge::Look(const runtime::ActivityBoard::Seen& seen, absl::Time now,
                                    bool aborting) {
  if (seen.turn != seen_.turn || since_ == absl::InfinitePast()) {
    if (since_ != absl::InfinitePast()) {
      absl::Duration& longest = longest_[static_cast<size_t>(seen_.activity)];
      longest = std::max(longest, now - since_);
    }
    seen_ = seen;
    since_ = now;
  }
  if (aborting) abort_time_ = std::min(abort_time_, now);
  if (seen.activity == Activity::kOther) return std::nullopt;
  const absl::Duration took = now - since_;
  const absl::Duration longest = longest_[static_cast<size_t>(seen.activity)];
  // Each piece of setting up is another: how long one took says nothing of the next.
  const bool first = longest == absl::ZeroDuration() || seen.activity == Activity::kSetUp;
  const absl::Duration patience = first ? kFirstTimes * patience_ : patience_;
  if (took > std::max(patience, kLongestTimes * longest)) return Describe(took);
  const bool the_cause = seen.activity == Activity::kData && abort_time_ <= now &&
                         abort_time_ - since_ > kLongBefore && now - abort_time_ > kLongAfter &&
                         took > kUnusualTimes * longest;
  if (the_cause) return Describe(took);
  return std::nullopt;
}

Hang HangJudge::Describe(absl::Duration took) const {
  const std::string time = absl::StrFormat("%.0f s", absl::ToDoubleSeconds(took));
  const std::string step = absl::StrCat("step ", seen_.step, ": ");
  const v1::FailureClass of_device =
      on_gpu_ ? v1::FAILURE_CLASS_DEVICE : v1::FAILURE_CLASS_INTERNAL;
  switch (seen_.activity) {
    case Activity::kData:
      return {v1::FAILURE_CLASS_DATA,
              absl::StrCat(step, "no data has come for ", time,
                           ": does the file system of data.train and data.validation answer?")};
    case Activity::kMicroStep:
      return {of_device, absl::StrCat(step, "forward and backward hang: begun ", time, " ago")};
    case Activity::kUpdate:
      return {of_device,
              absl::StrCat(step, "the reduction of gradients or the update hangs: begun ", time,
                           " ago")};
    case Activity::kValidation:
      return {of_device, absl::StrCat("the validation after step ", seen_.step,
                                      " hangs: its turn has begun ", time, " ago")};
    case Activity::kSetUp:
      return {v1::FAILURE_CLASS_HOST,
              absl::StrCat("setting up hangs: nothing has come of it for ", time,
                           ": do the file systems of data.train, train.init_from and "
                           "train.offload.path answer, and the GPU's driver?")};
    case Activity::kOther:
      break;
  }
  return {v1::FAILURE_CLASS_INTERNAL, absl::StrCat(step, "hangs for ", time)};
}

HangWatch::HangWatch(const runtime::ActivityBoard* board, Options options)
    : board_(board), options_(std::move(options)), thread_([this] { Run(); }) {}

HangWatch::~HangWatch() {
  {
    absl::MutexLock lock(&mutex_);
    end_ = true;
  }
  thread_.join();
}

void HangWatch::Run() {
  HangJudge judge(options_.patience, options_.on_gpu);
  while (true) {
    {
      absl::MutexLock lock(&mutex_);
      if (mutex_.AwaitWithTimeout(absl::Condition(&end_), kLook)) return;
    }
    options_.alive();
    const auto hang = judge.Look(board_->Look(), SteadyNow(), options_.aborting());
    if (hang.has_value()) return options_.on_hang(*hang);
  }
}

}  // namespace milepost::worker
