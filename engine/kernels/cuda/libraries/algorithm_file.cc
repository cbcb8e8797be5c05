#include "engine/kernels/cuda/libraries/algorithm_file.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/checksum.h"
#include "common/regular_file.h"
#include "common/status_macros.h"

namespace milepost::kernels::cuda {
namespace {

constexpr absl::string_view kFormat = "milepost-products 1";
constexpr absl::string_view kChecksum = "xxh3 ";
constexpr size_t kMaxKey = 256;

bool Printable(absl::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c >= ' ' && c < 127; });
}

std::string Hex(uint64_t word) { return absl::StrCat(absl::Hex(word, absl::kZeroPad16)); }

bool ParseHex(absl::string_view text, uint64_t* word) {
  return text.size() == 16 && absl::SimpleHexAtoi(text, word);
}

bool ParseLine(absl::string_view line, std::string* key, Algorithm* algorithm) {
  const std::vector<absl::string_view> fields = absl::StrSplit(line, absl::MaxSplits(' ', 3));
  if (fields.size() != 4 || fields[0].size() != 16 * algorithm->words.size()) return false;
  for (size_t i = 0; i < algorithm->words.size(); ++i) {
    if (!ParseHex(fields[0].substr(16 * i, 16), &algorithm->words[i])) return false;
  }
  *key = std::string(fields[3]);
  return absl::SimpleAtoi(fields[1], &algorithm->workspace_bytes) &&
         absl::SimpleAtoi(fields[2], &algorithm->nanoseconds) && algorithm->workspace_bytes >= 0 &&
         algorithm->nanoseconds >= 0 && !key->empty() && key->size() <= kMaxKey && Printable(*key);
}

// The text without its last line, which must be the checksum of the rest.
bool Verify(absl::string_view text, absl::string_view* body) {
  if (!absl::ConsumeSuffix(&text, "\n")) return false;
  const size_t at = text.rfind('\n');
  if (at == absl::string_view::npos) return false;
  absl::string_view last = text.substr(at + 1);
  uint64_t expected = 0;
  *body = text.substr(0, at + 1);
  return absl::ConsumePrefix(&last, kChecksum) && ParseHex(last, &expected) &&
         expected == Xxh3(*body);
}

}  // namespace

AlgorithmTable::AlgorithmTable(std::string identity) : identity_(std::move(identity)) {
  for (char& c : identity_) {
    if (c < ' ' || c >= 127) c = '?';
  }
}

const Algorithm* AlgorithmTable::Find(absl::string_view key) const {
  const auto at = algorithms_.find(key);
  return at == algorithms_.end() ? nullptr : &at->second;
}

void AlgorithmTable::Put(absl::string_view key, const Algorithm& algorithm) {
  if (key.empty() || key.size() > kMaxKey || !Printable(key)) return;
  const auto at = algorithms_.find(key);
  if (at != algorithms_.end()) {
    at->second = algorithm;
  } else if (size() < kMaxAlgorithms) {
    algorithms_.emplace(key, algorithm);
  }
}

std::string AlgorithmTable::Format() const {
  std::string text = absl::StrCat(kFormat, "\n", identity_, "\n");
  for (const auto& [key, algorithm] : algorithms_) {
    for (const uint64_t word : algorithm.words) absl::StrAppend(&text, Hex(word));
    absl::StrAppend(&text, " ", algorithm.workspace_bytes, " ", algorithm.nanoseconds, " ", key,
                    "\n");
  }
  absl::StrAppend(&text, kChecksum, Hex(Xxh3(text)), "\n");
  return text;
}

absl::Status AlgorithmTable::Parse(absl::string_view text) {
  algorithms_.clear();
  if (static_cast<int64_t>(text.size()) > kMaxAlgorithmFileBytes) {
    return absl::DataLossError(absl::StrCat("is ", text.size(), " bytes, more than ",
                                            kMaxAlgorithmFileBytes, ": not used"));
  }
  if (text.substr(0, text.find('\n')) != kFormat) {
    return absl::FailedPreconditionError(
        absl::StrCat("does not begin with \"", kFormat, "\": not used"));
  }
  absl::string_view body;
  if (!Verify(text, &body)) return absl::DataLossError("is damaged (checksum): not used");
  std::vector<absl::string_view> lines = absl::StrSplit(body, '\n');
  lines.pop_back();  // behind the last newline
  if (lines.size() < 2 || lines[1] != identity_) {
    return absl::FailedPreconditionError(absl::StrCat("is of \"", lines.size() < 2 ? "" : lines[1],
                                                      "\", not \"", identity_, "\": not used"));
  }
  for (size_t i = 2; i < lines.size(); ++i) {
    std::string key;
    Algorithm algorithm;
    if (size() >= kMaxAlgorithms || !ParseLine(lines[i], &key, &algorithm)) {
      algorithms_.clear();
      return absl::DataLossError(absl::StrCat("is damaged (line ", i + 1, "): not used"));
    }
    Put(key, algorithm);
  }
  return absl::OkStatus();
}

absl::Status AlgorithmTable::Load(const std::string& path) {
  algorithms_.clear();
  const auto text = ReadRegularFile(path, kMaxAlgorithmFileBytes);
  // Too long, or no file: nothing that this program has written.
  if (absl::IsInvalidArgument(text.status())) return absl::DataLossError(text.status().message());
  if (!text.ok()) return text.status();
  return Annotate(Parse(*text), path);
}

absl::Status AlgorithmTable::Save(const std::string& path) const {
  const std::string temporary = absl::StrCat(path, ".", getpid(), ".new");
  {
    std::ofstream file(temporary, std::ios::binary | std::ios::trunc);
    file << Format();
    file.close();
    if (file.fail()) {
      std::remove(temporary.c_str());
      return absl::UnavailableError(absl::StrCat(temporary, ": cannot be written"));
    }
  }
  if (std::rename(temporary.c_str(), path.c_str()) != 0) {
    const std::string reason = std::strerror(errno);
    std::remove(temporary.c_str());
    return absl::UnavailableError(absl::StrCat(path, ": cannot be written: ", reason));
  }
  return absl::OkStatus();
}

}  // namespace milepost::kernels::cuda
