// A store in a folder of its own, and small checkpoints to put in it: for tests.
#ifndef MILEPOST_COORDINATOR_STORE_STORE_FIXTURE_H_
#define MILEPOST_COORDINATOR_STORE_STORE_FIXTURE_H_

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>
#include <xxhash.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/status_macros.h"
#include "coordinator/store/checkpoint_store.h"
#include "coordinator/store/store.h"

namespace milepost::coordinator {

class StoreFixture : public ::testing::Test {
 protected:
  StoreFixture() {
    std::string pattern = (std::filesystem::temp_directory_path() / "milepost-store-XXXXXX");
    dir_ = mkdtemp(pattern.data());
    options_.dir = dir_;
  }
  ~StoreFixture() override {
    store_.reset();
    std::filesystem::remove_all(dir_);
  }

  void Open() {
    store_.reset();
    auto store = Store::Open(options_);
    ASSERT_TRUE(store.ok()) << store.status();
    store_ = *std::move(store);
  }
  CheckpointStore& checkpoints() { return store_->checkpoints(); }

  // Two tensors: "w" of 10 and "b" of `count` elements of F32.
  static v1::BeginCheckpointRequest Request(int64_t step, int streams = 1, int64_t count = 6) {
    v1::BeginCheckpointRequest request;
    request.set_job("jobs/1");
    request.set_generation(1);
    request.set_step(step);
    request.set_streams(streams);
    for (auto [name, size] : {std::pair<std::string, int64_t>{"w", 10}, {"b", count}}) {
      v1::TensorInfo* tensor = request.add_tensors();
      tensor->set_name(name);
      tensor->set_kind("master");
      tensor->set_dtype("F32");
      tensor->add_shape(size);
    }
    request.set_bytes((10 + count) * 4);
    request.mutable_state()->set_step(step);
    return request;
  }

  static v1::Chunk MakeChunk(int tensor, int64_t begin, int64_t end, char fill) {
    v1::Chunk chunk;
    chunk.set_tensor(tensor);
    chunk.set_begin(begin);
    chunk.set_end(end);
    chunk.set_data(std::string(static_cast<size_t>(end - begin) * 4, fill));
    chunk.set_xxh3(XXH3_64bits(chunk.data().data(), chunk.data().size()));
    return chunk;
  }

  absl::Status WriteStream(const std::string& name, int stream, std::vector<v1::Chunk> chunks) {
    auto writer = checkpoints().OpenStream(name, 1, stream);
    if (!writer.ok()) return writer.status();
    for (v1::Chunk& chunk : chunks) {
      if (absl::Status status = (*writer)->Append(std::move(chunk)); !status.ok()) return status;
    }
    return (*writer)->Finish().status();
  }

  // A committed checkpoint of one stream; its name. `validation`: of a validation at its step, or
  // at the one before (`late`); NaN: there was none.
  std::string Commit(int64_t step, double validation = NAN, bool late = false) {
    v1::BeginCheckpointRequest request = Request(step);
    request.mutable_state()->set_validation_loss(validation);
    request.mutable_state()->set_validation_step(late ? step - 1 : step);
    auto name = checkpoints().Begin(request);
    EXPECT_TRUE(name.ok()) << name.status();
    EXPECT_TRUE(WriteStream(*name, 0, {MakeChunk(0, 0, 10, 'w'), MakeChunk(1, 0, 6, 'b')}).ok());
    const absl::Status committed = CommitOpen(*name, absl::FromUnixSeconds(5));
    EXPECT_TRUE(committed.ok()) << committed;
    return *name;
  }

  // Of one whose streams are finished.
  absl::Status CommitOpen(const std::string& name, absl::Time now = absl::UnixEpoch()) {
    MP_ASSIGN_OR_RETURN(PreparedCheckpoint prepared, checkpoints().Prepare(name, now));
    if (prepared.committed()) return absl::OkStatus();
    absl::Status status = prepared.Publish();
    if (!status.ok()) prepared.Drop(status);
    return status;
  }

  std::vector<std::string> Names() {
    std::vector<std::string> names;
    for (const v1::Checkpoint& checkpoint : checkpoints().List("")) {
      names.push_back(checkpoint.name());
    }
    return names;
  }

  int StagedFiles() const {
    int count = 0;
    for ([[maybe_unused]] const auto& entry :
         std::filesystem::directory_iterator(dir_ + "/staging")) {
      ++count;
    }
    return count;
  }

  std::string dir_;
  StoreOptions options_;
  std::unique_ptr<Store> store_;
};

}  // namespace milepost::coordinator

#endif  // MILEPOST_COORDINATOR_STORE_STORE_FIXTURE_H_
