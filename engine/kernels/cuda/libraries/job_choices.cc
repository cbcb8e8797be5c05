#include "engine/kernels/cuda/libraries/job_choices.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace milepost::kernels::cuda {
namespace {

// The first table of `text`, which is taken off it. Every table begins with the same line.
absl::string_view TakeTable(absl::string_view* text) {
  const absl::string_view begin = text->substr(0, text->find('\n') + 1);
  const size_t next = begin.empty() ? absl::string_view::npos
                                    : text->find(absl::StrCat("\n", begin), begin.size() - 1);
  const absl::string_view table =
      text->substr(0, next == absl::string_view::npos ? next : next + 1);
  text->remove_prefix(table.size());
  return table;
}

}  // namespace

JobChoices::JobChoices(std::string identity)
    : identity_(std::move(identity)), own_(AlgorithmTable(identity_)) {}

absl::Status JobChoices::Use(absl::string_view text) {
  own_ = AlgorithmTable(identity_);
  others_.clear();
  absl::Status status = absl::FailedPreconditionError("there is none");
  bool found = false;
  while (!text.empty()) {
    const absl::string_view table = TakeTable(&text);
    AlgorithmTable read(identity_);
    const absl::Status parsed = read.Parse(table);
    if (absl::IsFailedPrecondition(parsed)) {
      others_.emplace_back(table);
      if (!found) status = parsed;
      continue;
    }
    status = parsed;
    found = true;
    if (parsed.ok()) own_ = std::move(read);
  }
  return status;
}

void JobChoices::Put(absl::string_view key, const Algorithm& algorithm) {
  if (own_.Find(key) == nullptr) own_.Put(key, algorithm);
}

std::string JobChoices::Text(size_t most_bytes) const {
  std::string text = own_.Format();
  for (const std::string& other : others_) {
    if (text.size() + other.size() > most_bytes) break;
    absl::StrAppend(&text, other);
  }
  return text;
}

}  // namespace milepost::kernels::cuda
