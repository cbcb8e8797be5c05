// A Hugging Face folder with a tokenizer: for text in and out of a model, and to go with an export.
//
//   const std::string folder = TokenizerOf(access, "jobs/3");
//   if (!folder.empty()) ... TokenizerFiles(folder) ...
//
// All of it blocks on the disk.
#ifndef MILEPOST_CLIENT_CLI_TOKENIZER_FOLDER_H_
#define MILEPOST_CLIENT_CLI_TOKENIZER_FOLDER_H_

#include <map>
#include <string>

#include "absl/status/statusor.h"

namespace milepost::client {

class Access;

// Whether a tokenizer is in the folder. An empty name has none.
bool HasTokenizer(const std::string& folder);

// The job's train.init_from. Empty: it has none, or there is no such job. Blocks on the
// coordinator.
std::string InitialFolderOf(const Access& access, const std::string& job);

// The folder of the job's initial weights, where it is on this machine and has a tokenizer. Empty:
// it is not, or there is no such job. Blocks on the coordinator too.
std::string TokenizerOf(const Access& access, const std::string& job);

// The tokenizer's files by name, the chat template and generation_config.json among them.
// INVALID_ARGUMENT: there is no tokenizer, or a file is longer than 128 MiB. Otherwise
// ReadRegularFile's errors.
absl::StatusOr<std::map<std::string, std::string>> TokenizerFiles(const std::string& folder);

}  // namespace milepost::client

#endif  // MILEPOST_CLIENT_CLI_TOKENIZER_FOLDER_H_
