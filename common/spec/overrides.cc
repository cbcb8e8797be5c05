#include "common/spec/overrides.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/spec/parse.h"
#include "common/status_macros.h"

namespace milepost {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

constexpr size_t kMostPathBytes = 256;
constexpr size_t kMostValueBytes = 64 << 10;
constexpr size_t kMostParts = 16;

absl::Status CheckForm(const v1::SpecOverride& one) {
  const std::string& path = one.path();
  const bool plain = std::all_of(path.begin(), path.end(), [](char c) {
    return absl::ascii_isalnum(c) || c == '_' || c == '.';
  });
  if (path.empty() || path.size() > kMostPathBytes || !plain) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", absl::CHexEscape(path.substr(0, 64)),
                     "': expected the path of a field such as train.optimizer.lr (of a list: the "
                     "whole list)"));
  }
  if (one.value().size() > kMostValueBytes || absl::StrContains(one.value(), '\n') ||
      absl::StrContains(one.value(), '\r')) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": expected a value in one line of at most 64 KiB"));
  }
  return absl::OkStatus();
}

// "train:\n  optimizer:\n    lr: 1e-4\n"
std::string AsDocument(const std::vector<std::string>& parts, const std::string& value) {
  std::string text;
  for (size_t i = 0; i < parts.size(); ++i) {
    absl::StrAppend(&text, std::string(2 * i, ' '), parts[i], ":");
    absl::StrAppend(&text, i + 1 < parts.size() ? "\n" : absl::StrCat(" ", value, "\n"));
  }
  return text;
}

bool IsNull(absl::string_view value) {
  value = absl::StripAsciiWhitespace(value);
  return value.empty() || value == "null" || value == "~";
}

// Takes what `from` has at the path over into `to`; nothing there: takes it out of `to`. The path
// is known to lead through messages.
void Take(const Message& from, const std::vector<std::string>& parts, size_t depth, Message* to) {
  const FieldDescriptor* field = from.GetDescriptor()->FindFieldByName(parts[depth]);
  if (depth + 1 < parts.size()) {
    const bool there = from.GetReflection()->HasField(from, field);
    if (!there && !to->GetReflection()->HasField(*to, field)) return;
    Take(from.GetReflection()->GetMessage(from, field), parts, depth + 1,
         to->GetReflection()->MutableMessage(to, field));
    return;
  }
  to->GetReflection()->ClearField(to, field);
  std::unique_ptr<Message> only(from.New());
  only->CopyFrom(from);
  std::vector<const FieldDescriptor*> set;
  only->GetReflection()->ListFields(*only, &set);
  for (const FieldDescriptor* other : set) {
    if (other != field) only->GetReflection()->ClearField(only.get(), other);
  }
  to->MergeFrom(*only);
}

// INVALID_ARGUMENT unless the path names a field of a job spec, and leads to it through messages.
absl::Status CheckPath(const std::vector<std::string>& parts) {
  const google::protobuf::Descriptor* type = v1::JobSpec::descriptor();
  for (size_t i = 0; i < parts.size(); ++i) {
    const FieldDescriptor* field = type->FindFieldByName(parts[i]);
    if (field == nullptr) break;  // told by the parser, with what it may have meant
    type = field->message_type();
    if (i + 1 == parts.size()) return absl::OkStatus();
    if (field->is_repeated()) {
      return absl::InvalidArgumentError(
          absl::StrCat(absl::StrJoin(parts.begin(), parts.begin() + i + 1, "."),
                       ": is a list, which is given as a whole: ", parts[i], "=[{...}, {...}]"));
    }
    if (type == nullptr) break;
  }
  v1::JobSpec scratch;
  return ParseYamlMessage(AsDocument(parts, "0"), "", &scratch);
}

absl::Status Apply(const v1::SpecOverride& one, v1::JobSpec* spec) {
  MP_RETURN_IF_ERROR(CheckForm(one));
  const std::vector<std::string> parts = absl::StrSplit(one.path(), '.');
  if (parts.size() > kMostParts) {
    return absl::InvalidArgumentError(absl::StrCat(one.path(), ": no field lies so deep"));
  }
  absl::Status status = CheckPath(parts);
  v1::JobSpec given;
  if (status.ok() && !IsNull(one.value())) {
    status = ParseYamlMessage(AsDocument(parts, one.value()), "", &given);
  }
  if (!status.ok()) {
    // ":2: train.batch: ..." has the line of a text that nobody wrote.
    absl::string_view message = status.message();
    if (absl::ConsumePrefix(&message, ":")) {
      message.remove_prefix(std::min(message.size(), message.find(": ") + 2));
    }
    return absl::InvalidArgumentError(message);
  }
  Take(given, parts, 0, spec);
  return absl::OkStatus();
}

// Numbers that NormalizeJobSpec has derived would contradict new ones.
void DropDerived(const Overrides& overrides, v1::JobSpec* spec) {
  const auto named = [&](absl::string_view path) {
    return std::any_of(overrides.begin(), overrides.end(),
                       [&](const v1::SpecOverride& one) { return one.path() == path; });
  };
  const bool interleaved = spec->resources().mesh().schedule() == v1::PIPELINE_SCHEDULE_INTERLEAVED;
  if (named("resources.mesh.schedule") && !named("resources.mesh.chunks") && !interleaved) {
    spec->mutable_resources()->mutable_mesh()->clear_chunks();
  }
  const bool accumulation = named("train.batch.accumulation");
  const bool others = named("train.batch.global") || named("train.batch.micro") ||
                      named("resources.ranks") || named("resources.mesh.tensor") ||
                      named("resources.mesh.pipeline") || named("resources.mesh.context") ||
                      named("resources.mesh.expert") || named("resources.mesh");
  if (!spec->train().batch().has_global() || !spec->train().batch().has_micro()) return;
  v1::BatchSpec* batch = spec->mutable_train()->mutable_batch();
  if (others && !accumulation) batch->clear_accumulation();
  if (accumulation && !named("train.batch.global")) batch->clear_global();
}

}  // namespace

absl::StatusOr<v1::SpecOverride> ParseOverride(absl::string_view text) {
  const size_t equals = text.find('=');
  if (equals == absl::string_view::npos) {
    return absl::InvalidArgumentError(
        absl::StrCat("expected path=value such as train.optimizer.lr=1e-4, got '", text, "'"));
  }
  v1::SpecOverride one;
  one.set_path(std::string(absl::StripAsciiWhitespace(text.substr(0, equals))));
  one.set_value(std::string(absl::StripAsciiWhitespace(text.substr(equals + 1))));
  MP_RETURN_IF_ERROR(CheckForm(one));
  return one;
}

absl::Status ApplyOverrides(const Overrides& overrides, absl::string_view where,
                            v1::JobSpec* spec) {
  if (overrides.size() > kMostOverrides) {
    return absl::InvalidArgumentError(
        absl::StrCat(where, ": at most ", kMostOverrides, " fields, not ", overrides.size()));
  }
  v1::JobSpec changed = *spec;
  for (const v1::SpecOverride& one : overrides) {
    absl::Status status = Apply(one, &changed);
    if (status.ok()) continue;
    return absl::InvalidArgumentError(absl::StrCat(where, ": ", std::string(status.message())));
  }
  DropDerived(overrides, &changed);
  *spec = std::move(changed);
  return absl::OkStatus();
}

}  // namespace milepost
