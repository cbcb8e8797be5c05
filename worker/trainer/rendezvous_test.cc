#include "worker/trainer/rendezvous.h"

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>

#include "common/rpc/status.h"
#include "common/status_macros.h"
#include "engine/runtime/executor/device_failure.h"
#include "engine/runtime/offload/state_disk.h"
#include "worker/trainer/failure.h"

namespace milepost::worker {
namespace {

class FakeRendezvous : public v1::RendezvousService::Service {
 public:
  explicit FakeRendezvous(const std::string& address = "127.0.0.1:0") {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort(address, grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
    address_ = "127.0.0.1:" + std::to_string(port);
  }
  ~FakeRendezvous() override { server_->Shutdown(std::chrono::system_clock::now()); }
  const std::string& address() const { return address_; }
  std::atomic<int64_t> generation{1};
  std::atomic<int> to_cut_off{0};  // of calls that come

 private:
  grpc::Status PutKey(grpc::ServerContext* context, const v1::PutKeyRequest* request,
                      v1::PutKeyResponse*) override {
    if (to_cut_off > 0) {
      --to_cut_off;
      context->TryCancel();
      return grpc::Status::OK;
    }
    std::lock_guard lock(mutex_);
    values_[request->job() + request->key()] = request->value();
    changed_.notify_all();
    return grpc::Status::OK;
  }
  grpc::Status GetKey(grpc::ServerContext* context, const v1::GetKeyRequest* request,
                      v1::GetKeyResponse* response) override {
    if (request->generation() != generation) {
      return grpc::Status(grpc::StatusCode::ABORTED, "a newer generation");
    }
    std::unique_lock lock(mutex_);
    const std::string key = request->job() + request->key();
    if (!changed_.wait_until(lock, context->deadline(), [&] { return values_.count(key) > 0; })) {
      return grpc::Status(grpc::StatusCode::DEADLINE_EXCEEDED, "no such key");
    }
    response->set_value(values_[key]);
    return grpc::Status::OK;
  }

  grpc::Status PutChoices(grpc::ServerContext*, const v1::PutChoicesRequest* request,
                          v1::PutChoicesResponse*) override {
    std::lock_guard lock(mutex_);
    choices_ = request->choices();
    return grpc::Status::OK;
  }
  grpc::Status GetChoices(grpc::ServerContext*, const v1::GetChoicesRequest* request,
                          v1::GetChoicesResponse* response) override {
    std::lock_guard lock(mutex_);
    if (request->generation() == 0) return grpc::Status(grpc::StatusCode::UNIMPLEMENTED, "older");
    response->set_choices(choices_);
    return grpc::Status::OK;
  }

  std::mutex mutex_;
  std::string choices_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;
  std::string address_;
  std::unique_ptr<grpc::Server> server_;
};

std::unique_ptr<RendezvousStore> Store(
    const std::string& address, int64_t generation = 1,
    std::function<bool()> give_up = [] { return false; }) {
  return std::make_unique<RendezvousStore>(address, "jobs/1", generation, std::move(give_up),
                                           absl::Seconds(30));
}

TEST(RendezvousTest, HandsValuesOver) {
  FakeRendezvous service;
  auto a = Store(service.address()), b = Store(service.address());
  std::thread putter([&] { EXPECT_TRUE(a->Put("rank0", "address").ok()); });
  auto value = b->Get("rank0", absl::Now() + absl::Seconds(30));
  putter.join();
  ASSERT_TRUE(value.ok()) << value.status();
  EXPECT_EQ(*value, "address");
  EXPECT_TRUE(
      absl::IsDeadlineExceeded(b->Get("rank1", absl::Now() + absl::Milliseconds(50)).status()));
}

TEST(RendezvousTest, ChoicesAreKept) {
  FakeRendezvous service;
  const absl::Time deadline = absl::Now() + absl::Seconds(30);
  auto store = Store(service.address());
  EXPECT_EQ(*store->GetChoices(deadline), "");
  EXPECT_EQ(store->PutChoices("of rank 0", deadline), absl::OkStatus());
  EXPECT_EQ(*store->GetChoices(deadline), "of rank 0");
  EXPECT_TRUE(absl::IsUnimplemented(
      Store(service.address(), /*generation=*/0)->GetChoices(deadline).status()));
}

TEST(RendezvousTest, OutlivesTheCoordinator) {
  auto service = std::make_unique<FakeRendezvous>();
  const std::string address = service->address();
  auto store = Store(address);
  std::thread putter([&] { EXPECT_TRUE(store->Put("before", "x").ok()); });
  putter.join();
  service.reset();
  std::thread waiter([&] { EXPECT_TRUE(store->Put("after", "y").ok()); });
  service = std::make_unique<FakeRendezvous>(address);
  waiter.join();
  EXPECT_EQ(*store->Get("after", absl::Now() + absl::Seconds(30)), "y");
}

// As a server does that is shut down, to calls which it has not begun with.
TEST(RendezvousTest, ACallThatIsCutOffIsMadeAgain) {
  FakeRendezvous service;
  service.to_cut_off = 2;
  auto store = Store(service.address());
  EXPECT_EQ(store->Put("key", "value"), absl::OkStatus());
  EXPECT_EQ(service.to_cut_off, 0);
  EXPECT_EQ(*store->Get("key", absl::Now() + absl::Seconds(30)), "value");
}

TEST(RendezvousTest, TellsAnOldGeneration) {
  FakeRendezvous service;
  service.generation = 2;
  auto store = Store(service.address());
  EXPECT_TRUE(absl::IsAborted(store->Get("key", absl::InfiniteFuture()).status()));
  EXPECT_TRUE(store->fenced());
}

TEST(RendezvousTest, GivesUpWhenTold) {
  FakeRendezvous service;
  int asked = 0;
  auto store = Store(service.address(), 1, [&] { return ++asked > 1; });
  EXPECT_TRUE(absl::IsCancelled(store->Get("never", absl::InfiniteFuture()).status()));
}

TEST(AddressTest, FindsTheAddressTowardsAHost) {
  EXPECT_EQ(LocalAddressTowards("127.0.0.1:80"), "127.0.0.1");
  EXPECT_EQ(LocalAddressTowards("nonsense"), "127.0.0.1");
}

TEST(FailureTest, SaysWhoseFaultItIs) {
  EXPECT_EQ(SetupFailure(absl::InvalidArgumentError("bad")).code, kExitUsage);
  EXPECT_EQ(SetupFailure(absl::NotFoundError("no file")).failure_class, v1::FAILURE_CLASS_USER);
  EXPECT_EQ(SetupFailure(absl::ResourceExhaustedError("arena")).code, kExitOutOfMemory);
  EXPECT_EQ(SetupFailure(absl::UnavailableError("peer")).code, kExitPeerLost);
  EXPECT_EQ(RestoreFailure(absl::DataLossError("chunk")).code, kExitData);
  EXPECT_EQ(RestoreFailure(absl::UnavailableError("away")).code, kExitNetwork);
  EXPECT_EQ(RestoreFailure(absl::FailedPreconditionError("model")).code, kExitUsage);
  EXPECT_EQ(StepFailure(absl::InvalidArgumentError("token 300")).failure_class,
            v1::FAILURE_CLASS_USER);
  EXPECT_EQ(StepFailure(absl::DataLossError("flipped")).failure_class, v1::FAILURE_CLASS_DATA);
  EXPECT_EQ(StepFailure(absl::AbortedError("peer")).code, kExitPeerLost);
  EXPECT_EQ(StepFailure(absl::InternalError("bug")).code, kExitError);
  for (const absl::Status& status :
       {absl::FailedPreconditionError("no driver"), absl::InternalError("ECC")}) {
    const absl::Status failure = Annotate(runtime::DeviceFailure(status), "op 3");
    EXPECT_EQ(StepFailure(failure).failure_class, v1::FAILURE_CLASS_DEVICE) << status;
    EXPECT_EQ(SetupFailure(failure).failure_class, v1::FAILURE_CLASS_DEVICE) << status;
  }
  // Of a disk that has optimizer state, whatever its code.
  for (const absl::Status& status :
       {absl::DataLossError("flipped"), absl::ResourceExhaustedError("full"),
        absl::DeadlineExceededError("silent")}) {
    const absl::Status failure = Annotate(runtime::DiskFailure(status), "op 3");
    EXPECT_EQ(StepFailure(failure).failure_class, v1::FAILURE_CLASS_HOST) << status;
    EXPECT_EQ(SetupFailure(failure).failure_class, v1::FAILURE_CLASS_HOST) << status;
  }
}

}  // namespace
}  // namespace milepost::worker
