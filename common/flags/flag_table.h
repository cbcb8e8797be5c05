// The only table of a daemon's flags. Its --help, its command line and its --config file all come
// from it.
//
//   FlagTable table("Does things.", "milepost-thing");
//   table.Required(table.app().add_option("--data-dir", data_dir, "where things are"));
//   table.Live(table.app().add_option("--stop-seconds", seconds, "for the last one"));
//   if (std::optional<int> ended = table.Parse(argc, argv)) return *ended;
//
// A --config file is YAML with a field for each flag, under its long name without the dashes. A
// flag that may be repeated takes a list, and a flag without a value takes true or false. A flag on
// the command line replaces the file's value as a whole. Problems in a file are reported as those
// of a job spec (common/spec/parse.h), at most 10 at once:
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
  // Adds --config and --version.
  FlagTable(const std::string& description, const std::string& name);
  FlagTable(const FlagTable&) = delete;
  FlagTable& operator=(const FlagTable&) = delete;

  // Add flags to it. A flag with more than one value must have a vector type.
  CLI::App& app() { return app_; }

  // Demands that the command line or the file sets the option.
  CLI::Option* Required(CLI::Option* option);
  // Lets SIGHUP change the option.
  CLI::Option* Live(CLI::Option* option);
  // Marks an option for one start only. A file, which applies to every start, must not have it.
  CLI::Option* Once(CLI::Option* option);

  // The exit code when there is nothing more to do: after --help, --version, or an error that has
  // been printed. Blocks on the file.
  std::optional<int> Parse(int argc, const char* const* argv);

  // Does the same and prints nothing. INVALID_ARGUMENT says what is wrong. `args` does not have the
  // program's name.
  absl::Status Read(const std::vector<std::string>& args);
  // Does the same, with `text` as the file, whatever --config says.
  absl::Status ReadWith(const std::vector<std::string>& args, absl::string_view text,
                        absl::string_view filename);

  // Empty: there is no file.
  const std::string& config() const { return config_; }

  struct Changes {
    std::vector<std::string> live;   // flags that SIGHUP may change, without their dashes
    std::vector<std::string> fixed;  // those that need a restart
  };
  // The flags whose values differ from those in `before`, a table of the same flags.
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
