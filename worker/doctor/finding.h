// A finding of `milepost doctor`: one line about this host, and advice where something is wrong.
#ifndef MILEPOST_WORKER_DOCTOR_FINDING_H_
#define MILEPOST_WORKER_DOCTOR_FINDING_H_

#include <string>
#include <utility>
#include <vector>

namespace milepost::worker {

enum class Level { kOk, kWarn, kFail };

struct Finding {
  Level level = Level::kOk;
  std::string check;   // "driver", "GPU 0", "disk"
  std::string text;    // what is
  std::string advice;  // what to do; empty when all is well
};
using Findings = std::vector<Finding>;

inline Finding Ok(std::string check, std::string text) {
  return {Level::kOk, std::move(check), std::move(text), ""};
}
inline Finding Warn(std::string check, std::string text, std::string advice) {
  return {Level::kWarn, std::move(check), std::move(text), std::move(advice)};
}
inline Finding Fail(std::string check, std::string text, std::string advice) {
  return {Level::kFail, std::move(check), std::move(text), std::move(advice)};
}

Level Worst(const Findings& findings);

// Text: one line for each finding, with its advice below it, and a last line that counts the
// findings. JSON: one object with `findings` and `worst`.
std::string FindingsText(const Findings& findings);
std::string FindingsJson(const Findings& findings);

}  // namespace milepost::worker

#endif  // MILEPOST_WORKER_DOCTOR_FINDING_H_
