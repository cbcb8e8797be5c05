// Requests, answers and errors of the API in protobuf's JSON mapping.
//
//   MP_RETURN_IF_ERROR(FromJson(body, request.get()));
//   MP_RETURN_IF_ERROR(KeepFields("jobs.name,jobs.state,nextPageToken", response.get()));
//   const std::string json = ToJson(*response);
//
// Field names are in lowerCamelCase. Requests may also use the names of the proto. Pure;
// thread-safe.
#ifndef MILEPOST_CLIENT_WEB_JSON_MESSAGES_H_
#define MILEPOST_CLIENT_WEB_JSON_MESSAGES_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace google::protobuf {
class Descriptor;
class Message;
}  // namespace google::protobuf

namespace milepost::client {

// The JSON is on one line.
std::string ToJson(const google::protobuf::Message& message);

// Empty text gives an empty message. INVALID_ARGUMENT says what is wrong, and where.
absl::Status FromJson(const std::string& json, google::protobuf::Message* message);

using Query = std::vector<std::pair<std::string, std::string>>;

// Sets fields of the message from a query such as ?name=jobs/7&states=JOB_STATE_RUNNING&states=...
// Names may be paths ("a.b"). Parameters that begin with '$' are skipped. INVALID_ARGUMENT: there
// is no such field, or it does not take the value.
absl::Status FromQuery(const Query& query, google::protobuf::Message* message);

// Clears all fields but these, which are separated by commas. Each is a path through messages and
// lists of messages. Empty: keeps all. INVALID_ARGUMENT: there is no such field.
absl::Status KeepFields(absl::string_view fields, google::protobuf::Message* message);

// Finds, among `fields`, the paths inside the list named `list` of an answer of this type:
// "jobs.spec.name" gives spec.name. They have the form of google.protobuf.FieldMask, so they end
// before a nested list. Empty: all fields are wanted.
std::vector<std::string> MaskWithin(absl::string_view fields,
                                    const google::protobuf::Descriptor& answer,
                                    absl::string_view list);

// A google.rpc.Status as JSON, with its details.
std::string StatusJson(const absl::Status& status);

}  // namespace milepost::client

#endif  // MILEPOST_CLIENT_WEB_JSON_MESSAGES_H_
