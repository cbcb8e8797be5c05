// Further validation sets, beside the one that decides.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "engine/runtime/testing/snapshot.h"
#include "engine/runtime/testing/tiny_images.h"
#include "engine/runtime/testing/tiny_job.h"

namespace milepost::runtime {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

v1::ValidationSetSpec* AddSet(const std::string& name, const std::string& path, v1::JobSpec* spec) {
  v1::ValidationSetSpec* set = spec->mutable_data()->add_validation_sets();
  set->set_name(name);
  set->set_path(path);
  return set;
}

// Of rank 0, after two steps.
EvaluationReport EvaluatedAfterSteps(const v1::JobSpec& spec, v1::TrainerState* state = nullptr) {
  EXPECT_EQ(ValidateJobSpec(spec), absl::OkStatus());
  EvaluationReport report;
  RunRanks(spec, [&](int rank, TrainingSession& session) {
    ASSERT_EQ(session.InitializeParameters(), absl::OkStatus());
    for (int step = 0; step < 2; ++step) ASSERT_TRUE(session.Step(false).ok());
    const auto evaluated = session.Evaluate();
    ASSERT_TRUE(evaluated.ok()) << evaluated.status();
    if (rank != 0) return;
    report = *evaluated;
    if (state != nullptr) *state = session.trainer_state();
  });
  return report;
}

void ExpectSame(const EvaluationReport::Set& set, const EvaluationReport& report) {
  EXPECT_EQ(set.loss, report.loss);
  ASSERT_EQ(set.heads.size(), report.heads.size());
  for (size_t i = 0; i < set.heads.size(); ++i) {
    EXPECT_EQ(set.heads[i].name, report.heads[i].name);
    EXPECT_EQ(set.heads[i].loss, report.heads[i].loss);
    EXPECT_EQ(set.heads[i].accuracy, report.heads[i].accuracy);
    EXPECT_EQ(set.heads[i].targets, report.heads[i].targets);
  }
}

TEST(ValidationSets, AreMeasuredAsTheMainOne) {
  const TinyJob job;
  job.Write("short.npy", 3 * TinyJob::kContext + 1, 9);
  for (const auto& [ranks, stage] : {std::pair(1, 0), std::pair(2, 1), std::pair(6, 3)}) {
    v1::JobSpec spec = job.Spec({.ranks = ranks, .stage = stage});
    const EvaluationReport alone = EvaluatedAfterSteps(spec);
    EXPECT_TRUE(alone.sets.empty());
    AddSet("other", job.path("train.npy"), &spec);
    AddSet("same", job.path("validation.npy"), &spec);
    AddSet("short", job.path("short.npy"), &spec);
    v1::TrainerState state;
    const EvaluationReport report = EvaluatedAfterSteps(spec, &state);
    EXPECT_EQ(report.loss, alone.loss);
    ASSERT_EQ(report.sets.size(), 3u);
    EXPECT_EQ(report.sets[0].name, "other");
    EXPECT_NE(report.sets[0].loss, report.loss);
    EXPECT_EQ(report.sets[0].heads[0].targets, 5 * TinyJob::kContext);
    EXPECT_EQ(report.sets[1].name, "same");
    ExpectSame(report.sets[1], report);
    EXPECT_NE(report.sets[2].loss, report.loss);
    EXPECT_EQ(report.sets[2].heads[0].targets, 3 * TinyJob::kContext);
    EXPECT_EQ(state.validation_loss(), report.loss);
    EXPECT_EQ(state.best_validation_loss(), report.loss) << "by data.validation alone";
  }
}

TEST(ValidationSets, ChangeNoBitOfTraining) {
  const TinyJob job;
  const v1::JobSpec spec = job.Spec({.ranks = 2, .stage = 3});
  v1::JobSpec with = spec;
  AddSet("other", job.path("train.npy"), &with);
  const auto trained = [](const v1::JobSpec& of) {
    Snapshot snapshot;
    std::mutex mutex;
    RunRanks(of, [&](int, TrainingSession& session) {
      ASSERT_EQ(session.InitializeParameters(), absl::OkStatus());
      for (int step = 0; step < 3; ++step) {
        ASSERT_TRUE(session.Step(false).ok());
        ASSERT_TRUE(session.Evaluate().ok());
      }
      Save(session, snapshot, mutex);
    });
    return snapshot;
  };
  EXPECT_TRUE(trained(spec).data == trained(with).data);
}

TEST(ValidationSets, HaveLabelsOfTheirOwn) {
  const TinyJob job;
  v1::JobSpec spec = job.Spec({.heads = true});
  v1::ValidationSetSpec* same = AddSet("same", job.path("validation.npy"), &spec);
  v1::ValidationSetSpec* relabelled = AddSet("relabelled", job.path("validation.npy"), &spec);
  // In another order than the model's heads.
  for (const char* head : {"next", "kind"}) {
    for (v1::ValidationSetSpec* set : {same, relabelled}) {
      v1::SetLabels& labels = *set->add_labels();
      labels.set_head(head);
      labels.set_path(job.path(std::string("validation.") + head + ".npy"));
    }
  }
  std::string kinds(7 * TinyJob::kContext + 1, '\1');
  WriteNpy(job.path("all_one.npy"), "|i1", absl::StrCat(kinds.size(), ","), kinds);
  relabelled->mutable_labels(1)->set_path(job.path("all_one.npy"));
  const EvaluationReport report = EvaluatedAfterSteps(spec);
  ASSERT_EQ(report.heads.size(), 3u);
  ASSERT_EQ(report.sets.size(), 2u);
  ExpectSame(report.sets[0], report);
  for (size_t i = 0; i < 3; ++i) {
    const bool kind = report.heads[i].name == "kind";
    EXPECT_EQ(report.sets[1].heads[i].loss == report.heads[i].loss, !kind);
  }
}

TEST(ValidationSets, HaveLossMasksOfTheirOwn) {
  const TinyJob job;
  v1::JobSpec spec = job.Spec({});
  std::string mask(7 * TinyJob::kContext + 1, '\0');
  for (size_t i = 0; i < mask.size(); i += 3) mask[i] = 1;
  WriteNpy(job.path("mask.npy"), "|i1", absl::StrCat(mask.size(), ","), mask);
  AddSet("masked", job.path("validation.npy"), &spec)->set_loss_mask(job.path("mask.npy"));
  const EvaluationReport some = EvaluatedAfterSteps(spec);
  EXPECT_EQ(some.sets[0].heads[0].targets, 5 * TinyJob::kContext / 3);
  EXPECT_NE(some.sets[0].loss, some.loss);
}

TEST(ValidationSets, AreOfImagesToo) {
  const TinyImages job;
  for (const bool heads : {false, true}) {
    v1::JobSpec spec = job.Spec({.ranks = 2, .heads = heads});
    for (const char* name : {"validation", "train"}) {
      v1::ValidationSetSpec* set = AddSet(name, job.path(std::string(name) + ".npy"), &spec);
      for (const v1::LabelSource& source : spec.data().labels()) {
        v1::SetLabels& labels = *set->add_labels();
        labels.set_head(source.head());
        labels.set_path(name[0] == 't' ? source.train() : source.validation());
      }
    }
    const EvaluationReport report = EvaluatedAfterSteps(spec);
    ASSERT_EQ(report.sets.size(), 2u);
    ExpectSame(report.sets[0], report);
    EXPECT_NE(report.sets[1].loss, report.loss);
  }
}

TEST(ValidationSets, OneThatIsNotThereIsNamed) {
  const TinyJob job;
  v1::JobSpec spec = job.Spec({});
  AddSet("code", job.path("absent.npy"), &spec);
  auto group = comm::MakeInProcessGroup(1);
  const auto session = TrainingSession::Create(spec, {}, group[0].get());
  EXPECT_THAT(session.status().message(),
              AllOf(HasSubstr("data.validation_sets, code"), HasSubstr("absent.npy")));
}

}  // namespace
}  // namespace milepost::runtime
