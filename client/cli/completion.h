// Shell completion scripts, made from the tree of commands.
#ifndef MILEPOST_CLIENT_CLI_COMPLETION_H_
#define MILEPOST_CLIENT_CLI_COMPLETION_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace milepost::client {

struct FlagInfo {
  std::vector<std::string> names;  // "-o", "--output"
  std::string help;
  bool takes_value = false;
  std::vector<std::string> values;  // all valid values, when they can be listed
};

struct CommandInfo {
  std::string name;
  std::vector<std::string> aliases;
  std::string help;
  std::vector<FlagInfo> flags;
  // values of the first positional, when they can be listed
  std::vector<std::string> positional_values;
  bool takes_files = false;  // a positional is a file
  // The command that prints the positionals' possible values, one per line: "job list -o name".
  std::string listed_by;
  std::vector<CommandInfo> commands;
};

// `shell` is "bash", "zsh" or "fish" (INVALID_ARGUMENT otherwise). Pure.
absl::StatusOr<std::string> CompletionScript(const CommandInfo& root, const std::string& shell);

}  // namespace milepost::client

#endif  // MILEPOST_CLIENT_CLI_COMPLETION_H_
