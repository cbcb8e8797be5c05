#include "client/web/openapi.h"

#include <google/protobuf/descriptor.h>

#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/web/api_methods.h"
#include "common/version.h"

namespace milepost::client {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::EnumDescriptor;
using google::protobuf::FieldDescriptor;
using Schema = nlohmann::ordered_json;

constexpr char kPackage[] = "milepost.v1.";

// "milepost.v1.LabelRequirement.Operator" -> "LabelRequirement.Operator"
std::string SchemaName(const std::string& full_name) {
  return absl::StartsWith(full_name, kPackage) ? full_name.substr(sizeof kPackage - 1) : full_name;
}

Schema Reference(const std::string& full_name) {
  return {{"$ref", absl::StrCat("#/components/schemas/", SchemaName(full_name))}};
}

// The types that protobuf's JSON mapping writes in a form of their own.
Schema WellKnown(const std::string& full_name) {
  if (full_name == "google.protobuf.Timestamp")
    return {{"type", "string"}, {"format", "date-time"}};
  if (full_name == "google.protobuf.Duration") return {{"type", "string"}, {"pattern", "s$"}};
  if (full_name == "google.protobuf.FieldMask") {
    return {{"type", "string"}, {"description", "paths with commas between"}};
  }
  return nullptr;
}

class Components {
 public:
  Schema Of(const Descriptor& type) {
    const Schema known = WellKnown(type.full_name());
    if (!known.is_null()) return known;
    if (seen_.insert(type.full_name()).second) wanted_.push_back(&type);
    return Reference(type.full_name());
  }
  // All that have been asked for, and what these ask for.
  Schema Make() {
    Schema schemas = Schema::object();
    while (!wanted_.empty()) {
      const Descriptor* type = wanted_.back();
      wanted_.pop_back();
      Schema properties = Schema::object();
      for (int i = 0; i < type->field_count(); ++i) {
        properties[type->field(i)->json_name()] = Of(*type->field(i));
      }
      schemas[SchemaName(type->full_name())] = {{"type", "object"}, {"properties", properties}};
    }
    for (const EnumDescriptor* one : enums_) {
      Schema names = Schema::array();
      for (int i = 0; i < one->value_count(); ++i) names.push_back(one->value(i)->name());
      schemas[SchemaName(one->full_name())] = {{"type", "string"}, {"enum", names}};
    }
    return schemas;
  }

 private:
  Schema Of(const FieldDescriptor& field) {
    if (field.is_map()) {
      return {{"type", "object"},
              {"additionalProperties", Value(*field.message_type()->FindFieldByNumber(2))}};
    }
    if (field.is_repeated()) return {{"type", "array"}, {"items", Value(field)}};
    return Value(field);
  }
  Schema Value(const FieldDescriptor& field) {
    switch (field.cpp_type()) {
      case FieldDescriptor::CPPTYPE_INT32:
      case FieldDescriptor::CPPTYPE_UINT32:
        return {{"type", "integer"}, {"format", "int32"}};
      case FieldDescriptor::CPPTYPE_INT64:
      case FieldDescriptor::CPPTYPE_UINT64:
        return {{"type", "string"}, {"format", "int64"}};
      case FieldDescriptor::CPPTYPE_DOUBLE:
      case FieldDescriptor::CPPTYPE_FLOAT:
        // NaN and infinities are text.
        return {{"oneOf", {{{"type", "number"}}, {{"type", "string"}}}}};
      case FieldDescriptor::CPPTYPE_BOOL:
        return {{"type", "boolean"}};
      case FieldDescriptor::CPPTYPE_ENUM:
        enums_.insert(field.enum_type());
        return Reference(field.enum_type()->full_name());
      case FieldDescriptor::CPPTYPE_MESSAGE:
        return Of(*field.message_type());
      default:
        if (field.type() == FieldDescriptor::TYPE_BYTES) {
          return {{"type", "string"}, {"format", "byte"}};
        }
        return {{"type", "string"}};
    }
  }

  std::set<std::string> seen_;
  std::vector<const Descriptor*> wanted_;
  std::set<const EnumDescriptor*> enums_;
};

Schema OperationOf(const ApiMethod& method, Components* components) {
  const char* media = method.streams ? "text/event-stream" : "application/json";
  const Schema answer = {{"schema", components->Of(*method.descriptor->output_type())}};
  Schema operation = {{"operationId", method.descriptor->name()},
                      {"tags", {method.descriptor->service()->name()}}};
  operation["requestBody"] = {
      {"content",
       {{"application/json", {{"schema", components->Of(*method.descriptor->input_type())}}}}}};
  operation["parameters"] = {{{"name", "$fields"},
                              {"in", "query"},
                              {"description", "fields of the answer to leave, commas between"},
                              {"schema", {{"type", "string"}}}}};
  operation["responses"] = {
      {"200",
       {{"description", method.streams ? "each event's data is one message" : "the answer"},
        {"content", {{media, answer}}}}},
      {"default", {{"$ref", "#/components/responses/Error"}}}};
  return operation;
}

}  // namespace

std::string OpenApiJson() {
  Components components;
  Schema paths = Schema::object();
  for (const ApiMethod& method : ApiMethods()) {
    paths[absl::StrCat("/", method.path)] = {{"post", OperationOf(method, &components)}};
  }
  Schema schemas = components.Make();
  schemas["Status"] = {{"type", "object"},
                       {"properties",
                        {{"code", {{"type", "integer"}}},
                         {"message", {{"type", "string"}}},
                         {"details", {{"type", "array"}, {"items", {{"type", "object"}}}}}}}};
  const Schema error = {
      {"description", "a google.rpc.Status"},
      {"content", {{"application/json", {{"schema", {{"$ref", "#/components/schemas/Status"}}}}}}}};
  Schema document = {
      {"openapi", "3.0.3"},
      {"info",
       {{"title", "Milepost"},
        {"version", kVersion},
        {"description", "docs/use/api.md says what methods and fields mean."}}},
      {"servers", {{{"url", "/api/v1"}}}},
      {"security", {{{"token", Schema::array()}}}},
      {"paths", paths},
      {"components",
       {{"schemas", schemas},
        {"responses", {{"Error", error}}},
        {"securitySchemes", {{"token", {{"type", "http"}, {"scheme", "bearer"}}}}}}}};
  return document.dump();
}

}  // namespace milepost::client
