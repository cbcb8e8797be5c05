// A coordinator on loopback with a store of its own, for tests.
#ifndef MILEPOST_COORDINATOR_RPC_SERVER_FIXTURE_H_
#define MILEPOST_COORDINATOR_RPC_SERVER_FIXTURE_H_

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>

#include "common/rpc/status.h"
#include "coordinator/rpc/fake_worker.h"
#include "coordinator/rpc/server.h"
#include "milepost/v1/checkpoint.grpc.pb.h"
#include "milepost/v1/job.grpc.pb.h"
#include "milepost/v1/worker.grpc.pb.h"

namespace milepost::coordinator {

class ServerTest : public ::testing::Test {
 protected:
  ServerTest() {
    std::string pattern = (std::filesystem::temp_directory_path() / "milepost-server-XXXXXX");
    dir_ = mkdtemp(pattern.data());
    options_.store.dir = dir_;
    Start();
  }
  ~ServerTest() override {
    server_.reset();
    std::filesystem::remove_all(dir_);
  }

  // Again on the same directory, like a restarted process; the address may differ.
  void Start() {
    server_.reset();
    auto server = CoordinatorServer::Start(options_);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    auto channel = MakeChannel(server_->address());
    // The stubs' calls do not try again: on a busy host a first attempt may take too long.
    const auto deadline = std::chrono::system_clock::now() + std::chrono::seconds(20);
    ASSERT_TRUE(channel->WaitForConnected(deadline));
    jobs_ = v1::JobService::NewStub(channel);
    workers_ = v1::WorkerService::NewStub(channel);
    rendezvous_ = v1::RendezvousService::NewStub(channel);
    checkpoints_ = v1::CheckpointService::NewStub(channel);
  }

  static v1::SubmitJobRequest Request(int ranks = 1) {
    v1::SubmitJobRequest request;
    v1::JobSpec* spec = request.mutable_spec();
    spec->set_name("test");
    v1::Gpt2Spec* model = spec->mutable_model()->mutable_gpt2();
    model->set_layers(1);
    model->set_width(8);
    model->set_heads(2);
    model->set_context(8);
    model->set_vocabulary(16);
    spec->mutable_data()->set_train("/data/train.npy");
    spec->mutable_train()->set_steps(10);
    spec->mutable_train()->mutable_batch()->set_global(ranks);
    spec->mutable_train()->mutable_batch()->set_micro(1);
    spec->mutable_resources()->set_ranks(ranks);
    spec->mutable_checkpoint()->set_keep_last(1);
    spec->mutable_restart()->set_backoff_seconds(0.01);
    return request;
  }

  std::string Submit(int ranks = 1) {
    grpc::ClientContext context;
    v1::Job job;
    grpc::Status status = jobs_->SubmitJob(&context, Request(ranks), &job);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return job.name();
  }
  v1::Job GetJob(const std::string& name) {
    grpc::ClientContext context;
    v1::GetJobRequest request;
    request.set_name(name);
    v1::Job job;
    EXPECT_TRUE(jobs_->GetJob(&context, request, &job).ok());
    return job;
  }
  // Watches until the job is in `state`.
  v1::Job WaitFor(const std::string& name, v1::JobState state) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
    v1::GetJobRequest request;
    request.set_name(name);
    auto stream = jobs_->WatchJob(&context, request);
    v1::Job job;
    while (stream->Read(&job)) {
      if (job.state() == state) {
        context.TryCancel();
        return job;
      }
    }
    ADD_FAILURE() << name << " is " << v1::JobState_Name(job.state()) << ", not "
                  << v1::JobState_Name(state);
    return job;
  }

  // Writes a checkpoint of one tensor of `count` F32 elements.
  grpc::Status Write(const v1::StartRank& rank, int64_t step, int64_t count, std::string* name,
                     const v1::TrainerState& state = {}) {
    v1::BeginCheckpointRequest begin;
    begin.set_job(rank.job());
    begin.set_generation(rank.generation());
    begin.set_step(step);
    begin.set_bytes(count * 4);
    begin.set_streams(1);
    *begin.mutable_state() = state;
    v1::TensorInfo* tensor = begin.add_tensors();
    tensor->set_name("w");
    tensor->set_kind("master");
    tensor->set_dtype("F32");
    tensor->add_shape(count);
    v1::BeginCheckpointResponse begun;
    {
      grpc::ClientContext context;
      grpc::Status status = checkpoints_->BeginCheckpoint(&context, begin, &begun);
      if (!status.ok()) return status;
    }
    *name = begun.checkpoint();
    {
      grpc::ClientContext context;
      v1::WriteChunksResponse response;
      auto writer = checkpoints_->WriteChunks(&context, &response);
      v1::WriteChunksRequest message;
      message.set_checkpoint(*name);
      message.set_generation(rank.generation());
      for (int64_t at = 0; at < count; at += 1 << 20) {
        v1::Chunk* chunk = message.mutable_chunk();
        chunk->set_begin(at);
        chunk->set_end(std::min<int64_t>(count, at + (1 << 20)));
        chunk->set_data(std::string((chunk->end() - at) * 4, static_cast<char>('a' + step)));
        chunk->set_xxh3(XXH3_64bits(chunk->data().data(), chunk->data().size()));
        writer->Write(message);
        message.Clear();
      }
      writer->WritesDone();
      grpc::Status status = writer->Finish();
      if (!status.ok()) return status;
      EXPECT_EQ(response.bytes(), count * 4);
    }
    return grpc::Status::OK;
  }
  // The same, and commits it; the commit's status.
  grpc::Status Save(const v1::StartRank& rank, int64_t step, int64_t count, std::string* name,
                    const v1::TrainerState& state = {}) {
    if (grpc::Status status = Write(rank, step, count, name, state); !status.ok()) return status;
    grpc::ClientContext context;
    v1::CommitCheckpointRequest commit;
    commit.set_checkpoint(*name);
    commit.set_job(rank.job());
    commit.set_generation(rank.generation());
    v1::Checkpoint committed;
    return checkpoints_->CommitCheckpoint(&context, commit, &committed);
  }

  std::string dir_;
  ServerOptions options_;
  std::unique_ptr<CoordinatorServer> server_;
  std::unique_ptr<v1::JobService::Stub> jobs_;
  std::unique_ptr<v1::WorkerService::Stub> workers_;
  std::unique_ptr<v1::RendezvousService::Stub> rendezvous_;
  std::unique_ptr<v1::CheckpointService::Stub> checkpoints_;
};

}  // namespace milepost::coordinator

#endif  // MILEPOST_COORDINATOR_RPC_SERVER_FIXTURE_H_
