// Upload and restore against a checkpoint service in this process that keeps everything in memory
// and fails as told.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <filesystem>
#include <map>
#include <mutex>
#include <numeric>

#include "common/error_details.h"
#include "common/rpc/status.h"
#include "engine/state/half.h"
#include "worker/trainer/checkpoint_reader.h"
#include "worker/trainer/checkpoint_uploader.h"

namespace milepost::worker {
namespace {

using testing::HasSubstr;

absl::Time Soon() { return absl::Now() + absl::Seconds(30); }

class FakeService : public v1::CheckpointService::Service {
 public:
  struct Open {
    v1::BeginCheckpointRequest request;
    std::map<int, std::vector<v1::Chunk>> streams;
    bool committed = false;
  };

  FakeService() { Serve("127.0.0.1:0"); }
  ~FakeService() override { StopServing(); }

  void StopServing() {
    if (server_ != nullptr) server_->Shutdown(std::chrono::system_clock::now());
    server_.reset();
  }
  void Serve(const std::string& address) {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort(address, grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(this);
    builder.SetMaxReceiveMessageSize(16 << 20);
    server_ = builder.BuildAndStart();
    address_ = "127.0.0.1:" + std::to_string(port);
  }
  const std::string& address() const { return address_; }

  // Answers of the next calls of Begin, WriteChunks and Commit, in order; then they succeed.
  void Script(std::deque<absl::Status> begins, std::deque<absl::Status> writes = {},
              std::deque<absl::Status> commits = {}) {
    std::lock_guard lock(mutex_);
    begins_ = std::move(begins);
    writes_ = std::move(writes);
    commits_ = std::move(commits);
  }
  void ScriptReads(std::deque<absl::Status> reads) {
    std::lock_guard lock(mutex_);
    reads_ = std::move(reads);
  }
  // While held, Begin calls wait.
  void Hold(bool held) {
    std::lock_guard lock(mutex_);
    held_ = held;
    changed_.notify_all();
  }
  void AwaitBegins(int count) {
    std::unique_lock lock(mutex_);
    ASSERT_TRUE(
        changed_.wait_for(lock, std::chrono::seconds(30), [&] { return begin_calls_ >= count; }));
  }
  Open& Get(int64_t step) { return open_[step]; }
  int begin_calls() const { return begin_calls_; }

 private:
  static absl::Status Take(std::deque<absl::Status>& script) {
    if (script.empty()) return absl::OkStatus();
    absl::Status status = script.front();
    script.pop_front();
    return status;
  }
  static int64_t StepOf(const std::string& name) { return std::stoll(name.substr(12)); }

  grpc::Status BeginCheckpoint(grpc::ServerContext*, const v1::BeginCheckpointRequest* request,
                               v1::BeginCheckpointResponse* response) override {
    std::unique_lock lock(mutex_);
    ++begin_calls_;
    changed_.notify_all();
    changed_.wait(lock, [&] { return !held_; });
    if (absl::Status status = Take(begins_); !status.ok()) return ToGrpcStatus(status);
    open_[request->step()].request = *request;
    response->set_checkpoint("checkpoints/" + std::to_string(request->step()));
    return grpc::Status::OK;
  }

  grpc::Status WriteChunks(grpc::ServerContext*, grpc::ServerReader<v1::WriteChunksRequest>* reader,
                           v1::WriteChunksResponse*) override {
    v1::WriteChunksRequest message;
    std::vector<v1::Chunk> chunks;
    std::string name;
    int stream = -1;
    while (reader->Read(&message)) {
      if (!message.checkpoint().empty()) {
        name = message.checkpoint();
        stream = message.stream();
      }
      if (message.has_chunk()) chunks.push_back(message.chunk());
    }
    std::lock_guard lock(mutex_);
    absl::Status status = Take(writes_);
    if (status.ok()) open_[StepOf(name)].streams[stream] = std::move(chunks);
    changed_.notify_all();
    return ToGrpcStatus(status);
  }

  grpc::Status CommitCheckpoint(grpc::ServerContext*, const v1::CommitCheckpointRequest* request,
                                v1::Checkpoint*) override {
    std::lock_guard lock(mutex_);
    if (absl::Status status = Take(commits_); !status.ok()) return ToGrpcStatus(status);
    Open& open = open_[StepOf(request->checkpoint())];
    if (static_cast<int>(open.streams.size()) < open.request.streams()) {
      return ToGrpcStatus(absl::FailedPreconditionError("streams are missing"));
    }
    open.committed = true;
    return grpc::Status::OK;
  }

  grpc::Status GetCheckpoint(grpc::ServerContext*, const v1::GetCheckpointRequest* request,
                             v1::CheckpointManifest* response) override {
    std::lock_guard lock(mutex_);
    const Open& open = open_[StepOf(request->name())];
    response->mutable_checkpoint()->set_name(request->name());
    *response->mutable_tensors() = open.request.tensors();
    *response->mutable_state() = open.request.state();
    return grpc::Status::OK;
  }

  grpc::Status ReadChunks(grpc::ServerContext*, const v1::ReadChunksRequest* request,
                          grpc::ServerWriter<v1::Chunk>* writer) override {
    std::lock_guard lock(mutex_);
    if (absl::Status status = Take(reads_); !status.ok()) return ToGrpcStatus(status);
    for (const auto& [stream, chunks] : open_[StepOf(request->name())].streams) {
      for (const v1::Chunk& chunk : chunks) {
        const bool wanted = std::any_of(
            request->ranges().begin(), request->ranges().end(), [&](const v1::TensorRange& range) {
              return range.tensor() == chunk.tensor() && range.begin() < chunk.end() &&
                     chunk.begin() < range.end();
            });
        if (wanted) writer->Write(chunk);
      }
    }
    return grpc::Status::OK;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<absl::Status> begins_, writes_, commits_, reads_;
  bool held_ = false;
  std::atomic<int> begin_calls_{0};
  std::map<int64_t, Open> open_;
  std::string address_;
  std::unique_ptr<grpc::Server> server_;
};

v1::TensorInfo Tensor(const std::string& name, const std::string& kind,
                      const std::vector<int64_t>& shape) {
  v1::TensorInfo info;
  info.set_name(name);
  info.set_kind(kind);
  info.set_dtype("F32");
  info.mutable_shape()->Assign(shape.begin(), shape.end());
  return info;
}

// Two tensors in memory: 3,000,000 elements (three chunks) and 10.
struct State {
  State() : tensors{Tensor("wte", "master", {3000, 1000}), Tensor("bias", "m", {10})} {
    values[0].resize(3000000);
    values[1].resize(10);
  }
  void Fill(float offset) {
    for (auto& tensor : values) std::iota(tensor.begin(), tensor.end(), offset);
  }
  runtime::StateInterval Interval(int32_t tensor, int64_t begin, int64_t end) {
    return {tensor, begin, end,
            reinterpret_cast<char*>(values[static_cast<size_t>(tensor)].data() + begin)};
  }
  // What `rank` of two saves or wants.
  std::vector<runtime::StateInterval> Half(int rank) {
    if (rank == 0) return {Interval(0, 0, 1234567)};
    return {Interval(0, 1234567, 3000000), Interval(1, 0, 10)};
  }
  std::vector<runtime::StateInterval> All() {
    return {Interval(0, 0, 3000000), Interval(1, 0, 10)};
  }

  std::vector<v1::TensorInfo> tensors;
  std::vector<float> values[2];
};

absl::Status DiskFull(absl::string_view message) {
  return Refusal(v1::ERROR_REASON_DISK_FULL, "", message);
}

v1::TrainerState AtStep(int64_t step) {
  v1::TrainerState state;
  state.set_step(step);
  return state;
}

class CheckpointTest : public testing::Test {
 protected:
  void SetUp() override { service_ = std::make_unique<FakeService>(); }

  UploaderOptions Options(int rank, int world) {
    UploaderOptions options;
    options.job = "jobs/1";
    options.generation = 1;
    options.rank = rank;
    options.world = world;
    options.tensors = state_.tensors;
    return options;
  }
  std::unique_ptr<CheckpointUploader> Single() {
    return std::make_unique<CheckpointUploader>(service_->address(), Options(0, 1), state_.All());
  }
  CheckpointReader Reader() {
    return CheckpointReader(service_->address(), absl::Seconds(10), [] { return false; });
  }

  std::unique_ptr<FakeService> service_;
  State state_;
};

TEST_F(CheckpointTest, TwoRanksSaveAndOneRestores) {
  state_.Fill(1);
  CheckpointUploader first(service_->address(), Options(0, 2), state_.Half(0));
  CheckpointUploader second(service_->address(), Options(1, 2), state_.Half(1));
  EXPECT_TRUE(first.Save(state_.Half(0), AtStep(5), false).ok());
  EXPECT_TRUE(second.Save(state_.Half(1), AtStep(5), false).ok());
  state_.Fill(777);  // the copies are already made
  EXPECT_TRUE(first.Wait(Soon()).ok());
  EXPECT_TRUE(second.Wait(Soon()).ok());
  EXPECT_TRUE(service_->Get(5).committed);
  EXPECT_EQ(first.State().committed_step, 5);

  State restored;
  // Its own order of tensors, and pieces that cut across chunks.
  std::swap(restored.tensors[0], restored.tensors[1]);
  std::vector<runtime::StateInterval> targets = {restored.Interval(0, 100, 2000001),
                                                 restored.Interval(1, 0, 10)};
  targets[0].tensor = 1;
  targets[1].tensor = 0;
  CheckpointReader reader = Reader();
  auto manifest = reader.Manifest("checkpoints/5");
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  EXPECT_EQ(manifest->state().step(), 5);
  ASSERT_TRUE(reader.Read(*manifest, restored.tensors, targets).ok());
  state_.Fill(1);
  EXPECT_TRUE(std::equal(restored.values[0].begin() + 100, restored.values[0].begin() + 2000001,
                         state_.values[0].begin() + 100));
  EXPECT_EQ(restored.values[0][99], 0);  // outside the wanted interval
  EXPECT_EQ(restored.values[0][2000001], 0);
  EXPECT_EQ(restored.values[1], state_.values[1]);
}

// A run whose parameters are their own masters goes on from one with fp32 masters, and the other
// way round. Nothing but masters is converted.
TEST_F(CheckpointTest, MastersAreConvertedBetweenFp32AndBf16) {
  state_.Fill(0.3F);
  auto uploader = Single();
  EXPECT_TRUE(uploader->Save(state_.All(), AtStep(1), false).ok());
  ASSERT_TRUE(uploader->Wait(Soon()).ok());
  CheckpointReader reader = Reader();
  const auto manifest = reader.Manifest("checkpoints/1");
  ASSERT_TRUE(manifest.ok()) << manifest.status();

  std::vector<v1::TensorInfo> tensors = state_.tensors;
  tensors[0].set_dtype("BF16");
  std::vector<uint16_t> halves(3000000);
  const auto half = [&](int64_t begin, int64_t end) {
    return runtime::StateInterval{0, begin, end, reinterpret_cast<char*>(halves.data() + begin)};
  };
  ASSERT_TRUE(reader.Read(*manifest, tensors, {half(5, 2999999)}).ok());
  EXPECT_EQ(halves[4], 0);
  EXPECT_EQ(halves[2999999], 0);
  for (const size_t i : {5, 99, 1048577, 2999998}) {
    EXPECT_EQ(halves[i], state::F32ToBf16(state_.values[0][i])) << i;
  }

  UploaderOptions options = Options(0, 1);
  options.tensors = tensors;
  const std::vector<runtime::StateInterval> saved = {half(0, 3000000), state_.Interval(1, 0, 10)};
  CheckpointUploader second(service_->address(), options, saved);
  EXPECT_TRUE(second.Save(saved, AtStep(2), false).ok());
  ASSERT_TRUE(second.Wait(Soon()).ok());
  State restored;
  ASSERT_TRUE(
      reader.Read(*reader.Manifest("checkpoints/2"), restored.tensors, restored.All()).ok());
  for (const size_t i : {0, 5, 99, 1048577, 2999998}) {
    EXPECT_EQ(restored.values[0][i], state::Bf16ToF32(halves[i])) << i;
  }

  tensors[1].set_dtype("BF16");
  EXPECT_FALSE(reader.Read(*manifest, tensors, {half(0, 3000000)}).ok());
}

TEST_F(CheckpointTest, CutsIntoChunksOfFourMebibytes) {
  auto uploader = Single();
  EXPECT_TRUE(uploader->Save(state_.All(), AtStep(1), false).ok());
  ASSERT_TRUE(uploader->Wait(Soon()).ok());
  int64_t bytes = 0;
  for (const v1::Chunk& chunk : service_->Get(1).streams[0]) {
    EXPECT_LE(chunk.data().size(), 4U << 20);
    bytes += static_cast<int64_t>(chunk.data().size());
  }
  EXPECT_EQ(bytes, 12000040);
  EXPECT_EQ(service_->Get(1).request.bytes(), 12000040);
}

TEST_F(CheckpointTest, StartsOverWhenTheCoordinatorForgotTheUpload) {
  service_->Script({}, {absl::NotFoundError("begin again")}, {absl::NotFoundError("begin again")});
  auto uploader = Single();
  EXPECT_TRUE(uploader->Save(state_.All(), AtStep(1), false).ok());
  EXPECT_TRUE(uploader->Wait(Soon()).ok());
  EXPECT_TRUE(service_->Get(1).committed);
  EXPECT_EQ(service_->begin_calls(), 3);
}

TEST_F(CheckpointTest, HoldsTheCopyWhileTheCoordinatorIsAway) {
  auto uploader = Single();
  const std::string address = service_->address();
  service_->StopServing();
  state_.Fill(3);
  EXPECT_TRUE(uploader->Save(state_.All(), AtStep(1), false).ok());
  EXPECT_TRUE(absl::IsDeadlineExceeded(uploader->Wait(absl::Now() + absl::Milliseconds(300))));
  EXPECT_THAT(uploader->State().problem, HasSubstr("until the coordinator takes it"));
  state_.Fill(4);
  service_->Serve(address);
  EXPECT_TRUE(uploader->Wait(Soon()).ok());
  EXPECT_EQ(uploader->State().problem, "");
  float first;
  std::memcpy(&first, service_->Get(1).streams[0][0].data().data(), sizeof first);
  EXPECT_EQ(first, 3);
}

TEST_F(CheckpointTest, ALaterSaveReplacesOneThatWaitsForTheCoordinator) {
  auto uploader = Single();
  const std::string address = service_->address();
  service_->StopServing();
  // Returns although nothing was ever uploaded.
  for (int step = 1; step <= 3; ++step) {
    EXPECT_TRUE(uploader->Save(state_.All(), AtStep(step), false).ok());
  }
  service_->Serve(address);
  EXPECT_TRUE(uploader->Wait(Soon()).ok());
  EXPECT_EQ(uploader->State().committed_step, 3);
  EXPECT_FALSE(service_->Get(1).committed);
  EXPECT_TRUE(service_->Get(3).committed);
}

TEST_F(CheckpointTest, ASaveWaitsForAnUploadInProgress) {
  auto uploader = Single();
  service_->Hold(true);
  EXPECT_TRUE(uploader->Save(state_.All(), AtStep(1), false).ok());
  service_->AwaitBegins(1);
  std::thread release([&] { service_->Hold(false); });
  EXPECT_TRUE(uploader->Save(state_.All(), AtStep(2), false).ok());
  release.join();
  EXPECT_TRUE(uploader->Wait(Soon()).ok());
  EXPECT_TRUE(service_->Get(1).committed);
  EXPECT_TRUE(service_->Get(2).committed);
}

// The copy is a file that nobody sees, and is what is uploaded, whatever becomes of the sources.
TEST_F(CheckpointTest, PartsAreCopiedToAFile) {
  std::string folder = (std::filesystem::temp_directory_path() / "milepost-XXXXXX").string();
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  UploaderOptions options = Options(0, 1);
  options.copy_folder = folder;
  state_.Fill(1);
  {
    CheckpointUploader uploader(service_->address(), options, state_.All());
    ASSERT_EQ(uploader.AwaitCopy(), absl::OkStatus());
    EXPECT_TRUE(std::filesystem::is_empty(folder));
    const auto parts =
        [&](absl::FunctionRef<void(const std::vector<runtime::StateInterval>&)> copy) {
          for (const runtime::StateInterval& interval : state_.All()) copy({interval});
          return absl::OkStatus();
        };
    EXPECT_TRUE(uploader.Save(parts, AtStep(5), false).ok());
    state_.Fill(777);
    EXPECT_EQ(uploader.Wait(Soon()), absl::OkStatus());
    const auto fails = [](auto) { return absl::DataLossError("the disk"); };
    EXPECT_TRUE(absl::IsDataLoss(uploader.Save(fails, AtStep(6), false).status()));
  }
  std::filesystem::remove(folder);
  State restored;
  CheckpointReader reader = Reader();
  auto manifest = reader.Manifest("checkpoints/5");
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  ASSERT_EQ(reader.Read(*manifest, restored.tensors, restored.All()), absl::OkStatus());
  state_.Fill(1);
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(restored.values[i] == state_.values[i]);

  CheckpointUploader nowhere(service_->address(), options, state_.All());
  EXPECT_TRUE(absl::IsNotFound(nowhere.AwaitCopy()));
  EXPECT_TRUE(absl::IsNotFound(nowhere.Save(state_.All(), AtStep(7), false).status()));
}

TEST_F(CheckpointTest, AFullDiskEndsTheUploadAndTheNextOneTriesAgain) {
  service_->Script({DiskFull("3 bytes left")});
  auto uploader = Single();
  EXPECT_TRUE(uploader->Save(state_.All(), AtStep(1), false).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(uploader->Wait(Soon())));
  EXPECT_TRUE(uploader->Save(state_.All(), AtStep(2), false).ok());
  EXPECT_TRUE(uploader->Wait(Soon()).ok());
}

TEST_F(CheckpointTest, AFullDiskIsTriedAgainForTheLastCheckpointForABoundedTime) {
  UploaderOptions options = Options(0, 1);
  options.full_disk_retry = absl::ZeroDuration();
  service_->Script({DiskFull("full")});
  CheckpointUploader gives_up(service_->address(), options, state_.All());
  EXPECT_TRUE(gives_up.Save(state_.All(), AtStep(1), /*final=*/true).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(gives_up.Wait(Soon())));

  service_->Script({DiskFull("full")});
  auto patient = Single();
  EXPECT_TRUE(patient->Save(state_.All(), AtStep(2), /*final=*/true).ok());
  EXPECT_TRUE(patient->Wait(Soon()).ok());
}

// gRPC's answer when all threads are busy has the code of a full disk.
TEST_F(CheckpointTest, ABusyCoordinatorIsAskedAgain) {
  const absl::Status busy = absl::ResourceExhaustedError("Server Threadpool Exhausted");
  service_->Script({busy}, {busy}, {busy});
  state_.Fill(1);
  auto uploader = Single();
  EXPECT_TRUE(uploader->Save(state_.All(), AtStep(1), false).ok());
  EXPECT_TRUE(uploader->Wait(Soon()).ok());
  EXPECT_TRUE(service_->Get(1).committed);

  service_->ScriptReads({busy});
  CheckpointReader reader = Reader();
  auto manifest = reader.Manifest("checkpoints/1");
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  EXPECT_TRUE(reader.Read(*manifest, state_.tensors, state_.All()).ok());
  service_->ScriptReads({busy});
  CheckpointReader hasty(service_->address(), absl::ZeroDuration(), [] { return false; });
  const absl::Status status = hasty.Read(*manifest, state_.tensors, state_.All());
  EXPECT_TRUE(absl::IsUnavailable(status)) << "it would count as this rank's memory: " << status;
}

TEST_F(CheckpointTest, TellsFencedSupersededAndAlreadyCommitted) {
  service_->Script({absl::AbortedError("generation 2"), absl::FailedPreconditionError("superseded"),
                    absl::AlreadyExistsError("checkpoints/3")});
  auto uploader = Single();
  EXPECT_TRUE(uploader->Save(state_.All(), AtStep(1), false).ok());
  EXPECT_TRUE(absl::IsAborted(uploader->Wait(Soon())));
  EXPECT_TRUE(uploader->Save(state_.All(), AtStep(2), false).ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(uploader->Wait(Soon())));
  EXPECT_TRUE(uploader->Save(state_.All(), AtStep(3), false).ok());
  EXPECT_TRUE(uploader->Wait(Soon()).ok());
  EXPECT_EQ(uploader->State().committed_step, 3);
}

TEST_F(CheckpointTest, EndsAtOnceWhenDestroyed) {
  service_->Hold(true);
  auto uploader = Single();
  EXPECT_TRUE(uploader->Save(state_.All(), AtStep(1), false).ok());
  service_->AwaitBegins(1);
  uploader.reset();  // would wait for the call's deadline otherwise
  service_->Hold(false);
}

TEST_F(CheckpointTest, NamesADamagedChunk) {
  auto uploader = Single();
  EXPECT_TRUE(uploader->Save(state_.All(), AtStep(1), false).ok());
  ASSERT_TRUE(uploader->Wait(Soon()).ok());
  v1::Chunk& chunk = service_->Get(1).streams[0][1];
  (*chunk.mutable_data())[100] ^= 1;
  CheckpointReader reader = Reader();
  auto manifest = reader.Manifest("checkpoints/1");
  ASSERT_TRUE(manifest.ok());
  const absl::Status status = reader.Read(*manifest, state_.tensors, state_.All());
  EXPECT_TRUE(absl::IsDataLoss(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("wte (master) [262144, 524288)"));
}

TEST_F(CheckpointTest, NoticesAMissingChunk) {
  auto uploader = Single();
  EXPECT_TRUE(uploader->Save(state_.All(), AtStep(1), false).ok());
  ASSERT_TRUE(uploader->Wait(Soon()).ok());
  service_->Get(1).streams[0].pop_back();
  CheckpointReader reader = Reader();
  auto manifest = reader.Manifest("checkpoints/1");
  ASSERT_TRUE(manifest.ok());
  EXPECT_TRUE(absl::IsDataLoss(reader.Read(*manifest, state_.tensors, state_.All())));
}

// A tensor that the checkpoint has a master of and nothing else: its m stays as it is.
TEST_F(CheckpointTest, WhatWasFrozenHasNoOtherKinds) {
  state_.Fill(1);
  auto uploader = Single();
  EXPECT_TRUE(uploader->Save(state_.All(), AtStep(1), false).ok());
  ASSERT_TRUE(uploader->Wait(Soon()).ok());
  CheckpointReader reader = Reader();
  auto manifest = reader.Manifest("checkpoints/1");
  ASSERT_TRUE(manifest.ok());
  State other;
  std::vector<runtime::StateInterval> targets = other.All();
  other.tensors.push_back(Tensor("wte", "m", {3000, 1000}));
  std::vector<float> m(3000000, 0.0F);
  targets.push_back({2, 0, 3000000, reinterpret_cast<char*>(m.data())});
  ASSERT_EQ(reader.Read(*manifest, other.tensors, targets), absl::OkStatus());
  EXPECT_EQ(other.values[0], state_.values[0]);
  EXPECT_EQ(m, std::vector<float>(3000000, 0.0F));
  other.tensors.push_back(Tensor("bias", "v", {10}));  // it has an m
  targets.push_back({3, 0, 10, reinterpret_cast<char*>(m.data())});
  EXPECT_TRUE(absl::IsFailedPrecondition(reader.Read(*manifest, other.tensors, targets)));
}

// Of a checkpoint without averages both are the parameter; of one with them each is its own.
TEST_F(CheckpointTest, AnAverageThatIsNotThereIsTheParameter) {
  state_.Fill(1);
  auto uploader = Single();
  ASSERT_TRUE(uploader->Save(state_.All(), AtStep(5), false).ok());
  ASSERT_TRUE(uploader->Wait(Soon()).ok());
  CheckpointReader reader = Reader();
  const auto manifest = reader.Manifest("checkpoints/5");
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  const std::vector<v1::TensorInfo> wanted = {Tensor("wte", "master", {3000, 1000}),
                                              Tensor("wte", "ema", {3000, 1000})};
  std::vector<float> master(2000000), average(2000000);
  const auto target = [](int32_t tensor, std::vector<float>& into) {
    return runtime::StateInterval{tensor, 100, 2000100, reinterpret_cast<char*>(into.data())};
  };
  ASSERT_EQ(reader.Read(*manifest, wanted, {target(0, master), target(1, average)}),
            absl::OkStatus());
  EXPECT_EQ(master[0], 101);
  EXPECT_EQ(average, master);
  const std::vector<v1::TensorInfo> other = {Tensor("bias", "ema", {10})};
  EXPECT_THAT(reader.Read(*manifest, other, {}).message(), HasSubstr("has no tensor bias (ema)"));
}

TEST_F(CheckpointTest, AnAverageThatIsThereIsRead) {
  state_.tensors[1] = Tensor("wte", "ema", {10});
  state_.tensors[0] = Tensor("wte", "master", {3000000});
  state_.Fill(1);
  state_.values[1][3] = -7;
  auto uploader = Single();
  ASSERT_TRUE(uploader->Save(state_.All(), AtStep(5), false).ok());
  ASSERT_TRUE(uploader->Wait(Soon()).ok());
  CheckpointReader reader = Reader();
  const auto manifest = reader.Manifest("checkpoints/5");
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  std::vector<float> average(10);
  ASSERT_EQ(reader.Read(*manifest, {Tensor("wte", "ema", {10})},
                        {{0, 0, 10, reinterpret_cast<char*>(average.data())}}),
            absl::OkStatus());
  EXPECT_EQ(average, state_.values[1]);
}

// A run in another precision has no scalings: they stay as a new session has them.
TEST_F(CheckpointTest, ScalingsMayBeginAnew) {
  auto uploader = Single();
  EXPECT_TRUE(uploader->Save(state_.All(), AtStep(1), false).ok());
  ASSERT_TRUE(uploader->Wait(Soon()).ok());
  CheckpointReader reader = Reader();
  auto manifest = reader.Manifest("checkpoints/1");
  ASSERT_TRUE(manifest.ok());
  State other;
  std::vector<runtime::StateInterval> targets = other.All();
  other.tensors.push_back(Tensor("fp8", "scaling", {2, 32}));
  std::vector<float> records(64, 3.0F);
  targets.push_back({2, 0, 64, reinterpret_cast<char*>(records.data())});
  ASSERT_EQ(reader.Read(*manifest, other.tensors, targets), absl::OkStatus());
  EXPECT_EQ(records, std::vector<float>(64, 3.0F));
}

TEST_F(CheckpointTest, RefusesACheckpointOfAnotherModel) {
  auto uploader = Single();
  EXPECT_TRUE(uploader->Save(state_.All(), AtStep(1), false).ok());
  ASSERT_TRUE(uploader->Wait(Soon()).ok());
  CheckpointReader reader = Reader();
  auto manifest = reader.Manifest("checkpoints/1");
  ASSERT_TRUE(manifest.ok());
  State other;
  other.tensors[1] = Tensor("bias", "m", {11});
  absl::Status status = reader.Read(*manifest, other.tensors, other.All());
  EXPECT_TRUE(absl::IsFailedPrecondition(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("bias (m)"));
  other.tensors[1] = Tensor("scale", "m", {10});
  status = reader.Read(*manifest, other.tensors, other.All());
  EXPECT_THAT(std::string(status.message()), HasSubstr("no tensor scale (m)"));
}

}  // namespace
}  // namespace milepost::worker
