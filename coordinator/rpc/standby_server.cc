#include "coordinator/rpc/standby_server.h"

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>

#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/error_details.h"
#include "common/rpc/status.h"
#include "common/status_macros.h"
#include "coordinator/rpc/listener.h"

namespace milepost::coordinator {

class StandbyServer::Service : public grpc::CallbackGenericService {
 public:
  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext*) override {
    return new StandbyRefusal(Active());
  }
  void SetActive(const std::string& address) {
    absl::MutexLock lock(&mutex_);
    active_ = address;
  }

 private:
  class StandbyRefusal : public grpc::ServerGenericBidiReactor {
   public:
    explicit StandbyRefusal(const std::string& active) {
      Finish(ToGrpcStatus(Refusal(
          v1::ERROR_REASON_NOT_ACTIVE_COORDINATOR, active,
          active.empty()
              ? "this coordinator is a standby; no active one is known yet"
              : absl::StrCat("this coordinator is a standby; the active one is at ", active))));
    }
    void OnDone() override { delete this; }
  };

  std::string Active() {
    absl::MutexLock lock(&mutex_);
    return active_;
  }

  absl::Mutex mutex_;
  std::string active_ ABSL_GUARDED_BY(mutex_);
};

struct StandbyServer::Rpc {
  explicit Rpc(Listener its_listener) : listener(std::move(its_listener)) {}
  Listener listener;  // outlives the server
  Service service;
  std::unique_ptr<grpc::Server> server;
};

StandbyServer::StandbyServer(std::unique_ptr<Rpc> rpc) : rpc_(std::move(rpc)) {}

absl::StatusOr<std::unique_ptr<StandbyServer>> StandbyServer::Start(const std::string& listen,
                                                                    const std::string& tls_dir) {
  MP_ASSIGN_OR_RETURN(Listener listener, Listener::Make(listen, tls_dir));
  std::unique_ptr<StandbyServer> standby(
      new StandbyServer(std::make_unique<Rpc>(std::move(listener))));
  grpc::ServerBuilder builder;
  standby->rpc_->listener.AddTo(&builder, /*processor=*/nullptr);
  builder.RegisterCallbackGenericService(&standby->rpc_->service);
  standby->rpc_->server = builder.BuildAndStart();
  MP_ASSIGN_OR_RETURN(standby->address_, standby->rpc_->listener.Open(standby->rpc_->server.get()));
  standby->rpc_->server->GetHealthCheckService()->SetServingStatus(false);
  return standby;
}

StandbyServer::~StandbyServer() {
  if (rpc_->server == nullptr) return;
  rpc_->listener.Close();
  rpc_->server->Shutdown(std::chrono::system_clock::now());
  rpc_->server->Wait();
}

void StandbyServer::SetActive(const std::string& address) { rpc_->service.SetActive(address); }

}  // namespace milepost::coordinator
