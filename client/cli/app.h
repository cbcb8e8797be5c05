// The command line: flags, help, and which command runs.
#ifndef MILEPOST_CLIENT_CLI_APP_H_
#define MILEPOST_CLIENT_CLI_APP_H_

#include "client/cli/completion.h"

namespace milepost::client {

// Parses the arguments, runs the command and gives the exit code: 2, with what was expected and the
// nearest valid name on stderr, when they make no sense. Blocks for as long as the command does.
int Main(int argc, const char* const* argv);

// The commands as Main knows them.
CommandInfo DescribeCommands();

}  // namespace milepost::client

#endif  // MILEPOST_CLIENT_CLI_APP_H_
