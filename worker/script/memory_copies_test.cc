#include "worker/script/memory_copies.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <thread>

#include "engine/comm/in_process.h"

namespace milepost::worker {
namespace {

using testing::Each;

constexpr int64_t kElements = 1000;  // of a tensor, shared out among the ranks

// Hosts with a rank and a folder each.
class MemoryCopiesTest : public testing::Test {
 protected:
  MemoryCopiesTest() {
    std::string pattern = (std::filesystem::temp_directory_path() / "milepost-XXXXXX").string();
    root_ = mkdtemp(pattern.data());
  }
  ~MemoryCopiesTest() override { std::filesystem::remove_all(root_); }

  std::string Folder(int host) const {
    const std::string folder = root_ + "/" + std::to_string(host);
    std::filesystem::create_directories(folder);
    return folder;
  }

  static std::vector<v1::TensorInfo> Tensors(int count) {
    std::vector<v1::TensorInfo> tensors(static_cast<size_t>(count));
    for (int i = 0; i < count; ++i) {
      tensors[i].set_name("t" + std::to_string(i));
      tensors[i].set_kind("tensor");
      tensors[i].set_dtype("F32");
      tensors[i].add_shape(kElements);
    }
    return tensors;
  }
  static float ValueOf(int64_t step, int tensor, int64_t element) {
    return static_cast<float>(step * 100000 + tensor * 10000 + element);
  }

  // One thread for each rank, and a group of their own.
  template <typename Body>
  static void OnRanks(int world, const Body& body) {
    auto group = comm::MakeInProcessGroup(world);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < world; ++rank) {
      threads.emplace_back([&, rank] { body(rank, std::move(group[rank])); });
    }
    for (std::thread& thread : threads) thread.join();
  }

  // Saves of one attempt, by ranks on hosts of their own.
  struct Save {
    int64_t step;
    int tensors;
  };
  void Attempt(int64_t generation, int world, const std::vector<Save>& saves) {
    OnRanks(world, [&](int rank, std::unique_ptr<comm::Communicator> communicator) {
      MemoryCopies copies(
          {.folder = Folder(rank), .id = {"uid", generation, rank}, .world = world, .connect = [&] {
             return std::move(communicator);
           }});
      for (const Save& save : saves) {
        EXPECT_EQ(Keep(copies, rank, world, save), absl::OkStatus());
      }
    });
  }
  // The part of a rank; -1: of one that has none.
  static absl::Status Keep(MemoryCopies& copies, int rank, int world, const Save& save) {
    const int64_t begin = kElements * rank / world, end = kElements * (rank + 1) / world;
    std::vector<std::vector<float>> values(static_cast<size_t>(save.tensors));
    std::vector<state::TensorSlice> slices;
    for (int t = 0; rank >= 0 && t < save.tensors; ++t) {
      for (int64_t e = begin; e < end; ++e) values[t].push_back(ValueOf(save.step, t, e));
      slices.push_back({{t, begin, end}, reinterpret_cast<char*>(values[t].data())});
    }
    return copies.Keep(save.step, Tensors(save.tensors), slices);
  }

  // What the next attempt's ranks find. Each element that is given, with its value; the step.
  struct Found {
    std::vector<int64_t> steps;  // by rank; -1: none
    std::map<std::pair<int, int64_t>, std::vector<float>> elements;
  };
  Found TakeUp(int64_t generation, int world, int64_t least_step) {
    Found found = {.steps = std::vector<int64_t>(static_cast<size_t>(world), -1), .elements = {}};
    OnRanks(world, [&](int rank, const std::unique_ptr<comm::Communicator>& communicator) {
      const auto save = TakeUpSave(Folder(rank), "uid", generation, least_step, *communicator);
      ASSERT_TRUE(save.ok()) << save.status();
      if (save->has_value()) Add(**save, rank, &found);
    });
    return found;
  }
  void Add(const SaveInMemory& save, int rank, Found* found) {
    const std::lock_guard lock(mutex_);
    found->steps[rank] = save.step;
    for (const state::TensorSlice& slice : save.slices) {
      const auto* values = reinterpret_cast<const float*>(slice.data);
      for (int64_t e = slice.interval.begin; e < slice.interval.end; ++e) {
        found->elements[{slice.interval.tensor, e}].push_back(values[e - slice.interval.begin]);
      }
    }
  }
  static void ExpectWhole(const Found& found, int64_t step, int tensors) {
    EXPECT_THAT(found.steps, Each(step));
    EXPECT_EQ(found.elements.size(), static_cast<size_t>(tensors * kElements));
    for (const auto& [at, values] : found.elements) {
      ASSERT_EQ(values.size(), 1u) << "given twice";
      ASSERT_EQ(values[0], ValueOf(step, at.first, at.second));
    }
  }

  std::string root_;
  std::mutex mutex_;
};

TEST_F(MemoryCopiesTest, AHostThatIsLostCostsNoSave) {
  Attempt(1, 3, {{10, 2}, {20, 2}, {30, 2}});
  std::filesystem::remove_all(Folder(1));
  ExpectWhole(TakeUp(2, 3, 11), 30, 2);
}

TEST_F(MemoryCopiesTest, FewerRanksTakeUpAll) {
  Attempt(1, 3, {{10, 2}});
  std::filesystem::remove_all(Folder(2));
  ExpectWhole(TakeUp(2, 2, 0), 10, 2);
}

TEST_F(MemoryCopiesTest, WhatIsNotWholeOrTooOldIsNotTakenUp) {
  Attempt(1, 3, {{10, 2}, {20, 2}});
  EXPECT_THAT(TakeUp(2, 3, 21).steps, Each(-1)) << "the checkpoint is newer";
  EXPECT_THAT(TakeUp(1, 3, 0).steps, Each(-1)) << "of the attempt itself";
  std::filesystem::remove_all(Folder(0));
  std::filesystem::remove_all(Folder(1));
  EXPECT_THAT(TakeUp(2, 3, 0).steps, Each(-1));
}

TEST_F(MemoryCopiesTest, ASaveMayHaveOtherTensorsThanTheOneBefore) {
  Attempt(1, 2, {{10, 1}, {20, 3}});
  ExpectWhole(TakeUp(2, 2, 0), 20, 3);
}

// Those of the attempts before would fill the memory.
TEST_F(MemoryCopiesTest, TheFirstSaveOfAnAttemptReplacesTheOlder) {
  Attempt(1, 2, {{10, 1}, {20, 1}});
  Attempt(2, 2, {{15, 2}});
  ExpectWhole(TakeUp(3, 2, 0), 15, 2);
  EXPECT_THAT(TakeUp(2, 2, 0).steps, Each(-1));
}

// The save before is whole until the next one is, everywhere, also where that has other tensors.
TEST_F(MemoryCopiesTest, AnInterruptedCopyLeavesTheSaveBefore) {
  for (const int tensors : {1, 4}) {
    OnRanks(2, [&](int rank, std::unique_ptr<comm::Communicator> communicator) {
      comm::Communicator* const raw = communicator.get();
      MemoryCopies copies(
          {.folder = Folder(rank), .id = {"uid", 1, rank}, .world = 2, .connect = [&] {
             return std::move(communicator);
           }});
      EXPECT_EQ(Keep(copies, rank, 2, {10, 1}), absl::OkStatus());
      EXPECT_EQ(Keep(copies, rank, 2, {20, 1}), absl::OkStatus());
      if (rank == 1) return raw->Abort("killed");
      EXPECT_FALSE(Keep(copies, rank, 2, {30, tensors}).ok());
    });
    ExpectWhole(TakeUp(2, 2, 0), 20, 1);
  }
}

// Ranks of one host, of which one saves all.
TEST_F(MemoryCopiesTest, RanksMayShareAFolderAndHaveNothingToSave) {
  OnRanks(3, [&](int rank, std::unique_ptr<comm::Communicator> communicator) {
    MemoryCopies copies({.folder = Folder(0), .id = {"uid", 1, rank}, .world = 3, .connect = [&] {
                           return std::move(communicator);
                         }});
    for (const int64_t step : {10, 20, 30}) {
      EXPECT_EQ(Keep(copies, rank == 0 ? 0 : -1, 1, {step, 2}), absl::OkStatus());
    }
  });
  Found found = {.steps = {-1, -1, -1}, .elements = {}};
  OnRanks(3, [&](int rank, const std::unique_ptr<comm::Communicator>& communicator) {
    const auto save = TakeUpSave(Folder(0), "uid", 2, rank == 1 ? 25 : 0, *communicator);
    ASSERT_TRUE(save.ok() && save->has_value()) << save.status();
    Add(**save, rank, &found);
  });
  ExpectWhole(found, 30, 2);
}

TEST_F(MemoryCopiesTest, RanksThatCopyDifferentStepsAreToldSo) {
  OnRanks(2, [&](int rank, std::unique_ptr<comm::Communicator> communicator) {
    MemoryCopies copies(
        {.folder = Folder(rank), .id = {"uid", 1, rank}, .world = 2, .connect = [&] {
           return std::move(communicator);
         }});
    EXPECT_THAT(Keep(copies, rank, 2, {10 + rank, 1}).message(),
                testing::HasSubstr("steps 10 and 11"));
  });
}

TEST_F(MemoryCopiesTest, WithoutAFolderInMemoryItSaysSo) {
  MemoryCopies copies({.folder = "", .id = {"uid", 1, 0}});
  EXPECT_THAT(copies.Keep(1, Tensors(1), {}).message(), testing::HasSubstr("--memory-dir"));
}

}  // namespace
}  // namespace milepost::worker
