#include "common/flags/reloader.h"

#include <spdlog/spdlog.h>

#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace milepost {

void LogReload(const absl::Status& status, const std::string& config,
               const FlagTable::Changes& since_last, const FlagTable::Changes& since_start,
               Service* service) {
  if (!status.ok()) {
    for (const absl::string_view line : absl::StrSplit(status.message(), '\n')) {
      spdlog::error("SIGHUP: {}", std::string(line));
    }
    spdlog::error("SIGHUP: {} is wrong: all values stay as they were", config);
    return service->Ready("the configuration is wrong: all values stay as they were");
  }
  spdlog::info("SIGHUP: {} read; changed: {}", config,
               since_last.live.empty() ? "nothing" : absl::StrJoin(since_last.live, ", "));
  if (!since_start.fixed.empty()) {
    spdlog::warn("SIGHUP: differs from what is in force, and needs a restart: {}",
                 absl::StrJoin(since_start.fixed, ", "));
  }
  service->Ready("the configuration was read again");
}

}  // namespace milepost
