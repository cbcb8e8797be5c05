#include "common/spec/unknown_fields.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "google/protobuf/unknown_field_set.h"

namespace milepost {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

namespace {

// A number for which an enum has no word.
bool IsUnknownNumber(const Message& message, const FieldDescriptor* field) {
  if (field->cpp_type() != FieldDescriptor::CPPTYPE_ENUM || field->is_repeated()) return false;
  const int value = message.GetReflection()->GetEnumValue(message, field);
  return field->enum_type()->FindValueByNumber(value) == nullptr;
}

std::optional<std::string> FirstUnknown(const Message& message, absl::string_view path,
                                        bool numbers) {
  const auto* reflection = message.GetReflection();
  if (!reflection->GetUnknownFields(message).empty()) return std::string(path);
  std::vector<const FieldDescriptor*> given;
  reflection->ListFields(message, &given);
  for (const FieldDescriptor* field : given) {
    const std::string here = absl::StrCat(path, ".", field->name());
    if (numbers && IsUnknownNumber(message, field)) return here;
    if (field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) continue;
    const int count = field->is_repeated() ? reflection->FieldSize(message, field) : 1;
    for (int i = 0; i < count; ++i) {
      const Message& inner = field->is_repeated()
                                 ? reflection->GetRepeatedMessage(message, field, i)
                                 : reflection->GetMessage(message, field);
      if (auto found = FirstUnknown(inner, here, numbers); found.has_value()) return found;
    }
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::string> UnknownField(const Message& message, absl::string_view path) {
  return FirstUnknown(message, path, /*numbers=*/false);
}

absl::Status CheckModelIsKnown(const Message& model) {
  const std::optional<std::string> unknown = FirstUnknown(model, "model", true);
  if (!unknown.has_value()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      *unknown, " has a field or a choice that this version of Milepost does not ",
      "know, and that may make it another model: upgrade Milepost on this machine to the version ",
      "that the job was submitted with"));
}

}  // namespace milepost
