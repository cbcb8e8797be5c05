#include "worker/trainer/failure.h"

#include <gtest/gtest.h>

#include "common/error_details.h"

namespace milepost::worker {
namespace {

// The next attempt begins with another checkpoint, or with none.
TEST(Failure, ACheckpointThatHasGoneMeanwhileIsNoMistakeOfTheUsers) {
  for (const v1::ErrorReason reason :
       {v1::ERROR_REASON_CHECKPOINT_DELETED, v1::ERROR_REASON_CHECKPOINT_IN_USE}) {
    const TrainerExit exit = RestoreFailure(Refusal(reason, "checkpoints/1", "it is gone"));
    EXPECT_EQ(exit.failure_class, v1::FAILURE_CLASS_DATA) << v1::ErrorReason_Name(reason);
    EXPECT_EQ(exit.message, "it is gone");
  }
  EXPECT_EQ(RestoreFailure(absl::NotFoundError("gone")).failure_class, v1::FAILURE_CLASS_DATA);
  EXPECT_EQ(RestoreFailure(absl::FailedPreconditionError("another model")).failure_class,
            v1::FAILURE_CLASS_USER);
}

}  // namespace
}  // namespace milepost::worker
