// The methods of the coordinator that the JSON API has: all of the services that users call, but
// for those that ranks and workers alone call. A new method of such a service is here by itself.
//
//   const ApiMethod* method = FindApiMethod("JobService/GetJob");
//
// Pure; thread-safe.
#ifndef MILEPOST_CLIENT_WEB_API_METHODS_H_
#define MILEPOST_CLIENT_WEB_API_METHODS_H_

#include <google/protobuf/descriptor.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace google::protobuf {
class Message;
}

namespace milepost::client {

struct ApiMethod {
  std::string path;  // "JobService/GetJob"
  std::string grpc;  // "/milepost.v1.JobService/GetJob"
  const google::protobuf::MethodDescriptor* descriptor = nullptr;
  bool streams = false;  // answers many messages
  bool reads = false;    // changes nothing

  std::unique_ptr<google::protobuf::Message> NewRequest() const;
  std::unique_ptr<google::protobuf::Message> NewResponse() const;
};

const std::vector<ApiMethod>& ApiMethods();
// nullptr: there is none.
const ApiMethod* FindApiMethod(absl::string_view path);

}  // namespace milepost::client

#endif  // MILEPOST_CLIENT_WEB_API_METHODS_H_
