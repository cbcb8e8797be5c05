#include "engine/plan/estimates/device_profile.h"

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace milepost::plan {
namespace {

using testing::HasSubstr;

constexpr char kJson[] = R"({"name": "box", "matmul": {"F32": {"achieved": 1e11, "attention": 0.3,
  "product_half": 20, "attention_half": 90, "accumulate_half": 30}},
  "memory_bandwidth": 2e10, "threads": 2})";

TEST(DeviceProfile, BuiltInOnesAreWhole) {
  ASSERT_EQ(BuiltInProfileNames().size(), 6u);
  for (const std::string& name : BuiltInProfileNames()) {
    const auto profile = BuiltInProfile(name);
    ASSERT_TRUE(profile.ok()) << profile.status();
    EXPECT_EQ(profile->name, name);
    EXPECT_FALSE(profile->source.empty());
    EXPECT_GT(profile->host_bandwidth, profile->network_bandwidth);
    EXPECT_GT(profile->memory_bandwidth, 0);
    for (const char* dtype : {"F32", "BF16", "F16"}) {
      ASSERT_TRUE(profile->matmul.contains(dtype)) << name << " " << dtype;
      EXPECT_GT(profile->matmul.at(dtype).achieved, 0);
      EXPECT_LE(profile->matmul.at(dtype).achieved, profile->matmul.at(dtype).peak);
    }
    EXPECT_EQ(profile->memory_bytes == 0, name == "cpu");
  }
  const DeviceProfile h200 = *BuiltInProfile("h200");
  EXPECT_NEAR(RateOf(h200, DType::kBf16).achieved, 675e12, 1e12);  // measured, in steps
  EXPECT_DOUBLE_EQ(h200.memory_bandwidth, 4.3e12);
  EXPECT_GT(UsableBytes(h200), int64_t{137} << 30);
}

TEST(DeviceProfile, AnUnknownNameIsExplained) {
  EXPECT_THAT(BuiltInProfile("h20").status().message(),
              AllOf(HasSubstr("did you mean 'h200'"), HasSubstr("a100, b200, cpu, h100")));
}

TEST(DeviceProfile, JsonComesBackTheSame) {
  for (const std::string& name : BuiltInProfileNames()) {
    const DeviceProfile profile = *BuiltInProfile(name);
    const auto back = ParseProfile(ProfileJson(profile), "f.json");
    ASSERT_TRUE(back.ok()) << back.status();
    EXPECT_EQ(ProfileJson(*back), ProfileJson(profile));
  }
}

TEST(DeviceProfile, ReadsTheLeastAndScalesWithThreads) {
  const auto profile = ParseProfile(kJson, "box.json");
  ASSERT_TRUE(profile.ok()) << profile.status();
  EXPECT_DOUBLE_EQ(profile->matmul.at("F32").peak, 1e11);
  EXPECT_EQ(profile->overlap, 1);
  const DeviceProfile one = ForThreads(*profile, 1);
  EXPECT_DOUBLE_EQ(RateOf(one, DType::kF32).achieved, 5e10);
  EXPECT_DOUBLE_EQ(RateOf(one, DType::kBf16).achieved, 5e10);  // not said: that of F32
  EXPECT_DOUBLE_EQ(RateOf(one, DType::kF32).attention, 0.3);
  EXPECT_DOUBLE_EQ(RateOf(one, DType::kF32).product_half, 20);
  EXPECT_DOUBLE_EQ(RateOf(one, DType::kF32).attention_half, 90);
  EXPECT_DOUBLE_EQ(RateOf(one, DType::kF32).accumulate_half, 30);
  EXPECT_EQ(ProfileJson(*ParseProfile(ProfileJson(*profile), "f.json")), ProfileJson(*profile));
  EXPECT_DOUBLE_EQ(one.memory_bandwidth, 1e10);
  const DeviceProfile h200 = *BuiltInProfile("h200");
  EXPECT_EQ(ProfileJson(ForThreads(h200, 7)), ProfileJson(h200));
}

TEST(DeviceProfile, RanksOfAHostShareItsNetwork) {
  const DeviceProfile h100 = *BuiltInProfile("h100");
  EXPECT_EQ(ProfileJson(OnHosts(h100, 0, 0)), ProfileJson(h100));
  EXPECT_DOUBLE_EQ(OnHosts(h100, 0, 3200).network_bandwidth, 0.8 * 50e9);  // 400 Gb/s each
  EXPECT_DOUBLE_EQ(OnHosts(h100, 0, 100).network_bandwidth, 0.8 * 100e9 / 8 / 8);
  const DeviceProfile four = OnHosts(h100, 4, 400);
  EXPECT_EQ(four.ranks_per_host, 4);
  EXPECT_DOUBLE_EQ(four.network_bandwidth, 0.8 * 50e9 / 4);
  EXPECT_DOUBLE_EQ(four.host_bandwidth, h100.host_bandwidth);
}

TEST(DeviceProfile, BadJsonNamesFileAndField) {
  const auto error = [](const std::string& json) {
    const auto profile = ParseProfile(json, "f.json");
    EXPECT_FALSE(profile.ok()) << json;
    return std::string(profile.status().message());
  };
  EXPECT_THAT(error("{"), HasSubstr("f.json: not a device profile"));
  EXPECT_THAT(error("[]"), HasSubstr("not a device profile"));
  EXPECT_THAT(error("{}"), HasSubstr("f.json: name: required"));
  EXPECT_THAT(error(R"({"name": "x"})"), HasSubstr("matmul: expected"));
  EXPECT_THAT(error(R"({"name": "x", "matmul": {"BF16": {"achieved": 1}}})"),
              HasSubstr("matmul: expected"));
  EXPECT_THAT(error(R"({"name": "x", "matmul": {"F32": {"achieved": -1}}})"),
              HasSubstr("matmul.F32.achieved: expected a number from 1"));
  EXPECT_THAT(error(R"({"name": "x", "matmul": {"F32": {"achieved": 1, "attention": 2}}})"),
              HasSubstr("matmul.F32.attention: expected a number from 0.001 to 1"));
  EXPECT_THAT(error(R"({"name": "x", "matmul": {"F32": {"achieved": 1}}})"),
              HasSubstr("memory_bandwidth: required"));
  EXPECT_THAT(
      error(R"({"name": "x", "matmul": {"F32": {"achieved": 1}}, "memory_bandwidth": "a"})"),
      HasSubstr("memory_bandwidth: expected a number"));
  EXPECT_THAT(error(R"({"name": "x", "matmul": {"F32": {"achieved": 1}}, "memory_bandwidth": 1,
                       "overlpa": 0})"),
              HasSubstr("overlpa: unknown field; did you mean 'overlap'"));
}

}  // namespace
}  // namespace milepost::plan
