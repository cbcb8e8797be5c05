// Training on image files, from the spec on: decoded by threads, cropped at random, one damaged.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <mutex>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/spec/validate.h"
#include "engine/runtime/testing/tiny_job.h"
#include "milepost/v1/job_spec.pb.h"

namespace milepost::runtime {
namespace {

class ImageFiles : public ::testing::Test {
 protected:
  ImageFiles() {
    std::string pattern = (std::filesystem::temp_directory_path() / "milepost-XXXXXX").string();
    folder_ = mkdtemp(pattern.data());
    const char* names[] = {"plain.jpg", "base.png", "full.jpg", "palette.png", "orientation6.jpg"};
    for (const char* set : {"train", "validation"}) {
      for (int i = 0; i < 15; ++i) {
        const std::string path = absl::StrCat(folder_, "/", set, "/class", i % 3);
        std::filesystem::create_directories(path);
        std::filesystem::copy(absl::StrCat("tests/golden/images/", names[i % 5]),
                              absl::StrCat(path, "/", i, ".jpg"));
      }
    }
  }
  ~ImageFiles() override { std::filesystem::remove_all(folder_); }

  v1::JobSpec Spec(int ranks, int decode_threads) const {
    v1::JobSpec spec;
    spec.set_name("files");
    v1::ResNetSpec* resnet = spec.mutable_model()->mutable_resnet();
    resnet->add_stages()->set_layers(1);
    resnet->set_classes(3);
    resnet->set_image_size(32);
    resnet->set_width(8);
    resnet->set_sync_statistics(true);
    v1::DataSpec* data = spec.mutable_data();
    data->set_train(folder_ + "/train");
    data->set_validation(folder_ + "/validation");
    data->mutable_images()->set_decode_threads(decode_threads);
    data->mutable_images()->set_on_corrupt(v1::ON_CORRUPT_SKIP);
    v1::TrainSpec* train = spec.mutable_train();
    train->set_steps(6);
    train->set_seed(5);
    train->set_precision(v1::PRECISION_FP32);
    train->mutable_batch()->set_global(8);
    train->mutable_batch()->set_micro(8 / ranks);
    train->mutable_validation()->set_samples(15);
    spec.mutable_resources()->set_ranks(ranks);
    NormalizeJobSpec(&spec);
    EXPECT_EQ(ValidateJobSpec(spec), absl::OkStatus());
    return spec;
  }

  struct Result {
    std::vector<double> losses;
    data::SourceStats data;
    EvaluationReport evaluation;
  };
  static Result Train(const v1::JobSpec& spec) {
    Result result;
    RunRanks(spec, [&](int rank, TrainingSession& session) {
      ASSERT_EQ(session.InitializeParameters(), absl::OkStatus());
      while (session.step() < spec.train().steps()) {
        const auto report = session.Step(false);
        ASSERT_TRUE(report.ok()) << report.status();
        if (rank != 0) continue;
        result.losses.push_back(report->train_loss);
        result.data = report->data;
      }
      const auto evaluation = session.Evaluate();
      ASSERT_TRUE(evaluation.ok()) << evaluation.status();
      if (rank == 0) result.evaluation = *evaluation;
    });
    return result;
  }

  std::string folder_;
};

TEST_F(ImageFiles, TheSameAtAnyNumberOfRanksAndThreads) {
  std::ofstream(folder_ + "/train/class1/4.jpg") << "damaged";
  const Result one = Train(Spec(1, 1));
  ASSERT_EQ(one.losses.size(), 6u);
  // 48 samples of 15 images, three epochs and more: the damaged one was met three times at least.
  EXPECT_GE(one.data.samples, 48);
  EXPECT_GE(one.data.damaged, 3);
  EXPECT_GT(one.data.bytes_read, 48 * 500);
  ASSERT_NE(one.data.first_damage, nullptr);
  EXPECT_NE(one.data.first_damage->find("class1/4.jpg: neither JPEG nor PNG"), std::string::npos);
  ASSERT_EQ(one.evaluation.heads.size(), 1u);
  EXPECT_EQ(one.evaluation.heads[0].targets, 15);
  EXPECT_EQ(Train(Spec(1, 4)).losses, one.losses);
  const Result two = Train(Spec(2, 3));
  ASSERT_EQ(two.losses.size(), 6u);
  for (size_t i = 0; i < 6; ++i) EXPECT_NEAR(two.losses[i], one.losses[i], 1e-5 * one.losses[i]);
}

TEST_F(ImageFiles, ADamagedFileFailsTheStepWithItsPath) {
  std::ofstream(folder_ + "/train/class0/0.jpg") << "damaged";
  v1::JobSpec spec = Spec(1, 2);
  spec.mutable_data()->mutable_images()->set_on_corrupt(v1::ON_CORRUPT_FAIL);
  RunRanks(spec, [&](int, TrainingSession& session) {
    ASSERT_EQ(session.InitializeParameters(), absl::OkStatus());
    absl::Status status;
    while (status.ok() && session.step() < spec.train().steps()) {
      status = session.Step(false).status();
    }
    EXPECT_EQ(status.message(),
              folder_ + "/train/class0/0.jpg: neither JPEG nor PNG, by its first bytes");
  });
}

}  // namespace
}  // namespace milepost::runtime
