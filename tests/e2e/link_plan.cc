#include "tests/e2e/link_plan.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace milepost::e2e {
namespace {

constexpr double kTwoTo32 = 4294967296.0;

}  // namespace

PacketFate Decide(const LinkPlan& plan, absl::Duration age, uint64_t random) {
  PacketFate fate;
  if (plan.period > absl::ZeroDuration()) {
    absl::Duration within;
    absl::IDivDuration(age, plan.period, &within);
    fate.dropped = within < plan.down;
  }
  const double chance = static_cast<double>(random >> 32) / kTwoTo32;
  fate.dropped = fate.dropped || chance < plan.loss;
  fate.delay = plan.delay + plan.jitter * (static_cast<double>(random & 0xffffffff) / kTwoTo32);
  return fate;
}

std::string LinkPlan::ToString() const {
  if (period > absl::ZeroDuration() && down >= period) return "cut";
  std::string text;
  const auto add = [&text](const std::string& what) {
    absl::StrAppend(&text, text.empty() ? "" : ", ", what);
  };
  if (loss > 0) add(absl::StrFormat("loss %.0f%%", 100 * loss));
  if (delay > absl::ZeroDuration()) add("delay " + absl::FormatDuration(delay));
  if (jitter > absl::ZeroDuration()) add("jitter " + absl::FormatDuration(jitter));
  if (period > absl::ZeroDuration() && down > absl::ZeroDuration()) {
    add(absl::StrCat("down for ", absl::FormatDuration(down), " of every ",
                     absl::FormatDuration(period)));
  }
  return text.empty() ? "clean" : text;
}

}  // namespace milepost::e2e
