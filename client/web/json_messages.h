// Requests and answers of the API: protobuf's JSON mapping, and errors.
//
//   MP_RETURN_IF_ERROR(FromJson(body, request.get()));
//   MP_RETURN_IF_ERROR(KeepFields("jobs.name,jobs.state,nextPageToken", response.get()));
//   const std::string json = ToJson(*response);
//
// Field names are in lowerCamelCase or, in what comes in, as in the proto. Pure; thread-safe.
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

// On one line.
std::string ToJson(const google::protobuf::Message& message);

// Empty text: an empty message. INVALID_ARGUMENT: what is wrong, and where.
absl::Status FromJson(const std::string& json, google::protobuf::Message* message);

using Query = std::vector<std::pair<std::string, std::string>>;

// ?name=jobs/7&states=JOB_STATE_RUNNING&states=...: fields of the message, also "a.b". Parameters
// that begin with '$' are not the message's. INVALID_ARGUMENT: there is no such field, or it takes
// no such value.
absl::Status FromQuery(const Query& query, google::protobuf::Message* message);

// Leaves only these fields, with commas between: each a path through messages and lists of them.
// Empty: all. INVALID_ARGUMENT: there is no such field.
absl::Status KeepFields(absl::string_view fields, google::protobuf::Message* message);

// Of `fields` the paths within a list that an answer of this type has ("jobs.spec.name":
// spec.name), as google.protobuf.FieldMask has them: no deeper than the first list. None: all are
// wanted.
std::vector<std::string> MaskWithin(absl::string_view fields,
                                    const google::protobuf::Descriptor& answer,
                                    absl::string_view list);

// The answer's status code, as google.rpc.Code has it.
int HttpStatusOf(const absl::Status& status);
// A google.rpc.Status as JSON, with the details.
std::string StatusJson(const absl::Status& status);

}  // namespace milepost::client

#endif  // MILEPOST_CLIENT_WEB_JSON_MESSAGES_H_
