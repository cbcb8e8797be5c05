#include "client/web/api_methods.h"

#include <google/protobuf/message.h>

#include <algorithm>
#include <array>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "milepost/v1/auth.pb.h"
#include "milepost/v1/checkpoint.pb.h"
#include "milepost/v1/job.pb.h"
#include "milepost/v1/queue.pb.h"
#include "milepost/v1/template.pb.h"
#include "milepost/v1/worker.pb.h"

namespace milepost::client {
namespace {

using google::protobuf::Message;

// Of workers and ranks, and of tensors' bytes, for which JSON is no form.
constexpr std::array kLeftOut = {
    "CheckpointService/BeginCheckpoint", "CheckpointService/WriteChunks",
    "CheckpointService/CommitCheckpoint", "CheckpointService/AbortCheckpoint",
    "CheckpointService/ReadChunks"};

bool ChangesNothing(absl::string_view name) {
  return absl::StartsWith(name, "Get") || absl::StartsWith(name, "List") ||
         absl::StartsWith(name, "Watch") || absl::StartsWith(name, "Stream") || name == "WhoAmI";
}

std::vector<ApiMethod> MakeMethods() {
  std::vector<ApiMethod> methods;
  for (const google::protobuf::Descriptor* one :
       {v1::Job::descriptor(), v1::Queue::descriptor(), v1::Template::descriptor(),
        v1::Checkpoint::descriptor(), v1::Worker::descriptor(), v1::Token::descriptor()}) {
    for (int i = 0; i < one->file()->service_count(); ++i) {
      const google::protobuf::ServiceDescriptor* service = one->file()->service(i);
      if (service->name() == "RendezvousService") continue;
      for (int j = 0; j < service->method_count(); ++j) {
        const google::protobuf::MethodDescriptor* method = service->method(j);
        ApiMethod its{.path = absl::StrCat(service->name(), "/", method->name()),
                      .grpc = absl::StrCat("/", service->full_name(), "/", method->name()),
                      .descriptor = method,
                      .streams = method->server_streaming(),
                      .reads = ChangesNothing(method->name())};
        const bool left_out =
            std::find(kLeftOut.begin(), kLeftOut.end(), its.path) != kLeftOut.end();
        if (!left_out && !method->client_streaming()) methods.push_back(std::move(its));
      }
    }
  }
  return methods;
}

std::unique_ptr<Message> NewMessage(const google::protobuf::Descriptor* descriptor) {
  return std::unique_ptr<Message>(
      google::protobuf::MessageFactory::generated_factory()->GetPrototype(descriptor)->New());
}

}  // namespace

std::unique_ptr<Message> ApiMethod::NewRequest() const {
  return NewMessage(descriptor->input_type());
}
std::unique_ptr<Message> ApiMethod::NewResponse() const {
  return NewMessage(descriptor->output_type());
}

const std::vector<ApiMethod>& ApiMethods() {
  static const auto* methods = new std::vector<ApiMethod>(MakeMethods());
  return *methods;
}

const ApiMethod* FindApiMethod(absl::string_view path) {
  const std::vector<ApiMethod>& all = ApiMethods();
  const auto found =
      std::find_if(all.begin(), all.end(), [&](const ApiMethod& one) { return one.path == path; });
  return found == all.end() ? nullptr : &*found;
}

}  // namespace milepost::client
