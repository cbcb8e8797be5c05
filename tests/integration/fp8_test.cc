// Training with 8-bit products: it follows bf16, and keeps what the other precisions promise.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <mutex>
#include <string>
#include <vector>

#include "engine/runtime/testing/snapshot.h"
#include "engine/runtime/testing/tiny_job.h"

namespace milepost::runtime {
namespace {

struct Fp8Trace {
  std::vector<double> losses, norms;
};

Fp8Trace TrainFp8(const v1::JobSpec& spec) {
  Fp8Trace trace;
  RunRanks(spec, [&](int rank, TrainingSession& session) {
    ASSERT_EQ(session.InitializeParameters(), absl::OkStatus());
    EXPECT_EQ(session.allocated_bytes(), session.plan().arena_bytes);
    while (session.step() < spec.train().steps()) {
      auto report = session.Step(false);
      ASSERT_TRUE(report.ok()) << report.status();
      if (rank > 0) continue;
      trace.losses.push_back(report->train_loss);
      trace.norms.push_back(report->grad_norm);
    }
  });
  return trace;
}

// Of the first step, which has no scalings of earlier ones, as of the later ones.
TEST(Fp8, FollowsBf16) {
  const TinyJob job;
  TinyOptions gpt2{.precision = v1::PRECISION_FP8, .steps = 30}, llama = gpt2, bert = gpt2;
  llama.llama = true;
  bert.bert = true;
  for (TinyOptions options : {gpt2, llama, bert}) {
    const Fp8Trace fp8 = TrainFp8(job.Spec(options));
    options.precision = v1::PRECISION_BF16;
    const Fp8Trace bf16 = TrainFp8(job.Spec(options));
    if (!options.bert) {  // whose masked targets are few
      EXPECT_LT(fp8.losses.back(), fp8.losses.front() - 0.2) << "it does not learn";
    }
    EXPECT_NE(fp8.losses, bf16.losses);
    EXPECT_LT(LargestRelativeDifference(fp8.losses, bf16.losses), 0.02);
    EXPECT_NEAR(fp8.norms.front(), bf16.norms.front(), 0.05 * bf16.norms.front());
  }
}

TEST(Fp8, RanksAndStagesGiveNearlyTheSameLosses) {
  const TinyJob job;
  for (const bool llama : {false, true}) {
    TinyOptions options{.ranks = 1, .stage = 0, .precision = v1::PRECISION_FP8};
    options.llama = llama;
    options.dropout = llama ? 0 : 0.1;
    const Fp8Trace reference = TrainFp8(job.Spec(options));
    for (const int ranks : {2, 3}) {
      for (const int stage : {0, 1, 2, 3}) {
        options.ranks = ranks;
        options.stage = stage;
        EXPECT_LT(LargestRelativeDifference(TrainFp8(job.Spec(options)).losses, reference.losses),
                  5e-3)
            << ranks << " ranks, stage " << stage << (llama ? ", llama" : ", gpt2");
      }
    }
  }
}

// They come of the largest magnitudes of all ranks, whose rows are not the same.
TEST(Fp8, EveryRankHasTheSameScalings) {
  const TinyJob job;
  std::vector<std::vector<float>> scalings(2);
  RunRanks(job.Spec({.ranks = 2, .stage = 1, .precision = v1::PRECISION_FP8}),
           [&](int rank, TrainingSession& session) {
             ASSERT_EQ(session.InitializeParameters(), absl::OkStatus());
             for (int i = 0; i < 3; ++i) ASSERT_TRUE(session.Step(false).ok());
             ASSERT_EQ(session.FetchState(), absl::OkStatus());
             const StateInterval records = session.RestoreTargets().back();
             ASSERT_EQ(session.state_tensors()[records.tensor].kind(), "scaling");
             const auto* data = reinterpret_cast<const float*>(records.data);
             scalings[rank].assign(data, data + records.end);
           });
  EXPECT_EQ(scalings[0], scalings[1]);
  EXPECT_EQ(scalings[0].size(), 32U * 3 * 4 * 2);  // a record's floats, tensors, layers, blocks
}

TEST(Fp8, TwiceGivesTheSameBitsAndRecomputationChangesNone) {
  const TinyJob job;
  for (const bool llama : {false, true}) {
    TinyOptions options{.ranks = 2, .stage = llama ? 3 : 1, .precision = v1::PRECISION_FP8};
    options.llama = llama;
    options.dropout = llama ? 0 : 0.1;
    options.steps = 4;
    const std::vector<double> losses = TrainFresh(job.Spec(options));
    EXPECT_EQ(TrainFresh(job.Spec(options)), losses);
    options.recompute = v1::RECOMPUTE_SELECTIVE;
    EXPECT_EQ(TrainFresh(job.Spec(options)), losses);
    options.recompute = v1::RECOMPUTE_FULL;
    EXPECT_EQ(TrainFresh(job.Spec(options)), losses);
  }
}

// Scalings are part of a checkpoint: on the same ranks the run goes on with the same bits.
TEST(Fp8, GoesOnAsIfItHadNeverStopped) {
  const TinyJob job;
  for (const int ranks : {1, 2}) {
    TinyOptions options{.ranks = ranks, .stage = 1, .precision = v1::PRECISION_FP8, .steps = 8};
    const v1::JobSpec spec = job.Spec(options);
    Snapshot half, whole;
    std::mutex mutex;
    RunRanks(spec, [&](int, TrainingSession& session) {
      ASSERT_EQ(session.InitializeParameters(), absl::OkStatus());
      while (session.step() < 4) ASSERT_TRUE(session.Step(false).ok());
      Save(session, half, mutex);
    });
    EXPECT_EQ(half.tensors[half.tensors.size() - 1].kind(), "scaling");
    const std::vector<double> uninterrupted = TrainFresh(spec);
    for (const int to : {ranks, 3 - ranks}) {
      options.ranks = to;
      std::vector<double> losses;
      RunRanks(job.Spec(options), [&](int rank, TrainingSession& session) {
        ASSERT_EQ(Restore(session, half), absl::OkStatus());
        while (session.step() < 8) {
          auto report = session.Step(false);
          ASSERT_TRUE(report.ok()) << report.status();
          if (rank == 0) losses.push_back(report->train_loss);
        }
      });
      const std::vector<double> rest(uninterrupted.begin() + 4, uninterrupted.end());
      if (to == ranks) {
        EXPECT_EQ(losses, rest);
      } else {
        EXPECT_LT(LargestRelativeDifference(losses, rest), 5e-3);
      }
    }
  }
}

// What waits in host memory, 8-bit codes among it, changes no bit.
TEST(Fp8, OffloadingChangesNoBit) {
  const TinyJob job;
  for (const bool llama : {false, true}) {
    for (const int ranks : {1, 2}) {
      TinyOptions options{.ranks = ranks, .stage = llama ? 3 : 1, .precision = v1::PRECISION_FP8};
      options.micro_batch = 4;
      options.global_batch = 8 * ranks;
      options.layers = 4;
      options.width = 64;
      options.steps = 3;
      options.llama = llama;
      v1::JobSpec spec = job.Spec(options);
      const Fp8Trace want = TrainFp8(spec);
      spec.mutable_train()->mutable_offload()->set_optimizer(v1::OFFLOAD_TARGET_HOST);
      EXPECT_EQ(TrainFp8(spec).losses, want.losses);
      spec.mutable_train()->mutable_offload()->set_activations(true);
      const Fp8Trace both = TrainFp8(spec);
      EXPECT_EQ(both.losses, want.losses);
      EXPECT_EQ(both.norms, want.norms);
    }
  }
}

// One token's embedding is no number, and of all samples one has the token.
Snapshot WithBadEmbedding(const v1::JobSpec& spec, int32_t token) {
  Snapshot begin;
  std::mutex mutex;
  RunRanks(spec, [&](int, TrainingSession& session) {
    ASSERT_EQ(session.InitializeParameters(), absl::OkStatus());
    Save(session, begin, mutex);
  });
  for (size_t i = 0; i < begin.tensors.size(); ++i) {
    const v1::TensorInfo& info = begin.tensors[i];
    if (info.name() != "model.embed_tokens.weight" || info.kind() != "master") continue;
    for (int64_t e = 0; e < info.shape(1); ++e) {
      const float bad = std::nanf("");
      std::memcpy(begin.data[i].at(token * info.shape(1) + e), &bad, sizeof bad);
    }
  }
  return begin;
}

std::vector<StepReport> GoOn(const v1::JobSpec& spec, const Snapshot& from, int64_t to,
                             Snapshot* end) {
  std::vector<StepReport> reports;
  std::mutex mutex;
  RunRanks(spec, [&](int, TrainingSession& session) {
    ASSERT_EQ(Restore(session, from), absl::OkStatus());
    while (session.step() < to) {
      auto report = session.Step(false);
      ASSERT_TRUE(report.ok()) << report.status();
      reports.push_back(*report);
    }
    Save(session, *end, mutex);
  });
  return reports;
}

// A skipped step leaves the scalings as they were, so that a run that is resumed after a first step
// that was skipped finds its scalings in the next one, as the run that goes on does.
TEST(Fp8, GoesOnAfterASkippedFirstStep) {
  const TinyJob job;
  constexpr int32_t kRare = TinyJob::kVocabulary - 1;
  v1::JobSpec spec =
      job.Spec({.precision = v1::PRECISION_FP8, .layers = 1, .steps = 3, .llama = true});
  spec.mutable_data()->set_train(job.path("rare.npy"));
  bool skipped = false;
  for (int64_t sample = 0; sample < 40 && !skipped; ++sample) {
    std::string tokens;
    for (int64_t i = 0; i < 40 * TinyJob::kContext + 1; ++i) {
      tokens += static_cast<char>((i * i + i / 7) % kRare);
    }
    tokens[sample * TinyJob::kContext + 3] = static_cast<char>(kRare);
    WriteNpy(job.path("rare.npy"), "|u1", absl::StrCat(tokens.size(), ","), tokens);
    const Snapshot begin = WithBadEmbedding(spec, kRare);
    Snapshot first, resumed_end, end;
    skipped = GoOn(spec, begin, 1, &first)[0].skipped;
    if (!skipped) continue;
    const std::vector<StepReport> whole = GoOn(spec, begin, 3, &end);
    const std::vector<StepReport> rest = GoOn(spec, first, 3, &resumed_end);
    ASSERT_EQ(rest.size(), 2U);
    for (int i = 0; i < 2; ++i) {
      EXPECT_FALSE(rest[i].skipped);
      EXPECT_EQ(rest[i].train_loss, whole[1 + i].train_loss);
      EXPECT_EQ(rest[i].grad_norm, whole[1 + i].grad_norm);
    }
    EXPECT_EQ(resumed_end.data.back(), end.data.back());  // the scalings
  }
  EXPECT_TRUE(skipped);
}

}  // namespace
}  // namespace milepost::runtime
