// How text is generated: by milepost-trainer, which owns the device.
#ifndef MILEPOST_CLIENT_CLI_GENERATE_H_
#define MILEPOST_CLIENT_CLI_GENERATE_H_

#include <string>
#include <vector>

namespace milepost::client {

struct GenerateOptions;

// The command line of the trainer that prints the text on stdout. `checkpoint` is a full name.
std::vector<std::string> GenerateArgv(const std::string& address, const std::string& checkpoint,
                                      const GenerateOptions& options);

}  // namespace milepost::client

#endif  // MILEPOST_CLIENT_CLI_GENERATE_H_
