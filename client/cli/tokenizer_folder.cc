#include "client/cli/tokenizer_folder.h"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "client/cli/access.h"
#include "common/regular_file.h"

namespace milepost::client {
namespace {

// What belongs to a tokenizer in a Hugging Face folder. One of the first four is the tokenizer.
constexpr const char* kTokenizerFiles[] = {"tokenizer.json",
                                           "tokenizer.model",
                                           "vocab.txt",
                                           "vocab.json",
                                           "merges.txt",
                                           "tokenizer_config.json",
                                           "added_tokens.json",
                                           "special_tokens_map.json",
                                           "chat_template.jinja",
                                           "chat_template.json",
                                           "generation_config.json"};
constexpr size_t kTokenizers = 4;
constexpr size_t kMostTokenizerBytes = 128 << 20;

}  // namespace

bool HasTokenizer(const std::string& folder) {
  if (folder.empty()) return false;
  return std::any_of(kTokenizerFiles, kTokenizerFiles + kTokenizers, [&](const char* name) {
    std::error_code error;
    return std::filesystem::exists(absl::StrCat(folder, "/", name), error);
  });
}

std::string InitialFolderOf(const Access& access, const std::string& job) {
  const auto found = access.jobs().Get(job);
  return found.ok() ? found->spec().train().init_from() : "";
}

std::string TokenizerOf(const Access& access, const std::string& job) {
  std::string folder = InitialFolderOf(access, job);
  return HasTokenizer(folder) ? folder : "";
}

absl::StatusOr<std::map<std::string, std::string>> TokenizerFiles(const std::string& folder) {
  std::map<std::string, std::string> files;
  bool any = false;
  for (size_t i = 0; i < std::size(kTokenizerFiles); ++i) {
    auto text = ReadRegularFile(absl::StrCat(folder, "/", kTokenizerFiles[i]), kMostTokenizerBytes);
    if (absl::IsNotFound(text.status())) continue;
    if (!text.ok()) return text.status();
    any = any || i < kTokenizers;
    files[kTokenizerFiles[i]] = *std::move(text);
  }
  if (any) return files;
  return absl::InvalidArgumentError(
      absl::StrCat(folder,
                   " has no tokenizer: neither tokenizer.json nor tokenizer.model, "
                   "vocab.txt or vocab.json"));
}

}  // namespace milepost::client
