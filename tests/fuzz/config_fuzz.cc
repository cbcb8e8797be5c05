// Any text as a daemon's --config file: refused with a message, or every value as its flag has it.
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "common/check.h"
#include "common/flags/flag_table.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  milepost::FlagTable table("A daemon.", "thing");
  std::string folder, level = "info";
  double seconds = 5;
  size_t bytes = 64;
  bool loud = false;
  std::vector<std::string> labels;
  table.Required(table.app().add_option("--data-dir", folder));
  table.Live(table.app().add_option("--log-level", level)->check(CLI::IsMember({"info", "debug"})));
  table.app().add_option("--seconds", seconds)->check(CLI::Range(1.0, 9.0));
  table.app().add_option("--bytes", bytes)->transform(CLI::AsSizeValue(false));
  table.app().add_flag("--loud", loud);
  table.app().add_option("--label", labels)->delimiter(',');
  const absl::string_view text(reinterpret_cast<const char*>(data), size);
  const absl::Status status = table.ReadWith({}, text, "fuzz.yaml");
  if (!status.ok()) {
    MP_CHECK(!status.message().empty());
    return 0;
  }
  MP_CHECK(seconds >= 1 && seconds <= 9 && (level == "info" || level == "debug"));
  return 0;
}
