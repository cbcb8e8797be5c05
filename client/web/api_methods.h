// The coordinator's methods in the JSON API. These are all methods of the services for users,
// except those that only ranks and workers call. A new method of such a service is added
// automatically.
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
  bool streams = false;  // the answer is a stream of messages
  bool reads = false;    // it changes nothing

  std::unique_ptr<google::protobuf::Message> NewRequest() const;
  std::unique_ptr<google::protobuf::Message> NewResponse() const;
};

const std::vector<ApiMethod>& ApiMethods();
// nullptr: there is no such method.
const ApiMethod* FindApiMethod(absl::string_view path);

}  // namespace milepost::client

#endif  // MILEPOST_CLIENT_WEB_API_METHODS_H_
