#include "common/spec/to_yaml.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>
#include <google/protobuf/timestamp.pb.h>

#include <charconv>
#include <cmath>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "common/check.h"
#include "common/spec/auto_fields.h"
#include "milepost/v1/job_spec.pb.h"

namespace milepost {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;
using Json = nlohmann::ordered_json;

std::string TimestampText(const google::protobuf::Timestamp& timestamp) {
  const absl::Time time =
      absl::FromUnixSeconds(timestamp.seconds()) + absl::Nanoseconds(timestamp.nanos());
  return absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", time, absl::UTCTimeZone());
}

// nlohmann throws on text that is not UTF-8; the wire does not promise it is.
std::string ValidUtf8(const std::string& text) {
  const Json json = text;
  return Json::parse(json.dump(-1, ' ', false, Json::error_handler_t::replace)).get<std::string>();
}

Json Number(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

// The shortest decimal number that is this float: 0.001, not 0.0010000000474974513.
double Shortest(float value) {
  char text[32];
  const auto [end, error] = std::to_chars(text, text + sizeof(text), value);
  double shortest = 0;
  const bool read = std::from_chars(text, end, shortest).ec == std::errc();
  return error == std::errc() && read ? shortest : value;
}

// Lengths of time are read without exponents.
Json WholeIfWhole(double value) {
  const bool whole = std::floor(value) == value && std::fabs(value) < 1e15;
  return whole ? Json(static_cast<int64_t>(value)) : Number(value);
}

// A number that stands for the word.
bool IsAuto(const Message& message, const FieldDescriptor* field) {
  if (!field->options().GetExtension(v1::may_be_auto)) return false;
  const Reflection* r = message.GetReflection();
  return field->cpp_type() == FieldDescriptor::CPPTYPE_INT32 ? r->GetInt32(message, field) == kAuto
                                                             : r->GetInt64(message, field) == kAuto;
}

// `index` < 0: a singular field.
Json FieldValue(const Message& message, const FieldDescriptor* field, int index, Absent absent) {
  const Reflection* r = message.GetReflection();
  if (IsAuto(message, field)) return "auto";
#define MP_FIELD(Type) \
  (index < 0 ? r->Get##Type(message, field) : r->GetRepeated##Type(message, field, index))
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return MP_FIELD(Int32);
    case FieldDescriptor::CPPTYPE_INT64:
      return MP_FIELD(Int64);
    case FieldDescriptor::CPPTYPE_UINT32:
      return MP_FIELD(UInt32);
    case FieldDescriptor::CPPTYPE_UINT64:
      return MP_FIELD(UInt64);
    case FieldDescriptor::CPPTYPE_FLOAT:
      return Number(Shortest(MP_FIELD(Float)));
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return field->options().GetExtension(v1::is_duration) ? WholeIfWhole(MP_FIELD(Double))
                                                            : Number(MP_FIELD(Double));
    case FieldDescriptor::CPPTYPE_BOOL:
      return MP_FIELD(Bool);
    case FieldDescriptor::CPPTYPE_ENUM:
      return EnumYamlName(*MP_FIELD(Enum));
    case FieldDescriptor::CPPTYPE_STRING:
      if (field->type() == FieldDescriptor::TYPE_BYTES) return absl::Base64Escape(MP_FIELD(String));
      return ValidUtf8(MP_FIELD(String));
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return MessageToJson(MP_FIELD(Message), absent);
  }
#undef MP_FIELD
  MP_CHECK(false) << field->full_name();
  return nullptr;
}

// By key, sorted.
Json MapToJson(const Message& message, const FieldDescriptor* field, Absent absent) {
  std::map<std::string, Json> entries;
  const Reflection* reflection = message.GetReflection();
  for (int i = 0; i < reflection->FieldSize(message, field); ++i) {
    const Message& entry = reflection->GetRepeatedMessage(message, field, i);
    const auto* type = entry.GetDescriptor();
    const Json key = FieldValue(entry, type->map_key(), -1, absent);
    entries[key.is_string() ? key.get<std::string>() : key.dump()] =
        FieldValue(entry, type->map_value(), -1, absent);
  }
  return entries.empty() ? Json::object() : Json(entries);
}

// Shortest text that reads back as the same number.
std::string DoubleText(double value) {
  char buffer[32];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value).ptr;
  return std::string(buffer, end);
}

bool PlainYamlText(const std::string& text) {
  if (text.empty() || text.size() > 256) return false;
  for (const char c : text) {
    if (!absl::ascii_isalnum(c) && !strchr("-_./", c)) return false;
  }
  if (!absl::ascii_isalpha(text[0]) && text[0] != '/' && text[0] != '.') return false;
  if (double number; absl::SimpleAtod(text, &number)) return false;  // ".5", "inf", "nan"
  const std::string lower = absl::AsciiStrToLower(text);
  for (const char* special :
       {"null", "true", "false", "yes", "no", "on", "off", "y", "n", ".nan", ".inf"}) {
    if (lower == special) return false;
  }
  return true;
}

// JSON's string form is a YAML double-quoted scalar.
std::string YamlScalar(const Json& value) {
  if (value.is_string()) {
    const auto& text = value.get_ref<const std::string&>();
    return PlainYamlText(text) ? text : value.dump();
  }
  if (value.is_number_float()) return DoubleText(value.get<double>());
  return value.dump();
}

bool IsBlock(const Json& value) { return value.is_structured() && !value.empty(); }

void AppendYaml(const Json& value, int indent, std::string* out) {
  const std::string margin(indent, ' ');
  if (value.is_object()) {
    for (const auto& [key, item] : value.items()) {
      absl::StrAppend(out, margin, YamlScalar(Json(key)), ":");
      if (!IsBlock(item)) {
        absl::StrAppend(out, " ", YamlScalar(item), "\n");
        continue;
      }
      absl::StrAppend(out, "\n");
      AppendYaml(item, indent + 2, out);
    }
    return;
  }
  for (const Json& item : value) {
    if (!IsBlock(item)) {
      absl::StrAppend(out, margin, "- ", YamlScalar(item), "\n");
      continue;
    }
    std::string block;
    AppendYaml(item, indent + 2, &block);
    // The dash takes the place of the block's first margin.
    absl::StrAppend(out, margin, "- ", absl::string_view(block).substr(indent + 2));
  }
}

}  // namespace

std::string EnumYamlName(const google::protobuf::EnumValueDescriptor& value) {
  // Every enum's zero value is its prefix and UNSPECIFIED.
  absl::string_view prefix = value.type()->FindValueByNumber(0)->name();
  absl::string_view name = value.name();
  if (absl::ConsumeSuffix(&prefix, "UNSPECIFIED")) absl::ConsumePrefix(&name, prefix);
  const bool of_spec = value.file() == v1::JobSpec::descriptor()->file();
  return of_spec ? absl::AsciiStrToLower(name) : std::string(name);
}

Json MessageToJson(const Message& message, Absent absent) {
  if (message.GetDescriptor() == google::protobuf::Timestamp::descriptor()) {
    return TimestampText(static_cast<const google::protobuf::Timestamp&>(message));
  }
  Json json = Json::object();
  const Reflection* reflection = message.GetReflection();
  const auto* type = message.GetDescriptor();
  for (int i = 0; i < type->field_count(); ++i) {
    const FieldDescriptor* field = type->field(i);
    if (field->is_map()) {
      if (Json entries = MapToJson(message, field, absent); !entries.empty()) {
        json[field->name()] = std::move(entries);
      }
    } else if (field->is_repeated()) {
      const int size = reflection->FieldSize(message, field);
      if (size > 0 || absent == Absent::kPrintDefault) json[field->name()] = Json::array();
      for (int k = 0; k < size; ++k) {
        json[field->name()].push_back(FieldValue(message, field, k, absent));
      }
    } else if (reflection->HasField(message, field) ||
               (absent == Absent::kPrintDefault && !field->has_presence())) {
      json[field->name()] = FieldValue(message, field, -1, absent);
    }
  }
  return json;
}

std::string JsonToYaml(const Json& value) {
  if (!IsBlock(value)) return YamlScalar(value) + "\n";
  std::string text;
  AppendYaml(value, 0, &text);
  return text;
}

std::string MessageToYaml(const Message& message) { return JsonToYaml(MessageToJson(message)); }

}  // namespace milepost
