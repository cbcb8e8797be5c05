#include "worker/memory_state/memory_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <thread>

#include "engine/comm/in_process.h"
#include "engine/runtime/testing/tiny_job.h"
#include "worker/memory_state/peer_copies.h"
#include "worker/memory_state/snapshot_claims.h"
#include "worker/memory_state/transfer_plan.h"

namespace milepost::worker {
namespace {

namespace fs = std::filesystem;
using runtime::TinyJob;
using runtime::TrainingSession;
using ::testing::ElementsAre;

class Folder {
 public:
  Folder() {
    path_ = (fs::temp_directory_path() / "memory_state_XXXXXX").string();
    EXPECT_NE(mkdtemp(path_.data()), nullptr);
  }
  ~Folder() { fs::remove_all(path_); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

v1::TensorInfo Tensor(const std::string& name, int64_t elements) {
  v1::TensorInfo info;
  info.set_name(name);
  info.set_kind("master");
  info.set_dtype("F32");
  info.add_shape(elements);
  return info;
}

std::vector<std::string> Files(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) {
    names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

// ---- snapshot files ----

TEST(SnapshotFileTest, HoldsWhatWasCommitted) {
  const Folder folder;
  const std::vector<v1::TensorInfo> tensors = {Tensor("a", 10), Tensor("b", 5)};
  v1::TrainerState state;
  state.set_step(7);
  {
    auto file =
        SnapshotFile::Create(folder.path(), {"j", 3, 1, "own"}, tensors, {{0, 2, 6}, {1, 0, 5}});
    ASSERT_TRUE(file.ok()) << file.status();
    ASSERT_EQ((*file)->intervals(), 2);
    EXPECT_EQ((*file)->bytes(0), 16);
    std::memset((*file)->data(0), 1, 16);
    std::memset((*file)->data(1), 2, 20);
    (*file)->Commit(state);
  }
  const auto found = OpenSnapshot(folder.path() + "/g3-r1-own.state");
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->snapshot.state().step(), 7);
  EXPECT_EQ(found->snapshot.generation(), 3);
  EXPECT_EQ(found->snapshot.tensors(), TensorsDigest(tensors));
  EXPECT_EQ(found->data[15], 1);
  EXPECT_EQ(found->data[16], 2);
}

TEST(SnapshotFileTest, IsNoneWhileItIsWrittenOrClaimed) {
  const Folder folder;
  const std::vector<v1::TensorInfo> tensors = {Tensor("a", 10)};
  const std::string path = folder.path() + "/g1-r0-own.state";
  auto file = *SnapshotFile::Create(folder.path(), {"j", 1, 0, "own"}, tensors, {{0, 0, 10}});
  EXPECT_TRUE(absl::IsNotFound(OpenSnapshot(path).status())) << "its writer lives";
  file->Commit({});
  file->Begin();
  file.reset();
  EXPECT_TRUE(absl::IsNotFound(OpenSnapshot(path).status())) << "it is not whole";
  file = *SnapshotFile::Create(folder.path(), {"j", 1, 0, "own"}, tensors, {{0, 0, 10}});
  file->Commit({});
  file.reset();
  const auto claimed = OpenSnapshot(path);
  EXPECT_TRUE(claimed.ok()) << claimed.status();
  EXPECT_TRUE(absl::IsNotFound(OpenSnapshot(path).status())) << "another has claimed it";
}

TEST(SnapshotFileTest, DamageIsFound) {
  const Folder folder;
  const std::vector<v1::TensorInfo> tensors = {Tensor("a", 10)};
  const std::string path = folder.path() + "/g1-r0-own.state";
  for (const int64_t at : {8, 40, 60, 4100}) {
    (*SnapshotFile::Create(folder.path(), {"j", 1, 0, "own"}, tensors, {{0, 0, 10}}))->Commit({});
    ASSERT_TRUE(OpenSnapshot(path).ok());
    std::fstream bytes(path, std::ios::in | std::ios::out | std::ios::binary);
    bytes.seekp(at);
    bytes.put(77);
    bytes.close();
    EXPECT_FALSE(OpenSnapshot(path).ok()) << at;
  }
  fs::resize_file(path, 20);
  EXPECT_FALSE(OpenSnapshot(path).ok());
  fs::resize_file(path, 0);
  EXPECT_FALSE(OpenSnapshot(path).ok());
}

TEST(SnapshotFileTest, OutlivesTheProcess) {
  const Folder folder;
  const std::vector<v1::TensorInfo> tensors = {Tensor("a", 1000)};
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    auto file = *SnapshotFile::Create(folder.path(), {"j", 1, 0, "own"}, tensors, {{0, 0, 1000}});
    std::memset(file->data(0), 9, file->bytes(0));
    file->Commit({});
    raise(SIGKILL);
  }
  waitpid(child, nullptr, 0);
  const auto found = OpenSnapshot(folder.path() + "/g1-r0-own.state");
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->data[3999], 9);
}

// ---- who gives what to whom ----

v1::MemorySnapshot Snapshot(int64_t step, std::vector<state::Interval> intervals,
                            int64_t generation = 1) {
  v1::MemorySnapshot snapshot;
  snapshot.mutable_state()->set_step(step);
  snapshot.set_generation(generation);
  for (const state::Interval& interval : intervals) {
    v1::MemoryInterval* entry = snapshot.add_intervals();
    entry->set_tensor(interval.tensor);
    entry->set_begin(interval.begin);
    entry->set_end(interval.end);
  }
  return snapshot;
}

v1::MemoryHoldings Holdings(std::vector<v1::MemorySnapshot> snapshots,
                            std::vector<state::Interval> targets) {
  v1::MemoryHoldings holdings;
  for (v1::MemorySnapshot& snapshot : snapshots) *holdings.add_snapshots() = std::move(snapshot);
  for (const state::Interval& interval : targets) {
    v1::MemoryInterval* entry = holdings.add_targets();
    entry->set_tensor(interval.tensor);
    entry->set_begin(interval.begin);
    entry->set_end(interval.end);
  }
  return holdings;
}

state::StateLayout Layout() {
  return *state::StateLayout::FromProto(
      std::vector<v1::TensorInfo>{Tensor("a", 100), Tensor("b", 10)});
}

TEST(TransferPlanTest, TakesTheNewestWholeMoment) {
  const state::StateLayout layout = Layout();
  const std::vector<state::Interval> low = {{0, 0, 60}};
  const std::vector<state::Interval> high = {{0, 60, 100}, {1, 0, 10}};
  const auto newest = [&](std::vector<v1::MemoryHoldings> holdings, int64_t least) {
    return NewestWholeMoment(layout, holdings, least);
  };
  const std::vector<v1::MemoryHoldings> both = {
      Holdings({Snapshot(8, low), Snapshot(9, low)}, {}),
      Holdings({Snapshot(8, high), Snapshot(7, high)}, {})};
  EXPECT_EQ(newest(both, 0), (Moment{8, 1}));
  EXPECT_EQ(newest(both, 9), std::nullopt) << "the checkpoint is newer";
  EXPECT_EQ(newest({both[0]}, 0), std::nullopt) << "some elements are nowhere";
  // Two attempts' states of one step are not the same bits at different sizes.
  EXPECT_EQ(newest({Holdings({Snapshot(8, low, 1)}, {}), Holdings({Snapshot(8, high, 2)}, {})}, 0),
            std::nullopt);
}

TEST(TransferPlanTest, EveryByteOfATargetComesOnce) {
  const state::StateLayout layout = Layout();
  const std::vector<v1::MemoryHoldings> holdings = {
      Holdings({Snapshot(5, {{0, 0, 60}, {1, 0, 4}})}, {{0, 0, 40}, {1, 0, 10}}),
      Holdings({Snapshot(5, {{0, 50, 100}, {1, 2, 10}})}, {{0, 40, 80}}),
      Holdings({}, {{0, 80, 100}, {1, 0, 10}})};
  const std::vector<Move> moves = PlanMoves(layout, holdings, {5, 1});
  std::map<std::pair<int, int>, int64_t> next;
  for (const Move& move : moves) {
    EXPECT_EQ(move.to_offset, (next[{move.to, move.target}]));
    next[{move.to, move.target}] += move.bytes;
  }
  for (int to = 0; to < 3; ++to) {
    for (int target = 0; target < holdings[to].targets_size(); ++target) {
      const v1::MemoryInterval& wanted = holdings[to].targets(target);
      EXPECT_EQ((next[{to, target}]), (wanted.end() - wanted.begin()) * 4);
    }
  }
  EXPECT_EQ(moves[0], (Move{.from = 0, .to = 0, .bytes = 160})) << "its own";
  const auto rounds = Rounds(moves, 24);
  std::map<std::pair<int, int>, int64_t> sent;
  for (const auto& round : rounds) {
    std::set<std::pair<int, int>> pairs;
    for (const Move& move : round) {
      EXPECT_NE(move.from, move.to);
      EXPECT_LE(move.bytes, 24);
      EXPECT_TRUE(pairs.insert({move.from, move.to}).second);
      sent[{move.from, move.to}] += move.bytes;
    }
  }
  std::map<std::pair<int, int>, int64_t> meant;
  for (const Move& move : moves) {
    if (move.from != move.to) meant[{move.from, move.to}] += move.bytes;
  }
  EXPECT_EQ(sent, meant);
}

TEST(TransferPlanTest, CopiesLieOnOtherHosts) {
  EXPECT_EQ(CopyDistance(std::vector<uint64_t>{1}), 0);
  EXPECT_EQ(CopyDistance(std::vector<uint64_t>{1, 1}), 1);
  EXPECT_EQ(CopyDistance(std::vector<uint64_t>{1, 1, 1, 1, 2, 2, 2, 2}), 4);
  EXPECT_EQ(CopyDistance(std::vector<uint64_t>{1, 1, 2, 2, 3, 3}), 2);
}

// ---- training goes on ----

// By rank of an attempt; hosts share nothing.
std::string FolderOf(const Folder& folder, int host) {
  const std::string path = folder.path() + "/" + std::to_string(host);
  fs::create_directories(path);
  return path;
}

using Body = std::function<void(TrainingSession&, comm::Communicator&,
                                std::unique_ptr<comm::Communicator> background)>;

void RunAttempt(const v1::JobSpec& spec, const Body& body) {
  const int world = spec.resources().ranks();
  auto ranks = comm::MakeInProcessGroup(world);
  auto backgrounds = comm::MakeInProcessGroup(world);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world; ++rank) {
    threads.emplace_back([&, rank] {
      auto session = TrainingSession::Create(spec, {}, ranks[rank].get());
      ASSERT_TRUE(session.ok()) << session.status();
      body(**session, *ranks[rank], std::move(backgrounds[rank]));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// The losses of the steps after the one that the memory has.
std::vector<double> GoOn(const v1::JobSpec& spec, const Folder& folder, std::vector<int> hosts,
                         int64_t least_step, int64_t* restored) {
  std::vector<double> losses;
  *restored = -1;
  RunAttempt(spec, [&](TrainingSession& session, comm::Communicator& communicator, auto) {
    const int rank = communicator.rank();
    const auto state = TakeUpState(FolderOf(folder, hosts[rank]), "j", /*generation=*/2, least_step,
                                   session, communicator);
    ASSERT_TRUE(state.ok()) << state.status();
    if (!state->has_value()) return;
    ASSERT_EQ(session.FinishRestore(**state), absl::OkStatus());
    if (rank == 0) *restored = session.step();
    while (session.step() < spec.train().steps()) {
      const double loss = session.Step(false)->train_loss;
      if (rank == 0) losses.push_back(loss);
    }
    ForgetState(FolderOf(folder, hosts[rank]), 2);
  });
  return losses;
}

// At stage 0 and in groups the ranks that are left have everything.
TEST(MemoryStateTest, SurvivorsGoOnWithoutACheckpoint) {
  const TinyJob job;
  for (const auto& [stage, group] : std::vector<std::pair<int, int>>{{0, 0}, {1, 2}, {3, 2}}) {
    const v1::JobSpec spec =
        job.Spec({.ranks = 4, .stage = stage, .group = group, .global_batch = 8});
    const std::vector<double> expected = runtime::TrainFresh(spec);
    const Folder folder;
    RunAttempt(spec, [&](TrainingSession& session, comm::Communicator& communicator, auto) {
      const int rank = communicator.rank();
      ASSERT_EQ(session.InitializeParameters(), absl::OkStatus());
      for (int step = 0; step < 4; ++step) ASSERT_TRUE(session.Step(false).ok());
      // A step may end with what a group does alone: another group may still be in it.
      ASSERT_EQ(communicator.Barrier(), absl::OkStatus());
      if (rank == 1) return communicator.Abort("it dies");
      const absl::Status failed = session.Step(false).status();
      ASSERT_TRUE(comm::IsPeerLost(failed)) << failed;
      ASSERT_TRUE(session.state_is_whole());
      ASSERT_EQ(KeepState(FolderOf(folder, rank), {"j", 1, rank, "left"}, session),
                absl::OkStatus());
    });
    int64_t restored = 0;
    // Rank 1 comes back on a new host, and the others in another order.
    const std::vector<double> rest = GoOn(spec, folder, {3, 9, 0, 2}, 0, &restored);
    EXPECT_EQ(restored, 4);
    EXPECT_EQ(rest, std::vector<double>(expected.begin() + 4, expected.end()))
        << "stage " << stage << " group " << group;
    EXPECT_TRUE(Files(FolderOf(folder, 3)).empty());
  }
}

TEST(MemoryStateTest, WhatNobodyHasComesFromACheckpoint) {
  const TinyJob job;
  const v1::JobSpec spec = job.Spec({.ranks = 2, .stage = 1});
  const Folder folder;
  RunAttempt(spec, [&](TrainingSession& session, comm::Communicator& communicator, auto) {
    ASSERT_EQ(session.InitializeParameters(), absl::OkStatus());
    ASSERT_TRUE(session.Step(false).ok());
    if (communicator.rank() == 1) return communicator.Abort("it dies");
    ASSERT_FALSE(session.Step(false).ok());
    ASSERT_EQ(KeepState(FolderOf(folder, 0), {"j", 1, 0, "left"}, session), absl::OkStatus());
  });
  int64_t restored = 0;
  EXPECT_TRUE(GoOn(spec, folder, {0, 1}, 0, &restored).empty());
  EXPECT_EQ(restored, -1);
}

// Rank 0's host is lost: its state is in rank 1's memory. Also at another number of ranks.
TEST(MemoryStateTest, CopiesOutliveAHost) {
  const TinyJob job;
  for (const int ranks_after : {3, 2, 1}) {
    const v1::JobSpec spec = job.Spec({.ranks = 3, .stage = 3, .global_batch = 12});
    v1::JobSpec after = job.Spec({.ranks = ranks_after, .stage = 1, .global_batch = 12});
    const std::vector<double> expected = runtime::TrainFresh(spec);
    const Folder folder;
    RunAttempt(spec, [&](TrainingSession& session, comm::Communicator& communicator,
                         std::unique_ptr<comm::Communicator> background) {
      const int rank = communicator.rank();
      ASSERT_EQ(session.InitializeParameters(), absl::OkStatus());
      auto copies = PeerCopies::Create(FolderOf(folder, rank), {"j", 1, rank}, session,
                                       communicator, std::move(background));
      ASSERT_TRUE(copies.ok()) << copies.status();
      for (int step = 0; step < 4; ++step) {
        ASSERT_TRUE(session.Step(false).ok());
        ASSERT_EQ((*copies)->AfterStep(session, communicator), absl::OkStatus());
        (*copies)->Finish();
        ASSERT_EQ(communicator.Barrier(), absl::OkStatus());
      }
      EXPECT_EQ((*copies)->copied_step(), 3);
    });
    fs::remove_all(FolderOf(folder, 0));
    int64_t restored = 0;
    const std::vector<double> rest = GoOn(after, folder, {7, 1, 2}, 2, &restored);
    // One rank alone finds only what is on its host: nothing that is whole.
    if (ranks_after == 1) {
      EXPECT_EQ(restored, -1);
      continue;
    }
    if (ranks_after == 2) {
      EXPECT_EQ(restored, -1) << "hosts 7 and 1 have two of three parts";
      continue;
    }
    ASSERT_EQ(restored, 4);
    ASSERT_EQ(rest.size(), expected.size() - 4);
    for (size_t i = 0; i < rest.size(); ++i) EXPECT_NEAR(rest[i], expected[i + 4], 1e-5);
    EXPECT_TRUE(GoOn(after, folder, {7, 1, 2}, 5, &restored).empty()) << "a checkpoint is newer";
  }
}

TEST(MemoryStateTest, GatherBytesOfAnyLength) {
  auto ranks = comm::MakeInProcessGroup(3);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      const auto all = GatherBytes(std::string(rank * 5, 'a' + rank), *ranks[rank]);
      ASSERT_TRUE(all.ok()) << all.status();
      EXPECT_THAT(*all, ElementsAre("", "bbbbb", "cccccccccc"));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace milepost::worker
