#include "client/api/generic_client.h"

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/support/client_callback.h>

#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "client/api/call.h"
#include "common/rpc/status.h"

namespace milepost::client {
namespace {

using Stub = grpc::TemplatedGenericStub<grpc::ByteBuffer, grpc::ByteBuffer>;

grpc::ByteBuffer ToBuffer(const std::string& bytes) {
  const grpc::Slice slice(bytes);
  return grpc::ByteBuffer(&slice, 1);
}

std::string FromBuffer(const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  std::string bytes;
  if (!buffer.Dump(&slices).ok()) return bytes;
  for (const grpc::Slice& slice : slices) {
    bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  return bytes;
}

void ShowToken(const Connection::Core& core, const std::string& token,
               grpc::ClientContext* context) {
  if (core.tls && !token.empty()) context->set_credentials(grpc::AccessTokenCredentials(token));
}

// gRPC 1.51 runs callbacks on threads that end with the process's last channel that had any, and
// aborts where that channel ends on one of them, as at a stream's end: so the first one is kept.
void KeepThreadsOfCallbacks(const std::shared_ptr<grpc::Channel>& channel) {
  static const auto* kept = new std::shared_ptr<grpc::Channel>(channel);
  static_cast<void>(kept);
}

// Waits in gRPC, as its synchronous API does: so it gets on with connecting.
grpc::Status CallOnce(Stub* stub, grpc::ClientContext* context, const std::string& method,
                      const grpc::ByteBuffer& request, grpc::ByteBuffer* answer) {
  grpc::CompletionQueue queue;
  const auto call = stub->PrepareUnaryCall(context, method, request, &queue);
  grpc::Status status;
  call->StartCall();
  call->Finish(answer, &status, nullptr);
  void* tag = nullptr;
  bool ok = false;
  queue.Next(&tag, &ok);
  queue.Shutdown();
  while (queue.Next(&tag, &ok)) {
  }
  return status;
}

absl::Status Told(Connection::Core& core, const grpc::Status& status) {
  const bool says_it = status.error_code() != grpc::StatusCode::UNAVAILABLE &&
                       status.error_code() != grpc::StatusCode::CANCELLED;
  return says_it ? FromGrpcStatus(status) : Explained(core, status);
}

class Reader : public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>,
               public GenericStream,
               public std::enable_shared_from_this<Reader> {
 public:
  Reader(std::shared_ptr<Connection> connection, const std::string& request,
         std::function<bool(std::string)> on_message, std::function<void(absl::Status)> on_end)
      : connection_(std::move(connection)),
        channel_(connection_->core().coordinators->Get()),
        stub_(channel_),
        request_(ToBuffer(request)),
        on_message_(std::move(on_message)),
        on_end_(std::move(on_end)),
        context_(&connection_->core()) {}

  void Start(const std::string& method, const std::string& token) {
    ShowToken(connection_->core(), token, context_.get());
    self_ = shared_from_this();
    stub_.PrepareBidiStreamingCall(context_.get(), method, {}, this);
    KeepThreadsOfCallbacks(channel_);
    StartWriteLast(&request_, {});
    StartRead(&message_);
    StartCall();
  }
  void Cancel() override {
    context_.get()->TryCancel();
    Resume();
  }
  void Resume() override {
    {
      absl::MutexLock lock(&mutex_);
      if (!paused_) return;
      paused_ = false;
    }
    StartRead(&message_);
    RemoveHold();
  }

  void OnReadDone(bool ok) override {
    if (!ok) return;
    std::string bytes = FromBuffer(message_);
    message_.Clear();
    AddHold();  // the call does not end while nothing is read
    {
      absl::MutexLock lock(&mutex_);
      paused_ = true;
    }
    if (on_message_(std::move(bytes))) Resume();
  }
  void OnDone(const grpc::Status& status) override {
    Connection::Core& core = connection_->core();
    if (status.error_code() == grpc::StatusCode::UNAVAILABLE) core.coordinators->Failed(channel_);
    on_end_(Told(core, status));
    const std::shared_ptr<Reader> last = std::move(self_);
  }

 private:
  const std::shared_ptr<Connection> connection_;
  const std::shared_ptr<grpc::Channel> channel_;
  Stub stub_;
  const grpc::ByteBuffer request_;
  const std::function<bool(std::string)> on_message_;
  const std::function<void(absl::Status)> on_end_;
  CallContext context_;
  grpc::ByteBuffer message_;
  std::shared_ptr<Reader> self_;  // until it is done
  absl::Mutex mutex_;
  bool paused_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace

absl::StatusOr<std::string> GenericClient::Call(const std::string& method,
                                                const std::string& request,
                                                const std::string& token) {
  Connection::Core& core = connection_->core();
  Backoff backoff(&core, core.options.call);
  const grpc::ByteBuffer sent = ToBuffer(request);
  while (true) {
    CallContext context(&core);
    context.get()->set_deadline(absl::ToChronoTime(backoff.deadline()));
    ShowToken(core, token, context.get());
    const std::shared_ptr<grpc::Channel> channel = core.coordinators->Get();
    Stub stub(channel);
    grpc::ByteBuffer answer;
    const grpc::Status status = CallOnce(&stub, context.get(), method, sent, &answer);
    HearWarning(core, *context.get());
    if (status.ok()) return FromBuffer(answer);
    if (!backoff.Retry(status, channel)) return Told(core, status);
  }
}

std::shared_ptr<GenericStream> GenericClient::Stream(const std::string& method,
                                                     const std::string& request,
                                                     const std::string& token,
                                                     std::function<bool(std::string)> on_message,
                                                     std::function<void(absl::Status)> on_end) {
  auto reader =
      std::make_shared<Reader>(connection_, request, std::move(on_message), std::move(on_end));
  reader->Start(method, token);
  return reader;
}

}  // namespace milepost::client
