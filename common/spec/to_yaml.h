// Protobuf messages as text for people and programs. Names are the proto's field names. 64-bit
// integers are numbers, timestamps are RFC 3339, and NaN and infinities are null. Enum values lose
// their prefix. Those of the job spec are in lower case (`bf16`); others, which users only read,
// are not (`RUNNING`).
//
//   MessageToYaml(spec)         // ParseJobSpecYaml gives the same spec back
//   MessageToJson(job).dump(2)  // needs <nlohmann/json.hpp>
//
// Fields are in the order of the proto; an empty message is `{}`. Thread-safe.
#ifndef MILEPOST_COMMON_SPEC_TO_YAML_H_
#define MILEPOST_COMMON_SPEC_TO_YAML_H_

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace google::protobuf {
class EnumValueDescriptor;
class Message;
}  // namespace google::protobuf

namespace milepost {

enum class Absent {
  kOmit,          // only what is set
  kPrintDefault,  // also zero numbers, empty text and lists, so that readers find every key
};

std::string MessageToYaml(const google::protobuf::Message& message);
nlohmann::ordered_json MessageToJson(const google::protobuf::Message& message,
                                     Absent absent = Absent::kOmit);

// Block-style YAML of any JSON value; ends with a newline.
std::string JsonToYaml(const nlohmann::ordered_json& value);

// PRECISION_BF16 -> "bf16", JOB_STATE_RUNNING -> "RUNNING"
std::string EnumYamlName(const google::protobuf::EnumValueDescriptor& value);

}  // namespace milepost

#endif  // MILEPOST_COMMON_SPEC_TO_YAML_H_
