// Internal to the checks of a job spec: what they find, field by field.
//
//   Checker check;
//   check.Int("train.zero.stage", train.zero().stage(), 0, 3);
//   return check.Take();
#ifndef MILEPOST_COMMON_SPEC_CHECKER_H_
#define MILEPOST_COMMON_SPEC_CHECKER_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/spec/validate.h"
#include "milepost/v1/job_spec.pb.h"

namespace milepost {

inline constexpr int64_t kMaxRanks = 16384;
inline constexpr int64_t kMaxStages = 64;  // of a pipeline
inline constexpr int64_t kMaxChunks = 16;  // of each of them
inline constexpr int64_t kMaxSideBySide = 8;
inline constexpr int64_t kMaxContext = 1024;
inline constexpr int64_t kMaxExpertRanks = 1024;

class Checker {
 public:
  void Add(std::vector<FieldViolation> violations) {
    for (FieldViolation& violation : violations) violations_.push_back(std::move(violation));
  }

  std::vector<FieldViolation> Take() { return std::move(violations_); }

  void Add(absl::string_view field, std::string message) {
    violations_.push_back({std::string(field), std::move(message)});
  }

  bool Int(absl::string_view field, int64_t value, int64_t low, int64_t high) {
    if (value >= low && value <= high) return true;
    Add(field, absl::StrCat("expected ", low, " to ", high, ", got ", value));
    return false;
  }

  // Of a field without a default, which is 0 where it is not given.
  bool Required(absl::string_view field, int64_t value, int64_t low, int64_t high) {
    if (value != 0) return Int(field, value, low, high);
    Add(field, absl::StrCat("required: a whole number from ", low, " to ", high));
    return false;
  }

  // [low, high], or [low, high) or (low, high] with the brackets given.
  bool Real(absl::string_view field, double value, double low, double high,
            absl::string_view brackets = "[]") {
    const bool above = brackets[0] == '[' ? value >= low : value > low;
    const bool below = brackets[1] == ']' ? value <= high : value < high;
    if (above && below) return true;  // false for NaN
    Add(field, absl::StrCat("expected a number in ", brackets.substr(0, 1), low, ", ", high,
                            brackets.substr(1, 1), ", got ", value));
    return false;
  }

 private:
  std::vector<FieldViolation> violations_;
};

// A path of the spec, which must be absolute by then. Whether it is one.
bool CheckPath(absl::string_view field, const std::string& path, Checker* check);

// What a spec says of the checkpoints that are kept, and of the one to begin with. Whether
// keep_every is in its range.
bool CheckKeptCheckpoints(const v1::CheckpointSpec& checkpoint, Checker* check);

// The parts of CheckJobSpec that have files of their own.
void CheckModel(const v1::ModelSpec& model, Checker* check);  // validate_model.cc
void CheckData(const v1::JobSpec& spec, Checker* check);      // validate_data.cc
void CheckTrain(const v1::JobSpec& spec, Checker* check);     // validate_train.cc
void CheckMesh(const v1::JobSpec& spec, Checker* check);      // validate_mesh.cc
void CheckSync(const v1::JobSpec& spec, Checker* check);      // validate_sync.cc
// Of a spec that has a script, and what it may not have besides.
void CheckScript(const v1::JobSpec& spec, Checker* check);          // validate_script.cc
void CheckContainer(const v1::ScriptSpec& script, Checker* check);  // validate_container.cc

}  // namespace milepost

#endif  // MILEPOST_COMMON_SPEC_CHECKER_H_
