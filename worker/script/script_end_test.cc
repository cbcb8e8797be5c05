#include "worker/script/script_end.h"

#include <csignal>
#include <filesystem>
#include <fstream>
#include <string>

#include "common/exit_codes.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace milepost::worker {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

ExitResult Killed(int signal) { return {.signal = signal}; }

TEST(ExitOfScript, NoFailureWhereItEndedWell) {
  const TrainerExit exit = ExitOfScript({}, /*out_of_memory=*/true, "a cause");
  EXPECT_EQ(exit.code, kExitOk);
  EXPECT_THAT(exit.message, IsEmpty());
}

TEST(ExitOfScript, TellsTheKernelsKillFromSomeonesKill) {
  const TrainerExit kernel = ExitOfScript(Killed(SIGKILL), /*out_of_memory=*/true, "");
  EXPECT_EQ(kernel.code, kExitOutOfMemory);
  EXPECT_EQ(kernel.failure_class, v1::FAILURE_CLASS_OUT_OF_MEMORY);
  for (const int signal : {SIGKILL, SIGTERM}) {
    const TrainerExit exit = ExitOfScript(Killed(signal), /*out_of_memory=*/false, "a cause");
    EXPECT_EQ(exit.code, kExitError);
    EXPECT_EQ(exit.failure_class, v1::FAILURE_CLASS_SCRIPT);
    EXPECT_THAT(exit.message, HasSubstr("not by Milepost"));
    EXPECT_FALSE(exit.with_last_line);
  }
}

TEST(ExitOfScript, SaysWhatTheScriptSaysElseItsLastLine) {
  const TrainerExit said =
      ExitOfScript({.exit_code = 3}, /*out_of_memory=*/false, "no such column");
  EXPECT_THAT(said.message, HasSubstr(": no such column"));
  EXPECT_FALSE(said.with_last_line);
  const TrainerExit silent = ExitOfScript({.exit_code = 3}, /*out_of_memory=*/false, "");
  EXPECT_EQ(silent.failure_class, v1::FAILURE_CLASS_SCRIPT);
  EXPECT_TRUE(silent.with_last_line);
}

TEST(FirstCauseIn, ReadsTheFileIfThereIsOne) {
  const std::string path = testing::TempDir() + "script_end_error.json";
  std::filesystem::remove(path);
  EXPECT_THAT(FirstCauseIn(path), IsEmpty());
  std::ofstream(path) << R"({"message": {"message": "RuntimeError: no"}})";
  EXPECT_THAT(FirstCauseIn(path), HasSubstr("RuntimeError: no"));
}

}  // namespace
}  // namespace milepost::worker
