#include "worker/doctor/finding.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace milepost::worker {
namespace {

const char* Name(Level level) {
  return level == Level::kOk ? "ok" : level == Level::kWarn ? "warn" : "fail";
}

}  // namespace

Level Worst(const Findings& findings) {
  Level worst = Level::kOk;
  for (const Finding& finding : findings) worst = std::max(worst, finding.level);
  return worst;
}

std::string FindingsText(const Findings& findings) {
  std::string text;
  int warnings = 0, failures = 0;
  for (const Finding& finding : findings) {
    warnings += finding.level == Level::kWarn;
    failures += finding.level == Level::kFail;
    absl::StrAppendFormat(&text, "%-5s %-16s %s\n", Name(finding.level), finding.check,
                          finding.text);
    if (!finding.advice.empty()) absl::StrAppend(&text, "        -> ", finding.advice, "\n");
  }
  return absl::StrCat(text, findings.size(), " checks, ", failures, " failed, ", warnings,
                      warnings == 1 ? " warning\n" : " warnings\n");
}

std::string FindingsJson(const Findings& findings) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const Finding& finding : findings) {
    list.push_back({{"check", finding.check},
                    {"level", Name(finding.level)},
                    {"text", finding.text},
                    {"advice", finding.advice}});
  }
  const nlohmann::ordered_json json = {{"worst", Name(Worst(findings))}, {"findings", list}};
  return json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace milepost::worker
