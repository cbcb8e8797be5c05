#include "engine/data/llmc_header.h"

#include <cstring>

#include "absl/strings/str_cat.h"

namespace milepost::data {
namespace {

constexpr int32_t kGpt2Magic = 20240520;
constexpr int32_t kGpt2Version = 1;
constexpr int32_t kLlama3Magic = 20240801;
constexpr int32_t kLlama3Version = 7;

int32_t Number(absl::string_view bytes, size_t index) {
  int32_t number;  // the host is little-endian, as the file
  std::memcpy(&number, bytes.data() + index * sizeof(number), sizeof(number));
  return number;
}

}  // namespace

bool IsLlmc(absl::string_view prefix) {
  if (prefix.size() < sizeof(int32_t)) return false;
  const int32_t magic = Number(prefix, 0);
  return magic == kGpt2Magic || magic == kLlama3Magic;
}

absl::StatusOr<LlmcHeader> ParseLlmcHeader(absl::string_view prefix) {
  if (!IsLlmc(prefix)) return absl::InvalidArgumentError("not llm.c's: another magic number");
  if (static_cast<int64_t>(prefix.size()) < kLlmcHeaderBytes) {
    return absl::InvalidArgumentError("malformed llm.c header: the file ends inside it");
  }
  const bool gpt2 = Number(prefix, 0) == kGpt2Magic;
  const int32_t expected = gpt2 ? kGpt2Version : kLlama3Version;
  if (Number(prefix, 1) != expected) {
    return absl::InvalidArgumentError(absl::StrCat("llm.c format version ", Number(prefix, 1),
                                                   "; version ", expected, " can be read of its ",
                                                   gpt2 ? "GPT-2" : "Llama 3", " tokens"));
  }
  if (Number(prefix, 2) < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("malformed llm.c header: ", Number(prefix, 2), " tokens"));
  }
  return LlmcHeader{gpt2 ? TokenType::kUint16 : TokenType::kUint32, Number(prefix, 2)};
}

}  // namespace milepost::data
