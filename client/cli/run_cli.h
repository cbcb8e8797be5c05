// For tests: runs one command line in this process.
#ifndef MILEPOST_CLIENT_CLI_RUN_CLI_H_
#define MILEPOST_CLIENT_CLI_RUN_CLI_H_

#include <gtest/gtest.h>

#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "client/cli/app.h"

namespace milepost::client {

struct Outcome {
  int exit_code;
  std::string out;
  std::string err;
};

// `line` without "milepost", split at spaces.
inline Outcome RunCli(const std::string& line) {
  std::vector<std::string> words = absl::StrSplit("milepost " + line, ' ', absl::SkipEmpty());
  std::vector<const char*> argv;
  for (const std::string& word : words) argv.push_back(word.c_str());
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  const int exit_code = Main(static_cast<int>(argv.size()), argv.data());
  fflush(stdout);
  return {exit_code, ::testing::internal::GetCapturedStdout(),
          ::testing::internal::GetCapturedStderr()};
}

}  // namespace milepost::client

#endif  // MILEPOST_CLIENT_CLI_RUN_CLI_H_
