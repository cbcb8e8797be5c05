#include "common/spec/sizes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace milepost {
namespace {

using ::testing::ElementsAre;

v1::JobSpec Spec(int64_t global, int64_t micro, int ranks) {
  v1::JobSpec spec;
  spec.mutable_train()->mutable_batch()->set_global(global);
  spec.mutable_train()->mutable_batch()->set_micro(micro);
  spec.mutable_train()->mutable_batch()->set_accumulation(global / micro / ranks);
  spec.mutable_resources()->set_ranks(ranks);
  return spec;
}

TEST(SizesTest, AJobWithoutBoundsHasOneSize) {
  EXPECT_THAT(PossibleSizes(Spec(24, 2, 4)), ElementsAre(4));
  EXPECT_THAT(PossibleSizes(v1::JobSpec()), ElementsAre(1));
  EXPECT_EQ(LeastRanks(Spec(24, 2, 4).resources()), 4);
}

TEST(SizesTest, SizesDivideTheBatchAndHoldWholeGroups) {
  v1::JobSpec spec = Spec(24, 2, 4);
  spec.mutable_resources()->set_min_ranks(1);
  spec.mutable_resources()->set_max_ranks(12);
  EXPECT_THAT(PossibleSizes(spec), ElementsAre(1, 2, 3, 4, 6, 12));
  spec.mutable_train()->mutable_zero()->set_group(2);
  EXPECT_THAT(PossibleSizes(spec), ElementsAre(2, 4, 6, 12));
  spec.mutable_resources()->clear_max_ranks();
  EXPECT_THAT(PossibleSizes(spec), ElementsAre(2, 4));
  spec.mutable_train()->mutable_batch()->set_micro(-1);  // auto
  spec.mutable_train()->mutable_zero()->set_group(0);
  EXPECT_THAT(PossibleSizes(spec), ElementsAre(1, 2, 3, 4));
}

TEST(SizesTest, TensorRanksShareTheirSamples) {
  v1::JobSpec spec = Spec(24, 2, 4);
  spec.mutable_resources()->mutable_mesh()->set_tensor(2);
  EXPECT_EQ(DataRanks(spec.resources()), 2);
  spec.mutable_resources()->set_min_ranks(1);
  spec.mutable_resources()->set_max_ranks(12);
  EXPECT_THAT(PossibleSizes(spec), ElementsAre(2, 4, 6, 8, 12));
  EXPECT_EQ(WithRanks(spec, 8).train().batch().accumulation(), 3);
}

TEST(SizesTest, TheGlobalBatchStays) {
  const v1::JobSpec spec = WithRanks(Spec(24, 2, 4), 3);
  EXPECT_EQ(spec.resources().ranks(), 3);
  EXPECT_EQ(spec.train().batch().global(), 24);
  EXPECT_EQ(spec.train().batch().micro(), 2);
  EXPECT_EQ(spec.train().batch().accumulation(), 4);
}

}  // namespace
}  // namespace milepost
