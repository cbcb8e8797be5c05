// The one table of a daemon's flags: its --help, its command line and its --config file are made
// of it.
//
//   FlagTable table("Does things.", "milepost-thing");
//   table.Required(table.app().add_option("--data-dir", data_dir, "where things are"));
//   table.Live(table.app().add_option("--stop-seconds", seconds, "for the last one"));
//   if (std::optional<int> ended = table.Parse(argc, argv)) return *ended;
//
// A --config file is YAML: a field for each flag, under its long name without the dashes. A flag
// that may be repeated takes a list, one without a value takes true or false. What the command
// line gives wins over the file, as a whole. What is wrong with a file is said as of a job spec
// (common/spec/parse.h), at most 10 problems at once:
//
//   coordinator.yaml:3: lease-second: unknown field; did you mean 'lease-seconds'?
//
// Not thread-safe.
#ifndef MILEPOST_COMMON_FLAGS_FLAG_TABLE_H_
#define MILEPOST_COMMON_FLAGS_FLAG_TABLE_H_

#include <CLI/CLI.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace milepost {

class FlagTable {
 public:
  // With --config and --version.
  FlagTable(const std::string& description, const std::string& name);
  FlagTable(const FlagTable&) = delete;
  FlagTable& operator=(const FlagTable&) = delete;

  // Where flags are added. What takes more than one value has to say so by its type (a vector).
  CLI::App& app() { return app_; }

  // The command line or the file has to give it.
  CLI::Option* Required(CLI::Option* option);
  // SIGHUP may change it.
  CLI::Option* Live(CLI::Option* option);
  // It is true of one start: a file, which counts at every one, may not have it.
  CLI::Option* Once(CLI::Option* option);

  // What the process is to end with when there is no more to do: --help, --version, or an error
  // that has been printed. Blocks on the file.
  std::optional<int> Parse(int argc, const char* const* argv);

  // The same without a word: INVALID_ARGUMENT says what is wrong. `args`: without the program's
  // name.
  absl::Status Read(const std::vector<std::string>& args);
  // The same, with `text` as the file whatever --config says.
  absl::Status ReadWith(const std::vector<std::string>& args, absl::string_view text,
                        absl::string_view filename);

  // Empty: none.
  const std::string& config() const { return config_; }

  struct Changes {
    std::vector<std::string> live;   // flags that SIGHUP may change, without their dashes
    std::vector<std::string> fixed;  // those that need a restart
  };
  // Whose values differ from those in `before`, a table of the same flags.
  Changes ChangesSince(FlagTable& before);

 private:
  std::vector<CLI::Option*> Fields();
  void ParseCommandLine(std::vector<std::string> args);
  absl::Status ReadCommandLine(const std::vector<std::string>& args);
  absl::Status ReadFile(absl::string_view text, absl::string_view filename);
  absl::Status CheckRequired() const;

  CLI::App app_;
  std::string config_;
  std::set<CLI::Option*> required_;
  std::set<CLI::Option*> live_;
  std::set<CLI::Option*> once_;
};

}  // namespace milepost

#endif  // MILEPOST_COMMON_FLAGS_FLAG_TABLE_H_
