// Which rule updates each parameter: the optimizer's, changed by train.optimizer.groups.
//
//   MP_ASSIGN_OR_RETURN(ParameterUpdates updates,
//                       UpdatesOf(spec.train().optimizer(), graph, optimizer));
//   updates.by_parameter[i].frozen ...
//
// A pattern (`*`: any text, also none; `?`: any one character) matches a parameter's whole name, or
// the end of one from behind a dot on. The first entry that matches is the one that counts. Pure.
#ifndef MILEPOST_ENGINE_PLAN_PARAMETER_UPDATES_H_
#define MILEPOST_ENGINE_PLAN_PARAMETER_UPDATES_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/plan/step_plan.h"
#include "milepost/v1/job_spec.pb.h"

namespace milepost::plan {

struct ParameterUpdates {
  std::vector<ParameterUpdate> by_parameter;  // of graph.parameters
  std::vector<ParameterGroup> groups;         // as the spec lists them
};

// INVALID_ARGUMENT, naming train.optimizer.groups[i].match, for a pattern that matches nothing
// (with the parameters whose names come nearest) or nothing that an earlier one does not match, and
// where everything is frozen.
absl::StatusOr<ParameterUpdates> UpdatesOf(const v1::OptimizerSpec& spec, const graph::Graph& graph,
                                           Optimizer optimizer);

// `*` stands for any characters, `?` for one. To be asked for many names: takes time in proportion
// to a name's length, and to the pattern's in words of 64.
class NamePattern {
 public:
  explicit NamePattern(absl::string_view pattern);
  // All of the name, or the end of it from behind a dot on.
  bool Matches(absl::string_view name) const;

 private:
  static size_t Word(size_t position) { return position / 64; }
  static uint64_t Bit(size_t position) { return uint64_t{1} << position % 64; }

  // By position, as bits; a position is how many characters but `*` have been matched.
  std::vector<uint64_t> loops_;                   // where a `*` stands
  std::array<std::vector<uint64_t>, 256> steps_;  // by character: from where it leads on
  size_t length_ = 0;
};
bool MatchesName(absl::string_view pattern, absl::string_view name);

// The names that need the fewest changes to match, best first.
std::vector<std::string> NearestToPattern(absl::string_view pattern,
                                          const std::vector<std::string>& names, size_t count);

}  // namespace milepost::plan

#endif  // MILEPOST_ENGINE_PLAN_PARAMETER_UPDATES_H_
