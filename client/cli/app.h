// The command line: flags, help, and the choice of the command.
#ifndef MILEPOST_CLIENT_CLI_APP_H_
#define MILEPOST_CLIENT_CLI_APP_H_

#include "client/cli/completion.h"

namespace milepost::client {

// Parses the arguments, runs the command and returns its exit code. It returns 2 when the arguments
// make no sense, and writes to stderr what was expected and the nearest valid name. Blocks as long
// as the command does.
int Main(int argc, const char* const* argv);

// The commands as Main knows them.
CommandInfo DescribeCommands();

}  // namespace milepost::client

#endif  // MILEPOST_CLIENT_CLI_APP_H_
