#include "coordinator/store/curve_store.h"

#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "coordinator/store/damaged_store.h"
#include "coordinator/store/salvage.h"

namespace milepost::coordinator {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class CurveStoreTest : public DamagedStore {
 protected:
  ~CurveStoreTest() override { fs::remove_all(salvaged_); }

  static void Report(int64_t first, int64_t last, CurveSet* curves, double loss = 1) {
    for (int64_t step = first; step <= last; ++step) {
      RankZeroReport report = {.job = 1, .generation = 1, .time = absl::UnixEpoch()};
      report.progress.set_step(step);
      report.progress.set_train_loss(loss);
      curves->Take(report);
    }
  }
  absl::Status Write(int64_t job, CurveSet* curves) {
    return store_->curves().Write({{job, curves->TakeChanges()}});
  }
  // Of the loss of what is stored; -1: it cannot be read.
  int Points(int64_t job) {
    const auto read = store_->curves().Read(job);
    if (!read.ok()) return -1;
    const v1::JobCurves curves = read->Describe(0);
    return curves.curves().empty() ? 0 : curves.curves(0).steps_size();
  }
  void DeleteJob(int64_t job) {
    Outcome outcome;
    outcome.deleted_jobs.insert(job);
    outcome.last_job = kJobs;
    ASSERT_TRUE(store_->Write(outcome).ok());
  }
  // Its tables that hold curves.
  std::vector<std::string> CurveTables() const {
    std::vector<std::string> tables;
    for (const auto& entry : fs::directory_iterator(copy_ + "/db")) {
      std::stringstream bytes;
      bytes << std::ifstream(entry.path()).rdbuf();
      const bool has = bytes.str().find("train_loss") != std::string::npos;
      if (entry.path().extension() == ".sst" && has) tables.push_back(entry.path());
    }
    return tables;
  }
  // Opens a copy of a store with curves of all jobs, in a table.
  void FillCurves() {
    Fill();
    options_.dir = whole_;
    Open();
    for (int64_t job = 1; job <= kJobs; ++job) {
      CurveSet curves;
      Report(1, 1000, &curves);
      ASSERT_TRUE(Write(job, &curves).ok());
    }
    Open();  // what is in the log becomes a table
    store_.reset();
    Copy();
    options_.dir = copy_;
  }

  const std::string salvaged_ = whole_ + "-salvaged";
};

TEST_F(CurveStoreTest, WhatIsWrittenIsThereAgain) {
  options_.dir = whole_;
  Open();
  CurveSet first, second;
  Report(1, 777, &first);
  Report(1, 5, &second);
  ASSERT_TRUE(Write(1, &first).ok());
  ASSERT_TRUE(Write(2, &second).ok());
  Report(778, 790, &first);
  ASSERT_TRUE(Write(1, &first).ok());
  for (int opened = 0; opened < 2; ++opened) {
    const auto read = store_->curves().Read(1);
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(read->Describe(0).SerializeAsString(), first.Describe(0).SerializeAsString());
    EXPECT_EQ(Points(2), 5);
    EXPECT_EQ(Points(3), 0);
    Open();
  }
}

TEST_F(CurveStoreTest, GoWithTheirJob) {
  options_.dir = whole_;
  Open();
  CurveSet curves;
  Report(1, 100, &curves);
  for (const int64_t job : {1, 2, 3}) {
    curves.NotStored();
    ASSERT_TRUE(Write(job, &curves).ok());
  }
  DeleteJob(2);
  Open();
  EXPECT_EQ(Points(1), 100);
  EXPECT_EQ(Points(2), 0);
  EXPECT_EQ(Points(3), 100);
  ASSERT_TRUE(store_->curves().Delete(3).ok());
  EXPECT_EQ(Points(3), 0);
}

TEST_F(CurveStoreTest, DamageCostsTheCurvesAlone) {
  FillCurves();
  const std::vector<std::string> tables = CurveTables();
  ASSERT_FALSE(tables.empty());
  for (const std::string& table : tables) Flip(table, 100);
  Open();
  ExpectAll();
  EXPECT_EQ(Points(1), -1);
  EXPECT_EQ(Points(kJobs), 1000);
  EXPECT_THAT(store_->DescribeDamage(), HasSubstr("jobs' curves are damaged"));
  EXPECT_TRUE(checkpoints().Retain("jobs/1", RetentionRule{.keep_last = 1}).ok());
  EXPECT_EQ(Names().size(), 1u) << "records are whole";
  // Begun anew, as the coordinator does.
  CurveSet curves;
  Report(1, 10, &curves);
  ASSERT_TRUE(store_->curves().Delete(1).ok());
  ASSERT_TRUE(Write(1, &curves).ok());
}

TEST_F(CurveStoreTest, AreSalvaged) {
  FillCurves();
  Open();
  DeleteJob(7);
  store_.reset();
  const auto report = Salvage(copy_, salvaged_);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->size(), 1u) << "nothing is lost";
  options_.dir = salvaged_;
  Open();
  for (int64_t job = 1; job <= kJobs; ++job) EXPECT_EQ(Points(job), job == 7 ? 0 : 1000);
}

TEST_F(CurveStoreTest, ATableThatCannotBeOpenedCostsThemAlone) {
  FillCurves();
  const std::vector<std::string> tables = CurveTables();
  ASSERT_FALSE(tables.empty());
  for (const std::string& table : tables) {
    Flip(table, static_cast<int64_t>(fs::file_size(table)) - 5);
  }
  const auto report = Salvage(copy_, salvaged_);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_THAT(absl::StrJoin(*report, "\n"), HasSubstr("all curves of jobs"));
  for (const std::string& dir : {copy_, salvaged_}) {
    options_.dir = dir;
    Open();
    ExpectAll();
    EXPECT_EQ(Points(1), dir == copy_ ? -1 : 0);
  }
}

// The list of tables is made anew of the tables that there are.
TEST_F(CurveStoreTest, AreSalvagedWithoutAListOfTables) {
  FillCurves();
  Compact();
  Copy();
  for (const auto& entry : fs::directory_iterator(copy_ + "/db")) {
    if (entry.path().filename().string().starts_with("MANIFEST-")) Flip(entry.path(), 40);
  }
  const auto report = Salvage(copy_, salvaged_);
  ASSERT_TRUE(report.ok()) << report.status();
  options_.dir = salvaged_;
  Open();
  ExpectAll();
  for (int64_t job = 1; job <= kJobs; ++job) EXPECT_EQ(Points(job), 1000);
}

}  // namespace
}  // namespace milepost::coordinator
