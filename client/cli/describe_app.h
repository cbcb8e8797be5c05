// Describes the tree of commands, as it is parsed, for completion and man pages.
#ifndef MILEPOST_CLIENT_CLI_DESCRIBE_APP_H_
#define MILEPOST_CLIENT_CLI_DESCRIBE_APP_H_

#include <CLI/CLI.hpp>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "client/cli/completion.h"

namespace milepost::client {

// The values that an option may have, where they can be listed.
using OptionValues = std::map<const CLI::Option*, std::vector<std::string>>;

// `files`: the positionals that are files. Pure.
CommandInfo DescribeApp(const CLI::App& app, const OptionValues& values,
                        const std::set<const CLI::Option*>& files);

}  // namespace milepost::client

#endif  // MILEPOST_CLIENT_CLI_DESCRIBE_APP_H_
