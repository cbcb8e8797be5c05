// A client of an in-process coordinator and a worker without processes: for tests.
#ifndef MILEPOST_COORDINATOR_RPC_FAKE_WORKER_H_
#define MILEPOST_COORDINATOR_RPC_FAKE_WORKER_H_

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>
#include <utility>

#include "common/rpc/status.h"
#include "milepost/v1/worker.grpc.pb.h"

namespace milepost::coordinator {

class FakeWorker {
 public:
  // Connects and says Hello with `ranks`.
  FakeWorker(const Endpoint& address, const std::string& id, int slots, int64_t incarnation = 1,
             const std::vector<v1::RankReport>& ranks = {}, int64_t slot_memory = 0,
             v1::DeviceKind device = v1::DEVICE_KIND_CPU, int64_t host_memory = 0,
             const std::string& pool = "")
      : stub_(v1::WorkerService::NewStub(MakeChannel(address))) {
    context_.set_wait_for_ready(true);
    stream_ = stub_->Session(&context_);
    v1::WorkerMessage message;
    v1::Hello* hello = message.mutable_hello();
    hello->set_worker_id(id);
    hello->set_incarnation(incarnation);
    for (int i = 0; i < slots; ++i) {
      v1::Slot* slot = hello->add_slots();
      slot->set_index(i);
      slot->set_device(device);
      slot->set_memory_bytes(slot_memory);
      slot->set_host_memory_bytes(host_memory);
    }
    if (!pool.empty()) (*hello->mutable_labels())["pool"] = pool;
    for (const v1::RankReport& rank : ranks) *hello->add_ranks() = rank;
    stream_->Write(message);
  }
  ~FakeWorker() { Disconnect(); }

  void Disconnect() {
    if (stream_ == nullptr) return;
    context_.TryCancel();
    v1::CoordinatorMessage ignored;
    while (stream_->Read(&ignored)) {
    }
    stream_->Finish();
    stream_ = nullptr;
  }

  // The next message, blocking; an empty one at the end of the stream.
  v1::CoordinatorMessage Receive() {
    v1::CoordinatorMessage message;
    if (!stream_->Read(&message)) message.Clear();
    return message;
  }
  // The status that the stream ended with.
  grpc::Status Finish() {
    v1::CoordinatorMessage ignored;
    while (stream_->Read(&ignored)) {
    }
    grpc::Status status = stream_->Finish();
    stream_ = nullptr;
    return status;
  }

  void Send(const v1::WorkerMessage& message) { stream_->Write(message); }
  void Report(const v1::StartRank& start, v1::RankState state) {
    v1::WorkerMessage message;
    *message.mutable_rank_report() = MakeReport(start, state);
    Send(message);
  }
  void Log(const v1::LogLine& line) {
    v1::WorkerMessage message;
    *message.mutable_logs()->add_lines() = line;
    Send(message);
  }
  static v1::RankReport MakeReport(const v1::StartRank& start, v1::RankState state) {
    v1::RankReport report;
    report.set_job(start.job());
    report.set_generation(start.generation());
    report.set_rank(start.rank());
    report.set_slot(start.slot());
    report.set_state(state);
    return report;
  }

 private:
  std::unique_ptr<v1::WorkerService::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::WorkerMessage, v1::CoordinatorMessage>> stream_;
};

}  // namespace milepost::coordinator

#endif  // MILEPOST_COORDINATOR_RPC_FAKE_WORKER_H_
