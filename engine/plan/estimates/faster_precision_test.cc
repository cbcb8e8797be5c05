#include "engine/plan/estimates/faster_precision.h"

#include <gtest/gtest.h>

#include "common/spec/parse.h"
#include "common/spec/validate.h"

namespace milepost::plan {
namespace {

v1::JobSpec Spec(v1::Precision precision) {
  auto spec = ParseJobSpecYaml(R"(
name: a
model:
  gpt2: {layers: 4, width: 1024, heads: 8, context: 512, vocabulary: 1024}
data:
  train: /train.npy
train:
  steps: 10
  batch: {global: 8, micro: 8}
)",
                               "a.yaml");
  EXPECT_TRUE(spec.ok()) << spec.status();
  spec->mutable_train()->set_precision(precision);
  NormalizeJobSpec(&*spec);
  EXPECT_EQ(ValidateJobSpec(*spec), absl::OkStatus());
  return *spec;
}

TEST(FasterPrecision, IsWhatTheProductsRatesExplain) {
  DeviceProfile cpu = *BuiltInProfile("cpu");
  const auto bf16 = FindFasterPrecision(Spec(v1::PRECISION_FP32), cpu, 1);
  ASSERT_TRUE(bf16.has_value());
  EXPECT_EQ(bf16->precision, v1::PRECISION_BF16);
  EXPECT_GT(bf16->ratio, 1.5);
  EXPECT_LT(bf16->ratio, 2);  // 440 to 225, and not all of it is products
  EXPECT_FALSE(FindFasterPrecision(Spec(v1::PRECISION_BF16), cpu, 1).has_value());
  EXPECT_FALSE(FindFasterPrecision(Spec(v1::PRECISION_FP16), cpu, 1).has_value());
  cpu.matmul["BF16"] = cpu.matmul["F32"];
  cpu.memory_bandwidth = 1e15;  // so that only products count
  EXPECT_FALSE(FindFasterPrecision(Spec(v1::PRECISION_FP32), cpu, 1).has_value());
  cpu.matmul.erase("BF16");
  cpu.memory_bandwidth = 1;
  EXPECT_FALSE(FindFasterPrecision(Spec(v1::PRECISION_FP32), cpu, 1).has_value());
}

TEST(FasterPrecision, OnAGpuEightBitsWhereItHasThem) {
  v1::JobSpec spec = Spec(v1::PRECISION_FP32);
  spec.mutable_resources()->set_device(v1::DEVICE_KIND_CUDA);
  const auto a100 = FindFasterPrecision(spec, *BuiltInProfile("a100"), 1);
  ASSERT_TRUE(a100.has_value());
  EXPECT_EQ(a100->precision, v1::PRECISION_BF16);
  EXPECT_GT(a100->ratio, 3);
  EXPECT_FALSE(FindFasterPrecision(Spec(v1::PRECISION_FP8), *BuiltInProfile("h100"), 1));
}

}  // namespace
}  // namespace milepost::plan
