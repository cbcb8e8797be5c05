// For tests of meshes: a run on one is compared with that of one rank.
//
//   const Trained alone = Train(job.Spec(one_rank));
//   ExpectAlike(Train(job.Spec(mesh)), alone, /*tolerance=*/1e-5);
#ifndef MILEPOST_ENGINE_RUNTIME_TESTING_MESH_RUNS_H_
#define MILEPOST_ENGINE_RUNTIME_TESTING_MESH_RUNS_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/runtime/testing/snapshot.h"
#include "engine/runtime/testing/tiny_job.h"

namespace milepost::runtime {

// A model to be put on a mesh.
struct TinyFamily {
  std::string name;
  TinyOptions options;
};

struct Trained {
  std::vector<double> losses, norms;
  EvaluationReport evaluation;
  Snapshot snapshot;
};

// Until step `until`, from the begin or from a snapshot.
inline Trained TrainUntil(const v1::JobSpec& spec, int64_t until, const Snapshot* from = nullptr) {
  Trained trained;
  std::mutex mutex;
  RunRanks(spec, [&](int rank, TrainingSession& session) {
    ASSERT_EQ(from == nullptr ? session.InitializeParameters() : Restore(session, *from),
              absl::OkStatus());
    EXPECT_EQ(session.allocated_bytes(), session.plan().arena_bytes);
    while (session.step() < until) {
      auto report = session.Step(false);
      ASSERT_TRUE(report.ok()) << report.status();
      if (rank != 0) continue;
      trained.losses.push_back(report->train_loss);
      trained.norms.push_back(report->grad_norm);
    }
    auto evaluation = session.Evaluate();
    ASSERT_TRUE(evaluation.ok()) << evaluation.status();
    if (rank == 0) trained.evaluation = *std::move(evaluation);
    Save(session, trained.snapshot, mutex);
  });
  return trained;
}

inline Trained Train(const v1::JobSpec& spec, const Snapshot* from = nullptr) {
  return TrainUntil(spec, spec.train().steps(), from);
}

inline void ExpectAlike(const Trained& trained, const Trained& alone, double tolerance) {
  EXPECT_LT(LargestRelativeDifference(trained.losses, alone.losses), tolerance);
  if (tolerance > 1e-5) {
    // In fewer bits updates part the weights, and gradients show it long before losses. The first
    // norm is one of equal weights.
    EXPECT_NEAR(trained.norms.front(), alone.norms.front(), tolerance * alone.norms.front());
  } else {
    EXPECT_LT(LargestRelativeDifference(trained.norms, alone.norms), 10 * tolerance);
  }
  EXPECT_NEAR(trained.evaluation.loss, alone.evaluation.loss,
              tolerance * std::abs(alone.evaluation.loss));
  ASSERT_EQ(trained.evaluation.heads.size(), alone.evaluation.heads.size());
  for (size_t i = 0; i < alone.evaluation.heads.size(); ++i) {
    EXPECT_EQ(trained.evaluation.heads[i].targets, alone.evaluation.heads[i].targets);
    if (tolerance > 1e-5) continue;  // equal logits in fewer bits
    EXPECT_EQ(trained.evaluation.heads[i].accuracy, alone.evaluation.heads[i].accuracy);
  }
}

// What is saved at step 5 of `from` goes on at `to`, to 1e-5 of the losses of `whole`.
inline void ExpectGoesOn(const v1::JobSpec& to, const Snapshot& from, const Trained& whole) {
  const Trained rest = Train(to, &from);
  ASSERT_EQ(rest.losses.size(), 5);
  for (size_t i = 0; i < 5; ++i) {
    EXPECT_NEAR(rest.losses[i], whole.losses[5 + i], 1e-5 * whole.losses[5 + i]);
  }
}

// Twice, and from step 5 on.
inline void ExpectSameBits(const v1::JobSpec& spec) {
  const Trained once = Train(spec), again = Train(spec);
  EXPECT_EQ(once.losses, again.losses);
  EXPECT_TRUE(once.snapshot.data == again.snapshot.data);
  const Snapshot half = TrainUntil(spec, 5).snapshot;
  EXPECT_TRUE(Train(spec, &half).snapshot.data == once.snapshot.data);
}

// The same job with one step of SGD, as large as a gradient.
inline v1::JobSpec WithOneStepOfSgd(v1::JobSpec spec) {
  v1::TrainSpec& train = *spec.mutable_train();
  train.set_steps(1);
  train.clear_optimizer();
  train.mutable_optimizer()->set_type(v1::OptimizerSpec::TYPE_SGD);
  train.mutable_optimizer()->set_lr(1);
  train.mutable_schedule()->set_warmup_steps(0);
  NormalizeJobSpec(&spec);
  return spec;
}

// Of every parameter's step from `start`: within 1e-4 of the largest.
inline void ExpectSameStep(const Snapshot& start, const Snapshot& alone, const Snapshot& divided) {
  ASSERT_EQ(alone.data.size(), divided.data.size());
  for (size_t t = 0; t < alone.data.size(); ++t) {
    if (alone.tensors[t].kind() != "master") continue;
    SCOPED_TRACE(alone.tensors[t].name());
    double largest = 0, difference = 0;  // of the step
    for (size_t i = 0; i < alone.data[t].size(); ++i) {
      const double step = double{alone.data[t][i]} - start.data[t][i];
      largest = std::max(largest, std::abs(step));
      difference = std::max<double>(difference, std::abs(alone.data[t][i] - divided.data[t][i]));
    }
    EXPECT_GT(largest, 0);
    EXPECT_LE(difference, 1e-4 * largest + 1e-7);
  }
}

// Every rank whose peer goes comes back with an error, wherever it waits. Of stages: all of them.
inline void ExpectAPeerThatGoesFailsAll(const v1::JobSpec& spec) {
  const int ranks = spec.resources().ranks();
  for (int failing = 0; failing < ranks; ++failing) {
    std::vector<std::unique_ptr<comm::Communicator>> groups[3];
    for (auto& group : groups) group = comm::MakeInProcessGroup(ranks);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < ranks; ++rank) {
      threads.emplace_back([&, rank] {
        SessionOptions options;
        options.transfers = {groups[1][rank].get(), groups[2][rank].get()};
        auto session = TrainingSession::Create(spec, options, groups[0][rank].get());
        ASSERT_TRUE(session.ok()) << session.status();
        ASSERT_EQ((*session)->InitializeParameters(), absl::OkStatus());
        ASSERT_TRUE((*session)->Step(false).ok());
        if (rank == failing) {
          for (auto& group : groups) group[rank].reset();
          return;
        }
        const auto report = (*session)->Step(false);
        EXPECT_TRUE(comm::IsPeerLost(report.status())) << report.status();
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
}

}  // namespace milepost::runtime

#endif  // MILEPOST_ENGINE_RUNTIME_TESTING_MESH_RUNS_H_
