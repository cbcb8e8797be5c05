#include "engine/plan/planning.h"

#include "absl/strings/str_cat.h"

namespace milepost::plan {
namespace {

constexpr char kRemedy[] =
    "use fewer layers, fewer numbers of ranks (resources.min_ranks, resources.max_ranks), fewer "
    "fields that are auto, or train.recompute: full or selective instead of budget";

}  // namespace

absl::Status Planning::Spend(int64_t work) {
  if (!status_.ok()) return status_;
  spent_ += work;
  if (limits_.work > 0 && spent_ > limits_.work) {
    exhausted_ = true;
    status_ = absl::ResourceExhaustedError(
        absl::StrCat("planning this job takes more work than a request may (", limits_.work,
                     " ops): ", kRemedy));
    return status_;
  }
  if (may_go_on_ != nullptr && spent_ - asked_at_ >= kWorkBetween) {
    asked_at_ = spent_;
    status_ = may_go_on_();
  }
  return status_;
}

absl::Status Planning::Make(int64_t ops) {
  if (status_.ok() && limits_.ops > 0 && ops > limits_.ops) {
    exhausted_ = true;
    status_ = absl::ResourceExhaustedError(absl::StrCat(
        "a step of this job has ", ops, " operations, and a plan may have ", limits_.ops,
        ": use fewer layers or, in a pipeline, a "
        "larger train.batch.micro"));
  }
  return Spend(ops);
}

}  // namespace milepost::plan
