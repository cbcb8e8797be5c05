#include "client/web/json_messages.h"

#include <google/protobuf/message.h>
#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/error_details.h"
#include "common/status_macros.h"
#include "milepost/v1/error_details.pb.h"

namespace milepost::client {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;
using Json = nlohmann::ordered_json;

constexpr size_t kMostFieldPaths = 100;

const FieldDescriptor* FindField(const Descriptor* type, absl::string_view name) {
  const std::string text(name);
  const FieldDescriptor* field = type->FindFieldByName(text);
  return field != nullptr ? field : type->FindFieldByCamelcaseName(text);
}

absl::Status NoField(absl::string_view path) {
  return absl::InvalidArgumentError(absl::StrCat("there is no field '", path, "'"));
}

Json ScalarOf(const FieldDescriptor& field, const std::string& value) {
  if (field.cpp_type() == FieldDescriptor::CPPTYPE_BOOL && value == "true") return true;
  if (field.cpp_type() == FieldDescriptor::CPPTYPE_BOOL && value == "false") return false;
  return value;
}

absl::Status AddParameter(const Descriptor* type, const std::string& path, const std::string& value,
                          Json* root) {
  Json* here = root;
  const std::vector<std::string> names = absl::StrSplit(path, '.');
  for (size_t i = 0; i < names.size(); ++i) {
    const FieldDescriptor* field = type == nullptr ? nullptr : FindField(type, names[i]);
    if (field == nullptr) return NoField(path);
    here = &(*here)[field->json_name()];
    if (i + 1 < names.size()) {
      if (field->is_repeated()) return NoField(path);
      type = field->message_type();
    } else if (field->is_repeated()) {
      here->push_back(ScalarOf(*field, value));
    } else {
      *here = ScalarOf(*field, value);
    }
  }
  return absl::OkStatus();
}

// What is kept of a message; nothing in it: all.
struct Kept {
  std::map<const FieldDescriptor*, Kept> fields;
};

absl::Status AddPath(const Descriptor* type, absl::string_view path, Kept* kept) {
  for (const absl::string_view name : absl::StrSplit(path, '.')) {
    const FieldDescriptor* field = type == nullptr ? nullptr : FindField(type, name);
    if (field == nullptr) return NoField(path);
    kept = &kept->fields[field];
    type = field->is_map() ? nullptr : field->message_type();
  }
  kept->fields.clear();
  return absl::OkStatus();
}

void Keep(const Kept& kept, Message* message) {
  if (kept.fields.empty()) return;
  const Reflection* reflection = message->GetReflection();
  std::vector<const FieldDescriptor*> set;
  reflection->ListFields(*message, &set);
  for (const FieldDescriptor* field : set) {
    const auto found = kept.fields.find(field);
    if (found == kept.fields.end()) {
      reflection->ClearField(message, field);
    } else if (found->second.fields.empty()) {
      continue;
    } else if (field->is_repeated()) {
      for (int i = 0; i < reflection->FieldSize(*message, field); ++i) {
        Keep(found->second, reflection->MutableRepeatedMessage(message, field, i));
      }
    } else {
      Keep(found->second, reflection->MutableMessage(message, field));
    }
  }
}

// One of error_details.proto, whose types go by googleapis' names.
Json DetailJson(absl::string_view url, const absl::Cord& payload) {
  Json json = {{"@type", std::string(url)}};
  const std::string name =
      absl::StrCat("milepost.v1.", absl::StripPrefix(url, absl::string_view(kDetailUrlPrefix)));
  const Descriptor* type = v1::ErrorInfo::descriptor()->file()->pool()->FindMessageTypeByName(name);
  if (type == nullptr) return json;
  const std::unique_ptr<Message> detail(
      google::protobuf::MessageFactory::generated_factory()->GetPrototype(type)->New());
  if (!detail->ParseFromString(std::string(payload))) return json;
  const Json fields = Json::parse(ToJson(*detail), nullptr, /*allow_exceptions=*/false);
  if (fields.is_object()) json.update(fields);
  return json;
}

}  // namespace

std::string ToJson(const Message& message) {
  std::string json;
  if (!google::protobuf::util::MessageToJsonString(message, &json).ok()) return "{}";
  return json;
}

absl::Status FromJson(const std::string& json, Message* message) {
  if (json.empty()) return absl::OkStatus();
  const auto parsed = google::protobuf::util::JsonStringToMessage(json, message);
  if (parsed.ok()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("the request is no ",
                                                 message->GetDescriptor()->name(),
                                                 " as JSON: ", std::string(parsed.message())));
}

absl::Status FromQuery(const Query& query, Message* message) {
  Json root = Json::object();
  for (const auto& [name, value] : query) {
    if (absl::StartsWith(name, "$")) continue;
    MP_RETURN_IF_ERROR(AddParameter(message->GetDescriptor(), name, value, &root));
  }
  return FromJson(root.dump(-1, ' ', false, Json::error_handler_t::replace), message);
}

absl::Status KeepFields(absl::string_view fields, Message* message) {
  if (fields.empty()) return absl::OkStatus();
  const std::vector<absl::string_view> paths = absl::StrSplit(fields, ',');
  if (paths.size() > kMostFieldPaths) {
    return absl::InvalidArgumentError(absl::StrCat("$fields: at most ", kMostFieldPaths));
  }
  Kept kept;
  for (const absl::string_view path : paths) {
    MP_RETURN_IF_ERROR(AddPath(message->GetDescriptor(), path, &kept));
  }
  Keep(kept, message);
  return absl::OkStatus();
}

std::vector<std::string> MaskWithin(absl::string_view fields, const Descriptor& answer,
                                    absl::string_view list) {
  std::vector<std::string> mask;
  for (const absl::string_view path : absl::StrSplit(fields, ',')) {
    const std::vector<absl::string_view> names = absl::StrSplit(path, '.');
    const FieldDescriptor* field = FindField(&answer, names[0]);
    if (field == nullptr || field->name() != list) continue;
    if (names.size() == 1) return {};
    std::vector<std::string> within;
    for (size_t i = 1; i < names.size() && (i == 1 || !field->is_repeated()); ++i) {
      const Descriptor* type = field->message_type();
      field = type == nullptr ? nullptr : FindField(type, names[i]);
      if (field == nullptr) return {};  // KeepFields says so
      within.push_back(field->name());
    }
    mask.push_back(absl::StrJoin(within, "."));
  }
  return mask;
}

std::string StatusJson(const absl::Status& status) {
  Json json = {{"code", static_cast<int>(status.code())},
               {"message", std::string(status.message())}};
  Json details = Json::array();
  status.ForEachPayload([&](absl::string_view url, const absl::Cord& payload) {
    if (absl::StartsWith(url, kDetailUrlPrefix)) details.push_back(DetailJson(url, payload));
  });
  if (!details.empty()) json["details"] = details;
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace milepost::client
