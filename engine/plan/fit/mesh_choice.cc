#include "engine/plan/fit/mesh_choice.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/spec/auto_fields.h"
#include "common/spec/sizes.h"
#include "common/status_macros.h"
#include "engine/plan/fit/mesh_search.h"
#include "engine/plan/human_units.h"

namespace milepost::plan {
namespace {

constexpr double kNoSlower = 1.01;

std::string Bytes(int64_t bytes) { return HumanBytes(static_cast<double>(bytes)); }

class MeshChooser {
 public:
  MeshChooser(const v1::JobSpec& spec, const RankPlace& place)
      : spec_(spec), place_(place), space_(OpenSpace(spec)), search_(spec, space_, place) {}

  absl::StatusOr<Resolved> Resolve() {
    MP_ASSIGN_OR_RETURN(const std::vector<RankedSetting> best, search_.Best(1));
    if (best.empty()) return Refusal();
    chosen_ = best.front().setting;
    MP_RETURN_IF_ERROR(FindSecondsInTurn());
    Resolved resolved = {.spec = WithSetting(spec_, chosen_)};
    MP_RETURN_IF_ERROR(AddTensor(&resolved));
    if (MicroIsAuto(spec_)) MP_RETURN_IF_ERROR(AddMicro(&resolved));
    if (StageIsAuto(spec_)) MP_RETURN_IF_ERROR(AddStage(&resolved));
    if (RecomputeIsAuto(spec_)) MP_RETURN_IF_ERROR(AddRecompute(&resolved));
    v1::Choice& first = resolved.choices.front();
    first.set_reason(absl::StrCat(first.reason(), "; expected ", HumanSeconds(chosen_.seconds),
                                  " a step, ", Bytes(chosen_.bytes), " of the ",
                                  Bytes(place_.memory_bytes), " of ", place_.memory_of));
    return resolved;
  }

 private:
  absl::Status Refusal() {
    MP_ASSIGN_OR_RETURN(const std::optional<Setting> least, search_.Smallest());
    if (!least.has_value()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "resources.mesh.tensor: auto: train.batch.global (", spec_.train().batch().global(),
          ") can be shared out among ", spec_.resources().ranks(),
          " ranks with no number of tensor ranks that the model has (",
          absl::StrJoin(space_.tensors, ", "), "): use fewer ranks or a larger batch"));
    }
    return absl::InvalidArgumentError(absl::StrCat(
        "does not fit whatever is chosen for the fields that are auto: a rank needs ",
        Bytes(least->bytes), " even with ",
        absl::StrCat("resources.mesh.tensor: ", least->tensor,
                     ", train.batch.micro: ", least->micro, ", train.zero.stage: ", least->stage,
                     " and train.recompute: ", Name(least->recompute)),
        ", and ", place_.memory_of, " has ", Bytes(place_.memory_bytes),
        "; shorten data.sequence_length, use more ranks, or make the model smaller"));
  }

  // Of what is not chosen drafts have micro-batches in turn.
  absl::Status FindSecondsInTurn() {
    in_turn_ = chosen_.seconds;
    if (chosen_.side_by_side == 1) return absl::OkStatus();
    MP_ASSIGN_OR_RETURN(const std::optional<double> seconds,
                        search_.LeastSeconds([this](const Setting& s) {
                          return s.tensor == chosen_.tensor && s.micro == chosen_.micro &&
                                 s.stage == chosen_.stage && s.recompute == chosen_.recompute;
                        }));
    in_turn_ = seconds.value_or(in_turn_);
    return absl::OkStatus();
  }

  // What is said of a value that was not chosen: "2 takes 1.12 times as long".
  absl::StatusOr<std::string> Beside(const std::string& value,
                                     const std::function<bool(const Setting&)>& has) {
    MP_ASSIGN_OR_RETURN(const std::optional<double> least, search_.LeastSeconds(has));
    if (!least.has_value()) return absl::StrCat(value, " does not fit");
    const double times = *least / in_turn_;
    return times < kNoSlower ? absl::StrCat(value, " is no faster")
                             : absl::StrFormat("%s takes %.2f times as long", value, times);
  }

  void Add(absl::string_view field, std::string value, std::string reason, Resolved* resolved) {
    v1::Choice& choice = resolved->choices.emplace_back();
    choice.set_field(std::string(field));
    choice.set_value(std::move(value));
    choice.set_reason(std::move(reason));
  }

  absl::Status AddTensor(Resolved* resolved) {
    std::vector<std::string> parts;
    for (const int tensor : space_.tensors) {
      if (tensor == chosen_.tensor) continue;
      const int data = spec_.resources().ranks() / tensor;
      if (spec_.train().batch().global() % data != 0) {
        parts.push_back(absl::StrCat(tensor, " leaves ", data, " data ranks, which the batch of ",
                                     spec_.train().batch().global(), " is no multiple of"));
        continue;
      }
      MP_ASSIGN_OR_RETURN(std::string part, Beside(absl::StrCat(tensor), [=](const Setting& s) {
                            return s.tensor == tensor;
                          }));
      parts.push_back(std::move(part));
    }
    Add("resources.mesh.tensor", absl::StrCat(chosen_.tensor),
        parts.empty() ? "no other number divides ranks and layers" : absl::StrJoin(parts, ", "),
        resolved);
    return absl::OkStatus();
  }

  absl::Status AddMicro(Resolved* resolved) {
    std::optional<int64_t> larger;
    for (const Setting& setting : Candidates(spec_, space_, place_)) {
      if (setting.tensor != chosen_.tensor || setting.micro <= chosen_.micro) continue;
      larger = std::min(larger.value_or(setting.micro), setting.micro);
    }
    std::string reason = "all sequences of a rank at once";
    if (larger.has_value()) {
      MP_ASSIGN_OR_RETURN(reason, Beside(absl::StrCat(*larger), [&](const Setting& s) {
                            return s.tensor == chosen_.tensor && s.micro == *larger;
                          }));
    }
    Add("train.batch.micro", absl::StrCat(chosen_.micro), reason, resolved);
    return absl::OkStatus();
  }

  absl::Status AddStage(Resolved* resolved) {
    std::vector<std::string> parts;
    const bool alone = spec_.resources().ranks() == chosen_.tensor;
    for (const int stage : space_.stages) {
      if (stage == chosen_.stage || alone) continue;
      MP_ASSIGN_OR_RETURN(std::string part, Beside(absl::StrCat(stage), [&](const Setting& s) {
                            return s.tensor == chosen_.tensor && s.stage == stage;
                          }));
      parts.push_back(std::move(part));
    }
    Add("train.zero.stage", absl::StrCat(chosen_.stage),
        parts.empty() ? "no data ranks to share it out among" : absl::StrJoin(parts, ", "),
        resolved);
    return absl::OkStatus();
  }

  absl::Status AddRecompute(Resolved* resolved) {
    std::vector<std::string> parts;
    for (const Recompute recompute : space_.recomputes) {
      if (recompute == chosen_.recompute) continue;
      MP_ASSIGN_OR_RETURN(std::string part, Beside(Name(recompute), [&](const Setting& s) {
                            return s.tensor == chosen_.tensor && s.recompute == recompute;
                          }));
      parts.push_back(std::move(part));
    }
    Add("train.recompute", Name(chosen_.recompute), absl::StrJoin(parts, ", "), resolved);
    return absl::OkStatus();
  }

  const v1::JobSpec& spec_;
  const RankPlace& place_;
  const MeshSpace space_;
  MeshSearch search_;
  Setting chosen_;
  double in_turn_ = 0;  // the seconds of the choice, with micro-batches in turn
};

}  // namespace

absl::StatusOr<Resolved> ResolveMesh(const v1::JobSpec& spec, const RankPlace& place) {
  return MeshChooser(spec, place).Resolve();
}

}  // namespace milepost::plan
