#include "worker/container/container_control.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/clock.h"

#ifndef MILEPOST_CONTAINER_INIT
#define MILEPOST_CONTAINER_INIT ""  // the build says where it is
#endif

namespace milepost::worker {
namespace {

namespace fs = std::filesystem;

TEST(ReportTest, SaysHowTheCommandEnded) {
  EXPECT_EQ(ParseReport("").kind, CommandEnd::kNotTried);
  EXPECT_EQ(ParseReport("started\n").kind, CommandEnd::kStarted);
  EXPECT_EQ(ParseReport("started\nexit 137\n").kind, CommandEnd::kEnded);
  EXPECT_EQ(ParseReport("started\nexit 137\n").result.exit_code, 137);
  EXPECT_EQ(ParseReport("started\nsignal 9\n").result.signal, 9);
  EXPECT_EQ(ParseReport("cannot start 2\n").kind, CommandEnd::kCannotStart);
  EXPECT_EQ(ParseReport("cannot start 2\n").error, 2);
  for (const char* garbage : {"exit", "exit x", "exit -1", "signal 99999999999", "\xff\n\0"}) {
    EXPECT_EQ(ParseReport(garbage).kind, CommandEnd::kNotTried) << garbage;
  }
}

// The program itself, without a container.
class ContainerInitTest : public testing::Test {
 protected:
  ContainerInitTest() {
    std::string path = testing::TempDir() + "container_init_XXXXXX";
    folder_ = mkdtemp(path.data());
    auto control = ContainerControl::Make(folder_);
    EXPECT_TRUE(control.ok()) << control.status();
    if (control.ok()) control_.emplace(*std::move(control));
  }
  ~ContainerInitTest() override { fs::remove_all(folder_); }

  Subprocess Start(const std::vector<std::string>& command) const {
    SpawnOptions spawn;
    spawn.argv = {MILEPOST_CONTAINER_INIT, control_->folder()};
    spawn.argv.insert(spawn.argv.end(), command.begin(), command.end());
    spawn.folder = folder_;
    return *Subprocess::Spawn(std::move(spawn));
  }
  static ExitResult EndOf(Subprocess& init) {
    const auto end = init.Wait(absl::Now() + absl::Minutes(1));
    EXPECT_TRUE(end.ok()) << end.status();
    return end.value_or(ExitResult());
  }
  CommandEnd EndOf(const std::vector<std::string>& command) const {
    Subprocess init = Start(command);
    EndOf(init);
    return control_->End();
  }
  void Await(const std::string& name) const {
    const absl::Time give_up = absl::Now() + absl::Minutes(1);
    while (!fs::exists(folder_ + "/" + name) && absl::Now() < give_up) {
      absl::SleepFor(absl::Milliseconds(2));
    }
    ASSERT_TRUE(fs::exists(folder_ + "/" + name));
  }

  std::string folder_;
  std::optional<ContainerControl> control_;
};

TEST_F(ContainerInitTest, TellsCodesFromSignals) {
  EXPECT_EQ(EndOf({"sh", "-c", "exit 137"}).result.exit_code, 137);
  EXPECT_EQ(EndOf({"sh", "-c", "kill -9 $$"}).result.signal, SIGKILL);
  EXPECT_TRUE(EndOf({"true"}).result.success());
}

TEST_F(ContainerInitTest, TellsWhyACommandCannotBeStarted) {
  CommandEnd end = EndOf({"no-such-program"});
  EXPECT_EQ(end.kind, CommandEnd::kCannotStart);
  EXPECT_EQ(end.error, ENOENT);
  std::ofstream(folder_ + "/no-program") << "text";
  end = EndOf({"./no-program"});
  EXPECT_EQ(end.kind, CommandEnd::kCannotStart);
  EXPECT_EQ(end.error, EACCES);
}

TEST_F(ContainerInitTest, PassesSignalsOnAlsoThoseFromBefore) {
  control_->Signal(SIGTERM);
  EXPECT_EQ(EndOf({"sleep", "1000"}).result.signal, SIGTERM);
  Subprocess init =
      Start({"sh", "-c", "trap 'exit 5' TERM; touch ready; while :; do sleep 0.01; done"});
  Await("ready");
  control_->Signal(SIGTERM);
  EXPECT_EQ(EndOf(init).exit_code, 5);
  EXPECT_EQ(control_->End().result.exit_code, 5);
}

TEST_F(ContainerInitTest, EndsWithItsTrainer) {
  Subprocess init = Start({"sh", "-c", "echo $$ > pid; touch ready; exec sleep 1000"});
  Await("ready");
  int pid = 0;
  std::ifstream(folder_ + "/pid") >> pid;
  ASSERT_GT(pid, 1);
  control_->Kill();
  EXPECT_EQ(EndOf(init).exit_code, 128 + SIGKILL);
  EXPECT_EQ(control_->End().kind, CommandEnd::kStarted) << "nobody saw it end";
  const absl::Time give_up = absl::Now() + absl::Minutes(1);
  while (kill(pid, 0) == 0 && absl::Now() < give_up) absl::SleepFor(absl::Milliseconds(2));
  EXPECT_NE(kill(pid, 0), 0);
  // Nor does it begin when the trainer has gone already.
  Subprocess late = Start({"sleep", "1000"});
  EXPECT_EQ(EndOf(late).exit_code, 128 + SIGKILL);
}

TEST_F(ContainerInitTest, ThePidIsWhatPodmanWrote) {
  EXPECT_EQ(control_->pid(), 0);
  std::ofstream(control_->pid_file()) << "4242";
  EXPECT_EQ(control_->pid(), 4242);
  std::ofstream(control_->pid_file()) << "1";
  EXPECT_EQ(control_->pid(), 0) << "every process of the host is below that one";
}

}  // namespace
}  // namespace milepost::worker
