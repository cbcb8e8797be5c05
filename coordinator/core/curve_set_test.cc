#include "coordinator/core/curve_set.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "absl/strings/str_cat.h"
#include "common/proto_time.h"
#include "coordinator/core/fake_cluster.h"

namespace milepost::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::SizeIs;

constexpr absl::Time kHeard = absl::FromUnixSeconds(1'800'000'000);

class CurveSetTest : public testing::Test {
 protected:
  static v1::Progress At(int64_t step, int64_t start_step = 0) {
    v1::Progress progress;
    progress.set_step(step);
    progress.set_start_step(start_step);
    progress.set_train_loss(10.0 / static_cast<double>(step));
    progress.set_lr(3e-4);
    progress.set_grad_norm(1.5);
    progress.set_validation_loss(NAN);
    return progress;
  }
  static v1::LossReport Head(const std::string& name, double loss, double accuracy) {
    v1::LossReport head;
    head.set_name(name);
    head.set_loss(loss);
    head.set_accuracy(accuracy);
    return head;
  }

  void Take(const v1::Progress& progress) {
    curves_.Take({.job = 1, .generation = generation_, .time = kHeard, .progress = progress});
  }
  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    const v1::JobCurves all = curves_.Describe(0);
    for (const v1::Curve& curve : all.curves()) names.push_back(curve.name());
    return names;
  }
  v1::Curve Find(const std::string& name, size_t max_points = 0) const {
    const v1::JobCurves all = curves_.Describe(max_points);
    for (const v1::Curve& curve : all.curves()) {
      if (curve.name() == name) return curve;
    }
    return {};
  }
  // As the store would.
  void Store() {
    for (CurveBlockChange& change : curves_.TakeChanges()) {
      const auto key = std::pair(change.block, change.name);
      if (change.points.has_value()) {
        ++written_;
        stored_[key] = *std::move(change.points);
      } else {
        EXPECT_EQ(stored_.erase(key), 1u);
      }
    }
  }
  CurveSet Load() const {
    CurveSet loaded;
    for (const auto& [key, block] : stored_) loaded.Restore(key.second, key.first, block);
    return loaded;
  }
  void ExpectStored() const {
    EXPECT_EQ(Load().Describe(0).SerializeAsString(), curves_.Describe(0).SerializeAsString());
  }

  CurveSet curves_;
  int64_t generation_ = 1;
  std::map<std::pair<uint32_t, std::string>, v1::CurveBlock> stored_;
  int written_ = 0;
};

TEST_F(CurveSetTest, AScriptGoesOnWhereItFirstReports) {
  const auto take = [&](int64_t step) {
    curves_.Take({.job = 1,
                  .generation = generation_,
                  .time = kHeard,
                  .progress = At(step),
                  .finds_own_start = true});
  };
  for (const int64_t step : {10, 20, 30}) take(step);
  generation_ = 2;
  take(0);
  EXPECT_THAT(Find("train_loss").steps(), ElementsAre(10, 20, 30)) << "it has not begun";
  for (const int64_t step : {21, 31}) take(step);
  EXPECT_THAT(Find("train_loss").steps(), ElementsAre(10, 20, 21, 31));
  generation_ = 1;
  take(40);
  EXPECT_THAT(Find("train_loss").steps(), ElementsAre(10, 20, 21, 31)) << "an older attempt's";
}

TEST_F(CurveSetTest, HasWhatIsReportedAndNothingElse) {
  v1::Progress progress = At(1);
  Take(progress);
  EXPECT_THAT(Names(), ElementsAre("train_loss", "lr", "grad_norm"));
  progress = At(2);
  *progress.add_train_heads() = Head("lm", 2, 0);
  *progress.add_train_heads() = Head("cls", 1, 0);
  progress.set_tokens_per_second(1e6);
  progress.set_mfu(0.5);
  progress.set_step_seconds(0.25);
  progress.set_loss_scale(65536);
  progress.set_validation_step(2);
  progress.set_validation_loss(4);
  *progress.add_validation_heads() = Head("lm", 3, 0.75);
  Take(progress);
  EXPECT_THAT(Names(),
              ElementsAre("train_loss", "train_loss/cls", "train_loss/lm", "validation_loss",
                          "validation_loss/lm", "validation_accuracy/lm", "lr", "grad_norm",
                          "tokens_per_second", "mfu", "step_seconds", "loss_scale"));
  const v1::Curve loss = Find("train_loss");
  EXPECT_EQ(loss.unit(), "nats");
  EXPECT_THAT(loss.steps(), ElementsAre(1, 2));
  EXPECT_THAT(loss.means(), ElementsAre(10, 5));
  EXPECT_THAT(loss.seconds(), ElementsAre(1.8e9, 1.8e9));
  EXPECT_TRUE(loss.not_finite().empty());
  EXPECT_THAT(Find("validation_accuracy/lm").means(), ElementsAre(0.75));
  EXPECT_THAT(Find("tokens_per_second").steps(), ElementsAre(2));
}

TEST_F(CurveSetTest, HasThoseOfFurtherValidationSets) {
  v1::Progress progress = At(2);
  progress.set_validation_step(2);
  progress.set_validation_loss(4);
  *progress.add_validation_heads() = Head("lm", 4, 0.75);
  for (const char* name : {"code", "chat", ""}) {
    v1::ValidationSetReport& set = *progress.add_validation_sets();
    set.set_name(name);
    set.set_loss(std::string(name) == "code" ? 3 : 5);
    *set.add_heads() = Head("lm", 3, 0.5);
  }
  Take(progress);
  EXPECT_THAT(Names(), ElementsAre("train_loss", "validation_loss", "validation_loss/lm",
                                   "validation_accuracy/lm", "validation_loss@chat",
                                   "validation_loss@chat/lm", "validation_loss@code",
                                   "validation_loss@code/lm", "validation_accuracy@chat/lm",
                                   "validation_accuracy@code/lm", "lr", "grad_norm"));
  EXPECT_THAT(Find("validation_loss@code").means(), ElementsAre(3));
  EXPECT_THAT(Find("validation_loss@chat").steps(), ElementsAre(2));
  EXPECT_EQ(Find("validation_loss@chat").unit(), "nats");
  EXPECT_THAT(Find("validation_accuracy@code/lm").means(), ElementsAre(0.5));
}

TEST_F(CurveSetTest, HasTheTimeThatTheRankTells) {
  v1::Progress progress = At(1);
  *progress.mutable_time() = ToProto(kHeard - absl::Hours(1));
  Take(progress);
  EXPECT_THAT(Find("lr").seconds(), ElementsAre(1.8e9 - 3600));
}

TEST_F(CurveSetTest, ALossThatDivergedShows) {
  for (int step = 1; step <= 4; ++step) {
    v1::Progress progress = At(step);
    if (step > 2) progress.set_train_loss(NAN);
    progress.set_validation_step(step);
    progress.set_validation_loss(step > 2 ? NAN : 1);
    Take(progress);
  }
  for (const char* name : {"train_loss", "validation_loss"}) {
    const v1::Curve loss = Find(name);
    EXPECT_THAT(loss.not_finite(), ElementsAre(0, 0, 1, 1)) << name;
    EXPECT_TRUE(std::isnan(loss.means(3)));
    EXPECT_THAT(Find(name, 2).not_finite(), ElementsAre(0, 2));
  }
}

TEST_F(CurveSetTest, TheNextAttemptTakesAwayWhatDoesNotCountAnyMore) {
  for (int step = 1; step <= 10; ++step) {
    v1::Progress progress = At(step);
    progress.set_validation_step(step / 5 * 5);
    progress.set_validation_loss(1);
    Take(progress);
  }
  ++generation_;
  // Before its first step it tells what the one before had told.
  v1::Progress begun = At(7, 7);
  begun.set_validation_step(5);
  begun.set_validation_loss(1);
  Take(begun);
  EXPECT_THAT(Find("train_loss").steps(), ElementsAre(1, 2, 3, 4, 5, 6, 7));
  EXPECT_THAT(Find("validation_loss").steps(), ElementsAre(5));
  v1::Progress next = At(8, 7);
  next.set_train_loss(100);
  Take(next);
  EXPECT_THAT(Find("train_loss").steps(), ElementsAre(1, 2, 3, 4, 5, 6, 7, 8));
  EXPECT_EQ(Find("train_loss").means(7), 100);
  --generation_;
  Take(At(11));
  EXPECT_EQ(Find("train_loss").steps_size(), 8) << "nobody hears a forgotten rank";
}

TEST_F(CurveSetTest, OfAForkedJobNothingOfItsParentIsThere) {
  v1::Progress progress = At(100, 100);
  progress.set_validation_step(90);
  progress.set_validation_loss(1);
  Take(progress);
  EXPECT_THAT(Names(), SizeIs(0));
  progress.set_step(101);
  Take(progress);
  EXPECT_THAT(Names(), ElementsAre("train_loss", "lr", "grad_norm"));
}

TEST_F(CurveSetTest, IsBounded) {
  for (int step = 1; step <= 3000; ++step) {
    v1::Progress progress = At(step);
    *progress.add_train_heads() = Head(absl::StrCat("head", step), 1, 0);
    *progress.add_train_heads() = Head(std::string(10'000, 'h'), 1, 0);
    *progress.add_train_heads() = Head("", 1, 0);
    Take(progress);
  }
  EXPECT_EQ(Names().size(), kMostCurves);
  EXPECT_LE(Find("train_loss").steps_size(), static_cast<int>(kCurvePoints));
  EXPECT_LE(Find("train_loss", 20).steps_size(), 20);
  EXPECT_EQ(Find("train_loss").steps(Find("train_loss").steps_size() - 1), 3000);
}

TEST_F(CurveSetTest, WhatIsStoredIsWhatThereIs) {
  int64_t step = 0;
  for (int attempt = 0; attempt < 6; ++attempt) {
    const int64_t start = step;
    while (step < start + 700) {
      v1::Progress progress = At(++step, start);
      if (step % 97 == 0) progress.set_train_loss(INFINITY);
      Take(progress);
      if (step % 10 != 0) continue;
      Store();
      if (step % 100 == 0) ExpectStored();
    }
    step -= attempt * 200;
    ++generation_;
  }
}

TEST_F(CurveSetTest, OnlyTheNewestPointsAreWrittenAgain) {
  for (int step = 1; step <= 500; ++step) Take(At(step));
  Store();
  written_ = 0;
  Take(At(501));
  Store();
  EXPECT_EQ(written_, 3) << "a block of each curve";
  Store();
  EXPECT_EQ(written_, 3);
}

TEST_F(CurveSetTest, AMissingBlockCostsItsPointsAlone) {
  for (int step = 1; step <= 100; ++step) Take(At(step));
  Store();
  stored_.erase({1, "lr"});
  stored_.at({2, "lr"}).mutable_points()->clear_means();
  curves_ = Load();
  EXPECT_EQ(Find("lr").steps_size(), 32 + 4);
  EXPECT_EQ(Find("train_loss").steps_size(), 100);
  Take(At(101));
  stored_[{2, "lr"}];  // is to be overwritten, or deleted
  Store();
  ExpectStored();
  EXPECT_EQ(Find("lr").steps_size(), 32 + 5);
}

TEST_F(CurveSetTest, WhatCouldNotBeStoredIsTriedAgain) {
  for (int step = 1; step <= 200; ++step) Take(At(step));
  curves_.TakeChanges();
  curves_.NotStored();
  for (CurveBlockChange& change : curves_.TakeChanges()) {
    if (change.points.has_value()) stored_[{change.block, change.name}] = *change.points;
  }
  ExpectStored();
}

TEST_F(CurveSetTest, AStoreThatMakesNoSenseIsNoHarm) {
  v1::CurveBlock block;
  block.mutable_points()->add_steps(5);
  block.mutable_points()->add_means(1);
  block.mutable_points()->add_mins(1);
  block.mutable_points()->add_maxs(1);
  block.mutable_points()->add_seconds(NAN);
  block.add_reports(INT64_MIN);
  curves_.Restore("train_loss", 0, block);
  block.set_reports(0, INT64_MAX);
  curves_.Restore("train_loss", UINT32_MAX, block);
  curves_.Restore("no curve of ours", 0, block);
  EXPECT_THAT(Names(), SizeIs(0));
  block.mutable_points()->set_seconds(0, 1e300);
  curves_.Restore("lr", 0, block);
  EXPECT_THAT(Names(), ElementsAre("lr"));
  Take(At(10));
  EXPECT_THAT(Find("lr").steps(), ElementsAre(10));
}

// What the decisions hand on.
TEST(RankZeroReportTest, OnlyRankZeroOfTheNewestAttempt) {
  FakeCluster cluster;
  cluster.Connect("a", 2);
  const std::string job = cluster.Submit(2);
  cluster.ReportAll(job, v1::RANK_STATE_RUNNING);
  RankProgressed event;
  event.worker = "workers/a";
  event.progress.set_job(job);
  event.progress.set_generation(1);
  event.progress.mutable_progress()->set_step(7);
  const auto reports = [&] {
    return Decide(cluster.state, event, cluster.now, cluster.config).reports;
  };
  ASSERT_THAT(reports(), SizeIs(1));
  EXPECT_EQ(reports()[0].job, 1);
  EXPECT_EQ(reports()[0].generation, 1);
  EXPECT_EQ(reports()[0].time, cluster.now);
  EXPECT_EQ(reports()[0].progress.step(), 7);
  event.progress.set_rank(1);
  EXPECT_THAT(reports(), SizeIs(0));
  event.progress.set_rank(0);
  event.progress.set_generation(2);
  EXPECT_THAT(reports(), SizeIs(0));
}

}  // namespace
}  // namespace milepost::coordinator
