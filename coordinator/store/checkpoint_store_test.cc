#include "coordinator/store/checkpoint_store.h"

#include <fcntl.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <limits>
#include <thread>

#include "absl/strings/match.h"
#include "coordinator/store/store_fixture.h"

namespace milepost::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

bool Never() { return false; }

// While it lives, reads of the open SST files in `folder` fail with EISDIR.
class UnreadableFiles {
 public:
  explicit UnreadableFiles(const std::string& folder) {
    const int directory = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
      std::error_code gone;
      const std::string path = std::filesystem::read_symlink(entry.path(), gone);
      if (gone || !absl::StartsWith(path, folder) || !absl::EndsWith(path, ".sst")) continue;
      const int fd = std::stoi(entry.path().filename());
      kept_.emplace_back(fd, dup(fd));
      dup2(directory, fd);
    }
    close(directory);
  }
  ~UnreadableFiles() {
    for (const auto& [fd, copy] : kept_) {
      dup2(copy, fd);
      close(copy);
    }
  }

 private:
  std::vector<std::pair<int, int>> kept_;
};

class CheckpointStoreTest : public StoreFixture {
 protected:
  void SetUp() override { Open(); }

  std::vector<v1::Chunk> ReadAll(const std::string& name,
                                 std::vector<v1::TensorRange> ranges = {}) {
    auto reader = checkpoints().Read(name, ranges);
    EXPECT_TRUE(reader.ok()) << reader.status();
    std::vector<v1::Chunk> chunks;
    v1::Chunk chunk;
    while (true) {
      auto more = (*reader)->Next(&chunk);
      EXPECT_TRUE(more.ok()) << more.status();
      if (!more.ok() || !*more) return chunks;
      chunks.push_back(chunk);
    }
  }

  // Flips the first byte of the run of `fill` that a chunk of this fixture is.
  void FlipByte(char fill, int run) {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(dir_ + "/db")) {
      if (entry.path().extension() != ".sst") continue;
      std::ifstream in(entry.path(), std::ios::binary);
      std::string bytes((std::istreambuf_iterator<char>(in)), {});
      const size_t at = bytes.find(std::string(run, fill));
      if (at == std::string::npos) continue;
      std::fstream out(entry.path(), std::ios::binary | std::ios::in | std::ios::out);
      out.seekp(static_cast<std::streamoff>(at));
      out.put('!');
      return;
    }
    FAIL() << "no SST file has the chunk";
  }
};

TEST_F(CheckpointStoreTest, CommittedDataSurvivesReopening) {
  const std::string name = Commit(7);
  EXPECT_EQ(StagedFiles(), 0);
  Open();
  EXPECT_THAT(Names(), ElementsAre(name));
  auto manifest = checkpoints().Get(name);
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  EXPECT_EQ(manifest->checkpoint().bytes(), 64);
  EXPECT_EQ(manifest->checkpoint().chunks(), 2);
  EXPECT_EQ(manifest->checkpoint().create_time().seconds(), 5);
  EXPECT_EQ(manifest->state().step(), 7);
  const std::vector<v1::Chunk> chunks = ReadAll(name);
  ASSERT_EQ(chunks.size(), 2u);
  EXPECT_EQ(chunks[0].data(), std::string(40, 'w'));
  EXPECT_EQ(chunks[1].data(), std::string(24, 'b'));
  EXPECT_EQ(chunks[1].xxh3(), MakeChunk(1, 0, 6, 'b').xxh3());
}

TEST_F(CheckpointStoreTest, ReadsOnlyWhatOverlaps) {
  const std::string name = *checkpoints().Begin(Request(1));
  ASSERT_TRUE(
      WriteStream(name, 0,
                  {MakeChunk(0, 5, 10, 'x'), MakeChunk(0, 0, 5, 'w'), MakeChunk(1, 0, 6, 'b')})
          .ok());
  ASSERT_TRUE(CommitOpen(name).ok());
  auto range = [](int tensor, int64_t begin, int64_t end) {
    v1::TensorRange result;
    result.set_tensor(tensor);
    result.set_begin(begin);
    result.set_end(end);
    return result;
  };
  auto fills = [&](std::vector<v1::TensorRange> ranges) {
    std::string text;
    for (const v1::Chunk& chunk : ReadAll(name, ranges)) text += chunk.data()[0];
    return text;
  };
  EXPECT_EQ(fills({}), "xwb");
  EXPECT_EQ(fills({range(0, 4, 5)}), "w");
  EXPECT_EQ(fills({range(0, 5, 6)}), "x");
  EXPECT_EQ(fills({range(0, 4, 6)}), "xw");
  EXPECT_EQ(fills({range(1, 5, 6), range(0, 9, 10), range(0, 7, 9)}), "xb");
  EXPECT_EQ(fills({range(0, 3, 3)}), "");
  EXPECT_EQ(checkpoints().Read(name, {range(2, 0, 1)}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(CheckpointStoreTest, AStreamTakesNoMoreThanTheCheckpointHas) {
  v1::BeginCheckpointRequest request = Request(1);
  request.set_bytes(1);  // that its tensors have more counts
  const std::string name = *checkpoints().Begin(request);
  const absl::Status again =
      WriteStream(name, 0, {MakeChunk(0, 0, 10, 'w'), MakeChunk(0, 0, 10, 'w')});
  EXPECT_EQ(again.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(again.message(), HasSubstr("has 64 bytes, of which stream 0 has sent 40"));
  EXPECT_TRUE(WriteStream(name, 0, {MakeChunk(0, 0, 10, 'w'), MakeChunk(1, 0, 6, 'b')}).ok());
  request.set_bytes(std::numeric_limits<int64_t>::max());
  EXPECT_EQ(checkpoints().Begin(request).status().code(), absl::StatusCode::kInvalidArgument);
}

// It is kept beside the bytes, and is in memory whenever somebody looks.
TEST_F(CheckpointStoreTest, DescriptionsAndStepsAreBounded) {
  v1::BeginCheckpointRequest request = Request(1);
  request.set_model_yaml(std::string(3 << 20, 'm'));
  EXPECT_TRUE(checkpoints().Begin(request).ok());
  request = Request(2);
  request.set_model_yaml(std::string(5 << 20, 'm'));
  absl::Status refused = checkpoints().Begin(request).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(refused.message(), HasSubstr("description"));
  for (const int64_t step : {int64_t{-1}, std::numeric_limits<int64_t>::max()}) {
    refused = checkpoints().Begin(Request(step)).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument) << step;
    EXPECT_THAT(refused.message(), HasSubstr("step: "));
  }
}

TEST_F(CheckpointStoreTest, BeginAndCommitAreIdempotent) {
  const std::string name = *checkpoints().Begin(Request(1));
  EXPECT_EQ(*checkpoints().Begin(Request(1)), name);
  EXPECT_EQ(checkpoints().Begin(Request(1, /*streams=*/2)).status().code(),
            absl::StatusCode::kInvalidArgument);
  ASSERT_TRUE(WriteStream(name, 0, {MakeChunk(0, 0, 10, 'w'), MakeChunk(1, 0, 6, 'b')}).ok());
  ASSERT_TRUE(CommitOpen(name).ok());
  EXPECT_TRUE(CommitOpen(name).ok());
  EXPECT_TRUE(checkpoints().WaitStreams(name, absl::InfinitePast(), Never).ok());
  const absl::Status again = checkpoints().Begin(Request(1)).status();
  EXPECT_EQ(again.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(again.message()), StartsWith(name));
  Open();
  EXPECT_TRUE(CommitOpen(name).ok());
  EXPECT_EQ(checkpoints().Begin(Request(1)).status().code(), absl::StatusCode::kAlreadyExists);
}

TEST_F(CheckpointStoreTest, ConcurrentCommitsAgree) {
  const std::string name = *checkpoints().Begin(Request(1));
  ASSERT_TRUE(WriteStream(name, 0, {MakeChunk(0, 0, 10, 'w'), MakeChunk(1, 0, 6, 'b')}).ok());
  std::vector<absl::Status> results(4);
  std::vector<std::thread> threads;
  for (absl::Status& result : results) {
    threads.emplace_back([&] { result = CommitOpen(name); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const absl::Status& result : results) EXPECT_TRUE(result.ok()) << result;
}

TEST_F(CheckpointStoreTest, MissingAndDoubledElementsAreNotCommitted) {
  const std::string name = *checkpoints().Begin(Request(1, /*streams=*/2));
  ASSERT_TRUE(WriteStream(name, 0, {MakeChunk(0, 0, 10, 'w')}).ok());
  ASSERT_TRUE(WriteStream(name, 1, {MakeChunk(1, 0, 5, 'b')}).ok());
  absl::Status status = CommitOpen(name);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("tensor b master [5, 6) is missing"));
  EXPECT_TRUE(Names().empty());
  // The stream again, whole: it replaces what was there.
  ASSERT_TRUE(WriteStream(name, 1, {MakeChunk(1, 0, 6, 'c')}).ok());
  EXPECT_EQ(StagedFiles(), 2);
  ASSERT_TRUE(CommitOpen(name).ok());
  EXPECT_EQ(ReadAll(name)[1].data()[0], 'c');
}

TEST_F(CheckpointStoreTest, WaitsForAllStreams) {
  const std::string name = *checkpoints().Begin(Request(1, /*streams=*/3));
  ASSERT_TRUE(WriteStream(name, 1, {}).ok());  // a stream may be empty
  absl::Status status = checkpoints().WaitStreams(name, absl::InfinitePast(), Never);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("2 are not written: 0, 2"));
  EXPECT_EQ(checkpoints().WaitStreams(name, absl::InfiniteFuture(), [] { return true; }).code(),
            absl::StatusCode::kCancelled);
  std::thread waiter(
      [&] { EXPECT_TRUE(checkpoints().WaitStreams(name, absl::InfiniteFuture(), Never).ok()); });
  ASSERT_TRUE(WriteStream(name, 0, {MakeChunk(0, 0, 10, 'w')}).ok());
  ASSERT_TRUE(WriteStream(name, 2, {MakeChunk(1, 0, 6, 'b')}).ok());
  waiter.join();
  EXPECT_TRUE(CommitOpen(name).ok());
}

TEST_F(CheckpointStoreTest, BadChunksAreRefused) {
  const std::string name = *checkpoints().Begin(Request(1));
  auto append = [&](v1::Chunk chunk) {
    auto writer = checkpoints().OpenStream(name, 1, 0);
    return (*writer)->Append(std::move(chunk));
  };
  v1::Chunk flipped = MakeChunk(1, 0, 6, 'b');
  flipped.mutable_data()->at(3) ^= 1;
  absl::Status status = append(flipped);
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr("tensor b master [0, 6)"));
  v1::Chunk shorter = MakeChunk(1, 0, 6, 'b');
  shorter.set_end(5);
  for (const v1::Chunk& bad : {MakeChunk(2, 0, 1, 'x'), MakeChunk(-1, 0, 1, 'x'),
                               MakeChunk(1, 0, 7, 'x'), MakeChunk(1, 3, 3, 'x'), shorter}) {
    EXPECT_EQ(append(bad).code(), absl::StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(checkpoints().OpenStream(name, 1, 1).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(checkpoints().OpenStream(name, 2, 0).status().code(), absl::StatusCode::kAborted);
  EXPECT_EQ(checkpoints().OpenStream("checkpoints/99", 1, 0).status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_EQ(StagedFiles(), 0);
}

TEST_F(CheckpointStoreTest, UncommittedDataIsSweptAndItsNumberNotUsedAgain) {
  const std::string name = *checkpoints().Begin(Request(1));
  ASSERT_TRUE(WriteStream(name, 0, {MakeChunk(0, 0, 10, 'w')}).ok());
  EXPECT_EQ(StagedFiles(), 1);
  Open();
  EXPECT_EQ(StagedFiles(), 0);
  EXPECT_TRUE(Names().empty());
  EXPECT_EQ(CommitOpen(name).code(), absl::StatusCode::kNotFound);
  EXPECT_NE(*checkpoints().Begin(Request(1)), name);
}

TEST_F(CheckpointStoreTest, OldGenerationsAreDropped) {
  const std::string old = *checkpoints().Begin(Request(1));
  ASSERT_TRUE(WriteStream(old, 0, {MakeChunk(0, 0, 10, 'w')}).ok());
  auto writer = checkpoints().OpenStream(old, 1, 0);
  ASSERT_TRUE(writer.ok());
  v1::BeginCheckpointRequest request = Request(1);
  request.set_generation(2);
  ASSERT_TRUE(checkpoints().Begin(request).ok());
  EXPECT_EQ((*writer)->Append(MakeChunk(1, 0, 6, 'b')).code(), absl::StatusCode::kAborted);
  EXPECT_EQ(CommitOpen(old).code(), absl::StatusCode::kNotFound);
  writer->reset();
  EXPECT_EQ(StagedFiles(), 0);
}

TEST_F(CheckpointStoreTest, OneThatIsPreparedAndDroppedLeavesNothing) {
  const std::string name = *checkpoints().Begin(Request(1));
  ASSERT_TRUE(WriteStream(name, 0, {MakeChunk(0, 0, 10, 'w'), MakeChunk(1, 0, 6, 'b')}).ok());
  {
    auto prepared = checkpoints().Prepare(name, absl::UnixEpoch());
    ASSERT_TRUE(prepared.ok()) << prepared.status();
    EXPECT_FALSE(prepared->committed());
    prepared->Drop(absl::AbortedError("fenced"));
  }
  EXPECT_TRUE(Names().empty());
  EXPECT_EQ(StagedFiles(), 0);
}

TEST_F(CheckpointStoreTest, ReservesSpace) {
  options_.free_bytes = [](const std::string&) { return uint64_t{200}; };
  options_.margin_bytes = 50;
  Open();
  auto begin = [&](const std::string& job) {
    v1::BeginCheckpointRequest request = Request(1);  // of 64 bytes
    request.set_job(job);
    return checkpoints().Begin(request);
  };
  auto first = begin("jobs/1");
  ASSERT_TRUE(first.ok());
  ASSERT_TRUE(begin("jobs/2").ok());
  absl::Status status = begin("jobs/3").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("of 64 bytes: 200 are free on the disk of " + dir_ +
                        ", 128 of them reserved by 2 open checkpoints and 50 kept back"));
  ASSERT_TRUE(checkpoints().Abort(*first).ok());
  EXPECT_TRUE(begin("jobs/3").ok());
}

TEST_F(CheckpointStoreTest, SaysWhatWouldNeverFit) {
  options_.free_bytes = [](const std::string&) { return uint64_t{200}; };
  options_.margin_bytes = 50;
  Open();
  EXPECT_TRUE(checkpoints().CheckEverFits(150).ok());
  const absl::Status status = checkpoints().CheckEverFits(151);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("one takes 151 bytes and 50 are kept back; 200 are free, and all "
                        "checkpoints there take 0; it needs a larger disk"));
  Commit(1);  // whoever needs its 64 bytes can have them
  EXPECT_TRUE(checkpoints().CheckEverFits(214).ok());
  EXPECT_FALSE(checkpoints().CheckEverFits(215).ok());
}

TEST_F(CheckpointStoreTest, LaterStepSupersedesWhatIsOpen) {
  const std::string first = *checkpoints().Begin(Request(10));
  ASSERT_TRUE(WriteStream(first, 0, {MakeChunk(0, 0, 10, 'w')}).ok());
  ASSERT_TRUE(checkpoints().Begin(Request(20)).ok());
  EXPECT_EQ(StagedFiles(), 0);
  EXPECT_EQ(CommitOpen(first).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(checkpoints().Begin(Request(10)).status().code(),
            absl::StatusCode::kFailedPrecondition);
  Commit(20);
  EXPECT_EQ(checkpoints().Begin(Request(10)).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST_F(CheckpointStoreTest, FlippedByteIsFoundNamedAndTheOlderCheckpointOffered) {
  const std::string good = Commit(10);
  const std::string name = *checkpoints().Begin(Request(20));
  ASSERT_TRUE(WriteStream(name, 0, {MakeChunk(0, 0, 10, 'w'), MakeChunk(1, 0, 6, 'z')}).ok());
  ASSERT_TRUE(CommitOpen(name).ok());
  EXPECT_EQ(checkpoints().Newest("jobs/1")->name(), name);
  store_.reset();
  FlipByte('z', 24);
  Open();

  auto reader = checkpoints().Read(name, {});
  v1::Chunk chunk;
  ASSERT_TRUE((*reader)->Next(&chunk).ok());
  const absl::Status status = (*reader)->Next(&chunk).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr(name + ": tensor b master [0, 6) is damaged"));
  EXPECT_EQ(checkpoints().Newest("jobs/1")->name(), good);
  reader->reset();
  Open();  // remembered
  EXPECT_EQ(checkpoints().Newest("jobs/1")->name(), good);
  auto verified = checkpoints().Verify(name, Never);
  ASSERT_TRUE(verified.ok());
  EXPECT_THAT(verified->damaged_chunks(), ElementsAre("tensor b master [0, 6)"));
  EXPECT_EQ(verified->chunks_checked(), 2);
  EXPECT_TRUE(verified->checkpoint().damaged());
  verified = checkpoints().Verify(good, Never);
  EXPECT_TRUE(verified->damaged_chunks().empty());
  EXPECT_FALSE(verified->checkpoint().damaged());
}

// As a mount that is away does: nothing is said about what is stored.
TEST_F(CheckpointStoreTest, WhatCannotBeReadNowIsNotDamaged) {
  const std::string name = Commit(10);
  ASSERT_TRUE(checkpoints().Verify(name, Never).ok());  // opens its files
  {
    const UnreadableFiles unreadable(dir_ + "/db");
    auto reader = checkpoints().Read(name, {});
    v1::Chunk chunk;
    const absl::Status status = (*reader)->Next(&chunk).status();
    EXPECT_TRUE(absl::IsUnavailable(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(name + ": cannot read tensor w"));
    EXPECT_TRUE(absl::IsInternal(checkpoints().Verify(name, Never).status()));
    EXPECT_EQ(checkpoints().Newest("jobs/1")->name(), name);
  }
  const auto verified = checkpoints().Verify(name, Never);
  ASSERT_TRUE(verified.ok()) << verified.status();
  EXPECT_FALSE(verified->checkpoint().damaged());
  EXPECT_EQ(ReadAll(name).size(), 2u);
}

TEST_F(CheckpointStoreTest, AWholeCheckpointLosesItsMark) {
  const std::string name = Commit(10);
  ASSERT_TRUE(checkpoints().MarkDamaged(name).ok());
  EXPECT_FALSE(checkpoints().Newest("jobs/1").has_value());
  ASSERT_TRUE(checkpoints().Verify(name, Never).ok());
  EXPECT_EQ(checkpoints().Newest("jobs/1")->name(), name);
  Open();
  EXPECT_EQ(checkpoints().Newest("jobs/1")->name(), name);
}

TEST(ReadTroubleTest, LastsWhenReadsGoOnFailing) {
  ReadTrouble trouble;
  const absl::Time begin = absl::FromUnixSeconds(1000);
  trouble.Failed(7, begin);
  trouble.Failed(3, begin + absl::Seconds(29));
  EXPECT_FALSE(trouble.lasts);
  EXPECT_EQ(trouble.chunk, 7);
  trouble.Failed(3, begin + ReadTrouble::kLong);
  EXPECT_TRUE(trouble.lasts);

  ReadTrouble other;  // two short ones
  other.Failed(7, begin);
  other.Failed(3, begin + absl::Hours(1));
  EXPECT_FALSE(other.lasts);
  EXPECT_EQ(other.chunk, 3);
}

TEST_F(CheckpointStoreTest, RetentionKeepsTheNewestThePinnedTheRoundAndTheRead) {
  std::vector<std::string> names;
  for (int step = 10; step <= 80; step += 10) names.push_back(Commit(step));
  ASSERT_TRUE(checkpoints().Pin(names[0], true).ok());    // 10
  auto reader = checkpoints().Read(names[2], {});         // 30
  ASSERT_TRUE(checkpoints().MarkDamaged(names[7]).ok());  // 80
  auto deleted = checkpoints().Retain("jobs/1", {.keep_last = 2, .keep_every = 40});
  ASSERT_TRUE(deleted.ok()) << deleted.status();
  // Kept: 70 and 60 (newest undamaged), 40 (round), 30 (read), 10 (pinned). 80 is damaged.
  EXPECT_THAT(Names(), ElementsAre(names[6], names[5], names[3], names[2], names[0]));
  reader->reset();
  ASSERT_TRUE(checkpoints().Retain("jobs/1", {.keep_last = 0}).ok());
  EXPECT_THAT(Names(), ElementsAre(names[6], names[0]));  // never the newest, never a pinned one
  Open();
  EXPECT_THAT(Names(), ElementsAre(names[6], names[0]));
  EXPECT_EQ(ReadAll(names[6]).size(), 2u);
  EXPECT_TRUE(checkpoints().Get(names[0])->checkpoint().pinned());
}

// The oldest of equal ones. A loss of another step says nothing of a checkpoint.
TEST_F(CheckpointStoreTest, RetentionKeepsTheBest) {
  std::vector<std::string> names = {Commit(10, 2.5), Commit(20, 1.5),
                                    Commit(30, 1.5), Commit(40, 1.0, /*late=*/true),
                                    Commit(50),      Commit(60, 1.75)};
  EXPECT_EQ(checkpoints().Get(names[2])->checkpoint().validation_loss(), 1.5);
  EXPECT_FALSE(checkpoints().Get(names[3])->checkpoint().has_validation_loss());
  EXPECT_FALSE(checkpoints().Get(names[4])->checkpoint().has_validation_loss());
  ASSERT_TRUE(checkpoints().Retain("jobs/1", {.keep_last = 1, .keep_best = true}).ok());
  EXPECT_THAT(Names(), ElementsAre(names[5], names[1]));
  Open();
  ASSERT_TRUE(checkpoints().MarkDamaged(names[1]).ok());
  ASSERT_TRUE(checkpoints().Retain("jobs/1", {.keep_last = 1, .keep_best = true}).ok());
  EXPECT_THAT(Names(), ElementsAre(names[5]));
}

TEST_F(CheckpointStoreTest, RetentionKeepsAllWhenAllAreDamaged) {
  const std::string name = Commit(1);
  ASSERT_TRUE(checkpoints().MarkDamaged(name).ok());
  ASSERT_TRUE(checkpoints().Retain("jobs/1", {.keep_last = 1}).ok());
  EXPECT_THAT(Names(), ElementsAre(name));
}

TEST_F(CheckpointStoreTest, DeletesWhatMayBeDeleted) {
  const std::string older = Commit(1);
  const std::string newest = Commit(2);
  auto code = [&](const std::string& name, bool keep_newest) {
    return checkpoints().Delete(name, keep_newest).code();
  };
  EXPECT_EQ(code(newest, true), absl::StatusCode::kFailedPrecondition);
  ASSERT_TRUE(checkpoints().Pin(older, true).ok());
  EXPECT_EQ(code(older, false), absl::StatusCode::kFailedPrecondition);
  ASSERT_TRUE(checkpoints().Pin(older, false).ok());
  auto reader = checkpoints().Read(older, {});
  EXPECT_EQ(code(older, false), absl::StatusCode::kFailedPrecondition);
  reader->reset();
  EXPECT_EQ(code(older, true), absl::StatusCode::kOk);
  EXPECT_EQ(code(newest, false), absl::StatusCode::kOk);
  EXPECT_EQ(code(newest, false), absl::StatusCode::kNotFound);
  EXPECT_TRUE(Names().empty());
}

TEST_F(CheckpointStoreTest, ReadingKeepsFromDeletionForABoundedTime) {
  const std::string name = Commit(1);
  const std::string other = Commit(2);
  const absl::Time now = SteadyNow();
  auto first = checkpoints().Read(name, {});
  v1::Chunk chunk;
  EXPECT_TRUE(*(*first)->Next(&chunk));
  EXPECT_FALSE(checkpoints().Delete(name, false, now).ok());
  // Who comes later, and holds it without a pause, holds it no longer.
  auto second = checkpoints().Read(name, {});
  first->reset();
  EXPECT_FALSE(checkpoints().Delete(name, false, now + ReadHold::kLongest / 2).ok());
  ASSERT_TRUE(checkpoints().Delete(name, false, now + ReadHold::kLongest).ok());
  EXPECT_TRUE(absl::IsNotFound((*second)->Next(&chunk).status())) << "and it is not damage";
  second->reset();
  EXPECT_THAT(Names(), ElementsAre(other));
}

TEST_F(CheckpointStoreTest, ReadingHoldsRetentionForABoundedTime) {
  const std::string name = Commit(1);
  const std::string newest = Commit(2);
  const absl::Time now = SteadyNow();
  auto reader = checkpoints().Read(name, {});
  ASSERT_TRUE(checkpoints().Retain("jobs/1", {.keep_last = 1}, now).ok());
  EXPECT_THAT(Names(), ElementsAre(newest, name));
  ASSERT_TRUE(checkpoints().Retain("jobs/1", {.keep_last = 1}, now + ReadHold::kLongest).ok());
  EXPECT_THAT(Names(), ElementsAre(newest));
}

TEST_F(CheckpointStoreTest, WhatAJobIsMadeToBeginWithIsKeptWhoeverReads) {
  const std::string name = Commit(1);
  auto kept = checkpoints().Keep(name);
  ASSERT_TRUE(kept.ok()) << kept.status();
  const absl::Time now = SteadyNow();
  for (const absl::Duration later : {absl::ZeroDuration(), 2 * ReadHold::kLongest}) {
    EXPECT_FALSE(checkpoints().Delete(name, false, now + later).ok());
  }
  kept->reset();
  EXPECT_TRUE(checkpoints().Delete(name, false, now).ok());
}

TEST(ReadHoldTest, BeginsAnewWhenTheWishIsLongPast) {
  ReadHold hold;
  const absl::Time begin = absl::FromUnixSeconds(1000);
  EXPECT_FALSE(hold.Ends(begin));
  const absl::Time later = begin + ReadHold::kForgotten;
  EXPECT_FALSE(hold.Ends(later));
  EXPECT_EQ(hold.Left(later), ReadHold::kLongest);
  EXPECT_TRUE(hold.Ends(later + ReadHold::kLongest));
}

TEST_F(CheckpointStoreTest, DeletionFreesTheDisk) {
  auto begin = Request(1, 1, 1 << 20);
  const std::string name = *checkpoints().Begin(begin);
  ASSERT_TRUE(WriteStream(name, 0, {MakeChunk(0, 0, 10, 'w'), MakeChunk(1, 0, 1 << 20, 'b')}).ok());
  ASSERT_TRUE(CommitOpen(name).ok());
  auto bytes = [&] {
    uintmax_t total = 0;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(dir_)) {
      if (entry.path().extension() == ".sst") total += entry.file_size();
    }
    return total;
  };
  EXPECT_GT(bytes(), uintmax_t{4} << 20);
  ASSERT_TRUE(checkpoints().Delete(name, false).ok());
  EXPECT_TRUE(checkpoints().AwaitDeletions(absl::Now() + absl::Seconds(30)));
  EXPECT_LT(bytes(), uintmax_t{1} << 20);
}

TEST_F(CheckpointStoreTest, BeginLooksAgainOnceDeletionsAreDone) {
  int asked = 0;
  options_.free_bytes = [&](const std::string&) { return uint64_t{asked++ == 0 ? 0u : 1u << 30}; };
  Open();
  EXPECT_TRUE(checkpoints().Begin(Request(1)).ok());
  EXPECT_EQ(asked, 2);
}

}  // namespace
}  // namespace milepost::coordinator
