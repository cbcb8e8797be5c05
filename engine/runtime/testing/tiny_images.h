// For tests: a tiny ResNet, or a tiny ViT, on images of its own.
//
//   TinyImages job;                               // a folder of its own, removed with it
//   v1::JobSpec spec = job.Spec({.ranks = 2, .stage = 1});
//   RunRanks(spec, ...);                          // tiny_job.h
#ifndef MILEPOST_ENGINE_RUNTIME_TESTING_TINY_IMAGES_H_
#define MILEPOST_ENGINE_RUNTIME_TESTING_TINY_IMAGES_H_

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/philox.h"
#include "common/spec/validate.h"
#include "engine/runtime/testing/npy.h"
#include "milepost/v1/job_spec.pb.h"

namespace milepost::runtime {

struct TinyImageOptions {
  int ranks = 1;
  int stage = 1;
  int group = 0;
  v1::Recompute recompute = v1::RECOMPUTE_NONE;
  v1::Precision precision = v1::PRECISION_FP32;
  int64_t global_batch = 24;
  int64_t micro_batch = 12;
  bool bottleneck = true;
  bool sync = true;
  int64_t steps = 10;
  double lr = 3e-3;
  bool heads = false;  // a second one, "shade"
  bool vit = false;    // instead of ResNet
  double dropout = 0;  // ViT
  int64_t lora = 0;    // ViT: the adapters' rank; their weights come from nowhere (init_from)
};

class TinyImages {
 public:
  static constexpr int64_t kClasses = 5;
  static constexpr int64_t kSize = 32;

  TinyImages() {
    std::string pattern = (std::filesystem::temp_directory_path() / "milepost-XXXXXX").string();
    folder_ = mkdtemp(pattern.data());
    Write("train", 60, 1);
    Write("validation", 11, 2);
  }
  ~TinyImages() { std::filesystem::remove_all(folder_); }
  TinyImages(const TinyImages&) = delete;
  TinyImages& operator=(const TinyImages&) = delete;

  std::string path(const std::string& name) const { return folder_ + "/" + name; }

  v1::JobSpec Spec(const TinyImageOptions& options) const {
    v1::JobSpec spec;
    spec.set_name("tiny");
    if (options.vit) {
      *spec.mutable_model()->mutable_vit() = Vit(options);
    } else {
      *spec.mutable_model()->mutable_resnet() = ResNet(options);
    }
    if (options.lora > 0) {
      spec.mutable_model()->mutable_lora()->set_rank(options.lora);
      spec.mutable_train()->set_init_from(folder_);  // not read here
    }
    if (options.heads) AddHead(spec);
    spec.mutable_data()->set_train(path("train.npy"));
    spec.mutable_data()->set_validation(path("validation.npy"));
    v1::TrainSpec* train = spec.mutable_train();
    train->set_steps(options.steps);
    train->set_seed(7);
    train->set_precision(options.precision);
    train->set_recompute(options.recompute);
    train->mutable_batch()->set_global(options.global_batch);
    train->mutable_batch()->set_micro(options.micro_batch);
    train->mutable_zero()->set_stage(options.stage);
    train->mutable_zero()->set_group(options.group);
    train->mutable_optimizer()->set_lr(options.lr);
    train->mutable_validation()->set_samples(11);
    spec.mutable_resources()->set_ranks(options.ranks);
    NormalizeJobSpec(&spec);
    EXPECT_EQ(ValidateJobSpec(spec), absl::OkStatus());
    return spec;
  }

 private:
  static v1::ResNetSpec ResNet(const TinyImageOptions& options) {
    v1::ResNetSpec resnet;
    for (int64_t layers : {1, 2}) resnet.add_stages()->set_layers(layers);
    resnet.set_bottleneck(options.bottleneck);
    resnet.set_classes(kClasses);
    resnet.set_image_size(kSize);
    resnet.set_width(8);
    resnet.set_label_smoothing(0.1);
    resnet.set_sync_statistics(options.sync);
    return resnet;
  }

  // Rows of 17 tokens; widths are multiples of 16, as fp8 wants them.
  static v1::VitSpec Vit(const TinyImageOptions& options) {
    v1::VitSpec vit;
    vit.set_layers(2);
    vit.set_width(32);
    vit.set_heads(2);
    vit.set_hidden(48);
    vit.set_classes(kClasses);
    vit.set_image_size(kSize);
    vit.set_patch_size(8);
    vit.set_dropout(options.dropout);
    vit.set_label_smoothing(0.1);
    return vit;
  }

  void AddHead(v1::JobSpec& spec) const {
    spec.mutable_model()->set_head_weight(0.75);
    v1::TaskHeadSpec& head = *spec.mutable_model()->add_heads();
    head.set_name("shade");
    head.set_classes(3);
    head.set_weight(1.5);
    v1::LabelSource& labels = *spec.mutable_data()->add_labels();
    labels.set_head("shade");
    labels.set_train(path("train.shade.npy"));
    labels.set_validation(path("validation.shade.npy"));
  }

  // Noise with a stripe whose direction and colour tell the class, so that a loss falls.
  void Write(const std::string& name, int64_t images, uint64_t seed) const {
    std::string pixels, labels, shades;
    for (int64_t n = 0; n < images; ++n) {
      const auto at = [&](int64_t i) {
        return Philox4x32({static_cast<uint32_t>(i), static_cast<uint32_t>(n), 0, 0},
                          PhiloxKey(seed, 1))[0];
      };
      const auto label = static_cast<int32_t>(at(-1) % kClasses);
      labels.append(reinterpret_cast<const char*>(&label), sizeof(label));
      shades.push_back(static_cast<char>(n % 7 == 3 ? -1 : label % 3));
      for (int64_t i = 0; i < kSize * kSize * 3; ++i) {
        const int64_t y = i / 3 / kSize, x = i / 3 % kSize;
        const bool stripe = (y * (label % 2) + x * (1 - label % 2)) % 4 < 2 && i % 3 == label % 3;
        pixels.push_back(static_cast<char>(at(i) % 128 + (stripe ? 100 : 0)));
      }
    }
    WriteNpy(path(name + ".npy"), "|u1", absl::StrCat(images, ", ", kSize, ", ", kSize, ", 3"),
             pixels);
    WriteNpy(path(name + ".labels.npy"), "<i4", absl::StrCat(images, ","), labels);
    WriteNpy(path(name + ".shade.npy"), "|i1", absl::StrCat(images, ","), shades);
  }

  std::string folder_;
};

}  // namespace milepost::runtime

#endif  // MILEPOST_ENGINE_RUNTIME_TESTING_TINY_IMAGES_H_
