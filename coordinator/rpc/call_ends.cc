#include "coordinator/rpc/call_ends.h"

#include <grpcpp/support/server_interceptor.h>

#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"

namespace milepost::coordinator {

using grpc::experimental::InterceptionHookPoints;
using grpc::experimental::InterceptorBatchMethods;

struct CallEnds::Calls {
  absl::Mutex mutex;
  absl::flat_hash_map<const grpc::ServerContextBase*, Interceptor*> open ABSL_GUARDED_BY(mutex);
};

// Lives as long as its call.
class CallEnds::Interceptor : public grpc::experimental::Interceptor {
 public:
  Interceptor(std::shared_ptr<Calls> calls, const Answering* answering,
              const grpc::ServerContextBase* context)
      : calls_(std::move(calls)), answering_(answering), context_(context) {
    absl::MutexLock lock(&calls_->mutex);
    calls_->open[context_] = this;
  }
  ~Interceptor() override {
    {
      absl::MutexLock lock(&calls_->mutex);
      // gRPC may have used the place of the context again before it gives up its interceptors.
      const auto found = calls_->open.find(context_);
      if (found != calls_->open.end() && found->second == this) calls_->open.erase(found);
    }
    for (const Done& done : done_) done();
  }

  void Intercept(InterceptorBatchMethods* methods) override {
    if (methods->QueryInterceptionHookPoint(InterceptionHookPoints::PRE_SEND_STATUS)) {
      Done done = (*answering_)(*context_);
      absl::MutexLock lock(&calls_->mutex);
      done_.push_back(std::move(done));
    }
    methods->Proceed();
  }

  // With the calls' mutex.
  void Then(Done done) { done_.push_back(std::move(done)); }

 private:
  const std::shared_ptr<Calls> calls_;
  const Answering* const answering_;
  const grpc::ServerContextBase* const context_;
  std::vector<Done> done_;
};

class CallEnds::Factory : public grpc::experimental::ServerInterceptorFactoryInterface {
 public:
  Factory(std::shared_ptr<Calls> calls, Answering answering)
      : calls_(std::move(calls)), answering_(std::move(answering)) {}
  grpc::experimental::Interceptor* CreateServerInterceptor(
      grpc::experimental::ServerRpcInfo* info) override {
    return new Interceptor(calls_, &answering_, info->server_context());
  }

 private:
  const std::shared_ptr<Calls> calls_;
  const Answering answering_;  // as long as the server has calls
};

CallEnds::CallEnds() : calls_(std::make_shared<Calls>()) {}
CallEnds::~CallEnds() = default;

void CallEnds::Intercept(grpc::ServerBuilder* builder, Answering answering) {
  std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>> factories;
  factories.push_back(std::make_unique<Factory>(calls_, std::move(answering)));
  builder->experimental().SetInterceptorCreators(std::move(factories));
}

void CallEnds::Then(const grpc::ServerContextBase* context, Done done) {
  {
    absl::MutexLock lock(&calls_->mutex);
    const auto found = calls_->open.find(context);
    if (found != calls_->open.end()) return found->second->Then(std::move(done));
  }
  done();
}

}  // namespace milepost::coordinator
