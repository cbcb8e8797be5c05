// The header of llm.c's .bin token files: 256 little-endian int32. The first three are magic,
// version and number of tokens (llm.c/dev/data/data_common.py). Pure and thread-safe.
#ifndef MILEPOST_ENGINE_DATA_LLMC_HEADER_H_
#define MILEPOST_ENGINE_DATA_LLMC_HEADER_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/data/token_file.h"

namespace milepost::data {

inline constexpr int64_t kLlmcHeaderBytes = 1024;

struct LlmcHeader {
  TokenType type = TokenType::kUint16;
  int64_t tokens = 0;
};

// True when a file that begins like this is one, even a damaged one.
bool IsLlmc(absl::string_view prefix);

// `prefix` has the file's first bytes. INVALID_ARGUMENT says what is wrong, without the path.
absl::StatusOr<LlmcHeader> ParseLlmcHeader(absl::string_view prefix);

}  // namespace milepost::data

#endif  // MILEPOST_ENGINE_DATA_LLMC_HEADER_H_
