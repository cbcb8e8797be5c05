#include "engine/optim/batch.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/status_macros.h"

namespace milepost::optim {
namespace {

// Far above any use, and small enough that products of three fit in 64 bits.
constexpr int64_t kMaxSequences = 1 << 20;

absl::Status CheckField(const char* field, std::optional<int64_t> value) {
  if (!value || (*value >= 1 && *value <= kMaxSequences)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("train.batch.", field, ": ", *value, "; expected 1 to ", kMaxSequences));
}

// "768 or 1024": the multiples of `unit` around `value`.
std::string NearestMultiples(int64_t value, int64_t unit) {
  const int64_t below = value / unit * unit;
  return below == 0 ? absl::StrCat(unit) : absl::StrCat(below, " or ", below + unit);
}

std::string Ranks(int64_t ranks) { return absl::StrCat(ranks, ranks == 1 ? " rank" : " ranks"); }

// global / (known * ranks), where `known_name` is the given one of micro and accumulation.
absl::StatusOr<int64_t> Divide(int64_t global, const char* known_name, int64_t known,
                               int64_t ranks) {
  const int64_t unit = known * ranks;
  if (global % unit == 0) return global / unit;
  std::string advice = absl::StrCat("use train.batch.global: ", NearestMultiples(global, unit));
  if (global % ranks == 0) {
    // The nearest value of the known field with which the global batch can stay.
    int64_t below = std::min(known, global / ranks), above = known + 1;
    while (global / ranks % below != 0) --below;
    while (above <= global / ranks && global / ranks % above != 0) ++above;
    absl::StrAppend(&advice, ", or train.batch.", known_name, ": ", below);
    if (above <= global / ranks) absl::StrAppend(&advice, " or ", above);
  }
  return absl::InvalidArgumentError(absl::StrCat("train.batch.global: ", global,
                                                 " is not a multiple of ", known_name, " ", known,
                                                 " x ", Ranks(ranks), " = ", unit, "; ", advice));
}

}  // namespace

absl::StatusOr<BatchTriple> DeriveBatch(const BatchRequest& request, int64_t ranks) {
  MP_CHECK(ranks >= 1 && ranks <= kMaxSequences) << ranks;
  MP_RETURN_IF_ERROR(CheckField("global", request.global));
  MP_RETURN_IF_ERROR(CheckField("micro", request.micro));
  MP_RETURN_IF_ERROR(CheckField("accumulation", request.accumulation));
  if (!request.global && !request.micro && !request.accumulation) {
    return absl::InvalidArgumentError(
        "train.batch: give two of global, micro and accumulation; the third is derived");
  }
  BatchTriple triple;
  if (request.global && !(request.micro && request.accumulation)) {
    triple.global = *request.global;
    if (request.micro) {
      triple.micro = *request.micro;
      MP_ASSIGN_OR_RETURN(triple.accumulation, Divide(triple.global, "micro", triple.micro, ranks));
    } else {
      triple.accumulation = request.accumulation.value_or(1);
      MP_ASSIGN_OR_RETURN(triple.micro,
                          Divide(triple.global, "accumulation", triple.accumulation, ranks));
    }
    return triple;
  }
  triple.micro = request.micro.value_or(1);
  triple.accumulation = request.accumulation.value_or(1);
  triple.global = triple.micro * triple.accumulation * ranks;
  if (triple.global > kMaxSequences) {
    return absl::InvalidArgumentError(absl::StrCat(
        "train.batch: micro ", triple.micro, " x accumulation ", triple.accumulation, " x ",
        Ranks(ranks), " = ", triple.global, " sequences; at most ", kMaxSequences));
  }
  if (request.global && *request.global != triple.global) {
    return absl::InvalidArgumentError(absl::StrCat(
        "train.batch: global ", *request.global, " is not micro ", triple.micro, " x accumulation ",
        triple.accumulation, " x ", Ranks(ranks), " = ", triple.global,
        "; leave one of the three out, or use train.batch.global: ", triple.global));
  }
  return triple;
}

}  // namespace milepost::optim
