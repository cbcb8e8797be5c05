// Training on a mixture of token files of different forms: the samples, and so the losses, are the
// same at any number of ranks, and after a restart in the middle.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <thread>

#include "absl/strings/str_cat.h"
#include "engine/comm/in_process.h"
#include "engine/runtime/testing/tiny_job.h"

namespace milepost::runtime {
namespace {

// llm.c's form of the same kind of tokens, another sequence of them.
void WriteLlmc(const std::string& path, int32_t tokens) {
  std::string bytes(1024, '\0');
  const int32_t header[] = {20240520, 1, tokens};
  std::memcpy(bytes.data(), header, sizeof(header));
  for (int32_t i = 0; i < tokens; ++i) {
    const auto token = static_cast<uint16_t>((i * i + 7) % TinyJob::kVocabulary);
    bytes.append(reinterpret_cast<const char*>(&token), sizeof(token));
  }
  std::ofstream(path, std::ios::binary) << bytes;
}

class MixtureTest : public testing::Test {
 protected:
  v1::JobSpec Spec(const TinyOptions& options) {
    WriteLlmc(job_.path("more.bin"), 30 * TinyJob::kContext + 1);
    v1::JobSpec spec = job_.Spec(options);
    const std::string first = spec.data().train();
    spec.mutable_data()->clear_train();
    v1::TokenSource* source = spec.mutable_data()->add_mixture();
    source->set_path(first);
    source->set_weight(3);
    source = spec.mutable_data()->add_mixture();
    source->set_path(job_.path("more.bin"));
    source->set_weight(2);
    NormalizeJobSpec(&spec);
    EXPECT_EQ(ValidateJobSpec(spec), absl::OkStatus());
    return spec;
  }

  TinyJob job_;
};

TEST_F(MixtureTest, LossesDoNotDependOnTheRanks) {
  const std::vector<double> one = TrainFresh(Spec({.ranks = 1}));
  ASSERT_EQ(one.size(), 10u);
  for (const int ranks : {2, 3}) {
    const std::vector<double> several = TrainFresh(Spec({.ranks = ranks}));
    ASSERT_EQ(several.size(), one.size());
    for (size_t i = 0; i < one.size(); ++i) {
      EXPECT_NEAR(several[i], one[i], 1e-5 * one[i]) << ranks << " ranks, step " << i;
    }
  }
  const std::vector<double> alone = TrainFresh(job_.Spec({.ranks = 1}));
  EXPECT_NE(alone, one) << "the second file was never used";
}

// A host may hold an older copy under the same name.
TEST_F(MixtureTest, RanksOnOtherDataAreRefused) {
  const v1::JobSpec spec = Spec({.ranks = 2});
  v1::JobSpec other = spec;
  for (const int tokens : {30, 31}) {  // as many samples, or one more
    const std::string path = job_.path(absl::StrCat("older", tokens, ".bin"));
    WriteLlmc(path, tokens * TinyJob::kContext + 1);
    if (tokens == 30) std::fstream(path, std::ios::in | std::ios::out).seekp(1024).write("\5", 1);
    other.mutable_data()->mutable_mixture(1)->set_path(path);
    auto group = comm::MakeInProcessGroup(2);
    absl::Status status[2];
    std::thread second(
        [&] { status[1] = TrainingSession::Create(other, {}, group[1].get()).status(); });
    status[0] = TrainingSession::Create(spec, {}, group[0].get()).status();
    second.join();
    for (const absl::Status& told : status) {
      EXPECT_TRUE(absl::IsFailedPrecondition(told)) << told;
      EXPECT_THAT(std::string(told.message()),
                  testing::AllOf(testing::HasSubstr("the ranks' hosts differ: training data: "),
                                 testing::HasSubstr("on rank 0"), testing::HasSubstr("on rank 1")));
    }
  }
}

// What a restored position brings is what an uninterrupted run would have had there.
TEST_F(MixtureTest, GoesOnWhereItStopped) {
  const v1::JobSpec spec = Spec({.ranks = 1, .stage = 0});
  const std::vector<double> whole = TrainFresh(spec);
  std::vector<double> losses;
  std::vector<std::string> saved;
  v1::TrainerState state;
  RunRanks(spec, [&](int rank, TrainingSession& session) {
    ASSERT_EQ(session.InitializeParameters(), absl::OkStatus());
    while (session.step() < 4) losses.push_back(session.Step(false)->train_loss);
    for (const StateInterval& source : session.SaveSources()) {
      const auto bytes = static_cast<size_t>(source.end - source.begin) * sizeof(float);
      saved.emplace_back(source.data, bytes);
    }
    state = session.trainer_state();
  });
  RunRanks(spec, [&](int rank, TrainingSession& session) {
    const std::vector<StateInterval> targets = session.RestoreTargets();
    ASSERT_EQ(targets.size(), saved.size());
    for (size_t i = 0; i < targets.size(); ++i) {
      std::memcpy(targets[i].data, saved[i].data(), saved[i].size());
    }
    ASSERT_EQ(session.FinishRestore(state), absl::OkStatus());
    while (session.step() < spec.train().steps()) losses.push_back(session.Step(false)->train_loss);
  });
  EXPECT_EQ(losses, whole);
}

}  // namespace
}  // namespace milepost::runtime
